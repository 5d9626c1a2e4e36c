"""Training cross-encoders and dual encoders on labelled queries.

Cross-encoders: softmax cross-entropy of a right item among wrong ones (ANNCUR, A.1). Dual encoders:
in-batch and hard negatives, mined again every epoch (AXN, A.1), and a teacher's vectors where there
is one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossknn.data.dataset import Labelled
from crossknn.errors import InputError
from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.models.tokens import Row
from crossknn.scorers.base import Encoder
from crossknn.scorers.torch import TorchDualEncoder
from crossknn.training.checkpoint import kept
from crossknn.training.corpora import Corpora, checked_rows, in_passes
from crossknn.training.loop import Measures
from crossknn.training.losses import (
    distance_to_teacher,
    in_batch_cross_entropy,
    softmax_cross_entropy,
)
from crossknn.training.settings import NegativesSettings
from crossknn.types import NO_ITEM, IntArray, Pairs


class LabelledTask:
    """Train and dev queries with right items: what all tasks on labels have in common.

    A step draws a list for each query (`_draw`) and goes through it in passes (`_loss`).
    """

    main: str
    model: Any

    def __init__(self, train: Sequence[Labelled], dev: Sequence[Labelled], seed: int) -> None:
        self.train, self.dev, self._seed = Corpora(train), Corpora(dev), seed

    @property
    def n_queries(self) -> int:
        return len(self.train)

    def describe(self, rows: list[int]) -> str:
        return f"the queries {', '.join(self.train.ids[row] for row in rows[:8])}"

    def losses(self, rows: list[int], parts: int, epoch: int, step: int) -> Iterator[Tensor]:
        """One pass per part, weighted by its queries."""
        drawn = self._draw(rows, epoch)
        for part in np.array_split(np.arange(len(rows)), parts):
            yield self._loss([rows[p] for p in part], drawn, part) * (len(part) / len(rows))

    @abstractmethod
    def _draw(self, rows: list[int], epoch: int) -> Any:
        """The lists of the queries `rows` (b,) in an epoch: they depend on the seed as well."""

    @abstractmethod
    def _loss(self, rows: list[int], drawn: Any, part: IntArray) -> Tensor:
        """Of the queries `rows`, whose lists are at `part` of those that were drawn: ()."""

    def count_cut(self) -> int:
        """Train queries and items that are longer than their window."""
        texts, train = self.model.encoding, self.train
        rows = checked_rows(texts.texts(train.queries, queries=True))
        rows += checked_rows(texts.texts(train.items, queries=False))
        return sum(row.cut for row in rows)


class CrossEncoderTask(LabelledTask):
    """Each query with one right item and `negatives.count` wrong ones, drawn anew every epoch.

    A dev query counts as right if the best of its candidates is a right item; one whose
    candidates hold none counts as wrong (`accuracy`), or is left out (`normalised`).
    """

    main = "accuracy"

    def __init__(
        self,
        model: CrossEncoderModel,
        train: Sequence[Labelled],
        dev: Sequence[Labelled],
        negatives: NegativesSettings,
        *,
        encoder: Callable[[], Encoder] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(train, dev, seed)
        self.model, self._negatives, self._encoder = model, negatives, encoder
        self._wrong = self._candidates = np.empty((0, 0), dtype=np.int64)

    @property
    def signature(self) -> str:
        negatives = replace(self._negatives, encoder=None)
        return f"{self.model.config}|{negatives}|{self.train.digest}|{self.dev.digest}"

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Mine wrong items and dev candidates once for the whole run; both are kept on disk."""
        if not len(self._wrong):
            negatives, seed = self._negatives, self._seed
            key = f"{replace(negatives, count=1, dev_candidates=1)}|{seed}|{self.train.digest}"
            self._wrong = kept(folder / "negatives.npy", key, self._mine)
            key = f"{negatives.encoder}|{negatives.dev_candidates}|{self.dev.digest}"
            kind, count = "dual-encoder" if self._encoder else "tfidf", negatives.dev_candidates
            self._candidates = kept(
                folder / "dev.npy", key, lambda: self.dev.nearest(kind, count, self._open())
            )

    def _draw(self, rows: list[int], epoch: int) -> IntArray:
        seed = (self._seed + 1) * 1_000 + epoch
        return self.train.lists(rows, self._wrong, self._negatives.count, seed)

    def _loss(self, rows: list[int], drawn: IntArray, part: IntArray) -> Tensor:
        return self.loss(rows, drawn[part])

    def loss(self, rows: Sequence[int], lists: IntArray) -> Tensor:
        """Of the queries `rows` (b,) over `lists` (b, c), whose first column is right: ()."""
        present = torch.from_numpy(lists != NO_ITEM)
        scores = score(self.model, self.train, self.train.pairs(rows, lists))
        table = torch.zeros(lists.shape, dtype=scores.dtype, device=scores.device)
        table[present.to(scores.device)] = scores
        return softmax_cross_entropy(table, present)

    def evaluate(self) -> Measures:
        found, rows = self._candidates, list(range(len(self.dev)))
        table = np.full(found.shape, -np.inf, dtype=np.float32)
        scores = score(self.model, self.dev, self.dev.pairs(rows, found))
        table[found != NO_ITEM] = scores.float().cpu().numpy()
        right = self.dev.holds_right(found[rows, table.argmax(1)][:, None])
        there = self.dev.holds_right(found)
        return {
            "accuracy": float(np.mean(right)),
            "normalised": float(sum(right) / max(1, sum(there))),
            "in_candidates": float(np.mean(there)),
        }

    def count_cut(self) -> int:
        """Train queries that are longer than their window beside their own right item."""
        firsts = np.array([found[0] for found in self.train.positives])
        pairs = Pairs(np.arange(len(firsts)), firsts)
        rows = self.model.encoding.pairs(pairs, self.train.queries, self.train.items)
        return sum(row.cut for row in checked_rows(rows))

    def _mine(self) -> IntArray:
        encoder = self._open() if self._negatives.kind == "dual-encoder" else None
        return self.train.wrong(self._negatives, self._seed, encoder)

    def _open(self) -> Encoder | None:
        return self._encoder() if self._encoder else None


