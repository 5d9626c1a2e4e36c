"""Training late-interaction models: a right item among a retriever's candidates, by cross-entropy
and by the divergence from the retriever (CMC, Song et al. 2024, 3.2 and C).

Axes: b queries, c candidates, t states of a text, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from crossknn.data.dataset import Labelled
from crossknn.errors import InputError
from crossknn.models.late.model import LateInteractionModel
from crossknn.scorers.base import Encoder
from crossknn.training.candidates import RETRIEVERS, CandidateRetriever, Found, Lists
from crossknn.training.corpora import Corpora, checked_rows
from crossknn.training.loop import Measures
from crossknn.training.losses import softmax_near_retriever
from crossknn.training.mined import kept
from crossknn.training.settings import CandidateSettings, Freeze, LossSettings
from crossknn.training.states import kept_states, tower_states, weights_digest
from crossknn.types import NO_ITEM, FloatArray, IntArray, States

FOUND = "candidates.npy"
AT = (4, 16)
_COMPARED_AT_ONCE = 16
_ENCODED_AT_ONCE = {"vector": 512, "tokens": _COMPARED_AT_ONCE}
"""Dev queries whose candidates are encoded together: those that share one do so once."""


class LateInteractionTask:
    """Each query with a right item, put in if the retriever missed it, and wrong ones (`Lists`).

    The retriever's candidates are mined once for the whole run. What `freeze` keeps still is
    computed once, so that a step costs only the rest. On dev the retriever's best items are ranked
    as they are: a query whose right item it missed counts as wrong, but for `normalized_accuracy`,
    which leaves it out.
    """

    main = "mrr"

    def __init__(
        self,
        model: LateInteractionModel,
        train: Sequence[Labelled],
        dev: Sequence[Labelled],
        candidates: CandidateSettings,
        loss: LossSettings | None = None,
        *,
        freeze: Freeze = "none",
        encoder: Callable[[], Encoder] | None = None,
        seed: int = 0,
    ) -> None:
        """`encoder` opens the dual encoder that retrieves; it is called only if there is need.

        Raises InputError for a query without a right item, a right item outside its corpus, and a
        corpus of one item.
        """
        for part in (*train, *dev):
            _check(part)
        model.freeze(freeze)
        self.model = model
        self.train, self.dev = Corpora(train), Corpora(dev)
        self._candidates, self._loss, self._freeze = candidates, loss or LossSettings(), freeze
        self._retriever = CandidateRetriever(candidates, encoder, seed)
        self._seed, self._weights = seed, weights_digest(model)
        self._lists: Lists | None = None
        self._dev_lists: IntArray = np.empty((0, 0), dtype=np.int64)
        self._stored: dict[bool, _Stored] = {}

    @property
    def n_queries(self) -> int:
        return len(self.train)

    @property
    def signature(self) -> str:
        candidates = self._candidates
        if candidates.retriever not in RETRIEVERS:  # the folder of a dual encoder may move
            candidates = replace(candidates, retriever="")
        settings = f"{self.model.config}|{candidates}|{self._loss}|{self._freeze}|{self._seed}"
        return f"{settings}|{self._weights}|{self.train.digest}|{self.dev.digest}"

    def check_retriever(self, folder: Path) -> None:
        """Open the retriever, unless it is done with in `folder`: InputError if it cannot be."""
        if not (folder / FOUND).exists():
            self._retriever.open()

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Find candidates, and the states that do not move, once for the whole run; all are kept
        on disk."""
        if self._lists is not None:
            return
        wanted, train, dev = self._candidates, self.train, self.dev
        retriever, self._retriever = (
            self._retriever,
            CandidateRetriever(wanted),
        )  # its memory is freed
        drawn = self._seed if wanted.retriever == "random" else ""
        key = f"{wanted.retriever}|{wanted.scale}|{wanted.depth}|{drawn}|{train.digest}"
        found: Found = kept(folder / FOUND, key, lambda: retriever.found(train))
        key = f"{wanted.retriever}|{wanted.dev_candidates}|{drawn}|{dev.digest}"
        self._dev_lists = kept(
            folder / "dev.npy", key, lambda: retriever.top(dev, wanted.dev_candidates)
        )
        n_right = max(len(positives) for positives in train.positives)
        self._lists = Lists(found, n_right, wanted, self._seed)
        if self._freeze != "none":
            used = ((train, found["item"]), (dev, self._dev_lists))
            texts = [c.items[i] for c, items in used for i in np.unique(items[items != NO_ITEM])]
            self._stored[False] = _Stored.of(self.model, folder, texts, queries=False)
        if self._freeze == "both":
            texts = [*train.queries, *dev.queries]
            self._stored[True] = _Stored.of(self.model, folder, texts, queries=True)

    def losses(self, rows: list[int], parts: int, epoch: int, step: int) -> Iterator[Tensor]:
        """One pass per part, weighted by its queries."""
        if self._lists is None:
            raise RuntimeError("begin_epoch comes before the first step")
        drawn = self._lists.draw(rows, epoch)
        for part in np.array_split(np.arange(len(rows)), parts):
            loss = self.loss([rows[p] for p in part], drawn.items[part], drawn.scores[part])
            yield loss * (len(part) / len(rows))

    def loss(self, rows: Sequence[int], lists: IntArray, retriever: FloatArray) -> Tensor:
        """Of train queries (b,) over lists (b, c), whose first is right, and the retriever's scaled
        scores of them (b, c): ()."""
        return softmax_near_retriever(
            self.scores(self.train, rows, lists),
            torch.from_numpy(retriever),
            torch.from_numpy(lists != NO_ITEM),
            weight=self._loss.weight,
            kl=self._loss.kl,
        )

    def scores(self, corpora: Corpora, rows: Sequence[int], lists: IntArray) -> Tensor:
        """The model's scores of queries (b,) with their lists: (b, c) float32, -inf at `NO_ITEM`.

        An item of several lists is encoded once.
        """
        return torch.cat(list(self._compared(corpora, rows, lists, len(rows))))

    def _compared(
        self, corpora: Corpora, rows: Sequence[int], lists: IntArray, at_once: int
    ) -> Iterator[Tensor]:
        """`scores` in parts: all texts are encoded first, then `at_once` lists are compared."""
        there = lists != NO_ITEM
        used = np.unique(lists[there])
        query, query_mask = self._states([corpora.queries[row] for row in rows], queries=True)
        item, item_mask = self._states([corpora.items[i] for i in used], queries=False)
        place = torch.from_numpy(np.searchsorted(used, lists)).to(item.device)
        present = torch.from_numpy(there).to(item.device)
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            yield self.model.head(
                query[part],
                query_mask[part],
                item[place[part]],
                item_mask[place[part]] & present[part].unsqueeze(-1),
            ).float()

    def _states(self, texts: list[str], *, queries: bool) -> tuple[Tensor, Tensor]:
        """What the head compares of texts (n, t, d) and the mask (n, t)."""
        if queries in self._stored:
            values, mask = self._stored[queries].of_texts(texts, self.model)
        else:
            values, mask = tower_states(self.model, texts, queries=queries)
        of = self.model.head.of_queries if queries else self.model.head.of_items
        found: tuple[Tensor, Tensor] = of(values, mask)
        return found

    def describe(self, rows: list[int]) -> str:
        return self.train.describe(rows)

    def evaluate(self) -> Measures:
        """Over all dev queries, ranking the retriever's candidates: see the class."""
        lists, rank = self._dev_lists, np.full(len(self.dev), np.inf)
        answered = np.flatnonzero((lists != NO_ITEM).any(1))
        at_once = _ENCODED_AT_ONCE[self.model.head.item_reads]
        for start in range(0, len(answered), at_once):
            rows = answered[start : start + at_once]
            rank[rows] = self._ranks(rows)
        there = [
            bool(np.isin(found, positives).any())
            for found, positives in zip(lists, self.dev.positives, strict=True)
        ]
        return {
            "mrr": float((1 / rank).mean()),
            "accuracy": float((rank == 1).mean()),
            "normalized_accuracy": float((rank == 1).sum() / max(1, sum(there))),
            **{f"recall_{k}": float((rank <= k).mean()) for k in AT},
            "in_candidates": float(np.mean(there)),
        }

    def _ranks(self, rows: IntArray) -> FloatArray:
        """The place of the best right item of dev queries, infinity where there is none: (b,)."""
        lists = self._dev_lists[rows]
        compared = self._compared(self.dev, rows.tolist(), lists, _COMPARED_AT_ONCE)
        scores = torch.cat(list(compared)).cpu().numpy()
        order = np.argsort(-scores, axis=1, kind="stable")
        ranked = np.take_along_axis(lists, order, axis=1)
        ranks = np.full(len(rows), np.inf)
        for place, row in enumerate(rows):
            right = np.flatnonzero(np.isin(ranked[place], self.dev.positives[row]))
            ranks[place] = right[0] + 1 if len(right) else np.inf
        return ranks

    def count_cut(self) -> int:
        """Train queries and items that are longer than their window."""
        texts, train = self.model.encoding, self.train
        rows = checked_rows(texts.texts(train.queries, queries=True))
        rows += checked_rows(texts.texts(train.items, queries=False))
        return sum(row.cut for row in rows)


