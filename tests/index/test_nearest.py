"""Approximate search: nearly the exact answers, by the same rules, and a folder that can go."""

import json

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import IndexFormatError
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.kriging import add_points, fit_prior
from crossknn.index.nearest import FEW, FaissStore, items_read
from crossknn.linalg import top_k
from crossknn.methods.kriging import points_of
from crossknn.methods.prior import stored_prior
from crossknn.retrievers.base import ArrayStore
from crossknn.search.loop import simulate
from crossknn.types import Queries

pytest.importorskip("faiss")

N, D, M = 30_000, 24, 20
RNG = np.random.default_rng(0)
CENTRES = RNG.standard_normal((200, D))
NEAR = (CENTRES[RNG.integers(200, size=N)] + RNG.standard_normal((N, D)) / 2).astype(np.float16)
ASKED = (CENTRES[RNG.integers(200, size=M)] + RNG.standard_normal((M, D)) / 2).astype(np.float32)


def recall(found, exact):
    both = zip(found.items, exact.items, strict=True)
    return float(np.mean([np.isin(wanted, row).mean() for row, wanted in both]))


def plain(vectors, **how):
    """Item i is named by its number, and has that vector."""
    items = [str(p) for p in range(len(vectors))]
    return ck.ItemIndex.build(items, vectors=vectors, bm25=False, lsa=0, **how)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("nearest") / "index"
    index = plain(NEAR)
    index.save(made)
    assert index.add_nearest() == "vectors"
    return made


@pytest.fixture(scope="module")
def stores(folder):
    found = ck.ItemIndex.load(folder).store("vectors")
    assert isinstance(found, FaissStore)
    return found, ArrayStore(NEAR)


@pytest.mark.parametrize("count", [1, 10, 100, 2000])
def test_finds_nearly_all_of_the_nearest_in_order(stores, count):
    found, exact = (store.top(ASKED, count) for store in stores)
    assert (found.items.shape, stores[0].shape) == ((M, count), (N, D))
    assert recall(found, exact) >= 0.97
    np.testing.assert_array_equal(stores[0].vectors(found.items), NEAR[found.items])
    products = np.einsum("md,mcd->mc", ASKED, NEAR[found.items].astype(np.float32))
    np.testing.assert_allclose(found.scores, products, rtol=1e-4)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize(
    ("n", "lists", "wanted", "excluded", "read"),
    [
        (30_000, 692, 400, 0, 30_000),  # few items: all
        (1_000_000, 4000, 400, 0, 64_000),
        (1_000_000, 4000, 400, 100, 64_000),
        (1_000_000, 4000, 800, 400, 256_000),  # four times as many scores, four times as many items
        (5_000_000, 8944, 400, 0, 5_000_000 * 256 / 8944),  # 256 lists
        (1_000_000, 4000, 50_000, 0, 200_000),  # enough to choose from
    ],
)
def test_a_search_reads_more_lists_of_few_items_and_after_many_scores(
    n, lists, wanted, excluded, read
):
    assert items_read(n, lists, wanted, excluded) == pytest.approx(read)


def test_many_excluded_items_leave_enough(stores):
    directions = np.random.default_rng(2).standard_normal((M, D)).astype(np.float32)
    seen = np.tile(np.arange(0, N, 60), (M, 1))
    found, exact = (store.top(directions, 100, seen) for store in stores)
    assert recall(found, exact) >= 0.97


@pytest.mark.parametrize("share", [0.5, FEW / N / 2])
def test_filters_and_exclusion_hold_inside_the_search(stores, share):
    allowed = np.random.default_rng(1).random(N) < share
    best = stores[1].top(ASKED, 30, None, allowed).items
    exclude = np.where(np.arange(30) % 2, best, -1)
    found, exact = (store.top(ASKED, 50, exclude, allowed) for store in stores)
    assert allowed[found.items].all()
    assert not any(np.isin(row, out).any() for row, out in zip(found.items, exclude, strict=True))
    assert recall(found, exact) >= (1 if share * N <= FEW else 0.97)


def test_axn_asks_the_store_each_round_and_picks_as_with_all_vectors(folder):
    target = RNG.standard_normal(D)
    scores = NEAR.astype(np.float64) @ target

    def scorer(pairs):
        return [float(scores[int(text)]) for _, text in pairs]

    tops = []
    for exact in (False, True):
        encode = lambda texts: ASKED[: len(texts)]  # noqa: E731
        index = ck.ItemIndex.load(folder, query_vectors={"vectors": encode})
        if exact:
            index = plain(NEAR, query_vectors={"vectors": encode})
        else:
            index.store("vectors").values = None  # as of more than 50,000 items
        results = ck.Searcher(index, scorer, "axn", fuse=None).search(["a", "b"], 20, 100)
        assert results.n_scored == 200
        tops.append([{hit.id for hit in hits} for hits in results])
    both = zip(*tops, strict=True)
    assert np.mean([len(found & exact) / 20 for found, exact in both]) >= 0.9


@pytest.mark.parametrize(("n", "d"), [(300, 3), (17, 1), (5000, 7)])
def test_odd_dimensions_and_few_items_work(n, d, tmp_path):
    values = RNG.standard_normal((n, d)).astype(np.float32)
    index = plain(values, folder=tmp_path / "index")
    index.add_nearest("vectors")
    asked = RNG.standard_normal((3, d)).astype(np.float32)
    found, exact = index.store("vectors").top(asked, 10), ArrayStore(values).top(asked, 10)
    assert recall(found, exact) >= 0.9


