"""Scores, vectors and fits made on Ray are those made here, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.data.reading import read_dataset
from crossknn.errors import InputError, MissingExtraError, ScorerError
from crossknn.fitting.fit import fit
from crossknn.fitting.fusion import fit_fusion
from crossknn.sample import FOLDER
from crossknn.scores.collect import Limits, collect
from crossknn.scores.ray import encode_on_ray
from crossknn.scores.store import ScoreStore
from crossknn.types import Pairs
from crossknn_lab.fits import fit_method

QUERIES, ITEMS = [f"query {q}" for q in range(6)], [f"item {i}" for i in range(150)]
ALL = len(QUERIES) * len(ITEMS)
PAIRS, TEXTS = 64, 256  # of a block
ROUNDING = {"rtol": 0, "atol": 1e-5}  # of models whose batches are others
TWO = Limits(workers=2, ray="local")


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


class Numbers:
    """Encodes texts as a few numbers."""

    fingerprint, dimensions = "numbers", 3

    def encode_items(self, texts, progress=None):
        return np.array([[len(t), sum(map(ord, t)), 1] for t in texts], np.float32) / 7


class Mortal:
    """A model of processes of which one is killed, at its second call; `begun` keeps what all of
    them began, in pairs or texts."""

    def __init__(self, model, folder):
        self.model, self.folder, self.calls = model(), folder, 0
        self.fingerprint = self.model.fingerprint

    def score(self, pairs, *texts, **limits):
        self._begin(len(pairs))
        return self.model.score(pairs, *texts)

    def encode_items(self, texts, progress=None):
        self._begin(len(texts))
        return self.model.encode_items(texts)

    def _begin(self, size):
        self.calls += 1
        with (self.folder / "begun").open("a") as file:
            file.write(f"{size}\n")
        if self.calls == 2:
            try:
                with (self.folder / "lost").open("x") as file:
                    file.write(str(size))
            except FileExistsError:  # another one was killed
                return
            os.kill(os.getpid(), signal.SIGKILL)


def begun(folder, most):
    """How many pairs or texts processes have begun, but for those of the block, of `most`, that the
    one was at which was killed."""
    lost = int((folder / "lost").read_text())
    assert 0 < lost <= most
    return sum(map(int, (folder / "begun").read_text().split())) - lost


def opens_instead(monkeypatch, model, folder):
    """Workers open a `Mortal` model, whatever name they are given."""
    opened = partial(Mortal, model, folder)
    monkeypatch.setattr("crossknn.scores.ray._opener", lambda *given: opened)


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
    report = gather(ScoreStore(tmp_path / "s"), partial(Mortal, Lengths, tmp_path))
    assert (report.calls, report.failed, report.complete) == (ALL, 0, True)
    assert begun(tmp_path, PAIRS) == ALL


@pytest.mark.slow
@pytest.mark.parametrize("method", ["als", "cur", "fusion"])
def test_a_fit_on_ray_is_the_one_made_here(ray, tmp_path, monkeypatch, method):
    """Pairs are scored once each, but for the block of the worker that is killed."""
    rng = np.random.default_rng(0)
    given = {text: rng.normal(size=8).astype(np.float32) for text in (*QUERIES, *ITEMS)}

    def vectors(texts):
        return np.array([given[text] for text in texts])

    def fitted(limits):
        index = ck.ItemIndex.build(ITEMS, vectors=vectors(ITEMS), query_vectors=vectors)
        if method == "fusion":
            return fit_fusion(index, Lengths(), QUERIES, depth=60, limits=limits), index
        made = fit(index, Lengths(), QUERIES, fit_method(method), per=60, limits=limits)
        return made.vectors.artifact(), index

    here, one = fitted(None)
    opens_instead(monkeypatch, Lengths, tmp_path)
    there, two = fitted(TWO)
    assert len(two.scores) == len(one.scores) == begun(tmp_path, PAIRS)
    if method == "fusion":
        assert there == here
        return
    for name, array in here.arrays.items():
        np.testing.assert_array_equal(there.arrays[name], array)
    timed = {"cost": None}
    assert there.meta | timed == here.meta | timed


@pytest.mark.slow
def test_a_killed_worker_costs_the_texts_that_it_was_encoding(ray, tmp_path):
    texts, seen = [f"item {i}" for i in range(1100)], []
    opened = partial(Mortal, Numbers, tmp_path)
    found = encode_on_ray(opened, "numbers", texts, 2, "local", lambda *at: seen.append(at))
    np.testing.assert_array_equal(found, Numbers().encode_items(texts))
    assert begun(tmp_path, TEXTS) == len(texts)
    assert seen == [(min(at, 1100), 1100) for at in range(TEXTS, 1100 + TEXTS, TEXTS)]


NODES = """
import sys
from functools import partial
from pathlib import Path
import numpy as np, ray
from ray.cluster_utils import Cluster
from crossknn.scores.ray import encode_on_ray
from test_ray import Numbers, Waiting

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
first = cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, log_to_driver=False)

def lose(done, n):
    global first
    if first is not None:
        cluster.add_node(num_cpus=2)
        cluster.remove_node(first, allow_graceful=False)
        first = None

