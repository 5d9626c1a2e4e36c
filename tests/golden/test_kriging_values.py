"""Values of kriging and gp as they were before the code was rewritten: the net under a redesign.

`kriging_values.json` holds rounded numbers for a cut of a matrix of real scores. All that knows the
package's names is in the first part of this file.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from recorded import check

from crossknn.index.stored import StoredMatrix
from crossknn.methods import parse_method
from crossknn.methods.factor_model import fit_sparse
from crossknn.methods.kriging import KernelParameters, Prior, fit_dense, process, record_curve
from crossknn.methods.kriging_fit import fit_hyperparameters
from crossknn.retrievers.specs import retriever_scores
from crossknn.scores.store import SparseScores
from crossknn.search.loop import simulate
from crossknn.search.plan import Stop
from crossknn.search.sharing import SharedBudget, expected_recall, z_scores
from crossknn.spec import parse
from crossknn.types import Pairs

MATRIX = Path(__file__).parents[2] / "benchmarks" / "data" / "medquad-two.npz"
N, ANCHORS, TESTS = 400, 40, 30
HYBRID = "hybrid(bm25, dense)"
SHOWN = np.array([0, 17, 101, 202, 303, 399])
"""Items whose values are stored."""


@cache
def cut() -> StoredMatrix:
    """400 items, 40 anchors and 30 test queries of the matrix."""
    data = StoredMatrix.load(MATRIX)
    rows = [*range(ANCHORS), *range(data.n_anchors, data.n_anchors + TESTS)]
    return StoredMatrix(
        scores=data.scores[rows][:, :N],
        n_anchors=ANCHORS,
        item_vectors=data.item_vectors[:N],
        query_vectors=data.query_vectors[rows],
        firsts={name: values[rows][:, :N] for name, values in data.firsts.items()},
        query_ids=tuple(data.query_ids[row] for row in rows),
    )


def cheap_scores(which: str):
    """Each stage's scores (q, n) of the `anchors` or of the `tests`."""
    index, queries, _ = cut().rows(0, TESTS)
    if which == "anchors":
        queries = index.anchors.queries
    return retriever_scores(index, parse(HYBRID), queries, 0)


def dense_fit(rank: int) -> Prior:
    return fit_dense(cut().scores[:ANCHORS], cheap_scores("anchors"), rank)


def sparse_fit(seen: np.ndarray, rank: int, anchors: bool) -> Prior:
    """From the test queries' scores where `seen` (m, n), and those of ten anchors if wanted."""
    data, cheap = cut(), cheap_scores("tests")
    dense = data.scores[:10], [values[:10] for values in cheap_scores("anchors")]
    query, item = np.nonzero(seen)
    texts = [f"query {row}" for row in range(TESTS)]
    scores = data.scores[ANCHORS:][query, item]
    return fit_sparse(
        SparseScores.of(texts, N, Pairs(query, item), scores),
        [values[query, item] for values in cheap],
        data.item_vectors,
        rank=rank,
        anchors=dense if anchors else None,
    )


def with_prior(plan, prior):
    """A kriging plan that predicts from another prior."""
    old = plan.predictor
    made = process(old.arrays[-1], old.retriever, prior, KernelParameters(), old.beta)
    return replace(plan, predictor=made)


def plan_of(spec: str, budget: int):
    return parse_method(spec).plan(cut().rows(0, TESTS)[0], budget, 0)


def searched(plan):
    _, queries, scores = cut().rows(0, TESTS)
    return simulate(plan, queries, scores), queries


def predicted(plan, observed, queries):
    """Mean and std (m, n) from all that a search n_scored."""
    predictor = plan.predictor
    found = predictor.predict(predictor.update(predictor.start(queries), observed))
    return found.mean, found.std


def numbers_of(fit: Prior) -> dict[str, object]:
    products = fit.factor.astype(np.float64) @ fit.factor.T
    return {
        "shape": list(fit.factor.shape),
        "trace": np.trace(products),
        "norm": np.linalg.norm(products),
        "products": products[np.ix_(SHOWN, SHOWN)],
        "mean": fit.mean[SHOWN],
        "mean_norm": np.linalg.norm(fit.mean),
        "weights": np.asarray(fit.weights)[1:],  # the intercept's says nothing
        "precision": fit.precision,
        "variance": fit.variance,
    }


def a_log() -> np.ndarray:
    """What searches may leave behind: each query's best by its cheap scores, and some others."""
    cheap = sum(values / values.std() for values in cheap_scores("tests"))
    seen = np.random.default_rng(0).random((TESTS, N)) < 0.05
    seen[np.arange(TESTS)[:, None], np.argsort(-cheap, axis=1)[:, :60]] = True
    return seen


