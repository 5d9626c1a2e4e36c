"""What every method reads and answers: the problem of one query, batches of scores, a ranking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What the search for one query may read besides exact scores of this query.

    Args:
        retriever: (n,) scores of the retriever that picks the first batch; higher is better.
        items: (n, d) item vectors; `query` (d,) is the dual encoder's vector of the query.
        anchor_scores: (k_q, n) exact scores of the anchor queries, R_anc; `anchor_queries`
            (k_q, d) are their vectors.
        neighbours: (n, k) the item graph: the neighbours of each item, nearest first.
        trends: (n,) each: scores by every retriever that the mean of a GP or of kriging is linear
            in, the leading one first; `anchor_trends` (k_q, n) each: the same for the anchors.
        item_scores: (k, n) exact scores of the items at `item_queries` (k,) with all items.
    """

    retriever: FloatArray
    items: FloatArray | None = None
    query: FloatArray | None = None
    anchor_scores: FloatArray | None = None
    anchor_queries: FloatArray | None = None
    neighbours: IntArray | None = None
    trends: tuple[FloatArray, ...] = ()
    anchor_trends: tuple[FloatArray, ...] = ()
    item_scores: FloatArray | None = None
    item_queries: IntArray | None = None


@dataclass(frozen=True)
class Batch:
    """Items that were scored together, in scored order, and their exact scores."""

    items: IntArray
    scores: FloatArray


@dataclass(frozen=True)
class Ranked:
    """Unscored items, the next to score first, and the values that they are ranked by."""

    items: IntArray
    values: FloatArray


Rank = Callable[[Problem, Sequence[Batch]], Ranked]
"""What comes after one batch or more; the first one is the retriever's, with every method."""


def observed(batches: Sequence[Batch]) -> tuple[IntArray, FloatArray]:
    """All items scored so far, in scored order, and their exact scores."""
    items = [np.empty(0, np.intp), *(batch.items for batch in batches)]
    scores = [np.empty(0), *(batch.scores for batch in batches)]
    return np.concatenate(items), np.concatenate(scores)


def best_first(values: FloatArray, batches: Sequence[Batch]) -> Ranked:
    """The items not scored yet by falling value, equal ones by ascending position."""
    order = np.argsort(-values, kind="stable")
    left = order[~np.isin(order, observed(batches)[0])]
    return Ranked(left, values[left])


def equal_batches(budget: int, rounds: int) -> list[int]:
    """budget // rounds a round, the remainder in the last one; rounds without calls left out.

    AXN algorithm 1 (k_s = B_CE / R) and ADACUR algorithm 1, line 8 (k_s = k_i / N_r) divide evenly.
    """
    size = budget // rounds
    sizes = [size] * (rounds - 1) + [budget - size * (rounds - 1)]
    return [size for size in sizes if size > 0]


def softmax(values: FloatArray) -> FloatArray:
    """exp(values) divided by their sum; -inf gives 0."""
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def directions(vectors: FloatArray) -> FloatArray:
    """Vectors of length 1; those of length 0 stay 0."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)
