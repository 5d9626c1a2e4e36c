"""Scores collected on Ray are those collected here, whoever is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError, MissingExtraError, ScorerError
from crossknn.scores.collect import Limits, collect
from crossknn.scores.store import ScoreStore
from crossknn.types import Pairs

QUERIES, ITEMS = [f"query {q}" for q in range(6)], [f"item {i}" for i in range(150)]
ALL = len(QUERIES) * len(ITEMS)


class Lengths:
    """Scores by lengths; may leave out items, or do something at the `at`-th call."""

    def __init__(self, fingerprint="lengths", *, skip=(), at=None, do=None):
        self.fingerprint, self.skip, self.at, self.do = fingerprint, skip, at, do
        self.calls = 0

    def score(self, pairs, queries, items, **limits):
        self.calls += 1
        if self.calls == self.at:
            self.do()
        scores = [len(queries[q]) + int(items[i][5:]) / 8 for q, i in _rows(pairs)]
        kept = [p for p, (_, i) in enumerate(_rows(pairs)) if items[i] not in self.skip]
        yield np.array(kept, np.int64), np.array(scores, np.float32)[kept]


def _rows(pairs):
    return list(zip(pairs.query.tolist(), pairs.item.tolist(), strict=True))


@pytest.fixture(scope="module")
def ray():
    """Ray with two workers' CPUs, for all the tests of this file."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


def gather(store, source, pairs=None, **limits):
    limits = Limits(**{"workers": 2, "ray": "local", **limits})
    return collect(store, Lengths(), QUERIES, ITEMS, pairs, limits=limits, source=source)


@pytest.mark.slow
def test_limits_failures_and_resumption_are_those_of_a_local_collection(ray, tmp_path):
    store = ScoreStore(tmp_path / "s")
    first = gather(store, Lengths, max_calls=300)
    assert (first.calls, first.stopped_by, len(store)) == (300, "max_calls", 300)
    rest = gather(store, Lengths)
    assert (rest.calls, rest.reused, rest.complete) == (ALL - 300, 300, True)
    here = ScoreStore()
    collect(here, Lengths(), QUERIES, ITEMS)
    np.testing.assert_array_equal(
        store.rows("lengths", QUERIES, ITEMS), here.rows("lengths", QUERIES, ITEMS)
    )
    two = Pairs(np.zeros(2, np.int64), np.array([4, 5]))
    report = gather(ScoreStore(), lambda: Lengths(skip=[ITEMS[4]]), two, workers=1)
    assert (report.calls, report.failed) == (2, 1)


@pytest.mark.slow
def test_a_killed_worker_costs_its_block_and_changes_nothing(ray, tmp_path):
    lost = tmp_path / "lost"

    def die_once():
        if not lost.exists():
            lost.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    store = ScoreStore(tmp_path / "s")
    report = gather(store, lambda: Lengths(at=2, do=die_once))
    assert lost.exists()
    assert (report.calls, report.failed, report.complete) == (ALL, 0, True)


@pytest.mark.slow
def test_what_goes_wrong_on_a_worker_is_said_here(ray):
    def ask(source, **limits):
        gather(ScoreStore(), source, **{"workers": 1, **limits})

    with pytest.raises(
        InputError, match=r"a worker opened .* other, but this is the work of length"
    ):
        ask(lambda: Lengths("other"))
    with pytest.raises(InputError, match="there is no model folder"):
        ask("./no-such-model")

    def missing():
        raise MissingExtraError("this model", "torch")

    with pytest.raises(InputError, match=r"pip install 'crossknn\[torch\]'"):
        ask(missing)
    with pytest.raises(ScorerError, match="a worker failed: KeyError"):
        ask(lambda: {}["model"])
    deadly = lambda: Lengths(at=1, do=lambda: os.kill(os.getpid(), signal.SIGKILL))  # noqa: E731
    with pytest.raises(ScorerError, match=r"or was lost \(attempts: 4;"):
        ask(deadly)
    with pytest.raises(InputError, match="2 CPUs, too few for 3 workers"):
        ask(Lengths, workers=3)


def test_without_ray_or_a_name_it_says_so(monkeypatch):
    with pytest.raises(InputError, match="on Ray every worker opens the cross-encoder itself"):
        gather(ScoreStore(), None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"crossknn\[ray\]"):
        gather(ScoreStore(), Lengths)
