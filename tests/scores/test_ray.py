"""Scores collected on Ray are those collected here, whoever is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError, MissingExtraError, ScorerError
from crossknn.scores.collect import Limits, collect
from crossknn.scores.store import ScoreStore

QUERIES, ITEMS = [f"query {q}" for q in range(6)], [f"item {i}" for i in range(150)]
ALL = len(QUERIES) * len(ITEMS)


class Lengths:
    """Scores by lengths; may do something at its second call."""

    def __init__(self, fingerprint="lengths", *, do=None):
        self.fingerprint, self.do, self.calls = fingerprint, do, 0

    def score(self, pairs, queries, items, **limits):
        self.calls += 1
        if self.do and self.calls == 2:
            self.do()
        rows = zip(pairs.query.tolist(), pairs.item.tolist(), strict=True)
        scores = [len(queries[q]) + int(items[i][5:]) / 8 for q, i in rows]
        yield np.arange(len(scores)), np.array(scores, np.float32)


def die_once(folder):
    """Kill the first process that comes here, and no other."""
    try:
        (folder / "once").touch(exist_ok=False)
    except FileExistsError:
        return
    die()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error):
    raise error


@pytest.fixture(autouse=True)
def own_sigterm():
    """Ray handles SIGTERM even if it did not start, and later tests fork processes that need it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def ray():
    """Ray with two workers' CPUs."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


def gather(store, scorer=None, queries=QUERIES, **limits):
    limits = Limits(**{"workers": 2, "ray": "local", **limits})
    return collect(store, scorer or Lengths(), queries, ITEMS, limits=limits)


@pytest.mark.slow
def test_a_killed_worker_and_a_resumed_collection_change_nothing(ray, tmp_path):
    store, here = ScoreStore(tmp_path / "s"), ScoreStore()
    first = gather(store, Lengths(do=partial(die_once, tmp_path)), max_calls=300)
    assert (first.calls, first.failed, first.stopped_by, len(store)) == (300, 0, "max_calls", 300)
    assert (tmp_path / "once").exists()
    second = gather(store)
    assert (second.calls, second.reused, second.complete) == (ALL - 300, 300, True)
    collect(here, Lengths(), QUERIES, ITEMS)
    there, here = (s.rows("lengths", QUERIES, ITEMS) for s in (store, here))
    np.testing.assert_array_equal(there, here)


@pytest.mark.slow
def test_a_model_is_opened_by_its_name(ray):
    stores = ScoreStore(), ScoreStore()
    for store, where in zip(stores, ("local", None), strict=True):
        assert gather(store, "bundled", QUERIES[:1], workers=1, ray=where).complete
    [(fingerprint,)] = store.table().select("SELECT fingerprint FROM scorers")
    there, here = (store.rows(fingerprint, QUERIES[:1], ITEMS) for store in stores)
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-5)


class Changing(Lengths):
    """Another model on the worker than here."""

    def __setstate__(self, state):
        self.__dict__ |= state | {"fingerprint": "other"}


class Unpicklable(Lengths):
    def __reduce__(self):
        raise TypeError("it has a lock")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scorer", "workers", "kind", "words"),
    [
        (Lengths(do=partial(fail, KeyError("model"))), 1, ScorerError, "a worker failed: KeyError"),
        (Lengths(do=partial(fail, InputError("no folder"))), 1, InputError, "no folder"),
        (Lengths(do=die), 1, ScorerError, r"a worker was lost \(perhaps it ran out of memory\): "),
        (Changing(), 2, InputError, "a worker opened .* other, but leng"),
        (Lengths(), 3, InputError, "2 CPUs, too few for 3 workers"),
        (Unpicklable(), 2, InputError, "on Ray every worker opens the cross-encoder itself"),
    ],
)
def test_failures_of_a_worker(ray, monkeypatch, scorer, workers, kind, words):
    monkeypatch.setattr("crossknn.scores.ray._LOSSES", 2)
    with pytest.raises(kind, match=words):
        gather(ScoreStore(), scorer, workers=workers)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://[::1]:9", "localhost:99999", "::"])
def test_a_cluster_that_is_not_there(monkeypatch, address):
    ray, began = pytest.importorskip("ray"), time.monotonic()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match=r"no Ray cluster answers at [^\n]*$"):
        gather(ScoreStore(), ray=address)
    assert time.monotonic() - began < 20


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'crossknn\[ray\]'"):
        gather(ScoreStore())
