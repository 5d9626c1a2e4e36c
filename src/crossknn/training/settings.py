"""The settings of a training run: frozen values, read from a TOML file with every name checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from crossknn.errors import InputError, nearest

T = TypeVar("T")
_MODELS = ("encoder", "teacher")  # hub names, or folders relative to the settings file
NegativesKind = Literal["random", "tfidf", "dual-encoder"]


def _at_least(section: str, settings: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise InputError(f"{section}: {name} is {value}; it must be {least} or more")


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What to train on: folders that `read_labelled` takes.

    folder: one, or several that train together, relative to the settings file. dev_folder: where
    the dev queries are, if elsewhere. train, dev: splits. train_domains, dev_domains: of the ZESHEL
    folders, in place of the splits. train_queries, dev_queries: a random sample of so many. If dev
    is the same as train, the dev queries are held out of it.
    """

    folder: Path | tuple[Path, ...]
    dev_folder: Path | tuple[Path, ...] | None = None
    train: str = "train"
    dev: str = "valid"
    train_domains: tuple[str, ...] | None = None
    dev_domains: tuple[str, ...] | None = None
    train_queries: int | None = None
    dev_queries: int | None = 500

    def __post_init__(self) -> None:
        for name in ("folder", "dev_folder"):
            if getattr(self, name) == ():
                raise InputError(f"data: {name} is an empty list; it must name a folder")
        _at_least("data", self, 1, "train_queries", "dev_queries")
        if self.same_split and self.dev_queries is None:
            raise InputError(
                "data: dev_queries must say how many train queries to hold out for dev"
            )

    @property
    def train_folders(self) -> tuple[Path, ...]:
        return _several(self.folder)

    @property
    def same_split(self) -> bool:
        """Whether the dev queries are to be held out of the train queries."""
        return (self.train, self.train_domains, self.train_folders) == (
            self.dev,
            self.dev_domains,
            self.dev_folders,
        )

    @property
    def dev_folders(self) -> tuple[Path, ...]:
        return _several(self.folder if self.dev_folder is None else self.dev_folder)


