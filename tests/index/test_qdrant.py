"""A Qdrant collection behind a search, embedded and by its client, beside the vectors in memory."""

from __future__ import annotations

import json
import uuid
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from index_helpers import FormulaScorer
from qdrant_client import QdrantClient, models
from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeShard,
    EdgeVectorParams,
    Point,
    UpdateOperation,
)
from test_filters import RECORDS, filters, meets

import crossknn as ck
from crossknn.errors import InputError, StoreError
from crossknn.extend import Queries
from crossknn.fitting.kriging import fit_prior
from crossknn.types import NO_ITEM

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")

N, D = 3_000, 16
VECTORS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
IDS = [3 * i for i in range(N - 1)] + [str(uuid.UUID(int=5))]  # in the order of Qdrant
PAYLOADS = [{"body": f"text {i}", "part": i % 7, "tags": [f"t{i % 3}"]} for i in range(N)]


def shard(folder, vectors=VECTORS, ids=IDS, payloads=PAYLOADS, distance=Distance.Dot):
    folder.mkdir()
    parameters = EdgeVectorParams(size=vectors.shape[1], distance=distance)
    made = EdgeShard.create(str(folder), EdgeConfig(vectors=parameters))
    rows = zip(ids, vectors.tolist(), payloads, strict=True)
    made.update(UpdateOperation.upsert_points([Point(*row) for row in rows]))
    return made


def collection(vectors=VECTORS, distance=models.Distance.DOT, name="docs"):
    client = QdrantClient(":memory:")
    parameters = models.VectorParams(size=vectors.shape[1], distance=distance)
    client.create_collection(name, vectors_config=parameters)
    rows = zip(IDS, vectors.tolist(), PAYLOADS, strict=True)
    client.upsert(name, [models.PointStruct(id=i, vector=v, payload=p) for i, v, p in rows])
    return client


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qdrant") / "docs.shard"
    return ck.QdrantStore(shard(folder), folder, exact=True)


@pytest.fixture(scope="module", params=["embedded", "client"])
def store(request):
    if request.param == "embedded":
        return request.getfixturevalue("embedded")
    return ck.QdrantStore(collection(), "docs")


def best(query, count, free):
    products = np.where(free, VECTORS @ query, -np.inf)
    order = np.argsort(-products, kind="stable")[:count]
    return order, products[order]


@pytest.mark.parametrize("allowed", [1.0, 0.9, 0.01, 0.0])
def test_top_is_that_of_all_inner_products(store, allowed):
    rng = np.random.default_rng(1)
    queries, mask = rng.normal(size=(3, D)).astype(np.float32), rng.random(N) < allowed
    exclude = np.array([best(query, 40, mask)[0][::3][:10] for query in queries])
    exclude = np.pad(exclude, ((0, 0), (0, 2)), constant_values=NO_ITEM)
    found = store.top(queries, 50, exclude, None if allowed == 1 else mask)
    for q, query in enumerate(queries):
        free = mask & ~np.isin(np.arange(N), exclude[q])
        items, products = best(query, min(50, free.sum()), free)
        kept = found.items[q] != NO_ITEM
        assert found.items[q][kept].tolist() == items.tolist()
        np.testing.assert_allclose(found.scores[q][kept], products, rtol=1e-4, atol=1e-4)


def test_a_filter_goes_to_the_database_as_it_is(store):
    query = np.ones((1, D), np.float32)
    mask = store.allowed({"part": {"lt": 6}})
    assert mask.sum() > 2_000
    by_filter, by_mask = store.top(query, 500, None, mask), store.top(query, 500, None, mask.copy())
    assert by_filter.items.tolist() == by_mask.items.tolist()
    assert mask[by_filter.items].all()