def test_lists_of_other_vectors_are_not_used(tmp_path, caplog):
    index = plain(NEAR[:1_000], folder=tmp_path / "index")
    with pytest.raises(ck.InputError, match="needs a folder: save the index first"):
        plain(NEAR[:20]).add_nearest()
    index.add_nearest()
    lists = tmp_path / "index" / "nearest-vectors"
    about = json.loads((lists / "about.json").read_text())
    (lists / "about.json").write_text(json.dumps(about | {"vectors": "another's"}))
    assert isinstance(ck.ItemIndex.load(tmp_path / "index").store("vectors"), ArrayStore)
    assert "index of other vectors" in caplog.text
    (lists / "about.json").write_text(json.dumps(about))
    whole = (lists / "lists.faiss").read_bytes()
    (lists / "lists.faiss").write_bytes(whole[:100])
    with pytest.raises(IndexFormatError, match="delete the folder"):
        ck.ItemIndex.load(tmp_path / "index").store("vectors")


def test_items_that_are_added_are_found_beside_the_lists_and_then_in_them(tmp_path):
    n = 3_000
    index = plain(NEAR[:n], folder=tmp_path / "index")
    index.add_nearest()
    items = [{"id": f"new {q}", "text": f"the nearest of {q}"} for q in range(M)]
    index.add(items, vectors=ASKED * 1.2)
    index.delete(["new 3"])
    allowed = index.items.alive
    for within in (n, n + M):
        store = index.store("vectors")
        assert store._lists.ntotal == within
        found = store.top(ASKED, 10, None, allowed)
        exact = ArrayStore(index.vectors["vectors"]).top(ASKED, 10, None, allowed)
        assert recall(found, exact) >= 0.97
        assert np.isin(exact.items[exact.items >= n], found.items).all()
        assert len(np.unique(exact.items[exact.items >= n])) > M // 2
        assert n + 3 not in found.items
        index.add_nearest()  # into the lists


def recall_of(index, method, queries, scores):
    plan = ck.parse_method(method).plan(index, 60, 0)
    best = simulate(plan, queries, scores).best(10).items
    truth = top_k(scores, 10).items
    return np.mean([np.isin(t, b).mean() for t, b in zip(truth, best, strict=True)])


@pytest.mark.parametrize("method", ["kriging", "kriging(use_anchors=false)"])
def test_a_pool_loses_nothing_against_all_items(method, tmp_path):
    n, m = 2000, 16
    values = NEAR[:n].astype(np.float32)
    turn = np.random.default_rng(2).standard_normal((D, D)) / np.sqrt(D)
    asked = np.random.default_rng(3).standard_normal((m + 20, D)).astype(np.float32)
    scores = (asked @ (values + 0.5 * values @ turn).T).astype(np.float32)
    encode = {"vectors": lambda texts: asked[[int(text) for text in texts]]}
    items = [str(p) for p in range(n)]
    index = ck.ItemIndex.build(items, vectors=values, query_vectors=encode, bm25=False)
    index.save(tmp_path / "index")
    if method == "kriging":
        score = ck.CallableScorer(
            lambda pairs: [float(scores[int(q), int(i)]) for q, i in pairs], name="scores"
        )
        collect_anchors(index, score, [str(m + q) for q in range(20)])
        fit_prior(index)
    queries = Queries([str(q) for q in range(m)])
    full = recall_of(index, method, queries, scores[:m])
    index.add_nearest("vectors")
    add_points(index)
    loaded = ck.ItemIndex.load(tmp_path / "index", query_vectors=encode)
    assert loaded.lists("vectors") is not None
    if method == "kriging":
        points = points_of(loaded, stored_prior(loaded), "vectors")
        assert loaded.lists("kriging", points) is not None
        found = points.vectors(np.array([5, 9]))
        rank = stored_prior(loaded).factor.shape[1]
        np.testing.assert_array_equal(found[:, rank:-1], values[[5, 9]])
    again = recall_of(loaded, method, Queries([*queries.texts]), scores[:m])
    assert abs(again - full) < 0.02  # of so few items all are predicted
    option = ", shortlist=400)" if "(" in method else "(shortlist=400)"
    pooled = recall_of(loaded, method.rstrip(")") + option, Queries([*queries.texts]), scores[:m])
    assert full > 0.5
    assert pooled >= full - 0.03


def test_fits_and_fusion_read_all_vectors_where_searches_ask_the_lists(monkeypatch, tmp_path):
    rng, n, q = np.random.default_rng(5), 1_000, 12
    values, asked = (rng.standard_normal((c, D)).astype(np.float32) for c in (n, q))
    encode = {"vectors": lambda texts: asked[[int(text) for text in texts]]}
    items = [f"{p} {p % 7}" for p in range(n)]
    scores = asked @ values.T + rng.standard_normal((q, n)).astype(np.float32)
    score = ck.CallableScorer(
        lambda pairs: [float(scores[int(a), int(b.split()[0])]) for a, b in pairs], name="scores"
    )
    found = []
    for lists in (False, True):
        index = ck.ItemIndex.build(items, vectors=values, query_vectors=encode)
        index.save(tmp_path / f"{lists}")
        if lists:
            monkeypatch.setattr("crossknn.index.nearest.WHOLE", 0)  # as of more than 50,000 items
            index.add_nearest("vectors")
        collect_anchors(index, score, [str(a) for a in range(10)])
        prior = fit_prior(index)
        ck.fit_fusion(index, score, ["10", "11"])
        hits = ck.Searcher(index, score, "auto(shortlist=400)").search("11", 5, 300)[0]
        found.append((prior.factor @ prior.factor.T, [hit.id for hit in hits]))
    assert index.store("vectors").values is None
    (exact, best), (fitted, again) = found
    np.testing.assert_allclose(fitted, exact, atol=1e-4)
    assert again == best
