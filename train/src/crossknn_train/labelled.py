"""Train cross-encoders (ANNCUR, A.1) and dual encoders (AXN, A.1) on labelled queries.

Axes: b queries, c items of a query or a batch, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossknn.models.tokens import checked_rows
from crossknn.scorers.base import Encoder
from crossknn.scorers.token_models import TokenEncoder
from crossknn.types import NO_ITEM, FloatArray, IntArray, Pairs
from crossknn_train.corpora import (
    UNIT_SCALE,
    Corpora,
    Once,
    divergence,
    in_passes,
    log_shares,
    nearest_wrong,
    retrieved,
)
from crossknn_train.loop import Measures, Task, kept
from crossknn_train.models.cross_encoder import CrossEncoderModel
from crossknn_train.models.dual_encoder import DualEncoderModel
from crossknn_train.reading import Dataset, unmarked

RELATIONS = 10.0
"""Weight of the similarities within a batch in `distance_to_teacher`."""


class LabelledTask(Task):
    """Base class of tasks with labels: train and dev queries with their relevant items.

    encoder: the retriever of negatives or candidates, or a dual encoder's teacher, if any.
    """

    def __init__(
        self,
        model: Any,
        train: Sequence[Dataset],
        dev: Sequence[Dataset],
        settings: Any,
        encoder: Encoder | None = None,
    ) -> None:
        self.model, self.train, self.dev = model, Corpora(train), Corpora(dev)
        self.settings, self.encoder, self.seed = settings, encoder, settings.training.seed
        self.ids = self.train.ids
        named: Any = {"negatives": {"encoder"}, "candidates": {"retriever"} if encoder else set()}
        apart = dict.fromkeys(("encoder", "data", "model", "training", "teacher"), True)
        learned = settings.model_dump_json(exclude=named | apart)
        data = self.train.digest, self.dev.digest
        resumable = (learned, encoder and encoder.fingerprint, self.seed, *data)
        self.signature = "|".join(map(str, resumable))


class CrossEncoderTask(LabelledTask):
    """Trains on each query with one relevant item and `negatives.count` irrelevant items, drawn
    anew every epoch.

    A dev query counts as correct if its best candidate is relevant. A query without a relevant
    candidate counts as wrong in `accuracy`, and is left out of `normalised`.
    """

    main = "accuracy"

    def __init__(self, *given: Any, teacher: CrossEncoderModel | None = None) -> None:
        super().__init__(*given)
        self.teacher = teacher
        if teacher is not None:
            self.signature += f"|{teacher.fingerprint}"
        if self.settings.freeze_words:
            self.model.encoder.get_input_embeddings().requires_grad_(False)

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Mine negatives and dev candidates, and encode texts for the teacher, once for the whole
        run."""
        encoder = None if self.encoder is None else Once(self.encoder)

        def mine() -> list[IntArray]:
            negatives = self.settings.negatives
            kind = "dual-encoder" if encoder else "tfidf"
            on_dev = retrieved(self.dev, kind, negatives.dev_candidates, encoder)[1].items
            return [nearest_wrong(self.train, negatives, encoder, self.seed), on_dev]

        def taught() -> list[FloatArray]:
            assert encoder is not None
            # Negatives are mined by the same texts, whose vectors the encoder has kept.
            queries = encoder.encode_queries([*map(unmarked, self.train.queries)])
            items = encoder.encode_items([*map(unmarked, self.train.items)])
            return [queries.astype(np.float16), items.astype(np.float16)]

        self._wrong, self._candidates = kept(folder, "negatives", self.signature, mine)
        if self.settings.teacher_weight:
            self._taught = kept(folder, "teacher", self.signature, taught)

    def draw(self, rows: Sequence[int], epoch: int) -> list[IntArray]:
        seed = (self.seed + 1) * 1_000 + epoch
        return [self.train.lists(rows, self._wrong, self.settings.negatives.count, seed)]

    def loss(self, rows: Sequence[int], lists: IntArray) -> Tensor:
        scores = self.scores(self.train, rows, lists)
        if self.teacher is not None:
            return self._distance_to_scores(scores, rows, lists)
        first = scores.new_zeros(len(rows), dtype=torch.long)
        if self.settings.zero:
            scores = torch.cat([scores, scores.new_zeros(len(rows), 1)], dim=1)
            none = functional.cross_entropy(scores[:, 1:], first + scores.shape[1] - 2)
            loss = functional.cross_entropy(scores, first) + none / 2
            scores = scores[:, :-1]
        else:
            loss = functional.cross_entropy(scores, first)
        if self.settings.teacher_weight:
            loss = loss + self.settings.teacher_weight * self._distance(scores, rows, lists)
        return loss

    def _distance_to_scores(self, scores: Tensor, rows: Sequence[int], lists: IntArray) -> Tensor:
        """Mean squared difference of the scores (b, c) to the teacher's."""
        with torch.no_grad():
            taught = self.scores(self.train, rows, lists, self.teacher)
        present = taught.isfinite()
        return (scores[present] - taught[present]).square().mean()

    def _distance(self, scores: Tensor, rows: Sequence[int], lists: IntArray) -> Tensor:
        """KL divergence from the scores (b, c) to 20 times the teacher's cosines."""
        queries, items = self._taught
        chosen = queries[np.array(rows)], items[np.maximum(lists, 0)]
        cosines = np.einsum("bd,bcd->bc", *(vectors.astype(np.float32) for vectors in chosen))
        taught = torch.from_numpy(UNIT_SCALE * cosines).to(scores.device)
        present = torch.from_numpy(lists != NO_ITEM).to(scores.device)
        return divergence(log_shares(taught, present), log_shares(scores, present), present)

    def scores(
        self, corpora: Corpora, rows: Sequence[int], lists: IntArray, model: Any = None
    ) -> Tensor:
        """Compute scores (b, c) of queries (b,) with items `lists` (b, c), -inf at `NO_ITEM`, by
        the model in training or another one."""
        model = self.model if model is None else model
        present = lists != NO_ITEM
        pairs = Pairs(np.repeat(rows, present.sum(1)), lists[present])
        encoded = model.encoding.pairs(pairs, corpora.queries, corpora.items)
        logits = in_passes(model, checked_rows(encoded), model.encode)
        scores = logits.new_full(lists.shape, float("-inf"))
        scores[torch.from_numpy(present).to(logits.device)] = logits
        return scores

    def evaluate(self) -> Measures:
        candidates, rows = self._candidates, range(len(self.dev))
        best = self.scores(self.dev, rows, candidates).argmax(1).cpu().numpy()
        is_right = np.isfinite(self.dev.first_ranks(candidates[rows, best][:, None]))
        in_candidates = np.isfinite(self.dev.first_ranks(candidates))
        return {
            "accuracy": float(is_right.mean()),
            "normalised": float(is_right.sum() / max(1, in_candidates.sum())),
            "in_candidates": float(in_candidates.mean()),
        }


