"""From settings to a trained model in a folder."""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from crossknn.data.dataset import Labelled
from crossknn.data.reading import read_labelled
from crossknn.errors import InputError, nearest
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel
from crossknn.models.late.model import LateInteractionConfig, LateInteractionModel
from crossknn.scorers.opening import DualEncoder
from crossknn.training import cards, loop
from crossknn.training.candidates import LISTS
from crossknn.training.cross_encoder import CrossEncoderTask
from crossknn.training.dual_encoder import DualEncoderTask
from crossknn.training.late_interaction import LateInteractionTask
from crossknn.training.settings import (
    CrossEncoderSettings,
    DataSettings,
    DualEncoderSettings,
    LateInteractionSettings,
    TrainingSettings,
)
from crossknn.types import Progress

logger = logging.getLogger(__name__)

C = TypeVar("C")
Settings: TypeAlias = CrossEncoderSettings | DualEncoderSettings | LateInteractionSettings
AnyTask: TypeAlias = CrossEncoderTask | DualEncoderTask | LateInteractionTask
Data: TypeAlias = tuple[list[Labelled], list[Labelled]]
RUN = "run"
"""The subfolder of checkpoints, mined negatives and the log."""

SETTINGS = "settings.json"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run would take, from a few of its steps: time, memory, and what it would do."""

    steps: int
    train_queries: int
    dev_queries: int
    seconds_per_step: float
    hours: float
    gigabytes: float
    precision: str
    longer_than_the_window: int


def train_cross_encoder(
    settings: CrossEncoderSettings, folder: Path, *, progress: Progress | None = None
) -> loop.Fitted:
    """Train by `settings` and leave the best checkpoint in `folder`, resuming what is there.

    Raises InputError for unusable data or settings, TrainingError if the loss is no number.
    """
    task = _cross_encoder_task(settings, _data(settings))
    return _run(task, task.model, settings, folder, progress)


def train_dual_encoder(
    settings: DualEncoderSettings, folder: Path, *, progress: Progress | None = None
) -> loop.Fitted:
    """Train by `settings` and leave the best checkpoint in `folder`; see `train_cross_encoder`."""
    task = _dual_encoder_task(settings, _data(settings))
    return _run(task, task.model, settings, folder, progress)


def train_late_interaction(
    settings: LateInteractionSettings, folder: Path, *, progress: Progress | None = None
) -> loop.Fitted:
    """Train by `settings` and leave the best checkpoint in `folder`; see `train_cross_encoder`."""
    task = _late_interaction_task(settings, _data(settings))
    task.check_retriever(folder / RUN)
    return _run(task, task.model, settings, folder, progress)


def estimate(settings: Settings, steps: int = 3) -> Estimate:
    """Time and memory of a run, from `steps` real steps on random negatives; nothing is kept.

    Evaluations, the mining of negatives and what frozen towers make of their texts come on top.
    """
    data, training = _data(settings), settings.training
    easy = _easy(settings)
    task = timed = _task(easy, data)
    if isinstance(easy, LateInteractionSettings):  # with few texts for frozen towers
        few = _sampled(data[0], training.batch * (steps + 1), 0), _sampled(data[1], 1, 0)
        timed = _late_interaction_task(easy, few, task.model)
    seconds = loop.time_steps(timed, training, steps)
    total = loop.total_steps(task.n_queries, training)
    bfloat16 = loop.uses_bfloat16(task.model, training)
    return Estimate(
        steps=total,
        train_queries=task.n_queries,
        dev_queries=len(task.dev),
        seconds_per_step=round(seconds, 3),
        hours=round(seconds * total / 3600, 2),
        gigabytes=round(_peak_memory(task.model) / 2**30, 2),
        precision="bfloat16" if bfloat16 else "float32",
        longer_than_the_window=task.count_cut(),
    )


def _easy(settings: Settings) -> Settings:
    """The settings with random negatives, which need no retriever."""
    if isinstance(settings, LateInteractionSettings):
        few = replace(settings.candidates, retriever="random", depth=settings.candidates.count)
        return replace(settings, candidates=few)
    return replace(settings, negatives=replace(settings.negatives, kind="random", encoder=None))


def read_corpora(
    data: DataSettings, seed: int, *, lists: bool = False
) -> tuple[list[Labelled], list[Labelled]]:
    """The train and dev corpora of the settings; `lists` asks for the lists that come with them.

    If both are the same split of the same folders, the dev queries are held out of training.
    Raises InputError if train and dev share a query otherwise.
    """
    train = _read(data.train_folders, data.train, data.train_domains, lists)
    dev = _read(data.dev_folders, data.dev, data.dev_domains, lists)
    dev = _sampled(dev, data.dev_queries, seed)
    if data.same_split:
        train = [part.without(held.queries.ids) for part, held in zip(train, dev, strict=True)]
    train = _sampled(train, data.train_queries, seed)
    known = {(part.name, *query) for part in train for query in _queries(part)}
    for part in dev:
        for query, text in _queries(part):
            if (part.name, query, text) in known:
                raise InputError(f"the query {query!r} of {part.name} is in train and in dev")
    return train, dev


def _read(
    folders: tuple[Path, ...], split: str, domains: tuple[str, ...] | None, lists: bool
) -> list[Labelled]:
    """The corpora of all folders; the domains are those of the folders that have some."""
    having = [folder for folder in folders if (folder / "documents").is_dir()] or folders
    return [
        part
        for folder in folders
        for part in read_labelled(folder, split, domains if folder in having else None, lists=lists)
    ]


def _queries(part: Labelled) -> Iterator[tuple[str, str]]:
    return zip(part.queries.ids, part.queries.texts, strict=True)


def _sampled(parts: list[Labelled], count: int | None, seed: int) -> list[Labelled]:
    """`count` queries over all parts, in proportion to their sizes."""
    total = sum(len(part) for part in parts)
    if count is None or count >= total:
        return parts
    sizes = [max(1, round(count * len(part) / total)) for part in parts]
    return [part.sample(size, seed) for part, size in zip(parts, sizes, strict=True)]


def _data(settings: Settings) -> Data:
    late = settings if isinstance(settings, LateInteractionSettings) else None
    lists = late is not None and late.candidates.retriever == LISTS
    return read_corpora(settings.data, settings.training.seed, lists=lists)


def _task(settings: Settings, data: Data) -> AnyTask:
    if isinstance(settings, CrossEncoderSettings):
        return _cross_encoder_task(settings, data)
    if isinstance(settings, DualEncoderSettings):
        return _dual_encoder_task(settings, data)
    return _late_interaction_task(settings, data)


def _cross_encoder_task(settings: CrossEncoderSettings, data: Data) -> CrossEncoderTask:
    device = start_on(settings.training)
    config = _config(CrossEncoderConfig, settings.model)
    source = settings.negatives.encoder
    return CrossEncoderTask(
        CrossEncoderModel.new(settings.encoder, config).to(device),
        *data,
        settings.negatives,
        encoder=None if source is None else lambda: DualEncoder(source),
        seed=settings.training.seed,
    )


def _dual_encoder_task(settings: DualEncoderSettings, data: Data) -> DualEncoderTask:
    device = start_on(settings.training)
    config = _config(DualEncoderConfig, settings.model)
    return DualEncoderTask(
        DualEncoderModel.new(settings.encoder, config).to(device),
        *data,
        settings.negatives,
        teacher=None if settings.teacher is None else DualEncoder(settings.teacher),
        teacher_weight=settings.teacher_weight,
        seed=settings.training.seed,
    )


def _late_interaction_task(
    settings: LateInteractionSettings, data: Data, model: LateInteractionModel | None = None
) -> LateInteractionTask:
    device = start_on(settings.training)
    config = _config(LateInteractionConfig, settings.model, head=settings.kind)
    return LateInteractionTask(
        model or LateInteractionModel.new(settings.encoder, config).to(device),
        *data,
        settings.candidates,
        settings.loss,
        freeze=settings.freeze,
        encoder=lambda: DualEncoder(settings.candidates.retriever),
        seed=settings.training.seed,
    )


def _run(
    task: AnyTask,
    model: CrossEncoderModel | DualEncoderModel | LateInteractionModel,
    settings: Settings,
    folder: Path,
    progress: Progress | None,
) -> loop.Fitted:
    began = time.strftime("%Y-%m-%d")
    if cut := task.count_cut():
        logger.warning("%d train texts are longer than the model's window and lose their end", cut)
    fitted = loop.fit(task, settings.training, folder / RUN, progress=progress)
    text = json.dumps(asdict(settings), indent=2, default=str) + "\n"
    (folder / RUN / SETTINGS).write_text(text, encoding="utf-8")
    model.cpu().save_pretrained(folder, _card(settings, fitted, model, began))
    return fitted


def _card(settings: Settings, fitted: loop.Fitted, model: Any, date: str) -> str:
    if isinstance(settings, LateInteractionSettings):
        return cards.late_interaction_card(settings, fitted, model, date)
    return cards.model_card(settings, fitted, model, date)


def start_on(training: TrainingSettings) -> torch.device:
    """Seed PyTorch, set its threads, and find the device of the settings, or InputError."""
    torch.manual_seed(training.seed)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    wanted = training.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"training: the device {wanted!r} cannot be used: {error}") from error


def _config(kind: type[C], given: Mapping[str, Any], **more: Any) -> C:
    known = {entry.name for entry in fields(kind)} - set(more)  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise InputError(f"model: there is no setting {name!r} ({nearest(name, known)})")
    try:
        return kind(**given, **more)
    except TypeError as error:
        raise InputError(f"model: {error}") from None


def _peak_memory(model: torch.nn.Module) -> int:
    """Bytes this process has held at most, on the model's device."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
