"""Methods that walk the item graph: GAR, the loop of Quam, LADR, greedy search; and L2G's graph.

docs/explanation/rivals.md, "Graph methods", says what holds for all of them: batches are full until the budget
is spent, the retriever's ranking goes on where the graph has no more to offer, and neighbours of
one source, which tie by construction, come nearest first.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import numpy as np
from references.problem import (
    Batch,
    FloatArray,
    IntArray,
    Problem,
    Ranked,
    best_first,
    directions,
    observed,
    softmax,
)

Candidate = tuple[int, float]
"""An unscored item and the value that it is ranked by."""


def by_score(items: IntArray, scores: FloatArray) -> tuple[IntArray, FloatArray]:
    """Scored items, the best first, equal ones by ascending position; and their scores."""
    order = np.lexsort((items, -scores))
    return items[order], scores[order]


def walk(
    graph: IntArray, sources: Iterable[int], values: Iterable[float], skip: Collection[int]
) -> list[Candidate]:
    """Source by source the neighbours, nearest first, each where it comes first; none of `skip`.

    A neighbour's value is that of its source.
    """
    seen, found = set(skip), []
    for source, value in zip(sources, values, strict=True):
        for item in graph[source].tolist():
            if item >= 0 and item not in seen:
                seen.add(item)
                found.append((item, float(value)))
    return found


def graph_of_rankings(scores: FloatArray, neighbours: int, logged: int = 100) -> IntArray:
    """L2G (2510.00887) with the exact scores (q, n) of earlier queries as the reranker's log.

    Each query has a vector a over all items: the item at rank r of its first 100 has 100 - r + 1,
    the others 0. The affinity of two items is the sum over queries of the products of their values;
    -1 pads the rows of items with fewer neighbours, equal ones come by ascending position.
    """
    count = scores.shape[1]
    logged = min(logged, count)
    affinity = np.zeros((count, count))
    for row in scores:
        values = np.zeros(count)
        for rank, item in enumerate(np.argsort(-row, kind="stable")[:logged].tolist(), start=1):
            values[item] = logged - rank + 1
        affinity += np.outer(values, values)
    np.fill_diagonal(affinity, 0.0)
    nearest = np.argsort(-affinity, axis=1, kind="stable")[:, :neighbours]
    return np.where(np.take_along_axis(affinity, nearest, axis=1) > 0, nearest, -1)


def seeds_of(problem: Problem, share: float, budget: int) -> list[Candidate]:
    """The retriever's first items, a share of the budget: rounded down, one at least."""
    count = max(1, int(share * budget + 1e-9))
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
    """The candidates not scored yet, in their order, then the retriever's ranking, whose values
    cannot be compared with those before."""
    scored = set(observed(batches)[0].tolist())
    offered = [(item, value) for item, value in candidates if item not in scored]
    items = np.array([item for item, _ in offered], dtype=np.intp)
    values = np.array([value for _, value in offered], dtype=np.float64)
    rest = best_first(problem.retriever, batches)
    behind = ~np.isin(rest.items, items)
    return Ranked(
        np.concatenate([items, rest.items[behind]]), np.concatenate([values, rest.values[behind]])
    )


def gar(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    budget: int,
    neighbours: int,
    affinity: Literal["score", "set"] = "score",
    set_share: float = 0.3,
    softmax_of: Literal["raw", "standardized"] = "standardized",
) -> Ranked:
    """GAR (MacAvaney, Tonellotto, Macdonald, CIKM 2022, algorithm 1): batches come in turn from the
    pool P, the retriever's ranking, and from the frontier F, the unscored neighbours of scored
    items, each worth the score of its best source.

    Turns do not shift: where the frontier is empty, the retriever has its turn. Without the paper's
    gate: once F holds as many items as the budget has left, it lets only sources add that score as
    high as those used so far; what it keeps out cannot be reached. With `affinity="set"` F is that
    of Quam (Rathee et al., 2410.20286), with cosines in the place of its trained affinity.
    """
    if len(batches) % 2 == 0:
        return best_first(problem.retriever, batches)
    graph = problem.neighbours[:, :neighbours]
    items, scores = observed(batches)
    if affinity == "score":
        return ranked_by(problem, batches, walk(graph, *by_score(items, scores), skip=items))
    unit, size = directions(problem.items), max(1, int(set_share * budget + 1e-9))
    return ranked_by(problem, batches, frontier_by_set(graph, unit, batches, size, softmax_of))


