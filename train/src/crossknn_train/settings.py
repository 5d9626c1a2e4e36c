"""The settings of a training run: immutable, read from a TOML file, with every name checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from crossknn.errors import InputError, nearest
from crossknn.files import read_given
from crossknn.types import LateKind

Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
Folders = Annotated[
    tuple[Path, ...],
    Field(min_length=1),
    BeforeValidator(lambda given: given if isinstance(given, list | tuple) else (given,)),
]
"""One folder or several folders."""


class Settings(BaseModel):
    """A section of a settings file; raises pydantic's `ValidationError` for an invalid value."""

    model_config = ConfigDict(frozen=True, extra="forbid")


S = TypeVar("S", bound=Settings)


class DataSettings(Settings):
    """The data to train on: folders that `read_labelled` accepts, and their splits. At most
    `dev_queries` of the dev queries are used, drawn at random."""

    folder: Folders
    dev_folder: Folders | None = None
    train: str = "train"
    dev: str = "valid"
    dev_queries: PositiveInt = 500


class _Drawn(Settings):
    """Options for drawing a query's negatives in each step from its `depth` nearest items."""

    count: PositiveInt = 63
    depth: PositiveInt = 64

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.depth < self.count:
            raise ValueError(
                f"depth is {self.depth}, less than count, which is {self.count}: raise depth"
            )
        return self


class NegativesSettings(_Drawn):
    """Options for mining negatives.

    count: negatives per query in a step (63 in ANNCUR, A.1), drawn from the `depth` nearest items
    after the first `skip`, which may be relevant without a label. kind: what ranks the items; with
    "mixed" half of a query's negatives are the encoder's, a quarter BM25's and a quarter random.
    encoder: dual encoder that ranks the items; a dual encoder in training ranks them itself.
    dev_candidates: candidates, from the encoder or TF-IDF, that a checkpoint ranks for each dev
    query.
    """

    kind: Literal["random", "tfidf", "dual-encoder", "mixed"] = "dual-encoder"
    skip: NonNegativeInt = 0
    encoder: str | None = None
    dev_candidates: PositiveInt = 64


class TrainingSettings(Settings):
    """Options for steps, batches and the learning rate.

    epochs: number of epochs; `steps` replaces it. batch: queries in a step, in `accumulate` passes.
    learning_rate: rises over the first `warmup` share of the steps, then falls to zero.
    evaluations: number per epoch; the checkpoint best on dev is kept. precision: "auto" is bfloat16
    if the hardware supports it. dropout: dropout of all layers (None: the encoder's own); with 0 a
    run that uses each query once learns faster.
    """

    epochs: PositiveInt = 4
    steps: PositiveInt | None = None
    batch: PositiveInt = 4
    accumulate: PositiveInt = 1
    learning_rate: PositiveFloat = 1e-5
    warmup: ShareBelowOne = 0.01
    evaluations: PositiveInt = 5
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    dropout: ShareBelowOne | None = None
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _whole_passes(self) -> Self:
        if self.batch % self.accumulate:
            raise ValueError(
                f"accumulate is {self.accumulate}, which does not divide the batch of {self.batch}"
            )
        return self


class RunSettings(Settings):
    """Settings that all kinds of models share: `encoder` is the folder or hub name of the model to
    start from, `model` has the fields of the new model's config."""

    encoder: str
    data: DataSettings
    model: dict[str, Any] = {}
    training: TrainingSettings = TrainingSettings()


class CrossEncoderSettings(RunSettings):
    """All settings for training a cross-encoder.

    teacher_weight: weight of the KL divergence from a query's scores to 20 times the cosines of the
    negatives' encoder, which keeps the model from falling below it where labels are few.
    zero: whether the score 0 is a further candidate: a relevant item learns to exceed it, and the
    others to stay below. freeze_words: whether word embeddings stay as they are. teacher: a larger
    cross-encoder, whose scores the model learns in place of the labels.
    """

    negatives: NegativesSettings = NegativesSettings()
    teacher: str | None = None
    teacher_weight: NonNegativeFloat = 0.0
    zero: bool = False
    freeze_words: bool = False


