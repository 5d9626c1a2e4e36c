"""NaN, `pandas.NA` and NaT are null: no item, query or field says "nan"."""

from __future__ import annotations

import io
import json
from decimal import Decimal

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run

pd = pytest.importorskip("pandas")

MISSING = [
    None,
    float("nan"),
    np.float32("nan"),
    np.datetime64("NaT"),
    np.ma.masked,
    Decimal("NaN"),
    Decimal("sNaN"),
    pd.NA,
    pd.NaT,
]


def count(pairs):
    return [float(len(text)) for _, text in pairs]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_a_title_and_a_field(value):
    """A missing title is no title; a missing field is null."""
    items = ck.read_items([{"id": "d1", "title": value, "text": "a tree", "year": value}])
    assert [items.titles[0], items.texts[0], items.extra[0]] == ["", "a tree", {"year": None}]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_a_text(value):
    """A missing text leaves the title; without one there is nothing to search, which is said."""
    assert [*ck.read_items([{"title": "Oak", "text": value}]).texts] == ["Oak"]
    for given in ([{"text": value}], [value], {"d1": value}, {"d1": {"text": value}}):
        with pytest.raises(ck.InputError, match=r"entry (0|'d1') has an empty text"):
            ck.ItemIndex.build(given)


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_a_query(value):
    """A missing query is refused by its place."""
    searcher = ck.Searcher(ck.ItemIndex.build(["a tree"], lsa=0), count, "exact")
    for given in (["a tree", value], [{"text": "a tree"}, {"query": value}]):
        with pytest.raises(ck.InputError, match="entry 1 has an empty query"):
            ck.read_queries(given)
        with pytest.raises(ck.InputError, match="query 1 is ''; a query must be a text"):
            searcher.search(given)
    for call in (lambda: searcher.search(value), lambda: ck.rerank(value, ["x"], scorer=count)):
        with pytest.raises(ck.InputError):
            call()


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_an_id(value):
    """An item or a query has an id, or is refused; so does a judgement without a grade."""
    for read, text in ((ck.read_items, "text"), (ck.read_queries, "query")):
        with pytest.raises(ck.InputError, match="entry 0 has the id"):
            read([{"id": value, text: "a tree"}])
    with pytest.raises(ck.InputError, match="the judgements of query 'q1' have the grade"):
        ck.read_qrels({"q1": {"d1": value}})


@pytest.mark.parametrize("value", [None, float("nan"), pd.NA, pd.NaT], ids=repr)
def test_a_key(value):
    """A missing key of a mapping is no id."""
    for read in (ck.read_items, ck.read_queries):
        with pytest.raises(ck.InputError, match="has the id"):
            read({value: "a tree"})
    for judgements in ({value: {"d1": 1}}, {"q1": {value: 1}}):
        with pytest.raises(ck.InputError, match="the judgements of query"):
            ck.read_qrels(judgements)


def test_a_data_frame():
    """A column with gaps, which pandas makes floats, is read with nulls."""
    frame = pd.DataFrame(
        {
            "id": ["d1", "d2"],
            "title": ["Oak", np.nan],
            "text": pd.array([pd.NA, "the sea"], dtype="string"),
            "year": [2020, np.nan],
            "seen": [pd.Timestamp("2020-05-01 10:00"), pd.NaT],
            "rank": pd.array([1, pd.NA], dtype="Int64"),
        }
    )
    items = ck.read_items(frame)
    assert [*items.texts] == ["Oak", "the sea"]
    assert items.extra[0] == {"year": 2020.0, "seen": "2020-05-01T10:00:00", "rank": 1}
    assert items.extra[1] == {"year": None, "seen": None, "rank": None}


def test_a_file(tmp_path):
    """JSON lines that Python or pandas wrote with NaN are read as if it said null."""
    path = tmp_path / "docs.jsonl"
    path.write_text(
        '{"id": 1, "title": NaN, "text": "a tree", "x": NaN, "y": [1, NaN, Infinity]}\n'
    )
    items = ck.read_items(path)
    assert [*items.texts] == ["a tree"]
    assert items.extra[0] == {"x": None, "y": [1, None, None]}


def test_standard_input(tmp_path, monkeypatch, capsys):
    """`index build -` and `search` print no NaN."""
    monkeypatch.chdir(tmp_path)
    record = '{"id": 1, "title": NaN, "text": "a tree", "x": NaN}\n'
    monkeypatch.setattr("sys.stdin", io.StringIO(record))
    assert run(["index", "build", "-", "d.index", "--encoder", "none"]) == 0
    capsys.readouterr()
    search = ["search", "d.index", "tree", "--method", "retrieve(retriever=bm25)", "--json"]
    assert run(search) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    [hit] = printed["results"][0]["hits"]
    assert (hit["title"], hit["text"], hit["extra"]) == ("", "a tree", {"x": None})


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_rerank(value):
    """In a list of documents one may be missing: it is scored as an empty text, not as "nan"."""
    scored = []

    def seen(pairs):
        scored.extend(text for _, text in pairs)
        return count(pairs)

    given = ["a tree", value, {"text": value}, {"title": "Oak", "text": value, "embedding": value}]
    answer = ck.rerank("q", given, scorer=seen, return_documents=True)
    assert {*scored} == {"a tree", "", "Oak"}
    assert {entry["text"] for entry in answer} == {"a tree", "", "Oak"}
    assert len(answer) == 4


def test_infinity_is_no_text():
    """A number is a text; infinity is not."""
    assert [*ck.read_items([{"text": np.int64(7)}, {"text": 1.5}]).texts] == ["7", "1.5"]
    with pytest.raises(ck.InputError, match="entry 0: field 'text' is inf, not text"):
        ck.read_items([{"text": float("inf")}])


def test_nan_as_a_word():
    """The text "nan" in a file is a text, a bread perhaps."""
    assert [*ck.read_items(["nan", {"title": "NaN", "text": "NA"}]).texts] == ["nan", "NaN\nNA"]
