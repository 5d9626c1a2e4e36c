"""The interfaces of retrievers and vector stores, and all retrievers except word models.

Axes: m queries, n items, c items of each query, e excluded items, d dimensions.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np

from crossknn.data.qrels import read_run
from crossknn.data.queries import QuerySet
from crossknn.errors import InputError
from crossknn.linalg import check_mapped, inner, mask, top_k
from crossknn.types import (
    NO_ITEM,
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    LateKind,
    Mask,
    Progress,
    Queries,
    States,
)

logger = logging.getLogger(__name__)

KINDS: tuple[LateKind, ...] = get_args(LateKind)
DEPTH = 512
"""Default number of candidates that a late-interaction model compares."""
RANKED = 10_000
"""Number of ranked items that are read to look up the scores of given items."""
WHOLE = 50_000
"""Maximum number of items for which a search round may compute all inner products."""

RankedIds: TypeAlias = Sequence[str | tuple[str, float]]


@runtime_checkable
class Retriever(Protocol):
    """A fast first stage: returns candidates, and approximate scores of given items."""

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """Return the best items of each query, best first, ties by position, perhaps fewer items.

        Args:
            queries: m queries.
            count: Number of items per query.
            allowed: Mask (n,) of the items that may be returned; None: all.
        """

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Compute approximate scores (m, c), float32, of `items` (m, c), arbitrary for `NO_ITEM`
        (-1); without `items`, all scores (m, n)."""


@runtime_checkable
class VectorStore(Protocol):
    """Item vectors that can be searched by inner product, in memory or in a vector database."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of items and of dimensions: (n, d)."""

    @property
    def values(self) -> FloatArray | None:
        """All vectors (n, d), if a search round may compute all inner products; None if it must
        use `top` instead."""

    def top(
        self, vectors: FloatArray, count: int, exclude: IntArray | None = None, allowed: Mask = None
    ) -> Candidates:
        """Return the items with the largest inner products, best first.

        Args:
            vectors: Query vectors (m, d).
            count: Number of items per query.
            exclude: Positions (m, e) of items to leave out, padded with `NO_ITEM` (-1).
            allowed: Mask (n,) of the items that may be returned; None: all.
        """

    def vectors(self, items: IntArray) -> FloatArray:
        """Return the vectors (..., d), float32 or float16, of items at positions of any shape."""


@dataclass(frozen=True, eq=False)
class ArrayStore:
    """Item vectors (n, d) in an array (float32 or float16, perhaps memory-mapped), searched
    exactly; a `VectorStore`."""

    values: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of items and of dimensions: (n, d)."""
        n, d = self.values.shape
        return n, d

    def top(
        self, vectors: FloatArray, count: int, exclude: IntArray | None = None, allowed: Mask = None
    ) -> Candidates:
        """See `VectorStore.top`; ties go to the lower position."""
        check_mapped(self.values)
        return top_k(mask(inner(vectors, self.values), exclude, allowed), count)

    def vectors(self, items: IntArray) -> FloatArray:
        """See `VectorStore.vectors`."""
        check_mapped(self.values)
        return self.values[items]


@dataclass(eq=False)
class DenseRetriever:
    """Retrieves items by inner products of their vectors (n, d), in the store `items`, with query
    vectors (m, d) from `encode`."""

    items: VectorStore
    encode: Callable[[Queries], FloatArray]

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """See `Retriever.top`. Queries keep the items: a search asks for its best three times."""
        vectors, key = self.encode(queries), ("top", id(self.items))
        of, before, most, found = queries.kept.get(key, (None, None, 0, None))
        if of is not self.items or before is not allowed or most < count:
            found = self.items.top(vectors, count, allowed=allowed)
            queries.kept[key] = self.items, allowed, count, found
        return Candidates(found.items[:, :count], found.scores[:, :count])

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Compute inner products; see `Retriever.scores`."""
        vectors, values = self.encode(queries), self.items.values
        if items is not None:
            products = np.empty(items.shape, np.float32)
            for row, vector, chosen in zip(products, vectors, items, strict=True):
                row[:] = inner(vector[None], self.items.vectors(chosen))[0]
            return products
        if values is None:
            raise InputError("scores of all items need an array of vectors, not a database")
        check_mapped(values)
        return inner(vectors, values)