@dataclass(frozen=True, kw_only=True)
class NegativesSettings:
    """Where wrong items come from.

    kind: "random", "tfidf" or "dual-encoder". count: per query in a step (63 in ANNCUR, A.1).
    depth: how many of the nearest wrong items they are drawn from. encoder: the dual encoder that
    ranks them (a folder, a hub name or "bundled"); training a dual encoder, its own is used. skip:
    leave out so many of the nearest, where labels are incomplete. dev_candidates: how many items
    (from the dual encoder, or from TF-IDF if there is none) a checkpoint ranks for each dev query.
    """

    kind: NegativesKind = "dual-encoder"
    count: int = 63
    depth: int = 64
    skip: int = 0
    encoder: str | None = None
    dev_candidates: int = 64

    def __post_init__(self) -> None:
        _at_least("negatives", self, 0, "skip")
        _at_least("negatives", self, 1, "dev_candidates")
        if self.count < 1 or self.depth < self.count:
            raise InputError(
                f"negatives: count is {self.count} and depth {self.depth}; count must be 1 or "
                "more, and depth at least count"
            )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to descend.

    epochs, or steps if given. batch: queries in a step. accumulate: passes a step is split into.
    learning_rate rises over the first `warmup` share of the steps and falls to zero. evaluations:
    per epoch; the checkpoint best on dev is kept. precision: "auto" is bfloat16 where the hardware
    computes in it. dropout: of all layers (None: the encoder's own); 0 learns faster where a run
    sees its queries once. threads: of the CPU (all by default). device: "auto" is a GPU if there is
    one.
    """

    epochs: int = 4
    steps: int | None = None
    batch: int = 4
    accumulate: int = 1
    learning_rate: float = 1e-5
    warmup: float = 0.01
    weight_decay: float = 0.01
    clip: float = 1.0
    evaluations: int = 5
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    dropout: float | None = None
    device: str = "auto"
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole = ("epochs", "steps", "batch", "accumulate", "evaluations", "threads")
        _at_least("training", self, 1, *whole)
        _at_least("training", self, 0, "seed")
        if self.batch % self.accumulate:
            raise InputError(
                f"training: accumulate is {self.accumulate}, which does not divide the batch of "
                f"{self.batch}"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InputError(f"training: dropout is {self.dropout}; it must be from 0 to below 1")
        if not 0 <= self.warmup < 1 or self.learning_rate <= 0:
            raise InputError(
                "training: warmup must be from 0 to below 1, and learning_rate above 0"
            )


@dataclass(frozen=True, kw_only=True)
class CrossEncoderSettings:
    """Training a cross-encoder. `encoder` is what to start from, `model` what to build on it."""

    encoder: str
    data: DataSettings
    model: Mapping[str, Any] = field(default_factory=dict)
    negatives: NegativesSettings = NegativesSettings()
    training: TrainingSettings = TrainingSettings()


@dataclass(frozen=True, kw_only=True)
class DualEncoderSettings:
    """Training a dual encoder. `encoder` is what to start from, `model` what to build on it.

    teacher: a dual encoder (a folder, a hub name or "bundled") whose vectors and similarities are
    learned beside the labels, with teacher_weight (`losses.distance_to_teacher`).
    """

    encoder: str
    data: DataSettings
    teacher: str | None = None
    teacher_weight: float = 1.0
    model: Mapping[str, Any] = field(default_factory=dict)
    negatives: NegativesSettings = NegativesSettings(count=1, depth=16)
    training: TrainingSettings = TrainingSettings(batch=8)

    def __post_init__(self) -> None:
        if self.teacher_weight < 0:
            raise InputError(f"teacher_weight is {self.teacher_weight}; it must be 0 or more")


def read_settings(path: str | Path, kind: type[T], *, relative_to: Path | None = None) -> T:
    """Settings of `kind` from a TOML file, sections as fields, folders relative to the file.

    `relative_to` is another folder that they are relative to.

    Raises InputError naming the file and the setting for what is unknown, missing or of another
    type.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no settings file {path}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    return as_settings(content, kind, path if relative_to is None else relative_to / path.name)


def as_settings(content: Mapping[str, Any], kind: type[T], path: Path) -> T:
    """A mapping as settings of `kind`; `path` is where it came from."""
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    types = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise InputError(f"{path}: there is no setting {name!r} ({nearest(name, known)})")
        values[name] = _value(value, types[name], name, path)
    try:
        return kind(**values)
    except TypeError:
        absent = [n for n in known if n not in values and _required(known[n])]
        raise InputError(f"{path}: the setting {absent[0]!r} is missing") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _several(folder: Path | tuple[Path, ...]) -> tuple[Path, ...]:
    return folder if isinstance(folder, tuple) else (folder,)


def _required(entry: Any) -> bool:
    from dataclasses import MISSING

    return entry.default is MISSING and entry.default_factory is MISSING


def _value(value: Any, wanted: Any, name: str, path: Path) -> Any:
    if is_dataclass(wanted):
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name} must be a section, [{name}]")
        return as_settings(value, wanted, path)  # type: ignore[arg-type]
    options = get_args(wanted) if get_origin(wanted) in (UnionType,) else (wanted,)
    for option in options:
        if option is Path and isinstance(value, str):
            return (path.parent / Path(value).expanduser()).resolve()
        if get_origin(option) is Literal:
            if value in get_args(option):
                return value
            raise InputError(
                f"{path}: {name} is {value!r} ({nearest(str(value), get_args(option))})"
            )
        if get_origin(option) is tuple and isinstance(value, list):
            return tuple(_value(entry, get_args(option)[0], name, path) for entry in value)
        if get_origin(option) is not None:
            if isinstance(value, dict) and get_origin(option) is not tuple:
                return value
        elif option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        elif option is str and name in _MODELS and (path.parent / str(value)).is_dir():
            return str((path.parent / str(value)).resolve())
        elif option is not type(None) and type(value) is option:
            return value
    raise InputError(f"{path}: {name} is {value!r}, which is not {_spelled(wanted)}")


def _spelled(wanted: Any) -> str:
    if get_origin(wanted) is UnionType:
        options = [option for option in get_args(wanted) if option is not type(None)]
        return " or ".join(_spelled(option) for option in options)
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    names |= {Path: "a folder", tuple: "a list"}
    return names.get(get_origin(wanted) or wanted, str(wanted))