def test_what_is_read_is_what_was_put(store):
    asked = np.array([[N - 1, 5], [0, 5]])
    np.testing.assert_allclose(store.vectors(asked), VECTORS[asked], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(store), VECTORS, rtol=1e-6)
    assert store.records([N - 1, 0]) == [PAYLOADS[N - 1], PAYLOADS[0]]
    assert [store.id(i) for i in (0, 1, N - 1)] == [0, 3, IDS[-1]]
    assert store.positions([4, IDS[-1], 3]).tolist() == [NO_ITEM, N - 1, 1]


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        *(("axn(rounds=4)", 0), ("axn(blend=0.5)", 0), ("tour", 0), ("rerank", 0)),
        *(("kriging(rounds=4,shortlist=300)", 0), ("gp(shortlist=300)", 0)),
        *(("axn(rounds=4)", N), ("kriging(rounds=4)", N), ("gp", N), ("auto", N)),
    ],
)
def test_a_search_picks_the_same_items_as_one_in_memory(store, spec, whole, monkeypatch):
    monkeypatch.setattr(store, "whole", whole)
    rng = np.random.default_rng(3)
    asked = {f"query {i}": rng.normal(size=D).astype(np.float32) for i in range(3)}
    exact = {text: VECTORS @ (v + rng.normal(size=D) / 2) for text, v in asked.items()}

    def encode(texts):
        return np.array([asked[text] for text in texts])

    def score(pairs):
        return [float(exact[query][int(text.split()[1])]) for query, text in pairs]

    texts = [payload["body"] for payload in PAYLOADS]
    memory = ck.ItemIndex.build(texts, vectors=VECTORS, query_vectors=encode, bm25=False)
    over = ck.ItemIndex.over(store, "body", query_vectors=encode)
    found = [
        ck.Searcher(index, score, spec).search(
            [*asked], k=20, budget=60, trace=True, filter=allowed
        )
        for index, allowed in ((memory, np.arange(N) % 7 < 5), (over, {"part": {"lt": 5}}))
    ]
    for one, two in zip(found[0].trace, found[1].trace, strict=True):
        assert {hit.position for hit in one} == {hit.position for hit in two}
    assert [hit.text for hit in found[0][0]] == [hit.text for hit in found[1][0]]
    hit = found[1][0][0]
    place = hit.position
    assert (hit.id, hit.extra["tags"]) == (str(IDS[place]), [f"t{place % 3}"])


def test_cosine_collections_have_unit_vectors(tmp_path):
    folder = tmp_path / "cosine"
    for client, name in (
        (shard(folder, distance=Distance.Cosine), folder),
        (collection(distance=models.Distance.COSINE), "docs"),
    ):
        store = ck.QdrantStore(client, name, exact=True)
        unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
        np.testing.assert_allclose(store.vectors(np.arange(5)), unit[:5], rtol=1e-5)
        query = 3 * VECTORS[:1]
        found = store.top(query, 5)
        expected = np.sort(unit @ query[0])[::-1][:5]
        np.testing.assert_allclose(found.scores[0], expected, rtol=1e-5)


@pytest.fixture(scope="module", params=["embedded", "client"])
def filtered(request, tmp_path_factory):
    records = [
        {key: value for key, value in record.items() if value == value} for record in RECORDS
    ]
    if request.param == "embedded":
        folder = tmp_path_factory.mktemp("qdrant") / "filtered"
        return ck.QdrantStore(shard(folder, VECTORS[:5], [*range(5)], records), folder)
    client = QdrantClient(":memory:")
    parameters = models.VectorParams(size=D, distance=models.Distance.DOT)
    client.create_collection("few", vectors_config=parameters)
    rows = zip(range(5), VECTORS.tolist(), records, strict=False)
    client.upsert("few", [models.PointStruct(id=i, vector=v, payload=p) for i, v, p in rows])
    return ck.QdrantStore(client, "few")


@given(condition=filters(orders=False))
@settings(deadline=None)
def test_a_filter_means_the_same(filtered, condition):
    expected = [meets(record, condition) for record in RECORDS]
    assert filtered.allowed(condition).tolist() == expected


def test_dates_are_in_order(filtered):
    expected = [False] * 4 + [True]
    assert (
        filtered.allowed({"tags": {"gte": "2020-05-01", "lt": "2021-01-01"}}).tolist() == expected
    )