def frontier_by_set(
    graph: IntArray, unit: FloatArray, batches: Sequence[Batch], size: int, softmax_of: str
) -> list[Candidate]:
    """Quam's frontier as the batches made it, one after the other.

    After each of them, every source d of that batch which is among S, the `size` best items so far,
    adds affinity(d, m) softmax_S(d) to each unscored neighbour m. Sums stay when S changes. Equal
    values by ascending position. "standardized" divides scores by the deviation over all items
    scored so far, not over S alone, before the softmax.
    """
    frontier: dict[int, float] = {}
    for last in range(len(batches)):
        items, scores = observed(batches[: last + 1])
        deviation = float(scores.std()) if softmax_of == "standardized" else 1.0
        S, s = by_score(items, scores)
        shares = softmax(s[:size] / (deviation or 1.0))
        relevance = dict(zip(S[:size].tolist(), shares, strict=True))
        scored = set(items.tolist())
        for source in set(batches[last].items.tolist()) & set(relevance):
            for item in set(graph[source].tolist()) - scored:
                gain = float(unit[source] @ unit[item]) * relevance[source]
                frontier[item] = frontier.get(item, 0.0) + gain
    left = [(item, value) for item, value in frontier.items() if item not in scored]
    return sorted(left, key=lambda candidate: (-candidate[1], candidate[0]))


def ladr(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    budget: int,
    neighbours: int,
    retriever_share: float,
    depth: int = 50,
    mode: Literal["adaptive", "proactive"] = "adaptive",
) -> Ranked:
    """LADR (Kulkarni et al., SIGIR 2023, section 3): "proactive" scores the neighbours of all seeds,
    "adaptive" those of the best items scored so far, again and again, until nothing is new.

    By what is left of the step under way, then by the next step, then by the retriever. The seeds
    are step 0. A step is a list that is made when it begins and kept until all of it is scored. A
    batch that a step does not fill begins the next one, with the scores known before that batch.
    """
    graph, first = problem.neighbours[:, :neighbours], seeds_of(problem, retriever_share, budget)
    if mode == "proactive":
        sources = [item for item, _ in first]
        around = walk(graph, sources, [value for _, value in first], skip=sources)
        return ranked_by(problem, batches, first + around)

    def next_step(known: Sequence[Batch], left: list[Candidate]) -> list[Candidate]:
        items, scores = observed(known)
        sources, values = by_score(items, scores)
        skip = items.tolist() + [item for item, _ in left]
        return walk(graph, sources[:depth], values[:depth], skip)

    left = first
    for last, batch in enumerate(batches):
        left = rest_of_step([left, next_step(batches[:last], left)], len(batch.items))
    return ranked_by(problem, batches, left + next_step(batches, left))


def greedy(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    budget: int,
    neighbours: int,
    retriever_share: float,
) -> Ranked:
    """The second stage of bi-metric search (2406.02891): pop the best item, score its neighbours.

    By the seeds, then by expansions of the best scored items, then by the retriever. A batch takes
    as many expansions as fill it; the one that it ends in is finished before the next batch begins
    another (docs/explanation/rivals.md, "greedy").
    """
    graph = problem.neighbours[:, :neighbours]

    def expansions(known: Sequence[Batch], left: list[Candidate]) -> Iterator[list[Candidate]]:
        """For each scored item, the best first, its neighbours that are new, nearest first."""
        items, scores = observed(known)
        skip = set(items.tolist()) | {item for item, _ in left}
        for source, value in zip(*by_score(items, scores), strict=True):
            new = walk(graph, [source], [value], skip)
            skip |= {item for item, _ in new}
            yield new

    left = seeds_of(problem, retriever_share, budget)
    for last, batch in enumerate(batches):
        left = rest_of_step(chain([left], expansions(batches[:last], left)), len(batch.items))
    steps = chain([left], expansions(batches, left))
    return ranked_by(problem, batches, chain.from_iterable(steps))
