"""What every method reads and answers: the problem of one query, batches of scores, a ranking."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What the search for one query may read besides exact scores of this query.

    n items, vectors of d dimensions, k_q anchor queries.
    """

    retriever: FloatArray
    """(n,) scores of the retriever that picks the first batch; higher is better."""
    items: FloatArray | None = None
    """(n, d) item vectors."""
    query: FloatArray | None = None
    """(d,) the dual encoder's vector of the query."""
    anchor_scores: FloatArray | None = None
    """(k_q, n) exact scores of the anchor queries: R_anc."""
    anchor_queries: FloatArray | None = None
    """(k_q, d) the dual encoder's vectors of the anchor queries."""
    neighbours: IntArray | None = None
    """(n, k) the item graph: the neighbours of each item, nearest first."""
    trends: tuple[FloatArray, ...] = ()
    """(n,) each: scores by every retriever that the mean of a GP or of kriging is linear in."""
    anchor_trends: tuple[FloatArray, ...] = ()
    """(k_q, n) each: the same for the anchor queries."""
    item_scores: FloatArray | None = None
    """(k, n) exact scores of k items, used as queries, with all items."""
    item_queries: IntArray | None = None
    """(k,) the positions of those k items."""


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
    offered: int | None = None
    """How many of them, from the first on, the method itself has to offer; the retriever's order
    goes on behind them. None: all of them."""


def observed(batches: Sequence[Batch]) -> tuple[IntArray, FloatArray]:
    """All items scored so far, in scored order, and their exact scores."""
    if not batches:
        return np.empty(0, dtype=np.intp), np.empty(0)
    return (
        np.concatenate([batch.items for batch in batches]).astype(np.intp),
        np.concatenate([batch.scores for batch in batches]).astype(np.float64),
    )


def best_first(values: FloatArray, batches: Sequence[Batch]) -> Ranked:
    """The items not scored yet by falling value, equal ones by ascending position."""
    items, _ = observed(batches)
    order = np.argsort(-values, kind="stable")
    left = order[~np.isin(order, items)]
    return Ranked(left, values[left])


def given(value: T | None, name: str) -> T:
    """`value`, which the method cannot do without."""
    if value is None:
        raise ValueError(f"the problem has no {name}")
    return value