def test_what_belongs_to_the_items_is_kept_beside(embedded, tmp_path):
    def encode(texts):
        return VECTORS[: len(texts)]

    def opened(store=embedded, folder="beside"):
        return ck.ItemIndex.over(store, "body", folder=tmp_path / folder, query_vectors=encode)

    index = opened()
    scorer = FormulaScorer()
    kept = ck.StoredScorer(scorer, index.scores)
    ck.Searcher(index, kept, "rerank").search("a query", budget=20)
    index.put_artifact("found", {"x": 1}, {})
    index.add_words("bm25")
    again = opened()
    assert again.artifacts["found"].meta == {"x": 1}
    ck.Searcher(again, ck.StoredScorer(scorer, again.scores), "rerank").search("a query", budget=20)
    assert len(scorer.asked) == 20
    assert again.description()["vectors"]["vectors"]["d"] == D
    for _ in range(2):
        with pytest.raises(ck.IndexFormatError, match=r"open it with  ItemIndex.over\(store"):
            ck.ItemIndex.load(tmp_path / "beside")
    for change in (lambda: again.save(tmp_path / "o"), lambda: again.delete(["0"])):
        with pytest.raises(
            InputError, match=r"change them there, and give ItemIndex.over a folder"
        ):
            change()
    few = ck.QdrantStore(
        shard(tmp_path / "few", VECTORS[:9], range(9), PAYLOADS[:9]), tmp_path / "few"
    )
    with pytest.raises(
        InputError, match=r"is of 3,000 items, and .* has 9 items, whose ids do not"
    ):
        opened(few)


def test_fits_over_a_database_are_those_in_memory(tmp_path):
    few, folder = slice(0, 400), tmp_path / "docs.shard"
    store = ck.QdrantStore(
        shard(folder, VECTORS[few], range(400), PAYLOADS[few]), folder, exact=True
    )
    given = {text: VECTORS[place] for place, text in enumerate(["one", "two", "three", "four"])}

    def encode(texts):
        return np.array([given[text] for text in texts])

    texts = [payload["body"] for payload in PAYLOADS[few]]
    memory = ck.ItemIndex.build(texts, vectors=VECTORS[few], query_vectors=encode, bm25=False)
    picked = []
    for index in (
        memory,
        ck.ItemIndex.over(store, "body", query_vectors=encode, folder=tmp_path / "beside"),
    ):
        ck.collect_anchors(index, FormulaScorer(), ["one", "two", "three"])
        fit_prior(index)
        searcher = ck.Searcher(index, FormulaScorer(), "kriging(rounds=3)")
        found = searcher.search("four", budget=40, trace=True)
        picked.append([hit.position for hit in found.trace[0]])
    assert sorted(picked[0]) == sorted(picked[1])


@pytest.mark.parametrize("gone", ["shard closed", "client closed", "collection dropped"])
@pytest.mark.parametrize("whole", [0, N])  # fails at the next search, or the next texts
def test_a_database_that_goes_away_leaves_the_best_so_far(tmp_path, whole, gone):
    folder, embedded = tmp_path / "docs", gone == "shard closed"
    client = shard(folder) if embedded else collection()
    store = ck.QdrantStore(client, folder if embedded else "docs")
    go = partial(client.delete_collection, "docs") if "dropped" in gone else client.close
    store.whole = whole
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda texts: VECTORS[: len(texts)])
    asked = []

    def score(pairs):
        asked.extend(pairs)
        if len(asked) == 40:
            go()
        return [-float(text.split()[1]) for _, text in pairs]

    found = ck.Searcher(index, score, "axn(rounds=5)").search(["one", "two"], k=5, budget=50)
    assert found.stopped_by == "store"
    assert found.n_scored == 40
    assert [len(hits) for hits in found.hits] == [5, 5]
    assert all("docs' failed: " in error for error in found.errors)
    with pytest.raises(StoreError, match=r"the Qdrant collection .*docs' failed: "):
        ck.Searcher(index, score, "axn").search("three", budget=50)
    for ask in (lambda: store.allowed({"part": 1}), lambda: store.top(VECTORS[:1], 5)):
        with pytest.raises(StoreError, match=r"^the Qdrant collection .*docs' failed: [^\n]*$"):
            ask()


