"""The search itself: rank, score the first of the ranking, rank again."""

from collections.abc import Callable, Sequence

from .problem import Batch, FloatArray, Problem, Ranked

Rank = Callable[[Problem, Sequence[Batch]], Ranked]


def search(rank: Rank, problem: Problem, scores: FloatArray, sizes: Sequence[int]) -> list[Batch]:
    """Batches of the given sizes, picked by `rank`, out of the exact scores (n,) of all items.

    Options of a method are bound beforehand: `functools.partial(axn.rank, blend=0.5)`.
    """
    batches: list[Batch] = []
    for size in sizes:
        items = rank(problem, batches).items[:size]
        batches.append(Batch(items, scores[items]))
    return batches


def equal_batches(budget: int, rounds: int) -> list[int]:
    """budget // rounds a round, the remainder in the last one; rounds without calls left out.

    AXN algorithm 1 (k_s = B_CE / R) and ADACUR algorithm 1, line 8 (k_s = k_i / N_r) divide
    evenly. The remainder is that of shared/matrices/README.md: "first batch B // R, the
    remainder in the last round".
    """
    size = budget // rounds
    sizes = [size] * (rounds - 1) + [budget - size * (rounds - 1)]
    return [size for size in sizes if size > 0]