@runtime_checkable
class LateEncoder(Protocol):
    """A late-interaction model: compares a query's states (vectors) with those of all candidates at
    once (CMC: Song et al. 2024, section 3). A score may depend on the other candidates, so it is
    never cached per pair. `fingerprint` identifies what scores depend on, or is None; `dimensions`
    is the length of the items' states.
    """

    @property
    def kind(self) -> str: ...

    @property
    def fingerprint(self) -> str | None: ...

    @property
    def dimensions(self) -> int: ...

    def encode_queries(self, texts: Sequence[str]) -> States:
        """Encode the texts of m queries to float32 states."""

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> States:
        """Encode the texts of n items to float16 states."""

    def compare(self, queries: States, items: States, lists: IntArray) -> FloatArray:
        """Score each query with its candidates, positions (m, c) in `items`: (m, c) float32, -inf
        for `NO_ITEM`. Raises `InputError` if a list does not fit into memory."""


class Late(NamedTuple):
    """A late-interaction model with the states of all n items."""

    model: LateEncoder
    states: States


class AllScores(ABC):
    """A retriever that scores all n items at once; subclasses define `of_all`."""

    matches_only: ClassVar[bool] = False
    """Whether only items with scores above 0 are returned, perhaps fewer than asked for."""

    @abstractmethod
    def of_all(self, queries: Queries) -> FloatArray:
        """Compute scores (m, n) float32 of all items, as a new array."""

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Score given items (m, c), or all items (m, n)."""
        scores = self.of_all(queries)
        return scores if items is None else np.take_along_axis(scores, items, axis=1)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """See `Retriever.top`."""
        scores = self.of_all(queries)
        if self.matches_only:
            scores[scores <= 0] = -np.inf
        return top_k(mask(scores, None, allowed), count)


@dataclass(eq=False)
class RandomItems(AllScores):
    """Random items, which depend only on the query's text and the seed."""

    n: int
    seed: int

    def of_all(self, queries: Queries) -> FloatArray:
        """Draw random numbers (m, n) between 0 and 1."""
        rows = [queries.generator(q, self.seed).random(self.n) for q in range(len(queries))]
        return np.array(rows, dtype=np.float32)


class ItemPriors(AllScores):
    """Scores items by one number per item (n,), the same for every query, such as views."""

    def __init__(self, values: FloatArray) -> None:
        try:
            self.values = np.asarray(values, np.float32)
        except (TypeError, ValueError):
            self.values = np.array(np.nan, np.float32)
        if self.values.ndim != 1 or not np.isfinite(self.values).all():
            raise InputError("priors of items must be an array of finite numbers, one per item")

    def of_all(self, queries: Queries) -> FloatArray:
        """Return the priors for every query: (m, n)."""
        return np.tile(self.values, (len(queries), 1))


def fixed_order(order: IntArray, n: int) -> ItemPriors:
    """Rank the items of `order`, then all others, for every query (ANNCUR's anchor items)."""
    values = np.empty(n, np.float32)
    values[np.concatenate([order, np.setdiff1d(np.arange(n), order)])] = -np.arange(n)
    return ItemPriors(values)


