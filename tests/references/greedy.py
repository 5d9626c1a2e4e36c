"""Best-first search on the item graph: the second stage of bi-metric search (arXiv 2406.02891).

"Seeds = the retriever's top Q/2; pop the best by S, score its neighbours, to Q"
(shared/design/rivals.md). From a single seed it is RGS (arXiv 2509.07163) with pointwise scores.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from .graph import (
    Candidate,
    by_score,
    count_of,
    links,
    ranked_by,
    rest_of_step,
    seeds_of,
    walk,
)
from .problem import Batch, IntArray, Problem, Ranked, observed


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    budget: int,
    neighbours: int = 16,
    seeds: float = 0.5,
    complete: bool = True,
) -> Ranked:
    """By the seeds, then by expansions of the best scored items, then by `problem.first`.

    A batch takes as many expansions as fill it. `complete`: the expansion that a batch ends in is
    finished before the next batch begins another ("all unscored neighbours of the best scored item
    that has any"; "batch=1 is one at a time": docs/rivals.md, "greedy"). Alternative, False: every
    batch looks anew for the best scored item with an unscored neighbour, and an expansion that was
    begun may wait for better sources. The recall that docs/results.md prints is that of the first.
    """
    graph = links(problem, neighbours)
    retriever = seeds_of(problem, count_of(seeds, budget))
    left = retriever
    for last, batch in enumerate(batches):
        steps = chain([left], expansions(graph, batches[:last], left))
        left = rest_of_step(steps, len(batch.items))
    if not complete:
        scored = set(observed(batches)[0].tolist())
        left = [candidate for candidate in retriever if candidate[0] not in scored]
    steps = chain([left], expansions(graph, batches, left))
    return ranked_by(problem, batches, chain.from_iterable(steps))


def expansions(
    graph: IntArray, batches: Sequence[Batch], left: list[Candidate]
) -> Iterator[list[Candidate]]:
    """For each scored item, the best first, its neighbours that are new, nearest first."""
    items, scores = observed(batches)
    skip = set(items.tolist()) | {item for item, _ in left}
    for source, value in zip(*by_score(items, scores), strict=True):
        new = walk(graph, [source], [value], skip)
        skip |= {item for item, _ in new}
        yield new
