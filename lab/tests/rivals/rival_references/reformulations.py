"""ReformIR (2605.00560): a weighted sum of the lists of reformulations, fitted to the reranker.

docs/explanation/rivals.md, "reformir", says what takes the place of a language model's
reformulations, and what comes where no list has more to offer.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
from references.problem import Batch, FloatArray, Problem, Ranked, best_first, directions, observed

RIDGE = 1e-3


def scaled(values: FloatArray) -> FloatArray:
    """0 for the lowest, 1 for the highest (the released code's min-max); 0 where all are equal."""
    width = values.max() - values.min()
    return (values - values.min()) / width if width > 0 else np.zeros_like(values)


def feature(scores: FloatArray, depth: int) -> FloatArray:
    """(n,) the scaled scores of a list's first `depth` items; items that it does not have get 0."""
    listed = np.argsort(-scores, kind="stable")[:depth]
    values = np.zeros(len(scores))
    values[listed] = scaled(scores[listed])
    return values


def bounded(columns: FloatArray, targets: FloatArray) -> FloatArray:
    """The minimum of |columns w - targets|^2 + RIDGE |w|^2 with all w in [0, 1].

    By trying which weights are 0, which 1, and which free: at the one minimum free weights solve
    their normal equations within the bounds, and the slope points outwards at all others.
    """
    count = columns.shape[1]
    products = columns.T @ columns + RIDGE * np.eye(count)
    for kinds in product((None, 0.0, 1.0), repeat=count):
        free = np.array([kind is None for kind in kinds])
        w = np.array([kind or 0.0 for kind in kinds])
        known = columns.T @ targets - products @ w
        if free.any():
            w[free] = np.linalg.solve(products[np.ix_(free, free)], known[free])
        slope = products @ w - columns.T @ targets
        at_bound = np.where(w <= 0, slope, -slope)
        if (w >= -1e-12).all() and (w <= 1 + 1e-12).all() and (at_bound[~free] >= -1e-9).all():
            return w.clip(0, 1)
    raise ArithmeticError("no weights meet the conditions of a minimum")


def reformir(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    budget: int,
    reformulations: int,
    feedback: int,
    blend: float,
    depth: int = 100,
) -> Ranked:
    """The items of the lists by estimate, then the retriever's ranking.

    Reformulation i is the query's direction and that of the retriever's i-th item, weighted with
    `blend` and 1 - blend; feedback is the same with the mean of the best items scored so far.
    """
    depth = max(depth, budget)

    def moved(items: Sequence[int]) -> FloatArray:
        toward = directions(problem.items[list(items)].mean(axis=0))
        vector = blend * directions(problem.query) + (1 - blend) * toward
        return feature(problem.items @ vector, depth)

    items, scores = observed(batches)
    first = best_first(problem.retriever, []).items[:reformulations]
    best = items[np.lexsort((items, -scores))][:feedback]
    lists = [feature(trend, depth) for trend in problem.trends]
    lists += [moved([item]) for item in first.tolist()]
    columns = np.stack([*lists, moved(best.tolist())], axis=1)
    estimates = columns @ bounded(columns[items], scaled(scores))
    rest = best_first(problem.retriever, batches)
    offered = best_first(estimates, batches).items
    offered = offered[estimates[offered] > 0]
    behind = ~np.isin(rest.items, offered)
    return Ranked(
        np.concatenate([offered, rest.items[behind]]),
        np.concatenate([estimates[offered], rest.values[behind]]),
    )
