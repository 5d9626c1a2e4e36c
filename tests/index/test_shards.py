"""A search over shards is one over their items together; a shard that fails is left out of it."""

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
from qdrant_edge import Distance, EdgeConfig, EdgeShard, EdgeVectorParams, Point, UpdateOperation

import crossknn as ck
from crossknn.cli.search import show
from crossknn.errors import InputError, StoreError
from crossknn.types import NO_ITEM

D, ENDS = 16, [500, 1_200, 1_500]
N = ENDS[-1]
PARTS = [range(start, stop) for start, stop in zip([0, *ENDS], ENDS, strict=False)]
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(N, D)).astype(np.float32)
QUERIES = {f"query {i}": RNG.normal(size=D).astype(np.float32) for i in range(3)}
EXACT = {q: VECTORS @ (v + RNG.normal(size=D) / 2) + RNG.normal(size=N) for q, v in QUERIES.items()}
SPECS = [
    *(("rerank", 0), ("axn(rounds=4)", 0), ("tour", 0)),
    *(("kriging(rounds=4,shortlist=300)", 0), ("gp(shortlist=300)", 0)),
    *(("axn(rounds=4)", N), ("kriging(rounds=4)", N), ("gp", N), ("auto", N)),
]


def encode(texts):
    return np.array([QUERIES[text] for text in texts])


def index_of(items):
    records = [{"id": str(i), "text": f"text {i}", "part": i % 7} for i in items]
    return ck.ItemIndex.build(records, vectors=VECTORS[items], query_vectors=encode, bm25=False)


class Fragile:
    """A shard behind a connection that can be cut."""

    def __init__(self, shard):
        self.name, self.shape, self.keys = "a fragile shard", shard.shape, shard.keys
        self.shard, self.cut, self.asked = shard, False, 0

    def __getattr__(self, method):
        def ask(*given):
            self.asked += 1
            if self.cut:
                raise ConnectionResetError("the line is dead")
            return getattr(self.shard, method)(*given)

        return ask


