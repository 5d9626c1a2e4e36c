"""Filters that cannot be, and texts that are null, in memory, in Qdrant and embedded."""

import logging
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_edge import Distance, EdgeConfig, EdgeShard, EdgeVectorParams, Point, UpdateOperation

import crossknn as ck

TEXTS = ["zip a file", "sort a list", "lock a thread", "read a page"]
FIELDS = [{"body": text, "lang": "en", "year": 2000 + i} for i, text in enumerate(TEXTS)]
VECTORS = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.2]]


def memory(fields):
    items = [{"text": text} | entry for text, entry in zip(TEXTS, fields, strict=True)]
    return ck.ItemIndex.build(items, lsa=0)


def client(fields):
    made = QdrantClient(":memory:")
    made.create_collection("docs", models.VectorParams(size=2, distance=models.Distance.DOT))
    rows = enumerate(zip(VECTORS, fields, strict=True))
    made.upsert("docs", [models.PointStruct(id=i, vector=v, payload=f) for i, (v, f) in rows])
    return ck.QdrantStore(made, "docs", exact=True)


def embedded(fields):
    folder = Path(tempfile.mkdtemp())
    parameters = EdgeVectorParams(size=2, distance=Distance.Dot)
    made = EdgeShard.create(str(folder), EdgeConfig(vectors=parameters))
    rows = enumerate(zip(VECTORS, fields, strict=True))
    made.update(UpdateOperation.upsert_points([Point(i, v, f) for i, (v, f) in rows]))
    return ck.QdrantStore(made, folder, exact=True)


@pytest.mark.parametrize("where", [memory, client, embedded])
@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"lang": "e\0n"}, "'lang' with 'e.x00n': give a text without NUL"),
        ({"lang": ["en", "x\0"]}, "without NUL"),
        ({"lang": {"gte": "\0"}}, "without NUL"),
        ({"lang": {"not": "\0"}}, "without NUL"),
        ({"lang": "\ud800"}, "half a surrogate pair"),
        ({"year": float("inf")}, "'year' with infinity, or a number beyond 1e308"),
        ({"year": {"lt": float("-inf")}}, "infinity"),
        ({"year": [2000, np.float32("inf")]}, "infinity"),
        ({"any": [{"year": {"not": 10**400}}]}, "beyond 1e308"),
        ({"year": {"gte": 10**5000}}, "beyond 1e308"),
        ({"year": float("nan")}, "give a text, a number"),
        ({"ye\0ar": 1}, "names of fields are texts"),
    ],
)
def test_a_filter_that_cannot_be_is_the_callers_error(where, condition, said):
    """NUL, half a surrogate pair or infinity come from a request: the same answer everywhere."""
    with pytest.raises(ck.InputError, match=said) as caught:
        where(FIELDS).allowed(condition)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", [memory, client, embedded])
def test_numbers_of_any_type_are_compared(where):
    """A filter has a fraction, or a number of NumPy."""
    allowed = where(FIELDS).allowed
    assert allowed({"year": {"gte": Fraction(4003, 2)}}).tolist() == [False, False, True, True]
    assert allowed({"year": {"lt": np.float64(1e308)}}).all()
    assert allowed({"year": np.int64(2001)}).tolist() == [False, True, False, False]


@pytest.mark.parametrize("where", [memory, client, embedded])
@pytest.mark.parametrize("value", [2**53, 2**63, 2**64, -(2**70), [2**64, 2**65]])
def test_whole_numbers_beyond_those_of_a_store(where, value):
    """An id of another system is larger than 64 bits: no item has it, and not every one."""
    assert not where(FIELDS).allowed({"year": value}).any()
    assert where(FIELDS).allowed({"not": {"year": value}}).all()


@pytest.mark.parametrize("where", [client, embedded])
@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["title", "body"], r"texts is \['title', 'body'\]: texts= must be the field"),
        (None, "texts is None: texts= must be the field"),
        (lambda ids: None, r"made a NoneType of . id.*: it gets a list of ids"),
        (lambda ids: "abcd", r"made a str of ."),
        (lambda ids: {"0": "a", "1": "b", "2": "c", "3": "d"}, r"made a dict of ."),
    ],
)
def test_texts_that_are_no_texts(where, texts, said):
    """Two fields are named, or a function gives something else than a text for each id."""
    with pytest.raises(ck.InputError, match=said):
        search(where(FIELDS), texts)


@pytest.mark.parametrize("given", ["http://localhost:6333", None, 5])
def test_what_is_no_client_of_qdrant(given):
    """The address is given where a client is needed."""
    with pytest.raises(ck.InputError, match=r"the client of Qdrant is .*: give QdrantClient"):
        ck.QdrantStore(given, "docs")


def test_a_point_without_a_vector():
    """One point lacks the vector of that name."""
    made, size = QdrantClient(":memory:"), models.VectorParams(size=2, distance="Dot")
    made.create_collection("docs", {"a": size})
    given = [({"a": [1.0, 0.0]}, FIELDS[0]), ({}, FIELDS[1])]
    made.upsert(
        "docs", [models.PointStruct(id=i, vector=v, payload=f) for i, (v, f) in enumerate(given)]
    )
    with pytest.raises(ck.InputError, match=r"the point 1 of .* has no vector: give it one"):
        search(ck.QdrantStore(made, "docs", vector="a", exact=True), "body")


def search(store, texts):
    index = ck.ItemIndex.over(store, texts, query_vectors=lambda asked: [[1, 0.5]] * len(asked))
    searcher = ck.Searcher(index, lambda pairs: [float(len(text)) for _, text in pairs], "axn")
    return searcher.search("q", budget=5)


@pytest.mark.parametrize("where", [client, embedded])
@pytest.mark.parametrize("first", [{"body": None}, {}, {"body": []}])
def test_a_null_text_is_left_out_with_a_warning(where, first, caplog):
    """A point's payload has no text, or null, the first one as well."""
    fields = [first, FIELDS[1], FIELDS[2], {"body": None, "lang": "en"}]
    found = search(where(fields), "body")
    assert ({hit.id for hit in found[0]}, found.n_scored) == ({"1", "2"}, 2)
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "left out 2 items without a text in 'body', such as 0" in warned[0]


@pytest.mark.parametrize("where", [client, embedded])
@pytest.mark.parametrize("null", [None, float("nan"), ""])
def test_a_function_that_has_no_text_for_an_id(where, null, caplog):
    """A lookup gives null for what was deleted: searches go on without it."""
    found = search(where(FIELDS), lambda ids: [null if i == "2" else f"text {i}" for i in ids])
    assert {hit.id for hit in found[0]} == {"0", "1", "3"}
    assert found.error is None
    assert "left out 1 item without a text, the first with the id '2'" in caplog.text


@pytest.mark.parametrize("where", [client, embedded])
def test_no_text_at_all(where):
    """The field is null everywhere, or has another name."""
    with pytest.raises(ck.InputError, match=r"every 'body' of .* is null: texts= must be"):
        search(where([entry | {"body": None} for entry in FIELDS]), "body")
    with pytest.raises(ck.InputError, match=r"has no field 'bdy' .did you mean body\?.: texts="):
        search(where(FIELDS), "bdy")
