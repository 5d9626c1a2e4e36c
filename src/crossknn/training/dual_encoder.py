"""Training dual encoders: in-batch and hard negatives, mined again every epoch (AXN, A.1), and a
teacher's vectors where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crossknn.data.dataset import Labelled
from crossknn.errors import InputError
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.models.tokens import Row
from crossknn.scorers.base import Encoder
from crossknn.scorers.torch import TorchDualEncoder
from crossknn.training.corpora import Corpora, checked_rows, in_passes
from crossknn.training.loop import Measures
from crossknn.training.losses import distance_to_teacher, in_batch_cross_entropy
from crossknn.training.mined import kept
from crossknn.training.negatives import candidates, mined, stage_of
from crossknn.training.settings import NegativesSettings
from crossknn.types import NO_ITEM, IntArray


def vectors(model: DualEncoderModel, rows: Sequence[Row], *, queries: bool) -> Tensor:
    """Vectors of rows (b, d), in passes of similar lengths, with gradients if they are on."""
    return in_passes(rows, lambda batch: model(batch, queries=queries))


class DualEncoderTask:
    """In-batch softmax cross-entropy; every query brings its gold item and hard negatives.

    Inner products are multiplied before the softmax, by 20 for unit vectors and 1 for others. With
    a `teacher`, `teacher_weight` times the distance to its vectors of the batch's queries and items
    is added.
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
        """Raises InputError if the teacher's vectors have another length than the model's."""
        if teacher is not None and teacher.dimensions != model.dimensions:
            raise InputError(
                f"the teacher's vectors have {teacher.dimensions} dimensions, the model's "
                f"{model.dimensions}: they must be of one length"
            )
        self.model = model
        self._teacher, self._teacher_weight = teacher, teacher_weight
        self.train = Corpora(train)
        self.dev = Corpora(dev)
        self._negatives = negatives
        self._seed = seed
        self._scale = 20.0 if model.config.normalize else 1.0
        self._wrong: IntArray = np.empty((0, 0), dtype=np.int64)

    @property
    def n_queries(self) -> int:
        return len(self.train)

    @property
    def signature(self) -> str:
        negatives = replace(self._negatives, encoder=None)
        digests = f"{self.train.digest}|{self.dev.digest}"
        teacher = (
            None if self._teacher is None else (self._teacher.fingerprint, self._teacher_weight)
        )
        return f"{self.model.config}|{negatives}|{self._seed}|{teacher}|{digests}"

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Mine the epoch's hard negatives with the model as it is, once: they are kept on disk."""
        self._wrong = kept(folder / f"negatives-{epoch}.npy", self.signature, self._mine)

    def count_cut(self) -> int:
        """Train queries and items that are longer than their window."""
        texts, train = self.model.encoding, self.train
        rows = checked_rows(texts.texts(train.queries, queries=True))
        rows += checked_rows(texts.texts(train.items, queries=False))
        return sum(row.cut for row in rows)

    def _mine(self) -> IntArray:
        self.model.eval()
        return mined(self.train, self._negatives, self._seed, TorchDualEncoder(self.model))

    def losses(self, rows: list[int], parts: int, epoch: int, step: int) -> Iterator[Tensor]:
        """One pass per part; a part's negatives are the items of that part."""
        for part in np.array_split(np.asarray(rows), parts):
            yield self._loss(part.tolist(), epoch) * (len(part) / len(rows))

    def _loss(self, rows: list[int], epoch: int) -> Tensor:
        train = self.train
        lists = train.lists(rows, self._wrong, self._negatives.count, self._seed + 1 + epoch)
        items, columns = np.unique(lists[lists != NO_ITEM], return_inverse=True)
        place = np.full(lists.shape, NO_ITEM)
        place[lists != NO_ITEM] = columns
        wrong = np.stack([~np.isin(items, train.positives[row]) for row in rows])
        texts = self.model.encoding
        left = checked_rows(texts.texts([train.queries[r] for r in rows], queries=True))
        right = checked_rows(texts.texts([train.items[i] for i in items], queries=False))
        query, item = (
            vectors(self.model, left, queries=True),
            vectors(self.model, right, queries=False),
        )
        loss = in_batch_cross_entropy(
            (query @ item.T).float() * self._scale,
            torch.from_numpy(place[:, 0]),
            torch.from_numpy(wrong),
        )
        if self._teacher is None or not self._teacher_weight:
            return loss
        taught = self._taught(self._teacher, rows, items).to(query.device)
        return loss + self._teacher_weight * distance_to_teacher(torch.cat([query, item]), taught)

    def _taught(self, teacher: Encoder, rows: list[int], items: IntArray) -> Tensor:
        """The teacher's vectors of queries `rows` (m) and `items` (n): (m + n, d)."""
        left = teacher.encode_queries([self.train.queries[r] for r in rows])
        right = teacher.encode_items([self.train.items[i] for i in items])
        return torch.from_numpy(np.concatenate([left, right]))

    def describe(self, rows: list[int]) -> str:
        return self.train.describe(rows)

    def evaluate(self) -> Measures:
        """Over dev queries: accuracy, gold among the 64 nearest, mean reciprocal rank in them."""
        encoder, ranks = TorchDualEncoder(self.model), []
        for part in self.dev.parts:
            found = candidates(part, stage_of(part, "dual-encoder", encoder), 64)
            for top, positives in zip(found, part.positives, strict=True):
                right = np.flatnonzero(np.isin(top, positives))
                ranks.append(right[0] + 1 if len(right) else np.inf)
        rank = np.array(ranks)
        return {
            "mrr": float((1 / rank).mean()),
            "accuracy": float((rank == 1).mean()),
            "at_64": float(np.isfinite(rank).mean()),
        }
