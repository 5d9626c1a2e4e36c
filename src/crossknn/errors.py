"""One family of errors: each says what was wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class CrossknnError(Exception):
    """Base of every error raised on purpose; the command line prints it as one sentence."""

    exit_code = 1


class InputError(CrossknnError, ValueError):
    """An argument, a file or a record is not usable as given."""

    exit_code = 2


class SpecError(InputError):
    """A spec cannot be parsed, or names an unknown method, retriever or option."""


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


class TrainingError(CrossknnError):
    """The loss of a training, or the error of a fit, has become NaN or infinite."""


class MissingExtraError(CrossknnError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it.

    Args:
        what: What needs it.
        extra: The name of the extra in `pip install 'crossknn[extra]'`.
    """

    exit_code = 5

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: run  pip install 'crossknn[{extra}]'")


@contextmanager
def needs_extra(what: str, extra: str = "torch") -> Iterator[None]:
    """Turns a missing import inside into the error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(what, extra) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the known names nearest to `name`, or all of them if none is near."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + ", ".join(names)


def counted(number: int, noun: str) -> str:
    """A number of things, for a message; the noun is given in the singular.

    >>> counted(1, "query"), counted(2000, "query"), counted(0, "call")
    ('1 query', '2,000 queries', '0 calls')
    """
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def visible(text: str) -> str:
    """Control characters shown as escapes: a text never moves a terminal's cursor.

    >>> visible("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
