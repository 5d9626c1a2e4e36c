"""The errors of crossknn: each message says what was wrong, where, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

TRAIN = "crossknn-train"
"""Name of the package that trains and exports models (`train/`)."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class CrossknnError(Exception):
    """Base of every error raised on purpose; the command line prints it as one sentence."""

    exit_code = 1

    def __str__(self) -> str:
        """The message in one line, since quoted input may have several lines."""
        return " ".join(map(str.strip, super().__str__().splitlines()))


class InputError(CrossknnError, ValueError):
    """An argument, a file or a record is not usable as given."""

    exit_code = 2


class SpecError(InputError):
    """A specification cannot be parsed, or names an unknown method, retriever or option."""


class IndexFormatError(CrossknnError):
    """A folder is not a readable index, or was built with other models."""

    exit_code = 6


class ScorerError(CrossknnError):
    """The cross-encoder failed, or returned something that is not a score.

    `query` is the position of the query at fault, or None if that is not known.
    """

    exit_code = 4
    query: int | None = None


class StoreError(CrossknnError):
    """The database that holds the vectors or texts of an index failed, or cannot be reached."""

    exit_code = 4


class AddressError(CrossknnError):
    """A service cannot listen on its address."""

    exit_code = 7


class TrainingError(CrossknnError):
    """The loss of a training, or the error of a fit, has become NaN or infinite."""


class MissingExtraError(CrossknnError, ImportError):
    """An optional dependency is not installed: `what` needs `pip install 'crossknn[extra]'`, or
    the package crossknn-train if `extra` is `TRAIN`."""

    exit_code = 5

    def __init__(self, what: str, extra: str) -> None:
        if extra == TRAIN:
            super().__init__(f"{what} needs another package: run  pip install {TRAIN}")
        else:
            super().__init__(f"{what} needs an extra: run  pip install 'crossknn[{extra}]'")


@contextmanager
def needs_extra(what: str, extra: str = "torch") -> Iterator[None]:
    """Turn an ImportError into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(what, extra) from error


def scorer_failure(error: Exception) -> ScorerError:
    """Wrap an error raised by a scorer's own code, with the first line of its message."""
    failure = ScorerError(f"the scorer failed: {type(error).__name__}: {first_line(error)}")
    failure.__cause__ = error
    return failure


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    text = str(error).strip()
    if "trust_remote_code" in text:  # advice of a library that refuses a folder with Python code
        return "it needs Python code from its own folder, which crossknn never runs"
    return text.splitlines()[0] if text else type(error).__name__


def nearest(name: str, names: Iterable[str]) -> str:
    """Make a hint for an unknown `name`: the most similar `names`, or all if none is similar."""
    names = sorted(names)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(names)


def counted(number: int, noun: str) -> str:
    """Format a number of things for a message; the noun is given in the singular.

    >>> counted(1, "query"), counted(2000, "query"), counted(0, "call")
    ('1 query', '2,000 queries', '0 calls')
    """
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def visible(text: str) -> str:
    """Escape control characters, so that a text cannot control the terminal.

    >>> visible("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def wrong_field(errors: Sequence[Mapping[str, Any]], given: object) -> tuple[str, str]:
    """The wrong field of a `given` object, and a sentence about it, from pydantic's errors. If a
    field may have several types, the deepest error belongs to the intended one; if none fits, all
    are named.

    >>> error = {"type": "int_type", "loc": ("k", "constrained-int"), "input": "5"}
    >>> wrong_field([error | {"msg": "Input should be a valid integer"}], {"k": "5"})
    ('k', 'k must be a valid integer, not "5"')
    """
    places = [_place(error, given) for error in errors]
    deepest = max(places, key=len)
    where = ".".join(map(_shown, deepest)) if deepest else "the body"
    pairs = zip(errors, places, strict=True)
    own = [error for error, place in pairs if place == deepest]
    own = [error for error in own if not error["type"].endswith("_type")][:1] or own
    wanted = dict[str, None]()
    for error in own:
        before, _, after = str(error["msg"]).partition("Input should be ")
        if before:  # not about the type or size of the value
            return where, f"{where}: {before.removeprefix('Value error, ')}"
        wanted["an object" if error["type"] in ("dict_type", "model_type") else after] = None
    value = json.dumps(own[0].get("input"), default=str)
    value = value if len(value) <= 60 else f"{value[:57]}..."
    return where, f"{where} must be {' or '.join(wanted)}, not {value}"


def _shown(field: int | str) -> str:
    name = str(field)  # other names are quoted and cut
    return name if re.fullmatch(r"[\w-]{1,80}", name) else json.dumps(name[:80])


def _place(error: Mapping[str, Any], given: object) -> tuple[int | str, ...]:
    """Return the fields that lead to an error, without the names of types between them."""
    place, here = list[int | str](), given
    for name in error["loc"]:
        if (isinstance(here, Mapping) and name in here) or (
            isinstance(here, list) and isinstance(name, int) and name < len(here)
        ):
            here = here[name]
            place.append(name)
    return (*place, *error["loc"][-1:]) if error["type"] == "missing" else tuple(place)