def score(model: CrossEncoderModel, corpora: Corpora, pairs: Pairs) -> Tensor:
    """Scores of pairs (p,), with gradients if they are on."""
    rows = checked_rows(model.encoding.pairs(pairs, corpora.queries, corpora.items))
    return in_passes(rows, model.score_rows)


class DualEncoderTask(LabelledTask):
    """In-batch softmax cross-entropy; every query brings its gold item and hard negatives.

    `teacher_weight` times the distance to a teacher's vectors of the same texts is added. A part's
    negatives are the items of that part.
    """

    main = "mrr"

    def __init__(
        self,
        model: DualEncoderModel,
        train: Sequence[Labelled],
        dev: Sequence[Labelled],
        negatives: NegativesSettings,
        *,
        teacher: Encoder | None = None,
        teacher_weight: float = 1.0,
        seed: int = 0,
    ) -> None:
        if teacher is not None and teacher.dimensions != model.dimensions:
            raise InputError(
                f"the teacher's vectors have {teacher.dimensions} dimensions, the model's "
                f"{model.dimensions}: they must be of one length"
            )
        super().__init__(train, dev, seed)
        self.model, self._negatives = model, negatives
        self._teacher, self._teacher_weight = teacher, teacher_weight
        self._scale = scale_of(model)
        self._wrong: IntArray = np.empty((0, 0), dtype=np.int64)

    @property
    def signature(self) -> str:
        teacher = self._teacher and (self._teacher.fingerprint, self._teacher_weight)
        settings = f"{self.model.config}|{replace(self._negatives, encoder=None)}|{self._seed}"
        return f"{settings}|{teacher}|{self.train.digest}|{self.dev.digest}"

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Mine the epoch's hard negatives with the model as it is, once: they are kept on disk."""
        self._wrong = kept(folder / f"negatives-{epoch}.npy", self.signature, self._mine)

    def _mine(self) -> IntArray:
        self.model.eval()
        return self.train.wrong(self._negatives, self._seed, TorchDualEncoder(self.model))

    def _draw(self, rows: list[int], epoch: int) -> IntArray:
        seed = self._seed + 1 + epoch
        return self.train.lists(rows, self._wrong, self._negatives.count, seed)

    def _loss(self, rows: list[int], drawn: IntArray, part: IntArray) -> Tensor:
        train = self.train
        items, place = numbered(drawn[part])
        wrong = np.stack([~np.isin(items, train.positives[row]) for row in rows])
        texts = [train.queries[r] for r in rows], [train.items[i] for i in items]
        query, item = vectors(self.model, *texts)
        loss = in_batch_cross_entropy(
            (query @ item.T).float() * self._scale,
            torch.from_numpy(place[:, 0]),
            torch.from_numpy(wrong),
        )
        if self._teacher is None or not self._teacher_weight:
            return loss
        taught = [self._teacher.encode_queries(texts[0]), self._teacher.encode_items(texts[1])]
        wanted = torch.from_numpy(np.concatenate(taught)).to(query.device)
        return loss + self._teacher_weight * distance_to_teacher(torch.cat([query, item]), wanted)

    def evaluate(self) -> Measures:
        """Over dev queries: accuracy, gold among the 64 nearest, mean reciprocal rank in them."""
        encoder = TorchDualEncoder(self.model)
        rank = first_ranks(self.dev.nearest("dual-encoder", 64, encoder), self.dev.positives)
        return {
            "mrr": float((1 / rank).mean()),
            "accuracy": float((rank == 1).mean()),
            "at_64": float(np.isfinite(rank).mean()),
        }


def vectors(
    model: DualEncoderModel, queries: Sequence[str], items: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Vectors of queries (m, d) and items (n, d), with gradients if they are on."""

    def encoded(texts: Sequence[str], of_queries: bool) -> Tensor:
        rows: list[Row] = checked_rows(model.encoding.texts(texts, queries=of_queries))
        return in_passes(rows, lambda batch: model(batch, queries=of_queries))

    return encoded(queries, True), encoded(items, False)


def numbered(lists: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct items of lists (b, c), and the place of each list's among them: (n,), (b, c)."""
    items, columns = np.unique(lists[lists != NO_ITEM], return_inverse=True)
    place = np.zeros(lists.shape, dtype=np.int64)
    place[lists != NO_ITEM] = columns
    return items, place


def first_ranks(found: IntArray, positives: Sequence[IntArray]) -> np.ndarray:
    """The rank of the best right item in ranked lists (m, c), infinity where there is none:
    (m,).
    """
    ranks = np.full(len(found), np.inf)
    for row, (items, right) in enumerate(zip(found, positives, strict=True)):
        places = np.flatnonzero(np.isin(items, right))
        ranks[row] = places[0] + 1 if len(places) else np.inf
    return ranks


def scale_of(model: DualEncoderModel) -> float:
    """What inner products are multiplied by before a softmax: 20 for unit vectors, 1 for others."""
    return 20.0 if model.config.normalize else 1.0
