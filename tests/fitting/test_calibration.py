"""Calibration: probabilities of relevance from judgements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crossknn as ck
from crossknn.errors import InputError
from crossknn.fitting.calibration import calibration_error, fit_scores, isotonic
from crossknn.search.fusion import features

WORDS = ("zip", "sort", "lock", "parse", "send", "read", "draw", "join")
TEXTS = [f"how to {verb} a {noun}" for verb in WORDS for noun in ("file", "list", "set", "map")]
QUERIES = {f"q{i}": f"{verb} the thing" for i, verb in enumerate(WORDS)}
QRELS = {f"q{i}": {str(4 * i + j): 1 for j in range(3)} for i in range(len(WORDS))}


def overlap(pairs):
    return [3.0 * len(set(q.split()) & set(t.split())) - len(t) / 9 for q, t in pairs]


SCORER = ck.CallableScorer(overlap, name="overlap")


@pytest.fixture
def index():
    return ck.ItemIndex.build(TEXTS, lsa=4)


def shifted(m=500, seed=0):
    """Scores whose queries lie apart, and items that are relevant by the offset from their mean."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.normal(size=(m, 10)), axis=1)
    chance = 1 / (1 + np.exp(-2 * (scores - scores.mean(axis=1, keepdims=True)) + 1))
    return scores + rng.normal(scale=5, size=(m, 1)), rng.random((m, 10)) < chance, chance


def test_offsets_of_queries_are_seen_through():
    scores, relevant, _ = shifted()
    fitted, found = fit_scores(scores, relevant)
    others, theirs, chance = shifted(seed=1)
    predicted = fitted.probabilities(others, others)
    assert calibration_error(predicted.ravel(), theirs.ravel()) < 0.03 < found["ece_logistic"]
    assert np.abs(predicted - chance).mean() < 0.05
    assert (np.diff(predicted, axis=1) <= 1e-12).all()  # in the order of the scores


def test_the_chance_that_nothing_is_relevant_is_the_share_of_such_queries():
    rng = np.random.default_rng(0)
    scores = -np.sort(-rng.normal(size=(600, 10)), axis=1) + rng.normal(scale=2, size=(600, 1))
    relevant = scores > 1.0
    fitted, _ = fit_scores(scores[:300], relevant[:300])
    chance, none = fitted.none_relevant(scores[300:]), ~relevant[300:].any(axis=1)
    assert chance.mean() == pytest.approx(none.mean(), abs=0.05)
    assert chance[none].min() > 0.5 > chance[~none].max() or (chance[none] > 0.5).mean() > 0.9


def test_features_by_their_definition():
    best = np.array([[4.0, 1.0, 1.0], [3.0, np.nan, np.nan], [2.0, 2.0, -1.0]])
    found = features(best, best)
    means = [2.0, 3.0, 1.0]
    leads = [[3.0, -3.0, -3.0], [0.0, np.nan, np.nan], [0.0, 0.0, -3.0]]
    np.testing.assert_array_equal(found[..., 0], best)
    np.testing.assert_array_equal(found[..., 1], np.repeat(means, 3).reshape(3, 3))
    np.testing.assert_array_equal(found[..., 2], leads)


def test_hits_have_calibrated_probabilities_once_it_is_fitted(index, tmp_path):
    index.save(tmp_path / "index")
    before = ck.Searcher(index, SCORER).search("zip it", k=3, budget=16)
    found = ck.fit_calibration(index, SCORER, QUERIES, QRELS, budget=32)
    index = ck.ItemIndex.load(tmp_path / "index")
    after = ck.Searcher(index, SCORER).search("zip it", k=3, budget=16)
    assert [h.id for h in after[0]] == [h.id for h in before[0]]
    logistic = [1 / (1 + np.exp(-hit.score)) for hit in before[0]]
    assert [hit.probability for hit in before[0]] == pytest.approx(logistic)
    assert (before[0][0].calibrated, before.none_relevant) == (None, None)
    assert 0.5 < after[0][0].probability == after[0][0].calibrated < 1
    assert after.none_relevant[0] < 0.5
    nothing = ck.Searcher(index, SCORER).search("zip it", filter=[])
    assert (nothing[0], nothing.none_relevant) == ([], (None,))
    assert (found["queries"], found["items"], found["relevant"]) == (8, 80, 24)
    # Of another scorer, or of another fusion, scores mean something else.
    other = ck.Searcher(index, ck.CallableScorer(overlap, name="other"))
    assert other.search("zip it", budget=16)[0][0].calibrated is None
    ck.fit_fusion(index, SCORER, list(QUERIES.values()))
    fused = ck.Searcher(index, SCORER, fuse={"lsa": 1.0}).search("zip it", budget=16)
    assert fused[0][0].calibrated is None
    ck.fit_calibration(index, SCORER, QUERIES, QRELS, budget=32, fuse={"lsa": 1.0})
    fused = ck.Searcher(index, SCORER, fuse={"lsa": 1.0}).search("zip it", budget=16)
    assert fused[0][0].calibrated is not None


@pytest.mark.parametrize(
    ("qrels", "sentence"),
    [
        ({q: QRELS[q] for q in ("q0", "q1", "q2", "q3")}, "4 of the 8 queries are judged"),
        ({"other": {"1": 1}}, "0 of the 8 queries are judged"),
        ({q: {"d99": 1} for q in QRELS}, "none of the judged items is in the index"),
        ({q: {"1": 0} for q in QRELS}, "none of the 80 items that were found are relevant"),
        ({q: dict.fromkeys(map(str, range(32)), 1) for q in QRELS}, "all of the 80 items"),
    ],
)
def test_judgements_that_cannot_be_fitted_to_are_said_in_a_sentence(index, qrels, sentence):
    with pytest.raises(InputError, match=sentence):
        ck.fit_calibration(index, SCORER, QUERIES, qrels, budget=32)
    assert ck.Searcher(index, SCORER).search("zip it", budget=16)[0][0].calibrated is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=1, max_size=40))
def test_rising_curves_are_scikit_learns(pairs):
    values, found = np.array(pairs, np.float64).T
    found = found > 0
    from sklearn.isotonic import IsotonicRegression  # a second to import

    theirs = IsotonicRegression(out_of_bounds="clip").fit(values, found)
    at, height = isotonic(values, found)
    np.testing.assert_array_equal(at, theirs.X_thresholds_)
    np.testing.assert_allclose(height, theirs.y_thresholds_, atol=1e-12)
    asked = np.linspace(-6, 6, 50)
    np.testing.assert_allclose(np.interp(asked, at, height), theirs.predict(asked), atol=1e-12)
