"""Model cards: what a model was trained on and how well it does on its dev queries."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossknn import __version__
from crossknn.training.loop import Fitted
from crossknn.training.settings import (
    CrossEncoderSettings,
    DualEncoderSettings,
    LateInteractionSettings,
    TrainingSettings,
)

_HEADS = {
    "cls": "a linear layer on the first token's state ([CLS]-CE)",
    "emb": "the inner product of two contextual states of the pair ([EMB]-CE)",
    "interaction": "contextual states and word matches (crossknn.models.interaction)",
}

_OPENED = {
    "cross-encoder": ("crossknn", "CrossEncoder"),
    "dual encoder": ("crossknn", "DualEncoder"),
    "late-interaction model": ("crossknn", "open_late"),
}


def model_card(
    settings: CrossEncoderSettings | DualEncoderSettings, fitted: Fitted, model: Any, date: str
) -> str:
    """A README for the model's folder."""
    is_cross = isinstance(settings, CrossEncoderSettings)
    scored = _HEADS[model.config.head] if is_cross else f"{model.config.pooling} pooling"
    return _card(
        "cross-encoder" if is_cross else "dual encoder",
        f"""Scores by {scored}, from the encoder `{_name(settings.encoder)}`.

Trained on {_names(settings.data.train_folders)} with {settings.negatives.count} wrong items per
query ({settings.negatives.kind} negatives){_taught(settings)}, {fitted.steps} steps; the checkpoint
of step {fitted.best_step} was the best on the dev queries of
{_names(settings.data.dev_folders)}:""",
        settings.training,
        fitted,
        date,
    )


def late_interaction_card(
    settings: LateInteractionSettings, fitted: Fitted, model: Any, date: str
) -> str:
    """A README for the folder of a late-interaction model."""
    found, loss = settings.candidates, settings.loss
    learned = "cross-entropy"
    if loss.kl != "none":
        learned = f"{loss.weight} cross-entropy + {round(1 - loss.weight, 6)} KL ({loss.kl})"
    still = {"none": "", "items": ", the item tower frozen", "both": ", both towers frozen"}
    return _card(
        "late-interaction model",
        f"""Compares queries with candidates: `{settings.kind}`, `{model.config.options}`,
from the encoder `{_name(settings.encoder)}`{still[settings.freeze]}.

Trained on {_names(settings.data.train_folders)} with {found.count} wrong items per query out of the
{found.depth} best of the retriever `{_name(found.retriever)}` ({found.fixed} of them its very best,
the others drawn by {found.sampling}), {learned}, {fitted.steps} steps; the checkpoint of step
{fitted.best_step} was the best on the dev queries of {_names(settings.data.dev_folders)}, whose
{found.dev_candidates} best items it ranks:""",
        settings.training,
        fitted,
        date,
    )


def distilled_card(
    source: str, story: str, training: TrainingSettings, fitted: Fitted, date: str
) -> str:
    """A README for a dual encoder distilled from a cross-encoder; `story` says from which scores
    and how."""
    return _card(
        "dual encoder",
        f"""From the encoder `{_name(source)}`, distilled from a cross-encoder: {story},
{fitted.steps} steps; the checkpoint of step {fitted.best_step} was the best on the train queries
held out:""",
        training,
        fitted,
        date,
    )


def _card(kind: str, story: str, training: TrainingSettings, fitted: Fitted, date: str) -> str:
    measures = "\n".join(f"| {name} | {value:.4f} |" for name, value in fitted.best.items())
    shown = json.dumps(asdict(training), default=str)
    opened = _OPENED[kind]
    return f"""---
library_name: crossknn
tags: [{kind.replace(" ", "-")}]
---
# A {kind} trained with crossknn

{story}

| measure | dev |
|---|---|
{measures}

Training settings: `{shown}`. Made on {date} by crossknn {__version__}.

```python
from {opened[0]} import {opened[1]}
model = {opened[1]}("this/folder")
```
"""


def _name(encoder: str) -> str:
    """A hub name as it is; of a folder, its name alone."""
    return encoder if encoder.count("/") <= 1 else encoder.rstrip("/").rsplit("/", 1)[-1]


def _taught(settings: CrossEncoderSettings | DualEncoderSettings) -> str:
    teacher = settings.teacher if isinstance(settings, DualEncoderSettings) else None
    return f" and the teacher `{_name(teacher)}`" if teacher else ""


def _names(folders: tuple[Path, ...]) -> str:
    return ", ".join(f"`{folder.name}`" for folder in folders)
