"""What is Qdrant's own: distances, points that come and go, the folder beside, and failures."""

import numpy as np
import pytest
from database_helpers import FEW, IDS, PAYLOADS, VECTORS, D, N, collection, qdrant
from index_helpers import FormulaScorer

import crossknn as ck
from crossknn.errors import InputError, StoreError
from crossknn.extend import Queries
from crossknn.fitting.kriging import fit_prior
from crossknn.types import NO_ITEM

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")


@pytest.fixture(scope="module")
def docs():
    return ck.QdrantStore(collection(), "docs")


def test_a_filter_goes_to_the_database_as_it_is(docs):
    assert docs.id(N - 1) == IDS[-1]
    query = np.ones((1, D), np.float32)
    mask = docs.allowed({"part": {"lt": 6}})
    assert mask.sum() > 2_000
    by_filter, by_mask = docs.top(query, 500, None, mask), docs.top(query, 500, None, mask.copy())
    assert by_filter.items.tolist() == by_mask.items.tolist()
    assert mask[by_filter.items].all()


def test_cosine_collections_have_unit_vectors():
    store = ck.QdrantStore(collection(distance="Cosine"), "docs", exact=True)
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    np.testing.assert_allclose(store.vectors(np.arange(5)), unit[:5], rtol=1e-5)
    query = 3 * VECTORS[:1]
    expected = np.sort(unit @ query[0])[::-1][:5]
    np.testing.assert_allclose(store.top(query, 5).scores[0], expected, rtol=1e-5)


def test_what_belongs_to_the_items_is_kept_beside(docs, tmp_path):
    def opened(store=docs):
        encode = lambda texts: VECTORS[: len(texts)]  # noqa: E731
        return ck.ItemIndex.over(store, "body", folder=tmp_path / "beside", query_vectors=encode)

    index, scorer = opened(), FormulaScorer()
    kept = ck.StoredScorer(scorer, index.scores)
    ck.Searcher(index, kept, "rerank").search("a query", budget=20)
    index.put_artifact("found", {"x": 1}, {})
    again = opened()
    assert again.artifacts["found"].meta == {"x": 1}
    ck.Searcher(again, ck.StoredScorer(scorer, again.scores), "rerank").search("a query", budget=20)
    assert len(scorer.asked) == 20
    assert again.vectors["vectors"].shape[1] == D
    with pytest.raises(ck.IndexFormatError, match=r"open it with ItemIndex.over\(store"):
        ck.ItemIndex.load(tmp_path / "beside")
    for change in (lambda: again.save(tmp_path / "o"), lambda: again.delete(["0"])):
        with pytest.raises(InputError, match=r"change them there, and give ItemIndex.over a fol"):
            change()
    with pytest.raises(InputError, match=r"is of 3,000 items, but .* has 5 items, whose ids do"):
        opened(ck.QdrantStore(collection(FEW), "docs"))


def test_fits_over_a_database_are_those_in_memory(tmp_path):
    few = slice(0, 400)
    store = ck.QdrantStore(collection(VECTORS[few]), "docs", exact=True)
    given = {text: VECTORS[place] for place, text in enumerate(["one", "two", "three", "four"])}

    def encode(texts):
        return np.array([given[text] for text in texts])

    texts = [payload["body"] for payload in PAYLOADS[few]]
    memory = ck.ItemIndex.build(texts, vectors=VECTORS[few], query_vectors=encode, bm25=False)
    over = ck.ItemIndex.over(store, "body", query_vectors=encode, folder=tmp_path / "beside")
    picked = []
    for index in (memory, over):
        ck.collect_anchors(index, FormulaScorer(), ["one", "two", "three"])
        fit_prior(index)
        searcher = ck.Searcher(index, FormulaScorer(), "kriging(rounds=3)")
        found = searcher.search("four", budget=40, trace=True)
        picked.append({hit.position for hit in found.trace[0]})
    assert picked[0] == picked[1]


def test_a_mistake_of_ours_is_no_failure_of_the_database(docs, monkeypatch):
    def wrong(*given):
        raise TypeError("a mistake")

    monkeypatch.setattr(docs, "_search", wrong)
    with pytest.raises(TypeError, match="a mistake"):
        docs.top(np.ones((1, D), np.float32), 5)


def test_a_server_that_is_not_there():
    client = qdrant().QdrantClient("http://127.0.0.1:9", check_compatibility=False)
    with pytest.raises(StoreError, match=r"'docs' failed: .*Connection refused"):
        ck.QdrantStore(client, "docs")


def test_points_that_come_and_go():
    client = collection(FEW)
    store = ck.QdrantStore(client, "docs", exact=True)
    client.upsert("docs", [qdrant().models.PointStruct(id=10**6, vector=[100.0] * 2, payload={})])
    assert (store.top(np.ones((1, 2), np.float32), 5).items != NO_ITEM).all()
    client.delete("docs", [0])
    with pytest.raises(StoreError, match=r"no longer has the item 0: open the store again"):
        store.vectors(np.array([0]))


def over(client, **options):
    return ck.ItemIndex.over(ck.QdrantStore(client, "docs"), "body", **options)


def search(client, d):
    index = over(client, query_vectors=lambda texts: np.ones((len(texts), d)))
    return ck.Searcher(index, FormulaScorer(), "axn").search("a query", budget=5)


def allowed(client, condition):
    return ck.QdrantStore(client, "docs").allowed(condition)


def lacking(client):
    """A search over points of which one lacks the vector of a name."""
    client.create_collection("two", {"a": qdrant().models.VectorParams(size=2, distance="Dot")})
    points = [({"a": [1.0, 0.0]}, PAYLOADS[0]), ({}, PAYLOADS[1])]
    rows = [
        qdrant().models.PointStruct(id=i, vector=v, payload=p) for i, (v, p) in enumerate(points)
    ]
    client.upsert("two", rows)
    store = ck.QdrantStore(client, "two", vector="a", exact=True)
    store.vectors(np.array([0, 1]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda client: ck.QdrantStore(client, "dogs"), "no collection 'dogs' .did you mean docs"),
        (lambda client: ck.QdrantStore(client, "docs", vector="v"), "no dense vectors 'v', but ''"),
        (lambda client: ck.QdrantStore(client, "empty"), "'empty' holds no vectors"),
        (lambda client: ck.QdrantStore(client, "far"), "compares vectors by Euclid"),
        (lambda _: ck.QdrantStore("http://localhost:6333", "docs"), "Qdrant is .*: give QdrantCli"),
        (
            lambda client: over(client).query_vectors(Queries(("a",)), "vectors"),
            "or the encoder= that made them",
        ),
        (lambda client: over(client, encoder="bundled"), "of 384 dimensions, but the vectors in"),
        (lambda client: search(client, 3), "query vectors have 3 dimensions, but the item"),
        (lambda client: ck.ItemIndex.over(VECTORS, "body"), "is not a database of items"),
        (lambda client: allowed(client, {"pat": 3}), "'pat', but no item of .* mean part"),
        (lambda client: allowed(client, {"part": {"gt": "b"}}), "can order only numbers and dates"),
        (lacking, "the point 1 of .* has no vector: give"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(make, said):
    client = collection(FEW)
    for name, distance in (("empty", "Dot"), ("far", "Euclid")):
        client.create_collection(name, qdrant().models.VectorParams(size=2, distance=distance))
    with pytest.raises(InputError, match=said):
        make(client)
