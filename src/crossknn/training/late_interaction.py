"""Training late-interaction models: a right item among a retriever's candidates, by cross-entropy
and by the divergence from the retriever (CMC, Song et al. 2024, 3.2 and C).

Axes: b queries, c candidates, n texts, s states in all, t of one text, d dimensions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossknn.data.dataset import Labelled
from crossknn.errors import InputError
from crossknn.models.base import state_hash
from crossknn.models.late.model import LateInteractionModel
from crossknn.models.tokens import token_batches
from crossknn.scorers.base import Encoder
from crossknn.scorers.torch import TOKENS_PER_RUN
from crossknn.training.candidates import RETRIEVERS, CandidateRetriever, Found, Lists
from crossknn.training.checkpoint import digest_of, kept
from crossknn.training.corpora import Corpora, checked_rows
from crossknn.training.labelled import LabelledTask, first_ranks
from crossknn.training.loop import Measures
from crossknn.training.losses import softmax_near_retriever
from crossknn.training.settings import CandidateSettings, Freeze, LossSettings
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, States

logger = logging.getLogger(__name__)

FOUND = "candidates.npy"
AT = (4, 16)
_TEXTS_AT_ONCE = 1024
_COMPARED_AT_ONCE = 16
_ENCODED_AT_ONCE = {"vector": 512, "tokens": _COMPARED_AT_ONCE}
"""Dev queries whose candidates are encoded together: those that share one do so once."""


class LateInteractionTask(LabelledTask):
    """Each query with a right item, put in if the retriever missed it, and wrong ones (`Lists`).

    On dev the retriever's best items are ranked as they are: a query whose right item it missed
    counts as wrong, but for `normalized_accuracy`, which leaves it out.
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
        for part in (*train, *dev):
            _check(part)
        super().__init__(train, dev, seed)
        model.freeze(freeze)
        self.model, self._weights = model, state_hash(model)
        self._candidates, self._settings, self._freeze = candidates, loss or LossSettings(), freeze
        self._retriever = CandidateRetriever(candidates, encoder, seed)
        self._lists: Lists | None = None
        self._dev_lists: IntArray = np.empty((0, 0), dtype=np.int64)
        self._stored: dict[bool, tuple[States, dict[str, int]]] = {}
        """Of queries (True) and items whose tower keeps still: states, and the place of each
        text.
        """

    @property
    def signature(self) -> str:
        candidates = self._candidates
        if candidates.retriever not in RETRIEVERS:  # the folder of a dual encoder may move
            candidates = replace(candidates, retriever="")
        settings = f"{self.model.config}|{candidates}|{self._settings}|{self._freeze}|{self._seed}"
        return f"{settings}|{self._weights}|{self.train.digest}|{self.dev.digest}"

    def check_retriever(self, folder: Path) -> None:
        """Open the retriever, unless it is done with in `folder`: InputError if it cannot be."""
        if not (folder / FOUND).exists():
            self._retriever.open()

    def begin_epoch(self, epoch: int, folder: Path) -> None:
        """Find candidates, and the states that do not move, once for the whole run, on disk."""
        if self._lists is not None:
            return
        wanted, train, dev = self._candidates, self.train, self.dev
        retriever, self._retriever = self._retriever, CandidateRetriever(wanted)  # frees its memory
        drawn = self._seed if wanted.retriever == "random" else ""
        key = f"{wanted.retriever}|{wanted.scale}|{wanted.depth}|{drawn}|{train.digest}"
        found: Found = kept(folder / FOUND, key, lambda: retriever.found(train))
        key = f"{wanted.retriever}|{wanted.dev_candidates}|{drawn}|{dev.digest}"
        count = wanted.dev_candidates
        self._dev_lists = kept(folder / "dev.npy", key, lambda: retriever.top(dev, count))
        n_right = max(len(positives) for positives in train.positives)
        self._lists = Lists(found, n_right, wanted, self._seed)
        if self._freeze != "none":
            used = ((train, found["item"]), (dev, self._dev_lists))
            texts = [c.items[i] for c, items in used for i in np.unique(items[items != NO_ITEM])]
            self._keep("item-states", folder, texts, queries=False)
        if self._freeze == "both":
            self._keep("query-states", folder, [*train.queries, *dev.queries], queries=True)

    def _keep(self, name: str, folder: Path, texts: list[str], *, queries: bool) -> None:
        known = list(dict.fromkeys(texts))
        states = kept_states(folder, name, self.model, known, queries=queries)
        self._stored[queries] = states, {text: place for place, text in enumerate(known)}

    def _draw(self, rows: list[int], epoch: int) -> Candidates:
        if self._lists is None:
            raise RuntimeError("begin_epoch comes before the first step")
        return self._lists.draw(rows, epoch)

    def _loss(self, rows: list[int], drawn: Candidates, part: IntArray) -> Tensor:
        return self.loss(rows, drawn.items[part], drawn.scores[part])

    def loss(self, rows: Sequence[int], lists: IntArray, retriever: FloatArray) -> Tensor:
        """Of train queries (b,) over lists (b, c), whose first is right, and the retriever's scaled
        scores of them (b, c): ()."""
        return softmax_near_retriever(
            self.scores(self.train, rows, lists),
            torch.from_numpy(retriever),
            torch.from_numpy(lists != NO_ITEM),
            weight=self._settings.weight,
            kl=self._settings.kl,
        )

    def scores(
        self, corpora: Corpora, rows: Sequence[int], lists: IntArray, at_once: int | None = None
    ) -> Tensor:
        """The model's scores of queries (b,) with their lists: (b, c) float32, -inf at `NO_ITEM`.

        An item of several lists is encoded once; then `at_once` lists are compared (all by
        default).
        """
        there = lists != NO_ITEM
        used = np.unique(lists[there])
        query, query_mask = self._states([corpora.queries[row] for row in rows], queries=True)
        item, item_mask = self._states([corpora.items[i] for i in used], queries=False)
        place = torch.from_numpy(np.searchsorted(used, lists)).to(item.device)
        present = torch.from_numpy(there).to(item.device)
        at_once = at_once or len(rows)
        found = []
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            mask = item_mask[place[part]] & present[part].unsqueeze(-1)
            found.append(self.model.head(query[part], query_mask[part], item[place[part]], mask))
        return torch.cat(found).float()

    def _states(self, texts: list[str], *, queries: bool) -> tuple[Tensor, Tensor]:
        """What the head compares of texts (n, t, d) and the mask (n, t)."""
        if queries in self._stored:
            states, places = self._stored[queries]
            stored = states.padded(np.array([places[text] for text in texts], dtype=np.int64))
            device = next(self.model.parameters()).device
            values, mask = (torch.from_numpy(array).to(device) for array in stored)
        else:
            values, mask = tower_states(self.model, texts, queries=queries)
        of = self.model.head.of_queries if queries else self.model.head.of_items
        found: tuple[Tensor, Tensor] = of(values, mask)
        return found

    def evaluate(self) -> Measures:
        lists, ranked = self._dev_lists, np.full_like(self._dev_lists, NO_ITEM)
        answered = np.flatnonzero((lists != NO_ITEM).any(1))
        at_once = _ENCODED_AT_ONCE[self.model.head.item_reads]
        for start in range(0, len(answered), at_once):
            rows = answered[start : start + at_once]
            scores = self.scores(self.dev, rows.tolist(), lists[rows], _COMPARED_AT_ONCE)
            order = np.argsort(-scores.cpu().numpy(), axis=1, kind="stable")
            ranked[rows] = np.take_along_axis(lists[rows], order, axis=1)
        rank = first_ranks(ranked, self.dev.positives)
        there = self.dev.holds_right(lists)
        return {
            "mrr": float((1 / rank).mean()),
            "accuracy": float((rank == 1).mean()),
            "normalized_accuracy": float((rank == 1).sum() / max(1, sum(there))),
            **{f"recall_{k}": float((rank <= k).mean()) for k in AT},
            "in_candidates": float(np.mean(there)),
        }