def posterior_numbers(spec: str, prior=None) -> dict[str, object]:
    plan = plan_of(spec, 40)
    if prior is not None:
        plan = with_prior(plan, prior)
    search, queries = searched(plan)
    mean, std = predicted(plan, search.observed(), queries)
    return {
        "picks": search.picks().items[:2],
        "mean": mean[:5, SHOWN],
        "std": std[:5, SHOWN],
        "means": mean.mean(axis=1),
        "stds": std.mean(axis=1),
    }


SPECS = {
    "plain": f"kriging(retriever={HYBRID}, rounds=4)",
    "one stage": "kriging(retriever=dense, rounds=4, rank=7)",
    "another mean": f"kriging(retriever=dense, mean={HYBRID}, rounds=3)",
    "content alone": "kriging(retriever=dense, rounds=4, use_anchors=false)",
    "beta": f"kriging(retriever={HYBRID}, rounds=4, beta=0.5, noise=0.4, share=1.1, scale=3)",
    "shortlist": f"kriging(retriever={HYBRID}, rounds=4, shortlist=80)",
    "gp": "gp(retriever=hybrid, rounds=4)",
    "gp linear": "gp(retriever=dense, rounds=4, kernel=linear, mean=none, beta=0)",
    "gp matern": "gp(retriever=bm25, rounds=4, kernel=matern, mean=average, beta=0.5)",
    "gp first": "gp(retriever=hybrid, rounds=4, mean=first, query=true, shortlist=120, scale=2)",
}


def z_score_numbers(spec: str) -> dict[str, object]:
    plan = plan_of(spec, 30)
    search, queries = searched(plan)
    observed = search.observed()
    mean, std = predicted(plan, observed, queries)
    found = {"z": [], "recall": []}
    for row, items, scores in list(observed.rows())[:6]:
        rest = np.setdiff1d(np.arange(N), items)
        z = z_scores(scores, mean[row, rest], std[row, rest], 10, 8)
        found["z"].append(z)
        best = np.sort(scores)[-10:]
        found["recall"].append(expected_recall(best, mean[row, rest], std[row, rest]))
    return found


def curve_numbers() -> dict[str, object]:
    spec = SPECS["plain"]
    _, queries, scores = cut().rows(0, TESTS)
    found = record_curve([(plan_of(spec, 60), queries, scores)], 5)
    given = [plan_of(f"{spec[:-1]}, target_recall={t}, k=5)", 60) for t in (0.5, 0.8)]
    search = simulate(given[1], queries, scores)
    return {
        "expected": found.expected[:-1, :6],
        "achieved": found.achieved[:, :6],
        "recalls": [found.recall(t) for t in (0.2, 0.5, 0.8)],
        "threshold": [plan.stop.expected for plan in given],
        "calls": search.n_scored,
        "never": simulate(
            replace(given[0], stop=Stop(k=5, expected=2.0)), queries, scores
        ).n_scored[:3],
    }


def shared_numbers() -> dict[str, object]:
    _, queries, scores = cut().rows(0, TESTS)
    found = {}
    for name in ("plain", "gp"):
        plan = replace(plan_of(SPECS[name], 30), share=SharedBudget(total=30 * TESTS, k=10))
        found[name] = simulate(plan, queries, scores).n_scored
    return found


def chosen_numbers() -> dict[str, object]:
    index, *_ = cut().rows(0, TESTS)
    return asdict(fit_hyperparameters(index, parse("dense"), rank=20))


COMPUTED = {
    "dense fit": lambda: numbers_of(dense_fit(100)),
    "dense fit of rank 5": lambda: numbers_of(dense_fit(5)),
    "sparse fit": lambda: numbers_of(sparse_fit(a_log(), 12, False)),
    "sparse fit with anchors": lambda: numbers_of(sparse_fit(a_log(), 20, True)),
    **{
        f"posterior, {name}": lambda spec=spec: posterior_numbers(spec)
        for name, spec in SPECS.items()
    },
    "posterior, sparse": lambda: posterior_numbers(SPECS["plain"], sparse_fit(a_log(), 12, False)),
    "z scores, plain": lambda: z_score_numbers(SPECS["plain"]),
    "z scores, gp": lambda: z_score_numbers(SPECS["gp"]),
    "calibration": curve_numbers,
    "shared budget": shared_numbers,
    "hyperparameters": chosen_numbers,
}


SLOW = ("sparse fit with anchors", "posterior, sparse")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in COMPUTED]
)
def test_values_are_as_before(name):
    check("kriging_values.json", {name: COMPUTED[name]()}, close=1e-3, floor=None, whole=False)