@dataclass(frozen=True)
class _Stored:
    """States of texts that do not change, and where those of each text are."""

    states: States
    places: dict[str, int]

    @classmethod
    def of(
        cls, model: LateInteractionModel, folder: Path, texts: list[str], *, queries: bool
    ) -> Self:
        """Those kept in `folder`, each of the texts once."""
        known = list(dict.fromkeys(texts))
        name = "query-states" if queries else "item-states"
        stored = kept_states(folder, name, model, known, queries=queries)
        return cls(stored, {text: place for place, text in enumerate(known)})

    def of_texts(self, texts: list[str], model: LateInteractionModel) -> tuple[Tensor, Tensor]:
        """(n, t, d) float32 and the mask (n, t), on the model's device."""
        places = np.array([self.places[text] for text in texts], dtype=np.int64)
        values, mask = self.states.padded(places)
        device = next(model.parameters()).device
        return torch.from_numpy(values).to(device), torch.from_numpy(mask).to(device)


def _check(part: Labelled) -> None:
    n = len(part.items)
    if n < 2:
        raise InputError(f"{part.name} has {n} item: a right one needs a wrong one to compare with")
    for query, positives in zip(part.queries.ids, part.positives, strict=True):
        if not len(positives):
            raise InputError(f"the query {query!r} of {part.name} has no right item")
        outside = [p for p in positives if not 0 <= p < n]
        if outside:
            raise InputError(
                f"the query {query!r} of {part.name} has the right item {outside[0]}, which is "
                f"outside its {n} items"
            )
