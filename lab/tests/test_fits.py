"""CUR's fit: its anchors are scores like all others."""

from __future__ import annotations

import pytest
from fitting import test_fit as ours
from fitting.test_fit import TRAIN, N, world  # noqa: F401

from crossknn.errors import InputError
from crossknn.fitting.fit import fit
from crossknn.scores.collect import Limits
from crossknn_lab.fits import fit_method


@pytest.mark.parametrize("method", ["cur", "cur(rank=4)"])
def test_fitted_items_are_kept_and_find_more(world, tmp_path, method):  # noqa: F811
    ours.test_aligned_items_are_kept_and_find_more(world, tmp_path, method)


def test_a_rank_above_that_of_the_scores_costs_nothing(world):  # noqa: F811
    with pytest.raises(InputError, match="allow a rank of at most"):
        fit(world.index(), world, world.queries[TRAIN], fit_method("cur(rank=99)"))
    assert world.asked == 0


def test_methods_share_all_scores_and_dense_rows_are_less_what_is_known(world, tmp_path):  # noqa: F811
    index, queries = world.index(tmp_path / "i"), world.queries[:10]
    assert fit(index, world, queries, per=20).collected.calls == 200
    found = fit(index, world, queries, fit_method("cur(rank=2)"))
    assert (found.collected.calls, found.collected.reused) == (10 * N - 200, 200)
    assert found.vectors.cost["calls"] == world.asked == 10 * N
    more = fit(index, world, world.queries[:12], per=30)
    assert (more.collected.calls, more.collected.reused) == (60, 300)
    assert more.vectors.cost["calls"] == 360  # of an anchor, only what was planned
    by_item = fit(index, world, world.queries[:12], strategy="i", per=4)
    assert 0 < by_item.collected.calls < 4 * N / 2


def test_dense_rows_stop_at_a_limit_and_go_on(world):  # noqa: F811
    index = world.index()
    with pytest.raises(InputError, match="scores of all 120 items yet: allow more calls or more"):
        fit(
            index, world, world.queries[:3], fit_method("cur(rank=2)"), limits=Limits(max_calls=100)
        )
    found = fit(
        index, world, world.queries[:3], fit_method("cur(rank=2)"), limits=Limits(max_calls=200)
    )
    assert found.collected.stopped_by == "max_calls"
    assert (found.vectors.cost["queries"], world.asked) == (2, 300)
    assert "some train queries lack scores" in found.notes[0]
    assert (
        fit(index, world, world.queries[:3], fit_method("cur(rank=2)")).vectors.cost["queries"] == 3
    )
