"""Training cross-encoders: softmax cross-entropy of a right item among wrong ones (ANNCUR, A.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crossknn.data.dataset import Labelled
from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.scorers.base import Encoder
from crossknn.training.corpora import Corpora, checked_rows, in_passes
from crossknn.training.loop import Measures
from crossknn.training.losses import softmax_cross_entropy
from crossknn.training.mined import kept
from crossknn.training.negatives import candidates, mined, stage_of
from crossknn.training.settings import NegativesSettings
from crossknn.types import NO_ITEM, IntArray, Pairs


class CrossEncoderTask:
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
        """`encoder` opens the dual encoder that mines; it is called only if there is need."""
        self.model = model
        self.train, self.dev = Corpora(train), Corpora(dev)
        self._negatives = negatives
        self._encoder = encoder
        self._seed = seed
        self._wrong: IntArray = np.empty((0, 0), dtype=np.int64)
        self._candidates: IntArray = np.empty((0, 0), dtype=np.int64)

    @property
    def n_queries(self) -> int:
        return len(self.train)

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
            self._candidates = kept(folder / "dev.npy", key, self._mine_dev)

    def losses(self, rows: list[int], parts: int, epoch: int, step: int) -> Iterator[Tensor]:
        """One pass per part, weighted by its queries."""
        lists = self.train.lists(
            rows, self._wrong, self._negatives.count, (self._seed + 1) * 1_000 + epoch
        )
        for part in np.array_split(np.arange(len(rows)), parts):
            chosen = [rows[p] for p in part]
            yield self.loss(chosen, lists[part]) * (len(part) / len(rows))

    def loss(self, rows: Sequence[int], lists: IntArray) -> Tensor:
        """Of the queries `rows` (b,) over `lists` (b, c), whose first column is right: ()."""
        present = torch.from_numpy(lists != NO_ITEM)
        scores = score(self.model, self.train, self.train.pairs(rows, lists))
        table = torch.zeros(lists.shape, dtype=scores.dtype, device=scores.device)
        table[present.to(scores.device)] = scores
        return softmax_cross_entropy(table, present)

    def describe(self, rows: list[int]) -> str:
        return self.train.describe(rows)

    def evaluate(self) -> Measures:
        """Accuracy over all dev queries, and over those whose candidates hold a right item."""
        rows = list(range(len(self.dev)))
        pairs = self.dev.pairs(rows, self._candidates)
        scores = score(self.model, self.dev, pairs).float().cpu().numpy()
        table = np.full(self._candidates.shape, -np.inf, dtype=np.float32)
        table[self._candidates != NO_ITEM] = scores
        best = self._candidates[np.arange(len(rows)), table.argmax(1)]
        right = [bool(np.isin(b, p)) for b, p in zip(best, self.dev.positives, strict=True)]
        there = [
            bool(np.isin(c, p).any())
            for c, p in zip(self._candidates, self.dev.positives, strict=True)
        ]
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
        return mined(self.train, self._negatives, self._seed, encoder)

    def _mine_dev(self) -> IntArray:
        kind = "dual-encoder" if self._encoder else "tfidf"
        encoder = self._open()
        count = self._negatives.dev_candidates
        return self.dev.together(
            [candidates(part, stage_of(part, kind, encoder), count) for part in self.dev.parts]
        )

    def _open(self) -> Encoder | None:
        return self._encoder() if self._encoder else None


def score(model: CrossEncoderModel, corpora: Corpora, pairs: Pairs) -> Tensor:
    """Scores of pairs (p,), in passes of similar lengths, with gradients if they are on."""
    rows = checked_rows(model.encoding.pairs(pairs, corpora.queries, corpora.items))
    return in_passes(rows, model.score_rows)
