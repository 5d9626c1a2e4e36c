"""Scores collected on Ray are those collected here, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError, MissingExtraError, ScorerError
from crossknn.scores.collect import Limits, collect
from crossknn.scores.store import ScoreStore
from crossknn.types import Pairs

QUERIES, ITEMS = [f"query {q}" for q in range(6)], [f"item {i}" for i in range(150)]
ALL = len(QUERIES) * len(ITEMS)
PAIRS = 64  # of a block


class Lengths:
    """Scores by lengths; may leave out items, or do something at its second call."""

    def __init__(self, fingerprint="lengths", *, skip=(), do=None):
        self.fingerprint, self.skip, self.do, self.calls = fingerprint, skip, do, 0

    def score(self, pairs, queries, items, **limits):
        self.calls += 1
        if self.do and self.calls == 2:
            self.do()
        rows = list(zip(pairs.query.tolist(), pairs.item.tolist(), strict=True))
        scores = [len(queries[q]) + int(items[i][5:]) / 8 for q, i in rows]
        kept = [p for p, (_, i) in enumerate(rows) if items[i] not in self.skip]
        yield np.array(kept, np.int64), np.array(scores, np.float32)[kept]


def once(folder, what):
    """Do something in the first process that comes here, and in no other."""
    try:
        (folder / "once").touch(exist_ok=False)
    except FileExistsError:
        return
    what()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error):
    raise error


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


def gather(store, scorer=None, pairs=None, **limits):
    limits = Limits(**{"workers": 2, "ray": "local", **limits})
    return collect(store, scorer or Lengths(), QUERIES, ITEMS, pairs, limits=limits)


@pytest.mark.slow
def test_limits_failures_and_resumption_are_those_of_a_local_collection(ray, tmp_path):
    store = ScoreStore(tmp_path / "s")
    first = gather(store, max_calls=300)
    assert (first.calls, first.stopped_by, len(store)) == (300, "max_calls", 300)
    second = gather(store)
    assert (second.calls, second.reused, second.complete) == (ALL - 300, 300, True)
    here = ScoreStore()
    collect(here, Lengths(), QUERIES, ITEMS)
    np.testing.assert_array_equal(
        store.rows("lengths", QUERIES, ITEMS), here.rows("lengths", QUERIES, ITEMS)
    )
    two = Pairs(np.zeros(2, np.int64), np.array([4, 5]))
    report = gather(ScoreStore(), Lengths(skip=[ITEMS[4]]), two, workers=1)
    assert (report.calls, report.failed) == (2, 1)


@pytest.mark.slow
def test_a_model_is_opened_by_its_name(ray, tmp_path):
    stores = ScoreStore(tmp_path / "there"), ScoreStore(tmp_path / "here")
    for store, where in zip(stores, ("local", None), strict=True):
        limits = Limits(workers=1, ray=where)
        assert collect(store, "bundled", QUERIES[:2], ITEMS[:40], limits=limits).complete
        [(fingerprint,)] = store.table().select("SELECT fingerprint FROM scorers")
    there, here = (store.rows(fingerprint, QUERIES[:2], ITEMS[:40]) for store in stores)
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_killed_worker_costs_its_block_and_changes_nothing(ray, tmp_path):
    store, here = ScoreStore(tmp_path / "s"), ScoreStore()
    report = gather(store, Lengths(do=partial(once, tmp_path, die)))
    assert (report.calls, report.failed, report.complete) == (ALL, 0, True)
    collect(here, Lengths(), QUERIES, ITEMS)
    assert (tmp_path / "once").exists()
    np.testing.assert_array_equal(
        store.rows("lengths", QUERIES, ITEMS), here.rows("lengths", QUERIES, ITEMS)
    )


NODES = """
import sys, threading, time
from functools import partial
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from crossknn.scores.store import ScoreStore
from test_ray import ALL, Lengths, gather, once

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
first, folder = cluster.add_node(num_cpus=2), Path(sys.argv[1])
ray.init(address=cluster.address, log_to_driver=False)

waiting = Lengths(do=partial(once, folder, partial(time.sleep, 600)))
reports = []
scoring = threading.Thread(target=lambda: reports.append(gather(ScoreStore(folder / "s"), waiting)))
scoring.start()
while not (folder / "once").exists():
    time.sleep(0.1)
cluster.add_node(num_cpus=2)
cluster.remove_node(first, allow_graceful=False)
scoring.join()
assert (reports[0].calls, reports[0].failed, reports[0].complete) == (ALL, 0, True), reports
"""


@pytest.mark.slow
def test_a_lost_node_costs_what_its_workers_were_scoring(tmp_path):
    pytest.importorskip("ray")
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    given = [sys.executable, "-c", NODES, str(tmp_path)]
    done = subprocess.run(given, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "kind", "words"),
    [
        (partial(fail, KeyError("model")), ScorerError, "a worker failed: KeyError"),
        (partial(fail, InputError("no folder")), InputError, "no folder"),
        (die, ScorerError, r"or was lost \(perhaps memory is short\): "),
    ],
)
def test_what_goes_wrong_on_a_worker_is_said_here(ray, monkeypatch, do, kind, words):
    monkeypatch.setattr("crossknn.scores.ray._LOSSES", 2)
    with pytest.raises(kind, match=words):
        gather(ScoreStore(), Lengths(do=do), workers=1)


@pytest.mark.slow
def test_workers_must_have_the_same_model_and_enough_cpus(ray):
    class Changing(Lengths):
        def __setstate__(self, state):
            self.__dict__ |= state | {"fingerprint": "other"}

    with pytest.raises(InputError, match=r"a worker opened .* other, but leng"):
        gather(ScoreStore(), Changing())
    with pytest.raises(InputError, match="2 CPUs, too few for 3 workers"):
        gather(ScoreStore(), workers=3)
    unpicklable = Lengths()
    unpicklable.lock = threading.Lock()
    with pytest.raises(InputError, match="on Ray every worker opens the cross-encoder itself"):
        gather(ScoreStore(), unpicklable)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://[::1]:9", "localhost:99999", "::"])
def test_a_cluster_that_is_not_there_is_said_at_once(monkeypatch, address):
    ray, began = pytest.importorskip("ray"), time.monotonic()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match=r"no Ray cluster answers at [^\n]*$"):
        gather(ScoreStore(), ray=address)
    assert time.monotonic() - began < 20


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'crossknn\[ray\]'"):
        gather(ScoreStore())