def tower_states(
    model: LateInteractionModel, texts: Sequence[str], *, queries: bool
) -> tuple[Tensor, Tensor]:
    """States (n, t, d) of texts and their mask (n, t), with gradients if they are on."""
    rows = checked_rows(model.encoding.texts(texts, queries=queries))
    lengths = np.array([len(row.ids) for row in rows])
    at_once = TOKENS_PER_RUN["cpu" if _device(model) == "cpu" else "cuda"]
    batches = list(token_batches(lengths, at_once))
    found = [model.tower_states([rows[r] for r in batch], queries=queries) for batch in batches]
    width = max(mask.shape[1] for _, mask in found)
    values = torch.cat([functional.pad(v, (0, 0, 0, width - v.shape[1])) for v, _ in found])
    masks = torch.cat([functional.pad(mask, (0, width - mask.shape[1])) for _, mask in found])
    order = torch.from_numpy(np.argsort(np.concatenate(batches))).to(values.device)
    return values[order], masks[order]


def kept_states(
    folder: Path, name: str, model: LateInteractionModel, texts: Sequence[str], *, queries: bool
) -> States:
    """The states of n texts by a tower that does not move, float16, mapped from `folder`.

    A run that was killed goes on after the last whole text. Those of another tower are removed.
    """
    key = digest_of(_tower_key(model, queries), *texts)
    path = folder / f"{name}-{key}.f16"
    for other in folder.glob(f"{name}-*.f16"):
        if other != path:
            logger.info("%s is of other texts or another tower: it is removed", other)
            other.unlink()
    starts = kept(folder / f"{name}.npy", key, lambda: _starts(model, texts, queries))
    was_training = model.training
    model.eval()
    with torch.no_grad(), path.open("ab") as file:
        width = tower_states(model, texts[:1], queries=queries)[0].shape[2]
        done = int(np.searchsorted(starts, path.stat().st_size // (2 * width), side="right")) - 1
        file.truncate(int(starts[done]) * 2 * width)
        for start in range(done, len(texts), _TEXTS_AT_ONCE):
            part = texts[start : start + _TEXTS_AT_ONCE]
            values, mask = tower_states(model, part, queries=queries)
            file.write(values[mask].half().cpu().numpy().tobytes())
            file.flush()
            logger.info("states of %d of %d %s", start + len(values), len(texts), name)
    model.train(was_training)
    shape = (int(starts[-1]), width)
    return States(np.memmap(path, dtype=np.float16, mode="r", shape=shape), starts)


def _starts(model: LateInteractionModel, texts: Sequence[str], queries: bool) -> IntArray:
    """Where the states of each text begin, (n + 1,): one of each, or one of each token."""
    if (model.head.query_reads if queries else model.head.item_reads) == "vector":
        return np.arange(len(texts) + 1)
    rows = checked_rows(model.encoding.texts(texts, queries=queries))
    return np.concatenate([[0], np.cumsum([len(row.ids) for row in rows])])


def _tower_key(model: LateInteractionModel, queries: bool) -> str:
    """What the states of a text depend on beside it."""
    tower, device = (model.query if queries else model.item), _device(model)
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    settings = (model.config.pooling, model.config.marked, model.config.window, tower.reads)
    return f"{state_hash(tower)}|{settings}|{precision}"


def _device(model: LateInteractionModel) -> str:
    return next(model.parameters()).device.type


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
