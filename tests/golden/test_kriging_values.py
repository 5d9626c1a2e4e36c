"""Values of kriging as they were before the code was rewritten: the net under a redesign.

`kriging_values.json` holds rounded numbers for a cut of a matrix of real scores. All that knows the
package's names is in the first part of this file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from recorded import check

from crossknn.fitting.dense_prior import fit_dense
from crossknn.fitting.stopping import record_curve
from crossknn.methods import parse_method
from crossknn.methods.plan import Stop, expected_recall
from crossknn.methods.prior import Prior
from crossknn.retrievers.specs import retriever_scores
from crossknn.search.loop import simulate
from crossknn.spec import parse
from crossknn_lab.stored import StoredMatrix

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
        dense_items=data.dense_items[:N],
        dense_queries=data.dense_queries[rows],
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
    data = cut()
    known = data.dense_items, data.dense_queries[:ANCHORS]
    return fit_dense(data.scores[:ANCHORS], cheap_scores("anchors"), *known, lead=1, rank=rank)


def searched(spec: str, budget: int):
    """A search, and the mean and std (m, n) that follow from all it scored."""
    method = parse_method(spec)
    index, queries, scores = cut().prepared(method, budget).rows(0, TESTS)
    plan = method.plan(index, budget, 0)
    search, predictor = simulate(plan, queries, scores), plan.predictor
    state = predictor.update(predictor.start(queries), search.observed())
    return search, *predictor.predict(state)


def numbers_of(fit: Prior) -> dict[str, object]:
    products = fit.factor.astype(np.float64) @ fit.factor.T
    return {
        "shape": list(fit.factor.shape),
        "trace": np.trace(products),
        "norm": np.linalg.norm(products),
        "products": products[np.ix_(SHOWN, SHOWN)],
        "mean": fit.mean[SHOWN],
        "mean_norm": np.linalg.norm(fit.mean),
        "weights": [trend.mean[1:] for trend in fit.trends],  # the intercept's says nothing
        "precision": [trend.precision for trend in fit.trends],
        "query_scale": fit.cokriging.scale,
        "variance": fit.variance,
    }


def posterior_numbers(spec: str) -> dict[str, object]:
    search, mean, std = searched(spec, 40)
    return {
        "picks": search.picks().items[:2],
        "mean": mean[:5, SHOWN],
        "std": std[:5, SHOWN],
        "means": mean.mean(axis=1),
        "stds": std.mean(axis=1),
    }


SPECS = {
    "plain": f"kriging(retriever={HYBRID}, rounds=4)",
    "another mean": f"kriging(retriever=dense, mean={HYBRID}, rounds=3)",
    "content alone": "kriging(retriever=dense, rounds=4, use_anchors=false)",
    "shortlist": f"kriging(retriever={HYBRID}, rounds=4, shortlist=80)",
}


def recall_numbers(spec: str) -> dict[str, object]:
    search, mean, std = searched(spec, 30)
    found = {"recall": []}
    for row, items, scores in list(search.observed().rows())[:6]:
        rest = np.setdiff1d(np.arange(N), items)
        best = np.sort(scores)[-10:]
        found["recall"].append(expected_recall(best, mean[row, rest], std[row, rest]))
    return found


def curve_numbers() -> dict[str, object]:
    index, queries, scores = cut().rows(0, TESTS)
    plans = []
    for options in ("", ", target_recall=0.5, k=5", ", target_recall=0.8, k=5"):
        method = parse_method(f"{SPECS['plain'][:-1]}{options})")
        plans.append(method.plan(index.prepared(method, 60), 60, 0))
    whole, half, most = plans
    found = record_curve([(whole, queries, scores)], 5)
    never = replace(whole, stop=Stop(k=5, expected=2.0))
    return {
        "expected": found.expected[:-1, :6],
        "achieved": found.achieved[:, :6],
        "recalls": [found.recall(t) for t in (0.2, 0.5, 0.8)],
        "threshold": [plan.stop.expected for plan in (half, most)],
        "calls": simulate(most, queries, scores).n_scored,
        "never": simulate(never, queries, scores).n_scored[:3],
    }


COMPUTED = {
    "dense fit": lambda: numbers_of(dense_fit(100)),
    "dense fit of rank 5": lambda: numbers_of(dense_fit(5)),
    **{
        f"posterior, {name}": lambda spec=spec: posterior_numbers(spec)
        for name, spec in SPECS.items()
    },
    "expected recall, plain": lambda: recall_numbers(SPECS["plain"]),
    "calibration": curve_numbers,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_values_are_as_before(name):
    check("kriging_values.json", {name: COMPUTED[name]()}, close=1e-3, floor=None, whole=False)
