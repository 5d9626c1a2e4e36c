"""The candidates that late-interaction models learn to compare: a retriever's best items, of which
some are fixed and some drawn anew every epoch (CMC, 3.2 and C)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossknn.data.dataset import Labelled
from crossknn.errors import InputError
from crossknn.linalg import top_k
from crossknn.retrievers.base import DenseRetriever, RandomItems, Retriever
from crossknn.scorers.base import Encoder
from crossknn.training.corpora import Corpora, candidates, plain, reads_marks, retriever_of
from crossknn.training.settings import CandidateSettings
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, Queries

WORDS = ("bm25", "tfidf")
LISTS = "lists"
RETRIEVERS = (*WORDS, "random", LISTS)
"""Any other is a dual encoder."""
_SCORES_AT_ONCE = 1 << 26
_UNIT_SCALE = 20.0
_FOUND = np.dtype([("item", np.int32), ("score", np.float32)])
_NOTHING = np.array((NO_ITEM, -np.inf), dtype=_FOUND)

Found: TypeAlias = NDArray[Any]
"""Items and their scaled scores, (m, p + depth): up to p right items, then wrong ones, best first;
`NO_ITEM` and -inf where there are no more."""


class CandidateRetriever:
    """The retriever of the settings over any corpus; `encoder` opens the dual encoder, if it is
    one, and is called only if there is need."""

    def __init__(
        self,
        settings: CandidateSettings,
        encoder: Callable[[], Encoder] | None = None,
        seed: int = 0,
    ) -> None:
        self._settings, self._open, self._seed = settings, encoder, seed
        self._is_plain = settings.retriever in WORDS
        self._encoder: Encoder | None = None
        self._last: tuple[Sequence[str], Retriever, float] | None = None

    def open(self) -> None:
        """Open the dual encoder, if it is one; InputError if it cannot be opened."""
        name = self._settings.retriever
        if name in RETRIEVERS or self._encoder is not None:
            return
        try:
            if self._open is None:
                raise InputError("no dual encoder was given")
            self._encoder = self._open()
        except InputError as error:
            raise InputError(
                f"candidates: the retriever {name!r} is neither 'bm25', 'tfidf', 'random' or "
                f"'lists' nor a dual encoder: {error}"
            ) from error
        self._is_plain = not reads_marks(self._encoder)

    def found(self, corpora: Corpora) -> Found:
        """Every query's right items and its `depth` best wrong ones, from its own corpus.

        Words find only items that share one with the query. Raises InputError if no query has a
        wrong item.
        """
        width = min(self._settings.depth, max(len(part.items) for part in corpora.parts))
        n_right = max(len(positives) for positives in corpora.positives)
        found = np.full((len(corpora), n_right + width), _NOTHING)
        done = 0
        for part, offset in zip(self._read(corpora), corpora.starts, strict=False):
            rows = found[done : done + len(part)]
            if self._settings.retriever == LISTS:
                self._fill_listed(rows, part, n_right, int(offset))
            else:
                self._fill(rows, part, n_right, int(offset))
            done += len(part)
        if (found["item"][:, n_right:] == NO_ITEM).all():
            raise InputError(
                f"the retriever {self._settings.retriever!r} finds no wrong item for any "
                "query, so there is nothing to tell a right one from"
            )
        return found

    def top(self, corpora: Corpora, count: int) -> IntArray:
        """Every query's `count` best items, right ones where they stand: (m, count)."""
        if self._settings.retriever == LISTS:
            return corpora.together([_listed(part).items[:, :count] for part in corpora.parts])
        return corpora.together(
            [candidates(part, self._over(part)[0], count) for part in self._read(corpora)]
        )

    def _read(self, corpora: Corpora) -> list[Labelled]:
        """The corpora, without marks if the retriever does not know them."""
        self.open()
        return [plain(part) if self._is_plain else part for part in corpora.parts]

    def _fill(self, found: Found, part: Labelled, n_right: int, offset: int) -> None:
        """The rows of one corpus (m_i, p + depth), in place."""
        retriever, scale = self._over(part)
        at_once = max(1, min(256, _SCORES_AT_ONCE // len(part.items)))
        for start in range(0, len(part), at_once):
            positives = part.positives[start : start + at_once]
            scores = retriever.scores(Queries(part.queries.texts[start : start + at_once]))
            right = [scores[row, items] for row, items in enumerate(positives)]
            if self._settings.retriever in WORDS:
                scores[scores <= 0] = -np.inf
            for row, items in enumerate(positives):
                scores[row, items] = -np.inf
            wrong = top_k(scores, found.shape[1] - n_right)
            for row, items in enumerate(positives):
                there = wrong.items[row] != NO_ITEM
                best = wrong.items[row][there], wrong.scores[row][there]
                _put(found[start + row, :n_right], items + offset, right[row] * scale)
                _put(found[start + row, n_right:], best[0] + offset, best[1] * scale)

    def _fill_listed(self, found: Found, part: Labelled, n_right: int, offset: int) -> None:
        """The same from the lists of a corpus; a right item outside its list scores 0, or as the
        last if that is below 0."""
        lists, scale = _listed(part), self._settings.scale or 1.0
        for row, positives in enumerate(part.positives):
            there = lists.items[row] != NO_ITEM
            items, scores = lists.items[row][there], lists.scores[row][there] * scale
            is_right = np.isin(items, positives)
            known = dict(zip(items[is_right].tolist(), scores[is_right].tolist(), strict=True))
            last = float(scores.min(initial=0.0))
            right = [known.get(item, last) for item in positives.tolist()]
            _put(found[row, :n_right], positives + offset, right)
            _put(found[row, n_right:], items[~is_right] + offset, scores[~is_right])

    def _over(self, part: Labelled) -> tuple[Retriever, float]:
        """The retriever over a corpus and the factor of its scores; the last one is kept, since
        train and dev queries often have one corpus."""
        texts = part.items.texts
        if self._last is None or self._last[0] != texts:
            self._last = (texts, *self._new(part))
        return self._last[1:]

    def _new(self, part: Labelled) -> tuple[Retriever, float]:
        name, scale = self._settings.retriever, self._settings.scale
        if name == "random":
            return RandomItems(len(part.items), self._seed), scale or 1.0
        if name in WORDS:
            return retriever_of(part, name), scale or (_UNIT_SCALE if name == "tfidf" else 1.0)
        retriever = retriever_of(part, "dual-encoder", self._encoder)
        return retriever, scale or _scale_of(retriever, len(part.items))


class Lists:
    """The lists that a run learns from, drawn from what a retriever found (m, n_right + depth).

    A right item, drawn if there are several, the best wrong items, `fixed` of `count`, and others
    drawn by Gumbel top-k. They depend on the seed, the epoch and the query alone.
    """

    def __init__(
        self, found: Found, n_right: int, settings: CandidateSettings, seed: int = 0
    ) -> None:
        self._found, self._n_right, self._settings, self._seed = found, n_right, settings, seed

    def draw(self, rows: Sequence[int], epoch: int) -> Candidates:
        """Items and scaled scores of the queries `rows`: (b, c), c at most 1 + count."""
        drawn = [self._of(row, epoch) for row in rows]
        return Candidates.from_rows([(found["item"], found["score"]) for found in drawn])

    def _of(self, row: int, epoch: int) -> Found:
        generator = np.random.default_rng([self._seed, epoch, row])
        right, wrong = np.split(self._found[row], [self._n_right])
        right, wrong = right[right["item"] != NO_ITEM], wrong[wrong["item"] != NO_ITEM]
        gold = generator.integers(len(right))
        n_fixed = round(self._settings.fixed * self._settings.count)
        n_drawn = self._settings.count - n_fixed
        rest = wrong[n_fixed:]
        if len(rest) > n_drawn:
            keys = generator.gumbel(size=len(rest))
            if self._settings.sampling == "score":
                keys += rest["score"]
            rest = rest[np.sort(np.argsort(-keys)[:n_drawn])]
        return np.concatenate([right[gold : gold + 1], wrong[:n_fixed], rest])


def _put(row: Found, items: IntArray, scores: FloatArray | list[float]) -> None:
    """Fill the beginning of a row (c,) with items and scores; what does not fit is left out."""
    row["item"][: len(items)] = items[: len(row)]
    row["score"][: len(items)] = scores[: len(row)]


def _listed(part: Labelled) -> Candidates:
    if part.lists is None:
        raise InputError(
            f"{part.name} was read without its lists, which the retriever 'lists' takes"
        )
    return part.lists


def _scale_of(retriever: Retriever, n: int) -> float:
    """20 if the item vectors have unit length, else 1."""
    if not isinstance(retriever, DenseRetriever):
        return 1.0
    vectors = retriever.store.vectors(np.arange(min(n, 256)))
    lengths = np.linalg.norm(vectors.astype(np.float32), axis=1)
    return _UNIT_SCALE if np.allclose(lengths, 1.0, atol=1e-2) else 1.0
