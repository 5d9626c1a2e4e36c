"""Distil a cross-encoder into a dual encoder, which learns from scores instead of labels: DE_DSTL
(AXN A.2.1), a trained dual encoder that learns from sparse scores G with L_match (ANNCUR A.3).

Axes: q queries, b queries of a pass, c scored items of a query, n items.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossknn.errors import InputError
from crossknn.files import make_folder
from crossknn.fitting.factors import inner_products
from crossknn.fitting.fit import FitMethod, FitTask
from crossknn.index.vectors import ItemVectors, RememberedModel
from crossknn.linalg import top_k
from crossknn.scorers.token_models import TokenEncoder
from crossknn.scores.sparse import SparseScores
from crossknn.types import NO_ITEM, Candidates, IntArray, Progress, Scale
from crossknn_train import loop, run
from crossknn_train.labelled import scale_of, vectors
from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel, trainable
from crossknn_train.settings import TrainingSettings

HELD_OUT = 0.1
"""Share of the queries that is held out for validation."""
_QUERIES_AT_ONCE = 256

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Distill(FitMethod):
    """Fit item vectors by training a dual encoder on the cross-encoder's scores. `out` is its
    folder, `start` the dual encoder to start from, by default that of the index's vectors."""

    name = "distill"
    out: Path
    start: str | None = None
    epochs: int | None = None

    def fit(self, task: FitTask) -> ItemVectors:
        index = task.index
        model = index.model_of(task.base)
        start = self.start or (None if model is None else model.source)
        if start is None:
            raise InputError(
                f"the vectors {task.base!r} were not made by an encoder that can be trained: "
                "name one with --start"
            )
        student(start)
        scores, texts = task.sparse(), index.items.texts
        settings = paper_settings(task.per, task.seed, self.epochs)
        with task.progress("distilling", "steps") as report:
            measures = distill(scores, texts, start, self.out, settings=settings, progress=report)
        encoder = RememberedModel.of("dual encoder", self.out)
        with task.progress("encoding", "items") as report:
            items = encoder.get().encode_items(texts, report)
        queries = encoder.get().encode_queries(scores.queries)
        inner = inner_products(queries, items, scores.query, scores.item)
        return ItemVectors(
            values=items,
            method=self.name,
            encoder=encoder,
            # Learn the scale from all scored pairs if too few random pairs are scored.
            scale=task.scale(items, queries) or Scale.match(scores.score, inner),
            fingerprint=task.scorer.fingerprint,
            cost={"queries": len(scores.scored_queries), "calls": len(scores)},
            details=measures,
        )


def distill(
    scores: SparseScores,
    items: Sequence[str],
    source: str | Path,
    folder: Path,
    *,
    settings: TrainingSettings,
    progress: Progress | None = None,
) -> loop.Measures:
    """Train the dual encoder `source` on scores of n `items`, or resume the interrupted run in
    `folder`; return the measures over the held-out queries."""
    rows, lists = scored_lists(scores)
    if left_out := len(scores.queries) - len(rows):
        logger.warning("%d train queries have fewer than two scored items: left out", left_out)
    folder.mkdir(parents=True, exist_ok=True)
    make_folder(folder / run.RUN)
    device = run.start_on(settings)
    model = student(source).to(device)
    queries = [scores.queries[row] for row in rows]
    task = DistillationTask(model, queries, items, lists, seed=settings.seed)
    fitted = loop.fit(task, settings, folder / run.RUN, progress=progress)
    story = (
        f"From the encoder `{source}`, distilled from a cross-encoder: {len(rows)} train queries "
        f"with lists of up to {lists.items.shape[1]} items; a tenth of the queries was held out."
    )
    model.cpu().save_pretrained(folder, run.model_card(model, story, settings, fitted))
    return fitted.best


def paper_settings(listed: int, seed: int, epochs: int | None) -> TrainingSettings:
    """Return the settings of AXN A.2.1 for `listed` scored items per query. There is one evaluation
    per epoch, because an evaluation encodes all items."""
    fixed: Any = {"learning_rate": 1e-5, "batch": 4, "accumulate": 4, "evaluations": 1}
    return TrainingSettings(epochs=epochs or (10 if listed <= 100 else 4), seed=seed, **fixed)


def student(source: str | Path) -> DualEncoderModel:
    """Open the dual encoder, or the Hugging Face encoder, to start from; see `trainable`."""
    folder, model = trainable(source)
    return DualEncoderModel.new(folder, DualEncoderConfig()) if model is None else model


