"""Model cards: what a model was trained on and how well it does on its dev queries."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossknn import __version__
from crossknn.training.loop import Fitted
from crossknn.training.settings import CrossEncoderSettings, DualEncoderSettings

_HEADS = {
    "cls": "a linear layer on the first token's state ([CLS]-CE)",
    "emb": "the inner product of two contextual states of the pair ([EMB]-CE)",
    "interaction": "contextual states and word matches (crossknn.models.interaction)",
}


def model_card(
    settings: CrossEncoderSettings | DualEncoderSettings, fitted: Fitted, model: Any, date: str
) -> str:
    """A README for the model's folder."""
    is_cross = isinstance(settings, CrossEncoderSettings)
    kind = "cross-encoder" if is_cross else "dual encoder"
    scored = _HEADS[model.config.head] if is_cross else f"{model.config.pooling} pooling"
    opened = "CrossEncoder" if is_cross else "DualEncoder"
    measures = "\n".join(f"| {name} | {value:.4f} |" for name, value in fitted.best.items())
    shown = json.dumps(asdict(settings.training), default=str)
    return f"""---
library_name: crossknn
tags: [{kind.replace(" ", "-")}]
---
# A {kind} trained with crossknn

Scores by {scored}, from the encoder `{_name(settings.encoder)}`.

Trained on {_names(settings.data.train_folders)} with {settings.negatives.count} wrong items per
query ({settings.negatives.kind} negatives){_taught(settings)}, {fitted.steps} steps; the checkpoint
of step {fitted.best_step} was the best on the dev queries of
{_names(settings.data.dev_folders)}:

| measure | dev |
|---|---|
{measures}

Training settings: `{shown}`. Made on {date} by crossknn {__version__}.

```python
from crossknn import {opened}
model = {opened}("this/folder")
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