class DualEncoderTask(LabelledTask):
    """Trains by softmax cross-entropy within a pass: every query adds a relevant item and hard
    negatives, and the items of other queries are negatives, too."""

    main = "mrr"

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Mine the epoch's hard negatives with the current model."""

        def mine() -> list[IntArray]:
            encoder = TokenEncoder(self.model)
            return [nearest_wrong(self.train, self.settings.negatives, encoder, self.seed)]

        [self._wrong] = kept(folder, f"negatives-{epoch}", self.signature, mine)

    def draw(self, rows: Sequence[int], epoch: int) -> list[IntArray]:
        seed = self.seed + 1 + epoch
        return [self.train.lists(rows, self._wrong, self.settings.negatives.count, seed)]

    def loss(self, rows: Sequence[int], lists: IntArray) -> Tensor:
        train = self.train
        items = np.unique(lists[lists != NO_ITEM])
        gold = np.searchsorted(items, lists[:, 0])
        # An item relevant to a query is never its negative, even if drawn for another query.
        keep = np.stack([~np.isin(items, train.positives[row]) for row in rows])
        keep[np.arange(len(rows)), gold] = True
        texts = [train.queries[r] for r in rows], [train.items[i] for i in items]
        query, item = vectors(self.model, *texts)
        scores = (query @ item.T).float() * scale_of(self.model)
        scores = scores.masked_fill(~torch.from_numpy(keep).to(query.device), float("-inf"))
        loss = functional.cross_entropy(scores, torch.from_numpy(gold).to(query.device))
        if self.encoder is None:
            return loss
        taught = [self.encoder.encode_queries(texts[0]), self.encoder.encode_items(texts[1])]
        teacher = torch.from_numpy(np.concatenate(taught)).to(query.device)
        distance = distance_to_teacher(torch.cat([query, item]), teacher)
        return loss + self.settings.teacher_weight * distance

    def evaluate(self) -> Measures:
        """Compute the measures over dev queries within the 64 nearest items."""
        nearest = retrieved(self.dev, "dual-encoder", 64, TokenEncoder(self.model))[1].items
        rank = self.dev.first_ranks(nearest)
        return {**ranked(rank), "at_64": float(np.isfinite(rank).mean())}


def ranked(rank: FloatArray) -> Measures:
    """Compute mean reciprocal rank and accuracy from the ranks (m,) of the best relevant items."""
    return {"mrr": float((1 / rank).mean()), "accuracy": float((rank == 1).mean())}


def vectors(
    model: DualEncoderModel, queries: Sequence[str], items: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Encode queries (m, d) and items (n, d), with gradients if they are enabled."""

    def encoded(texts: Sequence[str], of_queries: bool) -> Tensor:
        rows = checked_rows(model.encoding.texts(texts, queries=of_queries))
        return in_passes(model, rows, lambda batch: model.encode(batch, queries=of_queries))

    return encoded(queries, True), encoded(items, False)


def scale_of(model: DualEncoderModel) -> float:
    """Return the factor of inner products in a softmax: 20 for unit vectors, otherwise 1."""
    return UNIT_SCALE if model.config.normalize else 1.0


def distance_to_teacher(vectors: Tensor, teacher: Tensor) -> Tensor:
    """Compute the mean of 1 - cosine to the teacher's vectors, plus ten times the mean squared
    difference of the cosines within the batch (Park et al. 2019): (b, d) twice -> ()."""
    with torch.autocast(vectors.device.type, enabled=False):
        own = functional.normalize(vectors.float(), dim=-1)
        taught = functional.normalize(teacher.float(), dim=-1)
        single = (1 - (own * taught).sum(-1)).mean()
        relations = (own @ own.T - taught @ taught.T).square().mean()
        return single + RELATIONS * relations