class Ranked(AllScores):
    """A retriever of `n` items whose scores are derived from its ranking."""

    n: int

    def of_all(self, queries: Queries) -> FloatArray:
        """Score all items: (m, n)."""
        return self.spread(self.top(queries, self.n), self.n)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Score given items (m, c) by the first 10,000 ranked items, or all items (m, n)."""
        if items is None:
            return self.of_all(queries)
        ranking, rows = self.top(queries, RANKED), []
        for q, other in enumerate(self.others(ranking).tolist()):
            score = dict(zip(ranking.items[q].tolist(), ranking.scores[q].tolist(), strict=True))
            rows.append([score.get(item, other) for item in items[q].tolist()])
        return np.array(rows, np.float32)

    def others(self, ranking: Candidates) -> FloatArray:
        """Return the score (m,) of items outside a ranking: its lowest score, but at most 0."""
        return np.where(np.isfinite(ranking.scores), ranking.scores, 0).min(axis=1, initial=0)

    def spread(self, ranking: Candidates, n: int) -> FloatArray:
        """Return the scores (m, n) of all items: from the ranking, or from `others`."""
        scores = np.repeat(self.others(ranking)[:, None].astype(np.float32), n, axis=1)
        rows, places = np.nonzero(ranking.items != NO_ITEM)
        scores[rows, ranking.items[rows, places]] = ranking.scores[rows, places]
        return scores


class CandidateLists(Ranked):
    """A retriever that returns given ranked lists of candidates. `lists` maps a query text to item
    ids, which are scored 1 / rank, or to pairs (id, score); `ids` (n,) are the ids of all items.
    Other items get the list's lowest score, at most 0."""

    def __init__(self, lists: Mapping[str, RankedIds], ids: Sequence[str]) -> None:
        position = {item_id: p for p, item_id in enumerate(ids)}
        self.n = len(ids)
        self._rows = {text: _row(text, ranked, position) for text, ranked in lists.items()}
        self._said = set[str]()  # queries without a list, of which a warning was logged

    @staticmethod
    def from_run(path: str | Path, queries: QuerySet, ids: Sequence[str]) -> CandidateLists:
        """Read the lists of `queries` from a TREC run, by query id."""
        texts = dict(zip(queries.ids, queries.texts, strict=True))
        lists = {texts[q]: ranked for q, ranked in read_run(path).items() if q in texts}
        if not lists:
            raise InputError(f"{path} ranks none of the queries: do their ids agree?")
        return CandidateLists(lists, ids)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """Return the first `count` allowed items of each list; rows may have fewer items."""
        rows, nothing = [], (np.zeros(0, np.int64), np.zeros(0, np.float32))
        for text in queries.texts:
            if text not in self._rows and text not in self._said:
                self._said.add(text)
                logger.warning("there is no candidate list for the query %.80r", text)
            items, listed = self._rows.get(text, nothing)
            kept = slice(None) if allowed is None else allowed[items]
            rows.append((items[kept][:count], listed[kept][:count]))
        return Candidates.from_rows(rows)


def _row(text: str, ranked: RankedIds, position: Mapping[str, int]) -> tuple[IntArray, FloatArray]:
    """Return a list's (items, scores), best first; ties go to the lower position."""
    scores: dict[int, float] = {}
    for rank, entry in enumerate(ranked, start=1):
        item_id, score = (entry, 1 / rank) if isinstance(entry, str) else entry
        item = position.get(item_id)
        if item is None or item in scores or not np.isfinite(score):
            raise InputError(
                f"the list of the query {text!r:.80} names {item_id!r} with the score {score}: it "
                "must name items of the index, each once, with finite scores"
            )
        scores[item] = float(score)
    items = np.fromiter(scores, dtype=np.int64, count=len(scores))
    values = np.fromiter(scores.values(), dtype=np.float32, count=len(scores))
    order = np.lexsort((items, -values))
    return items[order], values[order]


