"""Train late-interaction models to rank a relevant item among a retriever's candidates, by
cross-entropy and the divergence from the retriever's scores (CMC, Song et al. 2024, 3.2 and C).

Axes: m queries, b queries of a step, p relevant items of a query, c candidates of a query, n texts,
t states of a text, d dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossknn.errors import InputError
from crossknn.files import new_file, open_file
from crossknn.models.tokens import checked_rows
from crossknn.scorers.library import state_hash
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, States
from crossknn_train.corpora import (
    Corpora,
    divergence,
    in_passes,
    log_shares,
    retrieved,
    retrieved_wrong,
)
from crossknn_train.labelled import LabelledTask, ranked
from crossknn_train.loop import Measures, digest_of, kept
from crossknn_train.models.late import LateInteractionModel
from crossknn_train.settings import CandidateSettings, LossSettings

AT = (4, 16)
_TEXTS_AT_ONCE = 1024
_COMPARED_AT_ONCE = 16
_ENCODED_AT_ONCE = {"vector": 512, "tokens": _COMPARED_AT_ONCE}
"""Number of dev queries whose candidates are encoded together, so that a shared candidate is
encoded once."""


class LateInteractionTask(LabelledTask):
    """Trains on lists of one relevant item, even if the retriever missed it, and irrelevant items.

    For dev queries the model ranks the retriever's best items. A query without a relevant item
    among them counts as wrong, except in `normalized_accuracy`, which leaves it out.
    """

    main = "mrr"

    def __init__(self, model: LateInteractionModel, *given: Any, **options: Any) -> None:
        super().__init__(model, *given, **options)
        model.freeze(self.settings.freeze)
        # States from frozen towers, for queries (True) and items, and the position of each text
        self._stored: dict[bool, tuple[States, dict[str, int]]] = {}

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Retrieve candidates, and compute the states of frozen towers, once for the whole run."""
        candidates, train, dev = self.settings.candidates, self.train, self.dev
        name, how = candidates.retriever, (self.encoder, self.seed)

        def find() -> list[FloatArray | IntArray]:
            right, wrong = retrieved_wrong(train, name, candidates.depth, *how)
            if not wrong.items.size:
                raise InputError(
                    f"the retriever {name!r} returns no irrelevant item for any query, so "
                    "there are no negatives to train on"
                )
            on_dev = retrieved(dev, name, candidates.dev_candidates, *how)[1].items
            return [right.items, right.scores, wrong.items, wrong.scores, on_dev]

        *of_train, self._dev_lists = kept(folder, "candidates", self.signature, find)
        self._right, self._wrong = Candidates(*of_train[:2]), Candidates(*of_train[2:])
        if self.settings.freeze != "none":
            used = (train, self._right.items), (train, self._wrong.items), (dev, self._dev_lists)
            texts = [c.items[i] for c, items in used for i in np.unique(items[items != NO_ITEM])]
            self._keep("item-states", folder, texts, queries=False)
        if self.settings.freeze == "both":
            self._keep("query-states", folder, [*train.queries, *dev.queries], queries=True)

    def _keep(self, name: str, folder: Path, texts: list[str], *, queries: bool) -> None:
        distinct = list(dict.fromkeys(texts))
        states = kept_states(folder, name, self.model, distinct, queries=queries)
        self._stored[queries] = states, {text: place for place, text in enumerate(distinct)}

    def draw(self, rows: Sequence[int], epoch: int) -> tuple[IntArray, FloatArray]:
        """Draw lists (b, c) of candidates, whose first item is relevant, and the retriever's scores
        (b, c) of these candidates."""
        drawn = []
        for row in rows:
            generator = np.random.default_rng([self.seed, epoch, row])
            right = Candidates(self._right.items[row], self._right.scores[row])
            wrong = Candidates(self._wrong.items[row], self._wrong.scores[row])
            drawn.append(draw_list(right, wrong, self.settings.candidates, generator))
        lists = Candidates.from_rows(drawn)
        return lists.items, lists.scores

    def loss(self, rows: Sequence[int], lists: IntArray, retriever: FloatArray) -> Tensor:
        scores = self.scores(self.train, rows, lists)
        others = torch.from_numpy(retriever), torch.from_numpy(lists != NO_ITEM)
        return softmax_near_retriever(scores, *others, self.settings.loss)

    def scores(self, corpora: Corpora, rows: Sequence[int], lists: IntArray) -> Tensor:
        """Compute scores (b, c) float32 of queries (b,) with candidates (b, c), -inf at `NO_ITEM`.
        An item of several lists is encoded once."""
        used = np.unique(lists[lists != NO_ITEM])
        query, query_mask = self._states([corpora.queries[row] for row in rows], queries=True)
        item, item_mask = self._states([corpora.items[i] for i in used], queries=False)
        place = torch.from_numpy(np.searchsorted(used, lists)).to(item.device)
        present = torch.from_numpy(lists != NO_ITEM).to(item.device).unsqueeze(-1)
        scores = []
        for start in range(0, len(rows), _COMPARED_AT_ONCE):
            some = slice(start, start + _COMPARED_AT_ONCE)
            mask = item_mask[place[some]] & present[some]
            scores.append(self.model.head(query[some], query_mask[some], item[place[some]], mask))
        return torch.cat(scores).float()

    def _states(self, texts: list[str], *, queries: bool) -> tuple[Tensor, Tensor]:
        if queries in self._stored:
            states, places = self._stored[queries]
            stored = states.padded(np.array([places[text] for text in texts], dtype=np.int64))
            values, mask = (torch.from_numpy(array).to(self.model.device) for array in stored)
        else:
            values, mask = tower_states(self.model, texts, queries=queries)
        of = self.model.head.of_queries if queries else self.model.head.of_items
        return of(values, mask)

    def evaluate(self) -> Measures:
        lists, ordered = self._dev_lists, np.full_like(self._dev_lists, NO_ITEM)
        answered = np.flatnonzero((lists != NO_ITEM).any(1))
        at_once = _ENCODED_AT_ONCE[self.model.head.item_reads]
        for start in range(0, len(answered), at_once):
            rows = answered[start : start + at_once]
            scores = self.scores(self.dev, rows.tolist(), lists[rows])
            order = np.argsort(-scores.cpu().numpy(), axis=1, kind="stable")
            ordered[rows] = np.take_along_axis(lists[rows], order, axis=1)
        rank = self.dev.first_ranks(ordered)
        in_candidates = np.isfinite(rank)
        return {
            **ranked(rank),
            "normalized_accuracy": float((rank == 1).sum() / max(1, in_candidates.sum())),
            **{f"recall_{k}": float((rank <= k).mean()) for k in AT},
            "in_candidates": float(in_candidates.mean()),
        }


