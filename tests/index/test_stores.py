"""What holds in every store: in memory and in each kind of database."""

import logging
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from database_helpers import KINDS, PAYLOADS, VECTORS, D, N, collection, few_in, search
from hypothesis import given, settings
from hypothesis import strategies as st
from test_filters import RECORDS, filters, meets

import crossknn as ck
from crossknn.errors import InputError, StoreError
from crossknn.types import NO_ITEM

pytestmark = pytest.mark.filterwarnings("ignore:Local mode performs exact")


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


def test_what_is_read_is_what_was_put(store):
    asked = np.array([[N - 1, 5], [0, 5]])
    np.testing.assert_allclose(store.vectors(asked), VECTORS[asked], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(store), VECTORS, rtol=1e-6)
    assert store.records([N - 1, 0]) == [PAYLOADS[N - 1], PAYLOADS[0]]
    assert [str(store.id(i)) for i in (0, 1)] == ["0", "3"]
    last = store.id(N - 1)
    assert store.positions([4, last, 3]).tolist() == [NO_ITEM, N - 1, 1]


@pytest.mark.parametrize(
    ("spec", "whole"),
    [*(("axn(rounds=4)", 0), ("tour", 0), ("kriging(rounds=4,shortlist=300)", 0)), ("auto", N)],
)
def test_a_search_picks_the_same_items_as_one_in_memory(store, spec, whole, monkeypatch):
    monkeypatch.setattr(store, "whole", whole)
    rng = np.random.default_rng(3)
    asked = {f"query {i}": rng.normal(size=D).astype(np.float32) for i in range(2)}
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
    assert (hit.id, hit.extra["tags"]) == (str(store.id(place)), [f"t{place % 3}"])


@pytest.fixture(scope="module", params=KINDS)
def filtered(request):
    """The kind of a database, and a store of `RECORDS` in it."""
    records = [{k: v for k, v in record.items() if v == v} for record in RECORDS]
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return request.param, few_in(request.param, records, server)


@given(data=st.data())
@settings(max_examples=50)
def test_a_filter_means_the_same(filtered, data):
    """As in memory (`test_filters`); Qdrant orders no texts, and no numbers beyond 2^53."""
    kind, store = filtered
    condition = data.draw(filters(orders=kind == "postgres"))
    assert store.allowed(condition).tolist() == [meets(record, condition) for record in RECORDS]


def test_dates_are_in_order(filtered):
    dates = filtered[1].allowed({"tags": {"gte": "2020-05-01", "lt": "2021-01-01"}})
    assert dates.tolist() == [False] * 4 + [True]


TEXTS = ["zip a file", "sort a list", "lock a thread", "read a page"]
FIELDS = [{"body": text, "lang": "en", "year": 2000 + i} for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=["memory", *KINDS])
def allowed(request):
    """The masks of items with these fields."""
    if request.param == "memory":
        items = [{"text": entry["body"]} | entry for entry in FIELDS]
        return ck.ItemIndex.build(items, lsa=0).allowed
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return few_in(request.param, FIELDS, server).allowed


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"lang": "e\0n"}, "compares 'lang' .* or a text without NUL"),
        ({"lang": ["en", "x\0"]}, "without NUL"),
        ({"lang": {"gte": "\0"}}, "without NUL"),
        ({"lang": {"not": "\0"}}, "without NUL"),
        ({"lang": "\ud800"}, "half a surrogate pair"),
        ({"la\ud800ng": "x"}, "has this field"),
        ({"year": float("inf")}, "compares 'year' .*: give a number up to 1e308"),
        ({"year": {"lt": float("-inf")}}, "up to 1e308"),
        ({"year": [2000, np.float32("inf")]}, "up to 1e308"),
        ({"any": [{"year": {"not": 10**400}}]}, "up to 1e308"),
        ({"year": {"gte": 10**5000}}, "up to 1e308"),
        ({"year": float("nan")}, "give a text, a number"),
        ({"ye\0ar": 1}, "names of fields must be texts"),
    ],
)
def test_a_filter_that_cannot_be_is_the_callers_error(allowed, condition, said):
    with pytest.raises(InputError, match=said) as caught:
        allowed(condition)
    assert "\n" not in str(caught.value)


