"""The settings of a training run: frozen values, read from a TOML file with every name checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from crossknn.errors import InputError, nearest
from crossknn.types import LateKind

NegativesKind = Literal["random", "tfidf", "dual-encoder"]
Sampling = Literal["score", "uniform"]
Divergence = Literal["model-retriever", "retriever-model", "none"]
Freeze = Literal["none", "items", "both"]

T = TypeVar("T")
# Hub names, or folders relative to the settings file.
_MODELS = ("encoder", "teacher", "retriever")
_SPELLED = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Path: "a folder",
    tuple: "a list",
}


def _check(section: str, settings: object, **least: int) -> None:
    """Refuse unknown choices, and numbers below the `least` of their name."""
    place = f"{section}: " if section else ""
    for name, wanted in get_type_hints(type(settings)).items():
        value, known = getattr(settings, name), get_args(wanted)
        if get_origin(wanted) is Literal and value not in known:
            raise InputError(f"{place}{name} is {value!r} ({nearest(str(value), known)})")
        if name in least and value is not None and value < least[name]:
            raise InputError(f"{place}{name} is {value}; it must be {least[name]} or more")


def _check_depth(section: str, count: int, depth: int) -> None:
    if count < 1 or depth < count:
        raise InputError(
            f"{section}: count is {count} and depth {depth}; count must be 1 or more, and depth at "
            "least count"
        )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What to train on: folders that `read_labelled` takes, and their splits.

    dev_folder: if dev queries are elsewhere. train_domains, dev_domains: of the ZESHEL folders, in
    place of the splits. train_queries, dev_queries: a random sample of so many. If dev is the same
    as train, the dev queries are held out of it.
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
        _check("data", self, train_queries=1, dev_queries=1)
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

    count: per query in a step (63 in ANNCUR, A.1), drawn from the `depth` nearest but for the first
    `skip`, where labels are incomplete. encoder: the dual encoder that ranks them (a folder, a hub
    name or "bundled"); training a dual encoder, its own is used. dev_candidates: how many items of
    the encoder, or of TF-IDF, a checkpoint ranks for each dev query.
    """

    kind: NegativesKind = "dual-encoder"
    count: int = 63
    depth: int = 64
    skip: int = 0
    encoder: str | None = None
    dev_candidates: int = 64

    def __post_init__(self) -> None:
        _check("negatives", self, skip=0, dev_candidates=1)
        _check_depth("negatives", self.count, self.depth)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to descend.

    epochs, or steps if given. batch: queries in a step, in `accumulate` passes. learning_rate rises
    over the first `warmup` share of the steps and falls to zero. evaluations: per epoch; the
    checkpoint best on dev is kept. precision: "auto" is bfloat16 where the hardware computes in it.
    dropout: of all layers (None: the encoder's own); 0 learns faster where a run sees its queries
    once. device: "auto" is a GPU if there is one.
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
        _check("training", self, seed=0, **dict.fromkeys(whole, 1))
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
    """Training a dual encoder, maybe with a `teacher` (a folder, a hub name or "bundled") whose
    vectors and similarities are learned beside the labels (`losses.distance_to_teacher`)."""

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


@dataclass(frozen=True, kw_only=True)
class CandidateSettings:
    """The candidates that late-interaction models learn to compare (CMC, 3.2 and C).

    retriever: "bm25", "tfidf", a dual encoder (a folder, a hub name or "bundled"), "random", or
    "lists", the lists that come with the queries (TREC runs).
    count: wrong items of a query in a step. fixed: the share of them that is the retriever's top.
    The rest is drawn without replacement from its `depth` best wrong items; sampling: "score", in
    proportion to exp(scale * the retriever's score) (eq. 6 and 7), or "uniform", as the paper's
    code. scale: None is 20 for unit vectors and TF-IDF, and 1 for others. dev_candidates: how many
    of the retriever's items a checkpoint ranks for each dev query.
    """

    retriever: str
    count: int = 63
    fixed: float = 0.5
    depth: int = 1024
    sampling: Sampling = "score"
    scale: float | None = None
    dev_candidates: int = 64

    def __post_init__(self) -> None:
        _check("candidates", self, dev_candidates=1)
        _check_depth("candidates", self.count, self.depth)
        if not 0 <= self.fixed <= 1:
            raise InputError(f"candidates: fixed is {self.fixed}; it must be from 0 to 1")
        if self.scale is not None and self.scale <= 0:
            raise InputError(f"candidates: scale is {self.scale}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """weight * cross-entropy + (1 - weight) * KL divergence (CMC, eq. 5 and 8).

    kl: "model-retriever" as in the paper, "retriever-model" as in its code, or "none", which leaves
    the cross-entropy alone, whole.
    """

    weight: float = 0.2
    kl: Divergence = "model-retriever"

    def __post_init__(self) -> None:
        _check("loss", self)
        if not 0 <= self.weight <= 1:
            raise InputError(f"loss: weight is {self.weight}; it must be from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class LateInteractionSettings:
    """Training a late-interaction model from an encoder, or a dual encoder's towers.

    freeze: "items" trains all but the item tower, "both" the head alone. What does not move is
    computed once and kept beside the checkpoints, in half precision.
    """

    kind: LateKind
    encoder: str
    data: DataSettings
    candidates: CandidateSettings
    model: Mapping[str, Any] = field(default_factory=dict)
    loss: LossSettings = LossSettings()
    freeze: Freeze = "none"
    training: TrainingSettings = TrainingSettings(epochs=5, warmup=0.1)

    def __post_init__(self) -> None:
        _check("", self)
        if "kind" in self.model:
            raise InputError("model: there is no setting 'kind': it stands above the sections")


def _several(folder: Path | tuple[Path, ...]) -> tuple[Path, ...]:
    return folder if isinstance(folder, tuple) else (folder,)


def read_settings(
    path: str | Path,
    kind: type[T],
    *,
    relative_to: Path | None = None,
    given: Mapping[str, str] | None = None,
) -> T:
    """Settings of `kind` from a TOML file, sections as fields.

    Args:
        relative_to: what folders are relative to, by default the file's own.
        given: settings that the file may leave out, and may not contradict.

    Raises:
        InputError: naming the file and the setting that is unknown, missing or of another type.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no settings file {path}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    for name, value in (given or {}).items():
        if content.setdefault(name, value) != value:
            raise InputError(f"{path}: {name} is {content[name]!r}, where {value!r} is asked for")
    return as_settings(content, kind, path if relative_to is None else relative_to / path.name)


def as_settings(
    content: Mapping[str, Any], kind: type[T], path: Path, default: T | None = None
) -> T:
    """The content of `path` as settings of `kind`; what it leaves out is as in `default`."""
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    types = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise InputError(f"{path}: there is no setting {name!r} ({nearest(name, known)})")
        values[name] = _value(value, types[name], name, path, known[name].default)
    try:
        return kind(**values) if default is None else replace(default, **values)  # type: ignore[type-var]
    except TypeError:
        absent = (name for name in known if name not in values and _is_required(known[name]))
        raise InputError(f"{path}: the setting {next(absent)!r} is missing") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _is_required(entry: Any) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _value(value: Any, wanted: Any, name: str, path: Path, default: Any = MISSING) -> Any:
    if is_dataclass(wanted):
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name} must be a section, [{name}]")
        section: Any = wanted
        return as_settings(value, section, path, None if default is MISSING else default)
    options = get_args(wanted) if get_origin(wanted) in (UnionType,) else (wanted,)
    for option in options:
        if option is Path and isinstance(value, str):
            return (path.parent / Path(value).expanduser()).resolve()
        if get_origin(option) is Literal:
            return value
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
    return _SPELLED.get(get_origin(wanted) or wanted, str(wanted))
