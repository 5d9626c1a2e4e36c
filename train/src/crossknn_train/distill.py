"""Dual encoders distilled from a cross-encoder's scores (ANNCUR A.3, AXN A.2.1).

The papers' rows: DE_BERT+CE starts from an encoder without a task and DE_BASE+CE from a trained
dual encoder, both with the best of dense rows (`best_of_rows`, charged q * n calls) and the better
of the two losses; DE_DSTL starts from a trained dual encoder and learns the sparse G by "match",
charged G's entries.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.files import make_folder
from crossknn.linalg import top_k
from crossknn.scores.store import SparseScores
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, Pairs, Progress
from crossknn_train import loop, run
from crossknn_train.distillation import DistillationTask, Loss
from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel, trainable
from crossknn_train.settings import TrainingSettings

logger = logging.getLogger(__name__)


def distill(
    scores: SparseScores,
    items: Sequence[str],
    source: str | Path,
    folder: Path,
    *,
    losses: Sequence[Loss] = ("match",),
    top: int | None = None,
    settings: TrainingSettings,
    progress: Progress | None = None,
) -> tuple[Loss, Mapping[str, float]]:
    """Train a dual encoder on a cross-encoder's scores in `folder`, resuming what is there.

    Args:
        items: texts (n). source: see `student`. losses: "match", "pair" (for the best of dense
            rows: what is not listed counts as wrong), or both: each is trained, and the better on
            the held-out queries is kept. top: how many of a query's best scored items its list
            holds; by default all.

    Queries with fewer than two scored items teach nothing: they are left out, and logged. Returns
    the loss of the model that was kept, and its measures over the held-out queries.

    Raises InputError for unusable scores, settings or sources, TrainingError if the loss is NaN.
    """
    if top is not None and top < 2:
        raise InputError(f"top is {top}; a list has at least 2 items")
    rows, lists = _lists(scores, top)
    if left := len(scores.queries) - len(rows):
        logger.warning("%d train queries have fewer than two scored items: left out", left)
    queries = [scores.queries[row] for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    make_folder(folder / run.RUN)
    trained: list[tuple[loop.State, Loss, DualEncoderModel]] = []
    for loss in losses:
        device = run.start_on(settings)
        model = student(source).to(device)
        task = DistillationTask(model, queries, items, lists, loss=loss, seed=settings.seed)
        fitted = loop.fit(task, settings, folder / run.RUN / loss, progress=progress)
        logger.info("distilled by the loss %s: %s", loss, fitted.best)
        trained.append((fitted, loss, model))
    fitted, loss, model = max(trained, key=lambda one: one[0].best[DistillationTask.main])
    story = (
        f"From the encoder `{source}`, distilled from a cross-encoder: {len(rows)} train queries "
        f"with lists of up to {lists.items.shape[1]} items, by the loss {loss}; a tenth of the "
        "queries was held out."
    )
    model.cpu().save_pretrained(folder, run.model_card(model, story, settings, fitted))
    return loss, fitted.best


def paper_settings(listed: int, epochs: int | None = None, seed: int = 0) -> TrainingSettings:
    """AXN A.2.1 for lists of so many items: AdamW at 1e-5, four passes of one query to a step, 10
    epochs for 100 items and 4 for 1000; one evaluation an epoch, since each encodes all items."""
    epochs = epochs or (10 if listed <= 100 else 4)
    steps: dict[str, Any] = {"batch": 4, "accumulate": 4, "evaluations": 1}
    return TrainingSettings(epochs=epochs, learning_rate=1e-5, seed=seed, **steps)


def best_of_rows(queries: Sequence[str], rows: FloatArray, count: int) -> SparseScores:
    """The `count` best entries of dense rows (q, n), which cost q * n calls."""
    best = top_k(rows, count)
    found = best.items != NO_ITEM
    pairs = Pairs(np.repeat(np.arange(len(rows)), found.sum(1)), best.items[found])
    return SparseScores.of(queries, rows.shape[1], pairs, best.scores[found])


def student(source: str | Path) -> DualEncoderModel:
    """The dual encoder to begin with, from a folder or a hub name: one trained here, a
    sentence-transformers model that pools by "mean" or "cls", or a Hugging Face encoder.

    Raises InputError for an ONNX folder or "bundled", which have no weights to train, and for other
    sentence-transformers models.
    """
    folder, found = trainable(source)
    return DualEncoderModel.new(folder, DualEncoderConfig()) if found is None else found


def _lists(scores: SparseScores, top: int | None) -> tuple[IntArray, Candidates]:
    """Queries with two entries or more (m,), and their best, in order: (m, c)."""
    chosen, lists = np.flatnonzero(np.diff(scores.by_query) >= 2), []
    for row in chosen:
        part = slice(scores.by_query[row], scores.by_query[row + 1])
        best = np.argsort(-scores.score[part], kind="stable")[:top]
        lists.append((scores.item[part][best], scores.score[part][best]))
    return chosen, Candidates.from_rows(lists)