def test_numbers_of_any_type_are_compared(allowed):
    assert allowed({"year": {"gte": Fraction(4003, 2)}}).tolist() == [False, False, True, True]
    assert allowed({"year": {"lt": np.float64(1e308)}}).all()
    assert allowed({"year": np.int64(2001)}).tolist() == [False, True, False, False]


@pytest.mark.parametrize("value", [2**53, 2**63, 2**64, -(2**70), [2**64, 2**65]])
def test_whole_numbers_beyond_those_of_a_store(allowed, value):
    assert not allowed({"year": value}).any()
    assert allowed({"not": {"year": value}}).all()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["title", "body"], r"texts= is \['title', 'body'\]: texts= must be the name of the field"),
        (None, "texts= is None: texts= must be the name of the field"),
        ("bdy", r"has no text in a field 'bdy' .did you mean body\?.: texts="),
        ("year", r"text of the item '?\d'? of .* is 200\d: texts= must be"),
        (lambda ids: ["x"] * 9, r"returned \['x', .* for . ids?: it must take a list of ids"),
        (lambda ids: None, "returned None for . id"),
        (lambda ids: "abcd", "returned 'abcd' for . id"),
        (lambda ids: {"0": "a", "1": "b", "2": "c", "3": "d"}, "returned {'0'.* for . id"),
    ],
)
def test_texts_that_are_no_texts(few, texts, said):
    with pytest.raises(InputError, match=said):
        search(few(FIELDS), texts)
    with pytest.raises(InputError, match=r"has no text in a field 'body' .*: texts= must be"):
        search(few([entry | {"body": None} for entry in FIELDS]))


@pytest.mark.parametrize("first", [{"body": None}, {}])
def test_a_null_text_is_left_out_with_a_warning(few, first, caplog):
    store = few([first, FIELDS[1], FIELDS[2], {"body": None, "lang": "en"}])
    found = search(store)
    assert ({hit.id for hit in found[0]}, found.n_scored) == ({"1", "2"}, 2)
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "without a text, the first with the id '0'" in warned[0]


@pytest.mark.parametrize("null", [None, float("nan"), ""])
def test_a_function_that_has_no_text_for_an_id(few, null, caplog):
    found = search(few(FIELDS), lambda ids: [null if i == "2" else f"text {i}" for i in ids])
    assert {hit.id for hit in found[0]} == {"0", "1", "3"}
    assert found.error is None
    assert "left out 1 item without a text, the first with the id '2'" in caplog.text


@pytest.fixture
def ending(request, monkeypatch):
    """Opens a store, and what makes its database go away."""

    def make(gone):
        if gone == "server stopped":
            store = ck.PgVectorStore(request.getfixturevalue("postgres")[1], "docs")

            def stop():
                monkeypatch.setattr(store, "_server", "postgresql://127.0.0.1:9/none")
                store._connection.close()

            return store, stop
        client = collection()
        drop = partial(client.delete_collection, "docs")
        return ck.QdrantStore(client, "docs"), drop if "dropped" in gone else client.close

    return make


@pytest.mark.parametrize(
    "gone",
    [
        *("client closed", "collection dropped"),
        pytest.param("server stopped", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("whole", [0, N])  # fails at the next search, or the next texts
def test_a_database_that_goes_away_leaves_the_best_so_far(ending, whole, gone):
    store, end = ending(gone)
    store.whole = whole
    index = ck.ItemIndex.over(store, "body", query_vectors=lambda texts: VECTORS[: len(texts)])
    asked = []

    def score(pairs):
        asked.extend(pairs)
        if len(asked) == 40:
            end()
        return [-float(text.split()[1]) for _, text in pairs]

    found = ck.Searcher(index, score, "axn(rounds=5)").search(["one", "two"], k=5, budget=50)
    assert (found.stopped_by, found.n_scored) == ("store", 40)
    assert [len(hits) for hits in found.hits] == [5, 5]
    assert all("docs' failed: " in error for error in found.errors)
    with pytest.raises(StoreError, match=r"docs' failed: "):
        ck.Searcher(index, score, "axn").search("three", budget=50)
    for ask in (lambda: store.allowed({"part": 1}), lambda: store.top(VECTORS[:1], 5)):
        with pytest.raises(StoreError, match=r"^the .*docs' failed: [^\n]*$"):
            ask()