def draw_list(
    right: Candidates,
    wrong: Candidates,
    settings: CandidateSettings,
    generator: np.random.Generator,
) -> tuple[IntArray, FloatArray]:
    """Draw a query's training list, at most 1 + `count` items with scores: one of the relevant
    candidates `right` (p,), the best of the irrelevant `wrong` (depth,), the share `fixed` of
    `count`, and others drawn by Gumbel top-k."""
    gold = [generator.integers((right.items != NO_ITEM).sum())]
    n_wrong, n_fixed = (wrong.items != NO_ITEM).sum(), round(settings.fixed * settings.count)
    chosen = np.arange(n_wrong)
    if n_wrong > settings.count:
        keys = generator.gumbel(size=n_wrong - n_fixed)
        if settings.sampling == "score":
            keys += wrong.scores[n_fixed:n_wrong]
        drawn = n_fixed + np.sort(np.argsort(-keys)[: settings.count - n_fixed])
        chosen = np.concatenate([chosen[:n_fixed], drawn])
    return (
        np.concatenate([right.items[gold], wrong.items[chosen]]),
        np.concatenate([right.scores[gold], wrong.scores[chosen]]),
    )


def softmax_near_retriever(
    scores: Tensor, retriever: Tensor, present: Tensor, settings: LossSettings
) -> Tensor:
    """Compute the loss of CMC, eq. 5 and 8, from the model's and the retriever's scores (b, c): the
    mean over queries of weight * -log softmax of the first candidate + (1 - weight) * the KL
    divergence of softmax(scores) and softmax(retriever); `present` (b, c) is false at padding."""
    present = present.to(scores.device)
    of_model = log_shares(scores, present)
    right = -of_model[:, 0].mean()
    if settings.kl == "none":
        return right
    p, q = of_model, log_shares(retriever.to(scores.device), present)
    if settings.kl == "retriever-model":
        p, q = q, p
    return settings.weight * right + (1 - settings.weight) * divergence(p, q, present)


def tower_states(
    model: LateInteractionModel, texts: Sequence[str], *, queries: bool
) -> tuple[Tensor, Tensor]:
    """Encode texts to states (n, t, d) and their mask (n, t)."""
    rows = checked_rows(model.encoding.texts(texts, queries=queries))
    values = in_passes(model, rows, lambda batch: model.encode(batch, queries=queries)[0])
    reads = (model.query if queries else model.item).reads
    counts = torch.tensor([len(row.ids) if reads == "tokens" else 1 for row in rows])
    mask = torch.arange(values.shape[1]) < counts.unsqueeze(1)
    return values, mask.to(values.device)


def kept_states(
    folder: Path, name: str, model: LateInteractionModel, texts: Sequence[str], *, queries: bool
) -> States:
    """Encode n texts with a frozen tower in float16, memory-mapped from `folder`."""
    tower, device = (model.query if queries else model.item), model.device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    config = replace(model.config, head="cmc", options={})  # the head reads states, and makes none
    key = digest_of(state_hash(tower), f"{config}|{tower.reads}|{precision}", *texts)
    file_name = f"{name}-{key}.f16"

    def write() -> list[IntArray]:
        starts = [0]
        with torch.no_grad(), new_file(folder, file_name) as file:
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                some = texts[start : start + _TEXTS_AT_ONCE]
                values, mask = tower_states(model, some, queries=queries)
                file.write(values[mask].half().cpu().numpy().tobytes())
                starts += (starts[-1] + mask.sum(1).cumsum(0)).tolist()
        return [np.array(starts)]

    [starts] = kept(folder, name, key, write)  # written last, so the values are complete
    with open_file(folder, file_name) as file:
        width = os.fstat(file.fileno()).st_size // (2 * int(starts[-1]))
        values = np.memmap(file, dtype=np.float16, mode="r", shape=(int(starts[-1]), width))
    return States(values, starts)
