"""When a search has found enough: calibrated on the anchors, and kept with the index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from library import METHOD, Library
from synthetic import matrix

from crossknn.errors import InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.stopping import CalibrationCurve, calibrate, rehearsals
from crossknn.methods import parse_method


def test_corners_by_hand():
    expected = np.array([[0.2, 0.5], [0.6, 0.9], [np.nan, np.nan]])
    achieved = np.array([[0.0, 0.5], [0.5, 0.75], [1.0, 1.0]])
    curve = CalibrationCurve(expected, achieved)
    # Queries stop at 0.5 and 0.5; 0.5 and 0.75; 1 and 0.75: the mean less its standard error.
    error = 0.125 / np.sqrt(2)
    lower = [0.5, 0.625 - error, 0.875 - error]
    assert [curve.recall(t) for t in (0.5, 0.6, 0.7)] == pytest.approx(lower)
    expectations, recalls = np.transpose(curve.corners())
    assert expectations.tolist() == [0.9, 0.6, 0.5, 0.2]
    assert recalls[:3] == pytest.approx([lower[2], lower[1], lower[0]])
    lucky = CalibrationCurve(
        np.array([[0.2], [0.4], [0.6], [np.nan]]), np.array([[0.9], [0.5], [0.9], [1.0]])
    )
    # An earlier stop that reaches it by luck is not taken.
    assert lucky.corners() == [(0.6, 0.9), (0.2, 0.5)]


def test_a_calibration_is_kept_until_the_anchors_change():
    library = Library()
    index = library.index()
    target = parse_method(METHOD[:-1] + ", target_recall=0.5)")
    with pytest.raises(InputError, match="on three anchor queries or more"):
        calibrate(index, target, 25)
    collect_anchors(index, library.scorer, library.texts(0, 20))
    found = calibrate(index, target, 25)
    assert calibrate(index, replace(target, target_recall=0.9), 25) is found
    assert calibrate(index, replace(target, k=3), 25) != found
    assert 0 < target.plan(index, 25, 0).stop.expected < 1
    with pytest.raises(InputError, match="not calibrated for k=10 and a budget of 24"):
        target.plan(index, 24, 0)
    collect_anchors(index, library.scorer, library.texts(20, 21))
    with pytest.raises(InputError, match="not calibrated"):
        target.plan(index, 25, 0)


def test_no_rehearsal_knows_the_query_that_it_searches():
    index = matrix(anchors=20)
    method = parse_method("kriging(retriever=dense)")
    plans = list(rehearsals(index, method, 20, 0))
    assert sum(len(queries) for _, queries, _ in plans) == 20
    predictor, queries = plans[0][0].predictor, plans[0][1]
    changed = replace(index, scores=np.where(np.arange(26)[:, None] == 0, -50, index.scores))
    plan, *_ = next(rehearsals(changed, method, 20, 0))
    other = plan.predictor
    np.testing.assert_array_equal(other.arrays[0], predictor.arrays[0])  # factors
    np.testing.assert_array_equal(other.start(queries).basis, predictor.start(queries).basis)
    for trend, known in zip(other.model.trends, predictor.model.trends, strict=True):
        np.testing.assert_array_equal(trend.mean, known.mean)
        np.testing.assert_array_equal(trend.precision, known.precision)