texts = [f"item {i}" for i in range(1100)]
found = encode_on_ray(partial(Waiting, Path(sys.argv[1])), "numbers", texts, 2, "local", lose)
assert np.array_equal(found, Numbers().encode_items(texts))
"""


class Waiting(Numbers):
    """Notes which block it begins, and never ends the third one if it is the first to begin it."""

    def __init__(self, folder):
        self.folder = folder

    def encode_items(self, texts, progress=None):
        with (self.folder / "begun").open("a+") as file:
            file.write(f"{texts[0]}\n")
            file.seek(0)
            began = file.read().splitlines()
        if began.count(texts[0]) == 1 and texts[0] == f"item {2 * TEXTS}":
            time.sleep(600)
        return super().encode_items(texts)


@pytest.mark.slow
def test_a_lost_node_costs_what_its_workers_were_encoding(tmp_path):
    pytest.importorskip("ray")
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    given = [sys.executable, "-c", NODES, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(given, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    began = (tmp_path / "begun").read_text().splitlines()
    assert began.count(f"item {2 * TEXTS}") == 2
    assert len(began) <= 5 + 2
    assert {*began} == {f"item {start}" for start in range(0, 1100, TEXTS)}


@pytest.mark.slow
def test_an_index_built_on_ray_is_the_one_built_here(ray, tmp_path, monkeypatch):
    texts = [*read_dataset(FOLDER).items.texts[:700]]
    with monkeypatch.context() as patch:
        opens_instead(patch, ck.DualEncoder, tmp_path)
        index = ck.ItemIndex.build(texts, encoder="bundled", limits=TWO)
    assert begun(tmp_path, TEXTS) == len(texts)
    here = ck.ItemIndex.build(texts, encoder="bundled")
    np.testing.assert_allclose(index.vectors["dense"], here.vectors["dense"], **ROUNDING)
    index.save(tmp_path / "index")
    assert ck.ItemIndex.load(tmp_path / "index").model_of("dense").source == "bundled"
    few = ck.ItemIndex.build(texts[:200], encoder="bundled", limits=TWO)  # a single block
    here = ck.ItemIndex.build(texts[:200], encoder="bundled")
    np.testing.assert_array_equal(few.vectors["dense"], here.vectors["dense"])
    with pytest.raises(InputError, match="limits may have ray and workers"):
        ck.ItemIndex.build(texts, encoder="bundled", limits=Limits(deadline=1))


@pytest.mark.slow
def test_the_commands_do_on_ray_what_they_do_here(ray, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = read_dataset(FOLDER)
    Path("docs.txt").write_text("\n".join(" ".join(t.split()) for t in data.items.texts[:400]))
    Path("queries.txt").write_text("\n".join(data.queries.texts[:6]))

    def made(folder, *where):
        assert run(["index", "build", "docs.txt", folder, *where]) == 0
        kept = []
        for method in ("als", "fusion"):
            capsys.readouterr()
            told = ["--queries", "queries.txt", "--per", "30", *where, "--json"]
            assert run(["fit", folder, method, *told]) == 0
            kept.append(json.loads(capsys.readouterr().out))
        return ck.ItemIndex.load(folder), *kept

    here, als, fusion = made("here")
    there, als_there, fusion_there = made("there", "--ray", "local", "--workers", "2")
    for name in ("dense", "als"):
        np.testing.assert_allclose(there.vectors[name], here.vectors[name], rtol=0, atol=1e-3)
    assert als_there["calls"] == als["calls"] == 6 * 30
    assert fusion_there["pairs"] == fusion["pairs"]
    assert fusion_there["weights"] == pytest.approx(fusion["weights"], abs=1e-3)
    told = ["--queries", "queries.txt", "--ray", "local", "--store", "here/scores.db"]
    assert run(["fit", "there", "als", "--replace", *told]) == 0


@pytest.mark.slow
def test_what_goes_wrong_on_a_worker_is_said_here(ray, monkeypatch):
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
    monkeypatch.setattr("crossknn.scores.ray._LOSSES", 2)
    with pytest.raises(ScorerError, match=r"or was lost \(perhaps memory is short\): "):
        ask(deadly)
    with pytest.raises(InputError, match="2 CPUs, too few for 3 workers"):
        ask(Lengths, workers=3)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://[::1]:9", "localhost:99999", "::"])
def test_a_cluster_that_is_not_there_is_said_at_once(monkeypatch, address):
    ray, began = pytest.importorskip("ray"), time.monotonic()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InputError, match=r"no Ray cluster answers at [^\n]*$"):
        gather(ScoreStore(), Lengths, ray=address)
    with pytest.raises(InputError, match=r"no Ray cluster answers at [^\n]*$"):
        ck.ItemIndex.build(["a text"], encoder="bundled", limits=Limits(ray=address))
    assert time.monotonic() - began < 20


def test_without_ray_or_a_name_it_says_so(monkeypatch):
    with pytest.raises(InputError, match="on Ray every worker opens the cross-encoder itself"):
        gather(ScoreStore(), None)
    with pytest.raises(InputError, match="on Ray every worker opens the dual encoder itself"):
        ck.ItemIndex.build(ITEMS, encoder=ck.DualEncoder("bundled"), limits=TWO)
    monkeypatch.setitem(sys.modules, "ray", None)
    for needy in (
        lambda: gather(ScoreStore(), Lengths),
        lambda: ck.ItemIndex.build(ITEMS, encoder="bundled", limits=TWO),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'crossknn\[ray\]'"):
            needy()
