"""The odds by which items are chosen for a large k: features, weights, and what they are worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from synthetic import matrix

from crossknn.evaluation.measures import recall
from crossknn.fitting.kriging import fit_prior
from crossknn.index.stored import StoredMatrix
from crossknn.linalg import logistic_weights, top_k
from crossknn.methods import parse_method
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.kriging import FEWEST, fit_top_weights
from crossknn.methods.prior import Prior
from crossknn.methods.top_odds import LARGE, NEAREST, TopOdds, features
from crossknn.retrievers.specs import HYBRID
from crossknn.search.loop import simulate
from crossknn.types import NO_ITEM, Artifact, Candidates, Observed

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
SMALL = {"anchors": 24, "n": 700, "tests": 6}


def plan_of(data, spec=f"auto(k={LARGE})"):
    return parse_method(spec).plan(data, 40, 0)


@pytest.mark.parametrize("ridge", [1, 10])
def test_weights_are_those_of_logistic_regression_with_a_ridge_penalty(ridge):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 4)) * [1, 10, 0.1, 3] + [0, 5, 1, 0]
    values[:, 3] = 2.0  # a constant says nothing
    within = rng.random(500) < 1 / (1 + np.exp(1 - values[:, 0] - values[:, 1] / 10))
    size = values.std(axis=0)
    known = (values - values.mean(axis=0)) / np.where(size > 0, size, 1)
    fitted = LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=10_000).fit(known, within)
    expected = fitted.coef_[0] / np.where(size > 0, size, 1)
    found = logistic_weights(values, within, ridge)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_features_are_what_their_docstring_says():
    data, rng = matrix(**SMALL), np.random.default_rng(1)
    process = plan_of(data, "auto(k=1)").predictor
    items = np.stack([rng.permutation(700)[:12] for _ in range(2)])
    scores = np.take_along_axis(data.scores[24:26], items, axis=1)
    queries = data.queries(slice(24, 26))
    state = process.update(process.start(queries), Observed(items, scores, np.array([12, 12])))
    wanted = np.setdiff1d(np.arange(700), items[1])[:30]
    mean, std = (a[1] for a in process.predict(state, np.stack([wanted, wanted])))
    padded = np.append(wanted, NO_ITEM)
    row = np.append(mean, -np.inf), np.append(std, np.nan)
    best = Candidates(*(np.stack([a, a]) for a in (padded, *row)))
    found_items, found = features(process, state, 1, best)
    assert found_items.tolist() == wanted.tolist()
    factor, vectors = process.arrays[0].astype(float), process.arrays[1].values.astype(float)
    order = np.argsort(-scores[1])
    for at, item in enumerate(wanted.tolist()):
        likeness = []
        for other in items[1].tolist():
            both = [[item, item], [other, other], [item, other]]
            own, others, joint = (
                process.model.kernel(*(np.hstack([factor[[i]], vectors[[i]]]) for i in pair)).item()
                for pair in both
            )
            likeness.append(joint / np.sqrt(own * others))
        near = np.argsort(likeness)[::-1][:NEAREST]
        ranks = [order.tolist().index(place) / 11 for place in near.tolist()]
        size = scores[1].std()
        expected = [
            (mean[at] - mean.mean()) / mean.std(),
            *state.basis[1:, 1, item],
            np.linalg.norm(factor[item]) / size,
            std[at] / size,
            np.mean(ranks),
        ]
        np.testing.assert_allclose(found[at], expected, rtol=2e-3, atol=2e-3)


def test_items_are_chosen_by_the_odds_and_half_by_the_mean():
    data = matrix(**SMALL)
    process = plan_of(data).predictor
    assert isinstance(process, TopOdds)
    plain = GaussianProcess(**{n: v for n, v in vars(process).items() if n != "weights"})
    queries, none = data.queries(slice(24, 25)), np.full((1, 1), NO_ITEM)
    items = np.arange(10)[None]
    observed = Observed(items, data.scores[24:25, :10], np.array([10]))
    state = process.update(process.start(queries), observed)
    best = plain.top(state, 300, none)
    values = features(plain, state, 0, best)[1]
    odds = values @ process.weights
    chance = values[:, 0] / 2 + (odds - odds.mean()) / odds.std()
    chosen = np.argsort(-chance, kind="stable")[:5]
    found = process.top(state, 5, none)
    np.testing.assert_array_equal(found.items, best.items[:, chosen])
    np.testing.assert_array_equal(found.scores, best.scores[:, chosen])
    np.testing.assert_array_equal(found.std, best.std[:, chosen])


def test_only_a_large_k_and_enough_anchors_and_items_make_odds():
    data = matrix(**SMALL)
    assert isinstance(plan_of(data).predictor, TopOdds)
    few = replace(data, n_anchors=FEWEST - 1)
    for other, spec in (
        (data, "auto(k=49)"),
        (data, f"auto(k={LARGE}, use_anchors=false)"),
        (few, f"auto(k={LARGE})"),
        (matrix(anchors=24, n=80), f"auto(k={LARGE})"),
    ):
        assert type(plan_of(other, spec).predictor) is GaussianProcess


def test_the_weights_of_a_stored_prior_are_used_and_are_those_of_the_anchors():
    data = matrix(**SMALL)
    weights = plan_of(data).predictor.weights
    prior = plan_of_prior(data)
    np.testing.assert_allclose(prior.top_weights, weights)
    other = replace(prior, top_weights=2 * weights)
    stored = replace(data, artifacts={"kriging": Artifact(*other.kept())})
    np.testing.assert_array_equal(plan_of(stored).predictor.weights, 2 * weights)


def plan_of_prior(data) -> Prior:
    """What is kept of the prior of these anchors."""
    kept: dict[str, Artifact] = {}

    class Kept:
        """The matrix as an index that keeps artifacts."""

        def __getattr__(self, name):
            return getattr(data, name)

        anchor_queries = data.anchors.queries.texts

        def for_scorer(self, fingerprint):
            return self

        def scorer_fingerprint(self, name):
            return None

        def put_artifact(self, name, meta, arrays):
            kept[name] = Artifact(meta, arrays)

    fit_prior(Kept(), retriever=HYBRID)
    return Prior.from_artifact(kept["kriging"])


@pytest.mark.slow
def test_more_of_the_top_hundred_is_found_and_not_less_of_the_top_ten():
    data = StoredMatrix.load(DATA / "wordnet-artifact.npz")
    tests = slice(data.n_anchors, None)
    scores, found = data.scores[tests], {}
    for k in (10, 100):
        plan = parse_method(f"auto(k={k})").plan(data, 100, 0)
        picks = simulate(plan, data.queries(tests), scores).picks().items
        found[k] = {of: recall(picks, top_k(scores, of).items).mean() for of in (10, 100)}
    assert found[100][100] > found[10][100] + 0.015
    assert found[100][10] > found[10][10] - 0.03


def test_weights_are_the_same_again():
    data = matrix(**SMALL)
    one, other = (fit_top_weights(data, HYBRID, 100, 0) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    basis = plan_of(data).predictor.start(data.queries(slice(0, 1))).basis
    assert len(one) == len(basis) - 1 + 4


def test_weights_by_a_pool_are_near_those_by_all_items(monkeypatch):
    data = matrix(**SMALL)
    whole = fit_top_weights(data, HYBRID, 100, 0)
    monkeypatch.setattr("crossknn.methods.base.POOLED", data.n - 1)
    monkeypatch.setattr("crossknn.methods.kriging.PRIOR_POOL", 350)
    pooled = fit_top_weights(data, HYBRID, 100, 0)
    assert (pooled != whole).any()
    assert np.corrcoef(pooled, whole)[0, 1] > 0.95