@dataclass(eq=False)
class RankFusion(Ranked):
    """Reciprocal rank fusion (Cormack et al. 2009): orders items by the sum of 1 / (60 + rank)
    over the rankings of `stages`. It reads 10,000 items of each ranking, or `count` if more."""

    stages: Sequence[Retriever]

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        depth = max(count, RANKED)
        return _fused([stage.top(queries, depth, allowed).items for stage in self.stages], count)

    def of_all(self, queries: Queries) -> FloatArray:
        """Compute the sums (m, n) from rankings of all items."""
        scores = [stage.scores(queries) for stage in self.stages]
        n = scores[0].shape[1]
        return self.spread(_fused([top_k(stage, n).items for stage in scores], n), n)


def _fused(rankings: Sequence[IntArray], count: int) -> Candidates:
    """Return the `count` items with the largest sums of 1 / (60 + rank) over rankings (m, c)."""
    rows = []
    for ranked in zip(*rankings, strict=True):
        rankings_of_query = [row[row != NO_ITEM] for row in ranked]
        items, where = np.unique(np.concatenate(rankings_of_query), return_inverse=True)
        terms = [1 / (61 + np.arange(len(row))) for row in rankings_of_query]
        sums = np.zeros(len(items), np.float32)
        np.add.at(sums, where, np.concatenate(terms).astype(np.float32))
        best = np.lexsort((items, -sums))[:count]
        rows.append((items[best], sums[best]))
    return Candidates.from_rows(rows)


@dataclass(eq=False)
class WeightedSum(AllScores):
    """Orders items by the weighted sum of the scores of `stages`."""

    stages: Sequence[Retriever]
    weights: Sequence[float]

    def of_all(self, queries: Queries) -> FloatArray:
        """Compute the weighted sums (m, n)."""
        both = zip(self.weights, self.stages, strict=True)
        weighted = [np.float32(weight) * stage.scores(queries) for weight, stage in both]
        return np.sum(weighted, axis=0, dtype=np.float32)


@dataclass(eq=False)
class LateRetriever(Ranked):
    """Reranks the first `depth` candidates of `stage` by `model`; later ones follow unchanged.

    `states` are the states of all n items; queries' states are cached in `queries.states[name]`.
    """

    stage: Retriever
    model: LateEncoder
    states: States
    depth: int
    name: str

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        candidates = self.stage.top(queries, max(count, self.depth), allowed).items
        if self.name not in queries.states:
            queries.states[self.name] = self.model.encode_queries(queries.texts)
        lists, below = np.split(candidates, [self.depth], axis=1)
        scores = np.full(lists.shape, -np.inf, np.float32)
        if (lists != NO_ITEM).any():
            scores = self.model.compare(queries.states[self.name], self.states, lists)
        order = np.lexsort((lists, -scores))
        lists = np.take_along_axis(lists, order, axis=1)
        compared = Candidates(lists, np.take_along_axis(scores, order, axis=1))
        return extended(compared, below, count)

    def of_all(self, queries: Queries) -> FloatArray:
        """Score all items (m, n): below the candidates, scores fall by 1 in the stage's order."""
        compared, n = self.top(queries, self.depth), len(self.states)
        others = mask(self.stage.scores(queries).copy(), compared.items, None)
        return self.spread(extended(compared, top_k(others, n).items), n)

    def others(self, ranking: Candidates) -> FloatArray:
        """Return the score (m,) of items after the candidates: 1 below the lowest score."""
        return _lowest(ranking) - 1


def extended(ranking: Candidates, below: IntArray, count: int | None = None) -> Candidates:
    """Append items (m, e) to a ranking, with scores falling by 1, and cut it to `count`."""
    under = _lowest(ranking)[:, None] - 1 - np.arange(below.shape[1])
    under[below == NO_ITEM] = -np.inf
    items = np.concatenate([ranking.items, below], axis=1)[:, :count]
    scores = np.concatenate([ranking.scores, under.astype(np.float32)], axis=1)[:, :count]
    return Candidates(items, scores)


def _lowest(ranking: Candidates) -> FloatArray:
    lowest = ranking.scores.min(axis=1, initial=np.inf, where=ranking.items != NO_ITEM)
    return np.where(np.isinf(lowest), 0, lowest)
