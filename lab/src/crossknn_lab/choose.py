"""Which of several settings to take: the best on dev queries, which are held out of the anchors.

    choose(matrix, ["axn(blend=0)", "axn(blend=0.5)"], budgets=[50, 100], ks=[1, 10, 100])

No test query has a say. Dev queries are the last third of a matrix's anchor queries; what is left
are the anchors while settings are tried. A method at a budget is one search, which answers for
every k: a setting is chosen for each budget, by recall averaged over k and queries.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from crossknn.errors import InputError
from crossknn.evaluation.replay import check, outcome, parts_of, truth_of
from crossknn.index.stored import StoredMatrix
from crossknn.methods import method
from crossknn.types import FloatArray
from crossknn_lab.sweep_data import divided

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The `spec` with the highest recall on `n_queries` dev queries, and the `recall` of each."""

    spec: str
    recall: Mapping[str, float]
    n_queries: int


def choose(
    matrix: StoredMatrix,
    specs: Sequence[str],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    seed: int = 0,
    queries: int | None = None,
) -> dict[int, Choice]:
    """The best of `specs` for each budget, 0 for methods without calls; of equals the first.

    `queries` limits the dev queries to the first so many. Raises `InputError` for a matrix with
    fewer than 2 anchor queries or with fitted vectors, and for what a method lacks.
    """
    if not specs or not budgets or not ks:
        raise InputError("there is nothing to choose from: give specs, budgets and ks")
    dev, _ = divided(matrix, dev=True)
    known, parts = {spec: method(spec) for spec in specs}, parts_of(dev, queries)
    check(parts, known, budgets[0], seed)
    truth = truth_of(parts, max(ks))
    recall: dict[int, dict[str, float]] = {}
    for spec, made in known.items():
        for budget in budgets if made.calls else (0,):
            found = outcome(spec, made, parts, truth, budget=budget, ks=ks, seed=seed)
            recall.setdefault(budget, {})[spec] = mean_recall(found.recall)
    best = highest((budget, s, value) for budget, of in recall.items() for s, value in of.items())
    return {
        budget: Choice(spec=best[budget], recall=of, n_queries=len(truth))
        for budget, of in recall.items()
    }


def mean_recall(recall: Mapping[int, FloatArray]) -> float:
    """Over k and queries, of the recall of each k: {k: (m,)}."""
    return sum(float(values.mean()) for values in recall.values()) / len(recall)


def highest(values: Iterable[tuple[K, T, float]]) -> dict[K, T]:
    """What has the highest value of each key; of equals the first.

    >>> highest([("a", 1, 0.5), ("b", 2, 0.1), ("a", 3, 0.7), ("a", 4, 0.7)])
    {'a': 3, 'b': 2}
    """
    found: dict[K, tuple[float, T]] = {}
    for key, what, value in values:
        if key not in found or value > found[key][0]:
            found[key] = value, what
    return {key: what for key, (_, what) in found.items()}
