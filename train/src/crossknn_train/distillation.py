"""Distilling a cross-encoder into a dual encoder: lists of scored items are learned, no labels.

The losses are those of ANNCUR (A.3), S(CE) and S(DE) the two models' scores, T the list of a query:
"match", a cross-entropy between the softmax of S(CE) and of S(DE) over T, and "pair", the j-th
item of T against the j-th hard negative, the dual encoder's nearest items outside T.
Axes: q queries of the lists, b of them in a pass, c items of a list, n items.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossknn.errors import InputError
from crossknn.linalg import top_k
from crossknn.scorers.token_models import TokenEncoder
from crossknn.types import NO_ITEM, Candidates, IntArray
from crossknn_train.labelled import scale_of, vectors
from crossknn_train.loop import Measures, Task, digest_of, kept
from crossknn_train.models.dual_encoder import DualEncoderModel

Loss: TypeAlias = Literal["match", "pair"]
HELD = 0.1
"""The share of the queries that validate."""

_AT_ONCE = 256


class DistillationTask(Task):
    """A dual encoder learns how a cross-encoder ranks each query's list.

    A tenth of the queries validates, by what the papers choose by: `recall`, the mean share of a
    list's `k` best items among the dual encoder's `k` nearest of all n, the same for both losses;
    and `first`, the share of queries whose best item is among those k.

    Args:
        lists: (q, c) the cross-encoder's best items, best first, with their scores.

    Raises:
        InputError: fewer than two queries, an unknown loss, or "pair" where a list holds all items.
    """

    main = "recall"

    def __init__(
        self,
        model: DualEncoderModel,
        queries: Sequence[str],
        items: Sequence[str],
        lists: Candidates,
        *,
        loss: Loss = "match",
        k: int = 10,
        seed: int = 0,
    ) -> None:
        if loss not in get_args(Loss):
            raise InputError(f"the loss is {loss!r}; it must be 'match' or 'pair'")
        if len(queries) < 2:
            raise InputError(
                f"distillation needs a query to train on and one to validate: there are "
                f"{len(queries)} with two scored items or more"
            )
        if loss == "pair" and lists.items.shape[1] >= len(items):
            raise InputError(
                f"the loss 'pair' needs negatives, but a list holds all {len(items)} items: set "
                "`top` to the number of the best items that are positives"
            )
        self.model = model
        self._queries, self._items, self._lists = queries, items, lists
        self._loss, self._k = loss, k
        order = np.random.default_rng(seed).permutation(len(queries))
        n_held = max(1, round(HELD * len(queries)))
        self.held, self.train = np.sort(order[:n_held]), np.sort(order[n_held:])
        self.ids = [repr(queries[row][:40]) for row in self.train]
        data = lists.items.tobytes().hex(), lists.scores.astype(np.float32).tobytes().hex()
        self.signature = f"{loss}|{k}|{seed}|{digest_of(*queries, '', *items, *data)}"

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Mine the epoch's hard negatives with the model as it is."""

        def mine() -> list[IntArray]:
            """The nearest items outside each list, as many as it has: (q, c)."""
            wrong = np.full_like(self._lists.items, NO_ITEM)
            nearest = self._nearest(self.train, 2 * wrong.shape[1])
            for row, near in zip(self.train, nearest, strict=True):
                right = self._lists.items[row]
                found = near[~np.isin(near, right)][: (right != NO_ITEM).sum()]
                wrong[row, : len(found)] = found
            return [wrong]

        if self._loss == "pair":
            [self._wrong] = kept(folder, f"negatives-{epoch}", self.signature, mine)

    def _nearest(self, rows: IntArray, count: int) -> IntArray:
        """The dual encoder's nearest items of some queries: (m, min(count, n))."""
        encoder = TokenEncoder(self.model)
        items = encoder.encode_items(self._items)
        queries = encoder.encode_queries([self._queries[row] for row in rows])
        parts = np.array_split(queries, -(-len(queries) // _AT_ONCE))
        return np.concatenate([top_k(part @ items.T, count).items for part in parts])

    def draw(self, rows: Sequence[int], epoch: int) -> list[IntArray]:
        return [self.train[rows]]

    def loss(self, rows: Sequence[int], places: IntArray) -> Tensor:
        """Of the train queries `rows` (b,), by their places among all queries (b,): ()."""
        rows = places.tolist()
        lists, device = self._lists.items[rows], self.model.device
        if self._loss == "match":
            present = torch.from_numpy(lists != NO_ITEM).to(device)
            teacher = torch.from_numpy(self._lists.scores[rows]).to(device)
            return match_cross_entropy(self._scores(rows, lists), teacher, present)
        wrong = self._wrong[rows]
        right, other = self._scores(rows, np.concatenate([lists, wrong], axis=1)).chunk(2, dim=1)
        both = (lists != NO_ITEM) & (wrong != NO_ITEM)
        return pair_cross_entropy(right, other, torch.from_numpy(both).to(device))

    def _scores(self, rows: Sequence[int], lists: IntArray) -> Tensor:
        """The dual encoder's scores of queries with their lists: (b, c), anything at `NO_ITEM`.

        They lie close together: the sum is in float32, also where the model computes in bfloat16.
        """
        items = np.unique(lists[lists != NO_ITEM])
        texts = [self._queries[r] for r in rows], [self._items[i] for i in items]
        query, item = vectors(self.model, *texts)
        chosen = item[torch.from_numpy(np.searchsorted(items, lists)).to(item.device)]
        return (query.unsqueeze(1) * chosen).sum(-1) * scale_of(self.model)

    def evaluate(self) -> Measures:
        best, near = self._lists.items[self.held, : self._k], self._nearest(self.held, self._k)
        found = (best[:, :, None] == near[:, None]).any(2)
        shares = found.sum(1) / (best != NO_ITEM).sum(1)
        return {"recall": float(shares.mean()), "first": float(found[:, 0].mean())}


def match_cross_entropy(scores: Tensor, teacher: Tensor, present: Tensor) -> Tensor:
    """Mean over queries of the cross-entropy of softmax(scores) against softmax(teacher), L_match
    of ANNCUR, A.3: (b, c) twice -> ().

    `present` (b, c) is false where a list has ended; every list has at least one candidate. The
    least value is the entropy of the teacher's softmax.
    """
    wanted = teacher.masked_fill(~present, float("-inf")).softmax(-1)
    found = scores.masked_fill(~present, float("-inf")).log_softmax(-1)
    return -(wanted * found.masked_fill(~present, 0.0)).sum(-1).mean()


def pair_cross_entropy(right: Tensor, wrong: Tensor, present: Tensor) -> Tensor:
    """Mean over queries of the mean over j of -log softmax of right j against wrong j alone, L_pair
    of ANNCUR, A.3: (b, c) twice -> ().

    `present` (b, c) is false where there is no j-th pair; a query without any counts as 0.
    """
    losses = functional.softplus(wrong - right).masked_fill(~present, 0.0)
    return (losses.sum(-1) / present.sum(-1).clamp(min=1)).mean()