def test_a_mistake_of_ours_is_no_failure_of_the_database(embedded, monkeypatch):
    def wrong(*given):
        raise TypeError("a mistake")

    monkeypatch.setattr(embedded, "_search", wrong)
    with pytest.raises(TypeError, match="a mistake"):
        embedded.top(np.ones((1, D), np.float32), 5)


def test_an_embedded_shard_that_fails(tmp_path):
    engine = shard(tmp_path / "docs.shard")
    store = ck.QdrantStore(engine, tmp_path / "docs.shard")
    with pytest.raises(StoreError, match=r"docs.shard' failed: Exception: "):
        store.top(np.ones((1, D + 1), np.float32), 5)


def test_a_server_that_is_not_there():
    client = QdrantClient("http://127.0.0.1:9", check_compatibility=False)
    with pytest.raises(StoreError, match=r"'docs' failed: .*Connection refused"):
        ck.QdrantStore(client, "docs")


def test_points_that_come_and_go(tmp_path):
    folder = tmp_path / "docs.shard"
    changing = shard(folder)
    store = ck.QdrantStore(changing, folder, exact=True)
    changing.update(UpdateOperation.upsert_points([Point(10**6, [100.0] * D, {})]))
    assert NO_ITEM not in store.top(np.ones((1, D), np.float32), 5).items
    changing.update(UpdateOperation.delete_points([0]))
    with pytest.raises(StoreError, match=r"has no item 0 any more: open the store again"):
        store.vectors(np.array([0]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda client: ck.QdrantStore(client, "dogs"), "no collection 'dogs' .did you mean docs"),
        (lambda client: ck.QdrantStore(client, "docs", vector="v"), "no dense vectors 'v', but ''"),
        (lambda client: ck.QdrantStore(client, "empty"), "'empty' holds no vectors"),
        (lambda client: ck.QdrantStore(client, "far"), "compares vectors by Euclid"),
        (
            lambda client: over(client, "boddy"),
            "has no field 'boddy' .did you mean body.*texts= must",
        ),
        (lambda client: over(client, "part"), "text of the item 0 of .* is 0: texts= must be"),
        (
            lambda client: asked(client),
            "or the encoder= that made them$",
        ),
        (lambda client: over(client, lambda ids: ["x"]), "made 1 texts of 1000 ids"),
        (lambda client: over(client, "body", encoder="bundled"), "of 384 dimensions, and those of"),
        (lambda client: search(client, D + 1), "query vectors have 17 dimensions, the items' 16"),
        (lambda client: ck.ItemIndex.over(VECTORS, "body"), "is not a database of items"),
        (lambda client: allowed(client, {"pat": 3}), "'pat', a field of no item of .* mean part"),
        (lambda client: allowed(client, {"part": {"gt": "b"}}), "Qdrant orders numbers and dates"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(make, said):
    client = collection()
    for name, distance in (("empty", models.Distance.DOT), ("far", models.Distance.EUCLID)):
        client.create_collection(name, models.VectorParams(size=2, distance=distance))
    with pytest.raises(InputError, match=said):
        make(client)


def over(client, texts, **options):
    index = ck.ItemIndex.over(ck.QdrantStore(client, "docs"), texts, **options)
    return list(index.items.texts)


def search(client, d):
    store = ck.QdrantStore(client, "docs")
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda texts: np.ones((len(texts), d)))
    return ck.Searcher(index, FormulaScorer(), "axn").search("a query", budget=5)


def asked(client):
    index = ck.ItemIndex.over(ck.QdrantStore(client, "docs"), "body")
    return index.query_vectors(Queries(("a",)), "vectors")


def allowed(client, condition):
    return over(client, "body") and ck.QdrantStore(client, "docs").allowed(condition)


def test_a_folder_that_is_no_shard(embedded, tmp_path):
    (tmp_path / "edge_config.json").write_text(json.dumps({})[:1])
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"is not the folder of an embedded Qdrant shard"):
            ck.QdrantStore(embedded._engine.client, folder)