class DualEncoderSettings(RunSettings):
    """Settings for training a dual encoder, which may also learn the vectors and similarities of a
    `teacher` (`labelled.distance_to_teacher`)."""

    teacher: str | None = None
    teacher_weight: NonNegativeFloat = 1.0
    negatives: NegativesSettings = NegativesSettings(count=1, depth=16)
    training: TrainingSettings = TrainingSettings(batch=8)


class CandidateSettings(_Drawn):
    """The candidates with which a late-interaction model is trained (CMC, 3.2 and C).

    retriever: "bm25", "tfidf", a dual encoder (a folder, a hub name or "bundled"), "random", or
    "lists", the ranked lists in the data folder (TREC runs). fixed: share of the `count` negatives
    that are the retriever's best. sampling: how others are drawn from the `depth` best: "score", in
    proportion to exp(the retriever's score) (eq. 6 and 7), or "uniform", as in the paper's code.
    """

    retriever: str
    depth: PositiveInt = 1024
    fixed: Share = 0.5
    sampling: Literal["score", "uniform"] = "score"
    dev_candidates: PositiveInt = 64


class LossSettings(Settings):
    """Weights of the loss: weight * cross-entropy + (1 - weight) * KL divergence (CMC, eq. 5 and
    8).

    kl: direction of the divergence, "model-retriever" as in the paper, "retriever-model" as in its
    code, or "none" for the cross-entropy alone, without `weight`.
    """

    weight: Share = 0.2
    kl: Literal["model-retriever", "retriever-model", "none"] = "model-retriever"


class LateInteractionSettings(RunSettings):
    """Settings for training a late-interaction model from an encoder or a dual encoder.

    freeze: "items" trains the query tower and the head, "both" only the head. Outputs of frozen
    towers are computed once and stored beside the checkpoints, in half precision.
    """

    kind: LateKind
    candidates: CandidateSettings
    loss: LossSettings = LossSettings()
    freeze: Literal["none", "items", "both"] = "none"
    training: TrainingSettings = TrainingSettings(epochs=5, warmup=0.1)


def read_settings(
    path: Path,
    kind: type[S],
    *,
    relative_to: Path | None = None,
    given: Mapping[str, str] | None = None,
) -> S:
    """Read settings of `kind` from a TOML file; `relative_to` is the base of relative paths, by
    default the file's folder. The file may repeat the settings `given`, but not contradict them."""
    if not path.is_file():
        raise InputError(f"there is no settings file {path}")
    try:
        content = tomllib.loads(read_given(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    for name, value in (given or {}).items():
        if content.setdefault(name, value) != value:
            raise InputError(f"{path}: {name} is {content[name]!r}, but {value!r} was asked for")
    for name, entry in kind.model_fields.items():
        if isinstance(entry.default, Settings) and isinstance(content.get(name), dict):
            content[name] = entry.default.model_dump() | content[name]
    try:
        settings = kind.model_validate(content)
    except ValidationError as error:
        first, owner = error.errors()[0], cast(Any, kind)
        *sections, name = map(str, first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            for section in sections:
                owner = owner.model_fields[section].annotation
            message = f"there is no such setting ({nearest(name, owner.model_fields)})"
        raise InputError(f"{path}: {'.'.join([*sections, name])}: {message}") from None
    return _beside(settings, path.parent if relative_to is None else relative_to)


def _beside(section: S, base: Path) -> S:
    """Return the section with absolute paths: folders, also of models, are relative to `base`."""
    update: dict[str, Any] = {}
    for name, value in section:
        if isinstance(value, Settings):
            update[name] = _beside(value, base)
        elif name in ("folder", "dev_folder") and value is not None:
            update[name] = tuple((base / folder.expanduser()).resolve() for folder in value)
        elif name in ("encoder", "teacher", "retriever") and (base / str(value)).is_dir():
            update[name] = str((base / value).resolve())
    return section.model_copy(update=update)
