"""Kriging's settings from anchors: the densities are right, and steps are taken for a reason."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from synthetic import matrix

from crossknn.index.settings import Settings
from crossknn.index.stored import StoredMatrix
from crossknn.methods.fitting import FARTHEST, LEAST, STEP, Revealed, choose, climb
from crossknn.predictors.kernels import Content
from crossknn.spec import parse

DE = parse("dense")
OTHER = Settings(share=2.0, scale=4.0, smooth=1.0, linear=0.25, noise=0.5)


def drawn(truth: Settings, q: int = 80, b: int = 40, seed: int = 0) -> Revealed:
    """Scores of q queries from the model itself, b items each of their own."""
    rng = np.random.default_rng(seed)
    factor = 0.7 * rng.normal(size=(q, b, 6))
    unit = rng.normal(size=(q, b, 8))
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    known = factor @ factor.transpose(0, 2, 1)
    distances = np.maximum(2 - 2 * unit @ unit.transpose(0, 2, 1), 0)
    content = Content(truth.scale, truth.smooth, truth.linear)
    noise = truth.noise * (truth.smooth + truth.linear) * np.eye(b)
    covariance = truth.share * known + 2 * (content.at(distances) + noise)
    drift = np.concatenate([np.ones((q, b, 1)), rng.normal(size=(q, b, 2))], axis=2)
    weights = np.array([0.0, 2.0, -1.0]) + 0.5 * rng.normal(size=(q, 3))
    residual = (np.linalg.cholesky(covariance) @ rng.normal(size=(q, b, 1)))[:, :, 0]
    return Revealed(
        known=known,
        distances=distances,
        variance=np.full(q, 2.0),
        drift=drift,
        weights=np.tile([0.0, 2.0, -1.0], (q, 1)),
        precision=np.tile(np.diag([0.0, 4.0, 4.0]), (q, 1, 1)),
        scores=5 + (drift @ weights[:, :, None])[:, :, 0] + residual,
    )


def with_scores(data: StoredMatrix, change) -> StoredMatrix:
    scores = data.scores.copy()
    scores[: data.n_anchors] = change(scores[: data.n_anchors])
    return replace(data, scores=scores)


def chosen(data: StoredMatrix) -> Settings:
    return choose(data.rows(0, 1)[0], DE)


def test_a_density_is_that_of_each_score_given_all_others():
    cells = drawn(OTHER, q=2, b=12)
    far = 1e5  # the intercept's variance, for a flat prior
    for row, found in enumerate(cells.density(OTHER)):
        prior = np.diag([far, 0.25, 0.25])
        content = Content(OTHER.scale, OTHER.smooth, OTHER.linear)
        covariance = OTHER.share * cells.known[row] + 2 * content.at(cells.distances[row])
        covariance += 2 * OTHER.noise * (OTHER.smooth + OTHER.linear) * np.eye(12)
        covariance += cells.drift[row] @ prior @ cells.drift[row].T
        rest = cells.scores[row] - cells.drift[row] @ cells.weights[row]
        total = 0.0
        for i in range(12):
            others = np.delete(np.arange(12), i)
            pull = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, i])
            variance = covariance[i, i] - pull @ covariance[others, i]
            error = rest[i] - pull @ rest[others]
            total -= 0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
        assert found == pytest.approx(total, rel=1e-4)


def test_where_zero_lies_does_not_matter():
    cells = drawn(Settings())
    moved = replace(cells, scores=cells.scores + 100)
    np.testing.assert_allclose(cells.density(OTHER), moved.density(OTHER), rtol=1e-6)


@pytest.mark.parametrize("name", asdict(OTHER))
@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_the_settings_that_made_the_scores_are_preferred(name, factor):
    cells = drawn(OTHER)
    wrong = replace(OTHER, **{name: factor * getattr(OTHER, name)})
    assert cells.density(OTHER).mean() > cells.density(wrong).mean()


def test_steps_lead_to_the_settings_that_made_the_scores():
    cells = drawn(OTHER)
    found = climb(cells, Settings())
    gain = cells.density(found) - cells.density(Settings())
    most = cells.density(OTHER) - cells.density(Settings())
    assert most.mean() > 0
    assert gain.mean() > 0.8 * most.mean()


def test_settings_stay_where_nothing_better_is_known():
    start = Settings()
    found = climb(drawn(start), start)
    for name, value in asdict(found).items():
        assert 0.45 <= value / getattr(start, name) <= 2.2


def test_no_setting_goes_farther_than_allowed():
    start = Settings()
    found = climb(drawn(replace(start, share=100.0, noise=0.001)), start)
    for name, value in asdict(found).items():
        assert abs(np.log(value / getattr(start, name)) / np.log(STEP)) <= FARTHEST + 1e-9
    assert found.share == start.share * STEP**FARTHEST


def test_a_part_that_is_off_stays_off():
    assert climb(drawn(Settings()), replace(Settings(), smooth=0.0)).smooth == 0


def test_noisy_scores_get_more_noise():
    rng = np.random.default_rng(1)
    data = matrix(anchors=40)
    noisy = with_scores(data, lambda s: s + 6 * rng.normal(size=s.shape).astype(np.float32))
    quiet, loud = chosen(data), chosen(noisy)
    assert loud.noise * (loud.smooth + loud.linear) / loud.share > (
        quiet.noise * (quiet.smooth + quiet.linear) / quiet.share
    )


def test_the_unit_of_the_scores_does_not_matter():
    data = matrix(anchors=30)
    assert chosen(data) == chosen(with_scores(data, lambda s: 8 * s + 64))


def test_the_choice_is_the_same_every_time():
    assert chosen(matrix(anchors=30)) == chosen(matrix(anchors=30))


def test_few_anchors_change_nothing():
    few, start = matrix(anchors=LEAST - 1), replace(Settings(), share=0.5)
    assert choose(few.rows(0, 1)[0], DE) == Settings()
    assert choose(few.rows(0, 1)[0], DE, start=start) == start
    assert choose(matrix(anchors=0).rows(0, 1)[0], DE) == Settings()


def test_anchors_with_equal_scores_tell_nothing():
    data = matrix(anchors=30)
    assert chosen(with_scores(data, lambda s: np.full_like(s, 2.0))) == Settings()
    partly = with_scores(data, lambda s: np.where(np.arange(30)[:, None] < 5, 1.0, s))
    assert all(np.isfinite([*asdict(chosen(partly)).values()]))


def test_an_index_of_fewer_items_than_calls_is_enough():
    assert all(np.isfinite([*asdict(chosen(matrix(n=12, anchors=25))).values()]))
