"""What the methods that walk the item graph share."""

from __future__ import annotations

from crossknn.index.base import Index, Neighbours
from crossknn.index.graphs import default_graph


def neighbours_of(index: Index, graph: str, k: int, method: str) -> Neighbours:
    """The graph of that name, or the usual one for `auto`; `InputError` where there is none."""
    return index.graph(default_graph(index, graph, method), k)


def in_batches(budget: int, size: int) -> tuple[int, ...]:
    """Batches of `size` that sum to the budget; the last one may be smaller.

    >>> in_batches(23, 10)
    (10, 10, 3)
    """
    return tuple(min(size, budget - done) for done in range(0, budget, size))
