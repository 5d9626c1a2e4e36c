"""From settings to a trained model in a folder, with its card."""

from __future__ import annotations

import json
import logging
import re
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from crossknn import __version__
from crossknn.data.dataset import Labelled
from crossknn.errors import InputError, nearest
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel
from crossknn.models.late.model import LateInteractionConfig, LateInteractionModel
from crossknn.scorers.opening import DualEncoder
from crossknn.training import loop
from crossknn.training.candidates import LISTS
from crossknn.training.corpora import read_corpora, sampled
from crossknn.training.labelled import CrossEncoderTask, DualEncoderTask
from crossknn.training.late_interaction import LateInteractionTask
from crossknn.training.settings import (
    CrossEncoderSettings,
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
_KINDS = {
    CrossEncoderSettings: "cross-encoder",
    DualEncoderSettings: "dual encoder",
    LateInteractionSettings: "late-interaction model",
}
_OPENERS = {
    "cross-encoder": "CrossEncoder",
    "dual encoder": "DualEncoder",
    "late-interaction model": "open_late",
}


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


def train(settings: Settings, folder: Path, *, progress: Progress | None = None) -> loop.Fitted:
    """Train by `settings` and leave the best checkpoint in `folder`, resuming what is there.

    The class of the settings says what is trained.

    Raises:
        InputError: unusable data or settings.
        TrainingError: the loss is no number.
    """
    task = _task(settings, _data(settings))
    if isinstance(task, LateInteractionTask):
        task.check_retriever(folder / RUN)
    began = time.strftime("%Y-%m-%d")
    if cut := task.count_cut():
        logger.warning("%d train texts are longer than the model's window and lose their end", cut)
    fitted = loop.fit(task, settings.training, folder / RUN, progress=progress)
    text = json.dumps(asdict(settings), indent=2, default=str) + "\n"
    (folder / RUN / SETTINGS).write_text(text, encoding="utf-8")
    data = settings.data
    story = (
        f"From the encoder `{short_name(settings.encoder)}`, on {_names(data.train_folders)}, in "
        f"{fitted.steps} steps; the checkpoint of step {fitted.best_step} was the best on the dev "
        f"queries of {_names(data.dev_folders)}:"
    )
    card = model_card(_KINDS[type(settings)], story, settings, fitted, began)
    task.model.cpu().save_pretrained(folder, card)
    return fitted


def estimate(settings: Settings, steps: int = 3) -> Estimate:
    """Time and memory of a run, from `steps` real steps on random negatives; nothing is kept.

    Evaluations, the mining of negatives and what frozen towers make of their texts come on top.
    """
    data, training = _data(settings), settings.training
    if isinstance(settings, LateInteractionSettings):
        wanted = settings.candidates
        easy = replace(wanted, retriever="random", depth=wanted.count)
        settings = replace(settings, candidates=easy)
        task = _task(settings, data)
        few = sampled(data[0], training.batch * (steps + 1), 0), sampled(data[1], 1, 0)
        timed = _task(settings, few, task.model)  # with few texts for frozen towers
    else:
        negatives = replace(settings.negatives, kind="random", encoder=None)
        task = timed = _task(replace(settings, negatives=negatives), data)
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


def _data(settings: Settings) -> Data:
    late = settings if isinstance(settings, LateInteractionSettings) else None
    lists = late is not None and late.candidates.retriever == LISTS
    return read_corpora(settings.data, settings.training.seed, lists=lists)


def _task(settings: Settings, data: Data, model: Any = None) -> AnyTask:
    """The task of the settings, with a new model unless one is given."""
    device, seed = start_on(settings.training), settings.training.seed
    if isinstance(settings, CrossEncoderSettings):
        config = _config(CrossEncoderConfig, settings.model)
        model = CrossEncoderModel.new(settings.encoder, config).to(device)
        source = settings.negatives.encoder
        encoder = None if source is None else lambda: DualEncoder(source)
        return CrossEncoderTask(model, *data, settings.negatives, encoder=encoder, seed=seed)
    if isinstance(settings, DualEncoderSettings):
        dual = _config(DualEncoderConfig, settings.model)
        return DualEncoderTask(
            DualEncoderModel.new(settings.encoder, dual).to(device),
            *data,
            settings.negatives,
            teacher=None if settings.teacher is None else DualEncoder(settings.teacher),
            teacher_weight=settings.teacher_weight,
            seed=seed,
        )
    late = _config(LateInteractionConfig, settings.model, head=settings.kind)
    return LateInteractionTask(
        model or LateInteractionModel.new(settings.encoder, late).to(device),
        *data,
        settings.candidates,
        settings.loss,
        freeze=settings.freeze,
        encoder=lambda: DualEncoder(settings.candidates.retriever),
        seed=seed,
    )


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


def model_card(kind: str, story: str, settings: Any, fitted: loop.Fitted, date: str) -> str:
    """A README for the folder of a model of `kind`: `story` says what it learned from."""
    measures = "\n".join(f"| {name} | {value:.4f} |" for name, value in fitted.best.items())
    return f"""---
library_name: crossknn
tags: [{kind.replace(" ", "-")}]
---
# A {kind} trained with crossknn

{story}

| measure | dev |
|---|---|
{measures}

Settings: `{_shown(settings)}`. Made on {date} by crossknn {__version__}.

```python
from crossknn import {_OPENERS[kind]}
model = {_OPENERS[kind]}("this/folder")
```
"""


def _shown(settings: Any) -> str:
    """Settings as JSON, with the name alone of every folder."""
    return re.sub(r'"[^"]*/[^"]*/([^"/]+)/?"', r'"\1"', json.dumps(asdict(settings), default=str))


def short_name(encoder: str) -> str:
    """A hub name as it is; of a folder, its name alone."""
    return encoder if encoder.count("/") <= 1 else encoder.rstrip("/").rsplit("/", 1)[-1]


def _names(folders: tuple[Path, ...]) -> str:
    return ", ".join(f"`{folder.name}`" for folder in folders)
