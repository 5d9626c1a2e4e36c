"""GAR, and the loop of Quam with cosines in the place of its trained affinity.

MacAvaney, Tonellotto, Macdonald, CIKM 2022 (arXiv 2208.08942), algorithm 1: batches come in turn
from the pool P, the retriever's ranking, and from the frontier F, the unscored neighbours of scored
items. Rathee et al. (arXiv 2410.20286): F is ordered by an item's affinity to the set S of the best
scored items. What the papers leave open is that of docs/rivals.md, "gar".
"""

from collections.abc import Sequence
from typing import Literal

from .graph import Candidate, by_score, count_of, links, ranked_by, walk
from .kernels import directions
from .problem import Batch, FloatArray, IntArray, Problem, Ranked, best_first, given, observed
from .sampling import softmax

Affinity = Literal["score", "set"]
SoftmaxOf = Literal["raw", "standardized"]


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    neighbours: int = 16,
    affinity: Affinity = "score",
    best: float = 0.3,
    budget: int | None = None,
    softmax_of: SoftmaxOf = "standardized",
) -> Ranked:
    """By `problem.first` for batches 0, 2, 4, ...; by the frontier, then it, for 1, 3, 5, ...

    Turns do not shift: where the frontier is empty, the retriever has its turn. `best` (a share
    of `budget`) and `softmax_of` concern `affinity="set"` only.
    """
    if len(batches) % 2 == 0:
        return best_first(problem.retriever, batches)
    graph = links(problem, neighbours)
    if affinity == "score":
        return ranked_by(problem, batches, frontier_by_score(graph, batches))
    if budget is None:
        raise ValueError("affinity='set' needs the budget, of which `best` is a share")
    unit = directions(given(problem.items, "items"))
    size = count_of(best, budget)
    return ranked_by(problem, batches, frontier_by_set(graph, unit, batches, size, softmax_of))


def frontier_by_score(graph: IntArray, batches: Sequence[Batch]) -> list[Candidate]:
    """Unscored neighbours of scored items, each worth the score of its best source.

    Equal ones by source (equal sources by ascending position), then by nearness. Without the
    paper's gate: once F holds as many items as the budget has left, it lets only sources add that
    score as high as those used so far; what it keeps out cannot be reached.
    """
    items, scores = observed(batches)
    return walk(graph, *by_score(items, scores), skip=items.tolist())


def frontier_by_set(
    graph: IntArray,
    unit: FloatArray,
    batches: Sequence[Batch],
    size: int,
    softmax_of: SoftmaxOf,
) -> list[Candidate]:
    """The frontier as the batches made it, one after the other.

    After each of them, every source d of that batch which is among S, the `size` best items so far,
    adds affinity(d, m) softmax_S(d) to each unscored neighbour m. Sums stay when S changes. Equal
    values by ascending position.
    """
    frontier: dict[int, float] = {}
    for last in range(len(batches)):
        items, scores = observed(batches[: last + 1])
        S, s = by_score(items, scores)
        S, s = S[:size], s[:size]
        relevance = dict(zip(S.tolist(), softmax(s / unit_of(scores, softmax_of)), strict=True))
        scored = set(items.tolist())
        for source in batches[last].items.tolist():
            if source not in relevance:
                continue
            for item in graph[source].tolist():
                if item >= 0 and item not in scored:
                    gain = float(unit[source] @ unit[item]) * relevance[source]
                    frontier[item] = frontier.get(item, 0.0) + gain
    left = [(item, value) for item, value in frontier.items() if item not in scored]
    return sorted(left, key=lambda candidate: (-candidate[1], candidate[0]))


def unit_of(scores: FloatArray, softmax_of: SoftmaxOf) -> float:
    """What scores are divided by before the softmax: 1 in the paper.

    "standardized": the standard deviation over all items scored so far (not over S alone), with
    as many items in its denominator; 1 where it is 0.
    """
    deviation = float(scores.std())
    return deviation if softmax_of == "standardized" and deviation > 0 else 1.0