def scored_lists(scores: SparseScores) -> tuple[IntArray, Candidates]:
    """Return the queries (m,) with at least two scored items, and their scored items (m, c), best
    first."""
    rows, lists = np.flatnonzero(np.diff(scores.by_query) >= 2), []
    for row in rows:
        entries = slice(scores.by_query[row], scores.by_query[row + 1])
        best = np.argsort(-scores.score[entries], kind="stable")
        lists.append((scores.item[entries][best], scores.score[entries][best]))
    return rows, Candidates.from_rows(lists)


class DistillationTask(loop.Task):
    """A dual encoder learns how a cross-encoder ranks a query's scored items, `lists` (q, c).

    A tenth of the queries is held out for the papers' measures: `recall`, the mean share of a
    query's `k` best scored items that are among the `k` items nearest by the dual encoder; and
    `first`, the share of queries whose best scored item is among these `k` nearest items.
    """

    main = "recall"

    def __init__(
        self,
        model: DualEncoderModel,
        queries: Sequence[str],
        items: Sequence[str],
        lists: Candidates,
        *,
        k: int = 10,
        seed: int = 0,
    ) -> None:
        if len(queries) < 2:
            raise InputError(
                "distillation needs a query to train on and one to validate: only "
                f"{len(queries)} queries have two or more scored items"
            )
        self.model = model
        self._queries, self._items, self._lists, self._k = queries, items, lists, k
        order = np.random.default_rng(seed).permutation(len(queries))
        n_held = max(1, round(HELD_OUT * len(queries)))
        self.held, self.train = np.sort(order[:n_held]), np.sort(order[n_held:])
        self.ids = [repr(queries[row][:40]) for row in self.train]
        data = lists.items.tobytes().hex(), lists.scores.astype(np.float32).tobytes().hex()
        self.signature = f"{k}|{seed}|{loop.digest_of(*queries, '', *items, *data)}"

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Do nothing: the scored items are the same in every epoch."""

    def draw(self, rows: Sequence[int], epoch: int) -> list[IntArray]:
        return [self.train[rows]]

    def loss(self, rows: Sequence[int], places: IntArray) -> Tensor:
        lists, device = self._lists.items[places], self.model.device
        present = torch.from_numpy(lists != NO_ITEM).to(device)
        teacher = torch.from_numpy(self._lists.scores[places]).to(device)
        return match_cross_entropy(self._scores(places.tolist(), lists), teacher, present)

    def _scores(self, rows: Sequence[int], lists: IntArray) -> Tensor:
        # (b, c), arbitrary at `NO_ITEM`. Scores are close to each other, so sum in float32 even if
        # the model computes in bfloat16.
        items = np.unique(lists[lists != NO_ITEM])
        texts = [self._queries[r] for r in rows], [self._items[i] for i in items]
        query, item = vectors(self.model, *texts)
        chosen = item[torch.from_numpy(np.searchsorted(items, lists)).to(item.device)]
        return (query.unsqueeze(1) * chosen).sum(-1) * scale_of(self.model)

    def evaluate(self) -> loop.Measures:
        best, near = self._lists.items[self.held, : self._k], self._nearest(self.held, self._k)
        is_near = (best[:, :, None] == near[:, None]).any(2)
        shares = is_near.sum(1) / (best != NO_ITEM).sum(1)
        return {"recall": float(shares.mean()), "first": float(is_near[:, 0].mean())}

    def _nearest(self, rows: IntArray, count: int) -> IntArray:
        encoder = TokenEncoder(self.model)
        items = encoder.encode_items(self._items)
        queries = encoder.encode_queries([self._queries[row] for row in rows])
        blocks = np.array_split(queries, -(-len(queries) // _QUERIES_AT_ONCE))
        return np.concatenate([top_k(block @ items.T, count).items for block in blocks])


def match_cross_entropy(scores: Tensor, teacher: Tensor, present: Tensor) -> Tensor:
    """Compute L_match of ANNCUR, A.3, for scores and the teacher's scores (b, c), `present` except
    at padding: the mean cross-entropy of softmax(scores) against softmax(teacher)."""
    target = teacher.masked_fill(~present, float("-inf")).softmax(-1)
    log_shares = scores.masked_fill(~present, float("-inf")).log_softmax(-1)
    return -(target * log_shares.masked_fill(~present, 0.0)).sum(-1).mean()
