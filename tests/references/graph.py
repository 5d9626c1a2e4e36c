"""What the graph methods share: walks over the item graph, and the retriever where those end.

docs/rivals.md, "Graph methods", says what holds for all of them: batches are full until the budget
is spent, the retriever's ranking goes on where the graph has no more to offer, and neighbours of
one source, which tie by construction, come nearest first.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from .problem import Batch, FloatArray, IntArray, Problem, Ranked, best_first, given, observed

Candidate = tuple[int, float]
"""An unscored item and the value that it is ranked by."""


def batch_sizes(budget: int, batch: int) -> list[int]:
    """Batches of `batch` items until the budget is spent; the last has what remains.

    For methods with seeds the recall that docs/results.md prints is that of batches cut anew after
    the seeds: `batch_sizes(seeds, batch) + batch_sizes(budget - seeds, batch)`.
    """
    return [min(batch, budget - start) for start in range(0, budget, batch)]


def count_of(share: float, budget: int) -> int:
    """How many items a share of the budget is: rounded down, one at least.

    The sources give numbers and no shares. 1e-9 keeps 0.29 * 100 from being 28. Alternatives:
    rounding to the nearest number, or up; they differ where the share is no whole number.
    """
    return max(1, int(share * budget + 1e-9))


def links(problem: Problem, neighbours: int) -> IntArray:
    """(n, k) the graph, cut to `neighbours` a row where it has more."""
    return given(problem.neighbours, "neighbours")[:, :neighbours]


def by_score(items: IntArray, scores: FloatArray) -> tuple[IntArray, FloatArray]:
    """Scored items, the best first, equal ones by ascending position; and their scores."""
    order = np.lexsort((items, -scores))
    return items[order], scores[order]


def walk(
    graph: IntArray, sources: Iterable[int], values: Iterable[float], skip: Collection[int]
) -> list[Candidate]:
    """Source by source the neighbours, nearest first, each where it comes first; none of `skip`.

    A neighbour's value is that of its source. A position below 0 ends a row that is short.
    """
    seen = set(skip)
    found: list[Candidate] = []
    for source, value in zip(sources, values, strict=True):
        for item in graph[source].tolist():
            if item >= 0 and item not in seen:
                seen.add(item)
                found.append((item, float(value)))
    return found


def seeds_of(problem: Problem, count: int) -> list[Candidate]:
    """The retriever's first `count` items."""
    ranked = best_first(problem.retriever, [])
    return list(zip(ranked.items[:count].tolist(), ranked.values[:count].tolist(), strict=True))


def rest_of_step(steps: Iterable[list[Candidate]], size: int) -> list[Candidate]:
    """What a batch of `size` items, taken from the steps in turn, leaves of the one it ends in."""
    for step in steps:
        if size <= len(step):
            return step[size:]
        size -= len(step)
    return []


def ranked_by(
    problem: Problem, batches: Sequence[Batch], candidates: Iterable[Candidate]
) -> Ranked:
    """The candidates not scored yet, in their order, then the retriever's ranking.

    Values of the latter are the retriever's own and cannot be compared with those before.
    """
    scored = set(observed(batches)[0].tolist())
    offered = [(item, value) for item, value in candidates if item not in scored]
    items = np.array([item for item, _ in offered], dtype=np.intp)
    values = np.array([value for _, value in offered], dtype=np.float64)
    rest = best_first(problem.retriever, batches)
    behind = ~np.isin(rest.items, items)
    return Ranked(
        np.concatenate([items, rest.items[behind]]),
        np.concatenate([values, rest.values[behind]]),
        offered=len(items),
    )
