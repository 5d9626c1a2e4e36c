"""LADR: Kulkarni, MacAvaney, Goharian, Frieder, SIGIR 2023 (arXiv 2307.16779), section 3.

"Proactive" scores the neighbours of all seeds, "adaptive" those of the best items scored so far,
again and again, until nothing is new. The paper has no budget and scores a step's neighbours
together; how they are cut into batches is that of docs/rivals.md, "ladr".
"""

from collections.abc import Sequence
from typing import Literal

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

Mode = Literal["adaptive", "proactive"]


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    budget: int,
    neighbours: int = 16,
    seeds: float = 0.5,
    depth: int = 50,
    mode: Mode = "adaptive",
) -> Ranked:
    """By what is left of the step under way, then by the next step, then by `problem.first`.

    The seeds (`seeds` of the budget, the retriever's first) are step 0. A step is a list that is
    made when it begins and kept until all of it is scored. A batch that a step does not fill begins
    the next one, with the scores known before that batch; so does one that the seeds do not fill.
    """
    graph = links(problem, neighbours)
    retriever = seeds_of(problem, count_of(seeds, budget))
    if mode == "proactive":
        sources = [item for item, _ in retriever]
        around = walk(graph, sources, [value for _, value in retriever], skip=sources)
        return ranked_by(problem, batches, retriever + around)
    left = retriever
    for last, batch in enumerate(batches):
        steps = [left, next_step(graph, batches[:last], left, depth)]
        left = rest_of_step(steps, len(batch.items))
    return ranked_by(problem, batches, left + next_step(graph, batches, left, depth))


def next_step(
    graph: IntArray, batches: Sequence[Batch], left: list[Candidate], depth: int
) -> list[Candidate]:
    """Unscored neighbours of the `depth` best items so far: by the source's rank, then nearest.

    Those that the step under way has `left` are not among them.
    """
    items, scores = observed(batches)
    sources, values = by_score(items, scores)
    skip = items.tolist() + [item for item, _ in left]
    return walk(graph, sources[:depth], values[:depth], skip)