@pytest.fixture(scope="module")
def qdrant(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qdrant") / "docs"
    folder.mkdir()
    parameters = EdgeVectorParams(size=D, distance=Distance.Dot)
    made = EdgeShard.create(str(folder), EdgeConfig(vectors=parameters))
    points = [Point(i, VECTORS[i].tolist(), {"text": f"text {i}", "part": i % 7}) for i in PARTS[1]]
    made.update(UpdateOperation.upsert_points(points))
    return ck.QdrantStore(made, folder, exact=True)


@pytest.fixture(scope="module")
def whole():
    return index_of(range(N))


@pytest.fixture
def fragile():
    return Fragile(ck.LocalShard(index_of(PARTS[2])))


@pytest.fixture
def store(qdrant, fragile, tmp_path):
    index_of(PARTS[0]).save(tmp_path / "first")
    return ck.ShardedStore([tmp_path / "first", qdrant, fragile])


def over(store):
    return ck.ItemIndex.over(store, "text", query_vectors=encode)


def found(index, spec, then=lambda calls: None, **options):
    calls = []

    def score(pairs):
        calls.extend(pairs)
        then(len(calls))
        return [float(EXACT[query][int(text.split()[1])]) for query, text in pairs]

    options = {"k": 20, "budget": 60, "trace": True} | options
    return ck.Searcher(index, score, spec).search([*QUERIES], **options)


def picks(results):
    return [{hit.id for hit in hits} for hits in results.trace]


@pytest.mark.parametrize(("spec", "known"), SPECS)
def test_a_search_over_shards_picks_the_same_items(store, whole, spec, known):
    store.whole = known
    some = {"part": {"lt": 5}}
    one, two = found(whole, spec, filter=some), found(over(store), spec, filter=some)
    assert picks(one) == picks(two)
    assert [hit.text for hit in one[0]] == [hit.text for hit in two[0]]
    assert [hit.position for hit in one[0]] == [hit.position for hit in two[0]]
    assert two.degraded == {}


@pytest.mark.parametrize(("spec", "known"), SPECS)
def test_without_a_shard_it_is_a_search_over_the_others(store, fragile, spec, known):
    store.whole, fragile.cut = known, True
    living = index_of(range(ENDS[1]))
    results = found(over(store), spec)
    assert picks(results) == picks(found(living, spec))
    said = "shard 3 failed: a fragile shard: ConnectionResetError: the line is dead"
    assert results.degraded == {"shard 3": said}
    assert (results.stopped_by, results.n_failed, results.n_scored) == ("budget", 0, 180)
    assert fragile.asked == 1
    fragile.cut = False
    assert picks(found(over(store), spec)) == picks(found(index_of(range(N)), spec))


@pytest.mark.parametrize(("spec", "known"), SPECS)
def test_a_shard_that_fails_in_a_search_leaves_what_was_scored(store, fragile, whole, spec, known):
    store.whole, first = known, []

    def then(calls):
        if not fragile.cut:
            first.append(calls)
            fragile.cut = True

    results = found(over(store), spec, then, k=60)
    before = found(whole, spec)
    rounds = max(hit.round for hit in before.trace[0])
    assert results.n_scored == 180
    assert bool(results.degraded) == (rounds > 1)
    for hits, kept, were in zip(results.trace, results.hits, before.trace, strict=True):
        begun = {hit.id for hit in were if hit.round == 1}
        assert {hit.id for hit in hits if hit.round == 1} == begun
        assert all(hit.position < ENDS[1] for hit in hits if hit.round > 1)
        assert {hit.id for hit in kept} == {hit.id for hit in hits}
        assert all(hit.text == f"text {hit.position}" for hit in kept)
    assert any(hit.position >= ENDS[1] for kept in results.hits for hit in kept)
    fragile.cut = False
    assert picks(found(over(store), spec)) == picks(before)


@pytest.mark.parametrize("known", [0, N])
def test_when_all_shards_fail_the_best_so_far_is_left(known):
    shards = [Fragile(ck.LocalShard(index_of(part))) for part in PARTS]
    store = ck.ShardedStore(shards)
    store.whole = known

    def cut(calls):
        for shard in shards:
            shard.cut = True

    results = found(over(store), "axn(rounds=4)", cut)
    assert (results.stopped_by, results.n_scored) == ("store", 45)
    assert [len(hits) for hits in results.hits] == [15] * 3
    assert set(results.degraded) == {"shard 1", "shard 2", "shard 3"}
    assert results.error == results.degraded["shard 3"]
    with pytest.raises(StoreError, match="shard 3 failed: a fragile shard: ConnectionResetError"):
        found(over(store), "axn")
    with pytest.raises(StoreError, match="shard 1 failed: a fragile shard: ConnectionResetError"):
        store.records([0, N - 1])  # outside of a search nothing is left out


def test_a_filter_that_allows_a_failed_shard_alone_is_no_empty_answer(store, fragile):
    fragile.cut = True
    with pytest.raises(StoreError, match="shard 3 failed: a fragile shard"):
        found(over(store), "axn", filter=[str(i) for i in PARTS[2]])


def test_a_shard_that_does_not_answer_in_time_has_failed(qdrant):
    class Slow(Fragile):
        def top(self, *given):
            released.wait(20)
            return self.shard.top(*given)

    released = threading.Event()
    local = ck.LocalShard(index_of(PARTS[0]))
    store = ck.ShardedStore([Slow(local), qdrant], timeout=0.2)
    store.whole = 0
    results = found(over(store), "rerank")
    released.set()
    assert results.degraded == {
        "shard 1": "shard 1 failed: a fragile shard has not answered in 0.2 s"
    }


def test_calls_that_never_return_delay_neither_other_shards_nor_the_exit(tmp_path):
    index_of(PARTS[0]).save(tmp_path / "first")
    index_of(PARTS[1]).save(tmp_path / "second")
    program = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np, crossknn as ck
one, two = (ck.LocalShard(folder) for folder in sys.argv[1:])
one.top = lambda *given: threading.Event().wait()
index = ck.ItemIndex.over(
    ck.ShardedStore([one, two], timeout=1.5), "text", query_vectors=lambda t: np.ones((len(t), 16))
)
index.database.whole = 0
searcher = ck.Searcher(index, lambda pairs: [1.0] * len(pairs), "rerank")
with ThreadPoolExecutor(12) as pool:
    found = [*pool.map(lambda q: searcher.search(q, k=5, budget=5), map(str, range(12)))]
print(sum(len(f[0]) for f in found), *{d for f in found for d in f.degraded})
"""
    given = sys.executable, "-c", program, str(tmp_path / "first"), str(tmp_path / "second")
    done = subprocess.run(given, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["60", "shard", "1"]), done.stderr


def test_what_a_search_found_of_texts_of_its_own(store, fragile):
    """Texts that a function makes are known of a failed shard, its fields are not."""
    store.whole = 0
    index = ck.ItemIndex.over(store, lambda ids: [f"text {i}" for i in ids], query_vectors=encode)

    def cut(calls):
        fragile.cut = True

    results = found(index, "axn(rounds=4)", cut, k=60)
    lost = [hit for hit in results[0] if hit.position >= ENDS[1]]
    assert lost
    assert results.degraded
    assert all(hit.extra == {} for hit in lost)


def test_top_and_vectors_are_those_of_all_vectors(store):
    queries, rng = np.array([*QUERIES.values()]), np.random.default_rng(1)
    allowed = rng.random(N) < 0.5
    allowed[: ENDS[0]] = True
    best = np.argsort(-(queries @ VECTORS.T), axis=1)
    exclude = np.pad(best[:, ::3][:, :20], ((0, 0), (0, 2)), constant_values=NO_ITEM)
    answer = store.top(queries, 700, exclude, allowed)
    for q, row in enumerate(best):
        expected = row[allowed[row] & ~np.isin(row, exclude[q])][:700]
        assert answer.items[q].tolist() == expected.tolist()
        np.testing.assert_allclose(answer.scores[q], VECTORS[expected] @ queries[q], atol=1e-4)
    few = store.top(queries, 40, None, np.arange(N) < 30)
    assert few.items.shape == (3, 30)
    asked = np.array([[N - 1, 3, 700], [0, 1_200, 1_199]])
    for _ in range(2):  # read from the shards, then all of them kept
        np.testing.assert_allclose(store.vectors(asked), VECTORS[asked], rtol=1e-6)
        np.testing.assert_allclose(np.asarray(store), VECTORS, rtol=1e-6)
    assert [store.id(i) for i in (0, 700, N - 1)] == ["0", "700", str(N - 1)]
    assert [r["text"] for r in store.records([1_300, 0, 600])] == [
        "text 1300",
        "text 0",
        "text 600",
    ]
    expected = np.arange(N) % 7 < 5
    assert store.allowed({"part": {"lt": 5}}).tolist() == expected.tolist()


def test_what_belongs_to_the_items_is_kept_beside(store, tmp_path):
    index = ck.ItemIndex.over(store, "text", query_vectors=encode, folder=tmp_path / "beside")
    index.put_artifact("found", {"x": 1}, {})
    again = ck.ItemIndex.over(store, "text", folder=tmp_path / "beside")
    assert again.artifacts["found"].meta == {"x": 1}
    other = ck.ShardedStore(store.shards[:2])
    with pytest.raises(InputError, match="is of 1,500 items, and the store of 2 shards has 1,200"):
        ck.ItemIndex.over(other, "text", folder=tmp_path / "beside")


def test_what_cannot_be_is_said_in_one_sentence(store):
    one = index_of(range(3))
    with pytest.raises(InputError, match="there are no shards: give one store at least"):
        ck.ShardedStore([])
    with pytest.raises(InputError, match=r"the id '1' is in the index in memory and in the index"):
        ck.ShardedStore([one, index_of(range(1, 2))])
    narrow = ck.ItemIndex.build(["x"], vectors=np.ones((1, 2), np.float32), bm25=False)
    with pytest.raises(InputError, match=r"have 2 dimensions, and those of .* 16: shards must"):
        ck.ShardedStore([one, narrow])
    with pytest.raises(InputError, match="the filter names 'pat'"):
        found(over(store), "axn", filter={"pat": 1})
    one.delete(["0"])
    with pytest.raises(InputError, match="a shard reads every item, and 1 are deleted: compact"):
        ck.ShardedStore([one])
    with pytest.raises(InputError, match="no vectors 'nothing'"):
        ck.LocalShard(narrow, "nothing")


def test_the_command_line_says_what_was_left_out(store, fragile, capsys):
    fragile.cut = True
    show(found(over(store), "rerank", trace=False), json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "; without the items of shard 3 failed: a fragile shard: ConnectionResetError" in said


def on_a_worker(folder):
    shard = ck.LocalShard(folder)
    shard.pid = os.getpid
    return shard


@pytest.mark.slow
def test_a_killed_worker_of_ray_is_left_out_and_comes_back(whole, tmp_path):
    ray = pytest.importorskip("ray")
    index_of(PARTS[0]).save(tmp_path / "first")
    index_of([*PARTS[1], *PARTS[2]]).save(tmp_path / "rest")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        shards = [ck.RayShard(partial(on_a_worker, tmp_path / name)) for name in ("first", "rest")]
        store = ck.ShardedStore(shards)
        store.whole = 0
        before = found(whole, "axn(rounds=4)")
        assert picks(found(over(store), "axn(rounds=4)")) == picks(before)
        killed = []

        def kill(calls):
            if not killed:
                pid = shards[1]._worker.ask("pid")
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        results = found(over(store), "axn(rounds=4)", kill, k=60)
        assert set(results.degraded) == {"shard 2"}
        assert (results.stopped_by, results.n_scored) == ("budget", 180)
        assert all(h.position < ENDS[0] for hits in results.trace for h in hits if h.round > 1)
        assert any(h.position >= ENDS[0] for hits in results.hits for h in hits)
        deadline = time.monotonic() + 60
        while (again := found(over(store), "axn(rounds=4)")).degraded:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert picks(again) == picks(before)
    finally:
        ray.shutdown()
