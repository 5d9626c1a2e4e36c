"""Train a model from settings into a folder, with a model card."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from crossknn import __version__
from crossknn.errors import InputError, nearest
from crossknn.models.folder import KINDS
from crossknn.scorers.base import Encoder
from crossknn.scorers.opening import DualEncoder
from crossknn.types import Progress
from crossknn_train import loop
from crossknn_train.corpora import LISTS, WORDS, read_corpora
from crossknn_train.labelled import CrossEncoderTask, DualEncoderTask, LabelledTask
from crossknn_train.late_interaction import LateInteractionTask
from crossknn_train.models.cross_encoder import CrossEncoderModel
from crossknn_train.models.dual_encoder import DualEncoderModel
from crossknn_train.models.late import LateInteractionModel
from crossknn_train.reading import Dataset
from crossknn_train.settings import (
    CrossEncoderSettings,
    DualEncoderSettings,
    LateInteractionSettings,
    RunSettings,
    Settings,
    TrainingSettings,
)

RUN = "run"
"""Subfolder for checkpoints, mined negatives and the log."""

_TRAINED: dict[type[RunSettings], tuple[Any, type[LabelledTask]]] = {
    CrossEncoderSettings: (CrossEncoderModel, CrossEncoderTask),
    DualEncoderSettings: (DualEncoderModel, DualEncoderTask),
    LateInteractionSettings: (LateInteractionModel, LateInteractionTask),
}
"""Maps the class of the settings to the class of the model and its training task."""


def train(settings: RunSettings, folder: Path, *, progress: Progress | None = None) -> loop.State:
    """Train the model that the settings describe, or resume the run in `folder`, and save the best
    checkpoint in `folder`."""
    task = _task(settings, *read_corpora(settings))
    fitted = loop.fit(task, settings.training, folder / RUN, progress=progress)
    names = ", ".join(f"`{path.name}`" for path in settings.data.folder)
    story = f"From the encoder `{settings.encoder}`, on {names}."
    task.model.cpu().save_pretrained(folder, model_card(task.model, story, settings, fitted))
    return fitted


def _task(settings: Any, train: list[Dataset], dev: list[Dataset]) -> LabelledTask:
    device, (kind, task) = start_on(settings.training), _TRAINED[type(settings)]
    head = {"head": settings.kind} if kind is LateInteractionModel else {}
    model = kind.new(settings.encoder, _config(kind.Config, settings.model, head)).to(device)
    encoder = _encoder(settings)
    if task is DualEncoderTask and encoder and encoder.dimensions != model.dimensions:
        raise InputError(
            f"the teacher's vectors have {encoder.dimensions} dimensions, but the model's have "
            f"{model.dimensions}: use vectors of the same length"
        )
    larger = {}
    if task is CrossEncoderTask and settings.teacher is not None:
        larger["teacher"] = CrossEncoderModel.from_pretrained(settings.teacher).to(device)
    return task(model, train, dev, settings, encoder, **larger)


def _encoder(settings: Any) -> Encoder | None:
    """Open the dual encoder that the settings name: a teacher, or the retriever of negatives."""
    if isinstance(settings, DualEncoderSettings):
        place, source = "teacher", settings.teacher
    elif isinstance(settings, CrossEncoderSettings):
        place, source = "negatives.encoder", settings.negatives.encoder
        if source is None and settings.negatives.kind in ("dual-encoder", "mixed"):
            raise InputError(
                f"negatives of kind {settings.negatives.kind!r} need a dual encoder: set "
                "negatives.encoder to its folder"
            )
    else:
        plain, source = (*WORDS, "random", LISTS), settings.candidates.retriever
        names = ", ".join(map(repr, plain))
        place = f"candidates.retriever, which must be {names} or a dual encoder"
        source = None if source in plain else source
    try:
        return None if source is None else DualEncoder(source)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def start_on(training: TrainingSettings) -> torch.device:
    """Seed PyTorch, and return the device to train on, a GPU if there is one."""
    torch.manual_seed(training.seed)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _config(kind: Any, given: Mapping[str, Any], head: Mapping[str, Any]) -> Any:
    names = {entry.name for entry in fields(kind)} - set(head)
    for name in given:
        if name not in names:
            raise InputError(f"model: there is no setting {name!r} ({nearest(name, names)})")
    try:
        return kind(**given, **head)
    except TypeError as error:
        raise InputError(f"model: {error}") from None


def model_card(model: Any, story: str, settings: Settings, fitted: loop.State) -> str:
    """Return the README of a model folder; `story` describes the start model and the data."""
    kind, opener = KINDS[model.SETTINGS], type(model).__name__.removesuffix("Model")
    measures = "\n".join(f"| {name} | {value:.4f} |" for name, value in fitted.best.items())
    path = r'(["`])[^"`]*/[^"`]*/([^"`/]+)/?\1'  # keep only the name of a folder
    story, shown = (re.sub(path, r"\1\2\1", t) for t in (story, settings.model_dump_json()))
    return f"""---
library_name: crossknn
tags: [{kind.replace(" ", "-")}]
---
# A {kind} trained with crossknn

{story}
{fitted.step} steps; the checkpoint of step {fitted.best_step} was the best on dev queries:

| measure | dev |
|---|---|
{measures}

Settings: `{shown}`. Made on {time.strftime("%Y-%m-%d")} by crossknn {__version__}.

```python
from crossknn import {opener}
model = {opener}("this/folder")
```
"""
