"""Containers of Python are read by what they hold: mappings by their ids, tables by their names, gaps
as null. Texts and rows come back as they were given: nothing is cut, stripped or dropped.

Users pass BEIR's dicts and data frames; read as a plain iterable, those are their keys.
"""

from __future__ import annotations

import io
import json
from decimal import Decimal

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.extend import ScoreStore
from crossknn.scores.collect import exact_scores

pd = pytest.importorskip("pandas")

TEXTS = {"d1": "a tree", "d2": "the sea"}
TITLED = [{"id": "d1", "title": "Oak", "text": "a tree"}, {"id": "d2", "title": "", "text": "sea"}]
BEIR = {"d1": {"title": "Oak", "text": "a tree"}, "d2": {"title": "", "text": "sea"}}
MISSING = [
    *(None, float("nan"), np.float32("nan"), np.datetime64("NaT"), np.ma.masked),
    *(Decimal("NaN"), Decimal("sNaN"), pd.NA, pd.NaT),
]


def polars(rows):
    return pytest.importorskip("polars").DataFrame(rows)


def arrow(rows):
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def arrow_of_one_name():
    columns = [[text] for text in TEXTS.values()]
    return pytest.importorskip("pyarrow").Table.from_arrays(columns, names=["text", "text"])


def hugging_face(rows):
    return pytest.importorskip("datasets").Dataset.from_list(rows)


TABLES = [pd.DataFrame, polars, arrow, hugging_face]


def overlap(pairs):
    return [float(len({*query.split()} & {*text.split()})) for query, text in pairs]


def build(items):
    return ck.ItemIndex.build(items, lsa=0).items


def added(items):
    index = ck.ItemIndex.build([{"id": "there", "text": "a stone"}], lsa=0)
    index.add(items)
    return index.items.take(range(1, index.n))


@pytest.mark.parametrize("read", [ck.read_items, build, added])
@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (TEXTS, ["a tree", "the sea"]),
        ({"d1": {"text": "a tree"}, "d2": "the sea"}, ["a tree", "the sea"]),
        (BEIR, ["Oak\na tree", "sea"]),
        ({"d1": {"_id": "d1", "text": "a tree"}, "d2": {"text": "sea"}}, ["a tree", "sea"]),
        (pd.Series(TEXTS), ["a tree", "the sea"]),
        (pd.DataFrame(TITLED), ["Oak\na tree", "sea"]),
        (pd.DataFrame(TITLED).set_index([[7, 9]]), ["Oak\na tree", "sea"]),
        (pd.DataFrame.from_dict(BEIR, orient="index"), ["Oak\na tree", "sea"]),
        (pd.DataFrame(TITLED).set_index("id"), ["Oak\na tree", "sea"]),
        (pd.DataFrame(TITLED).rename(columns=str.upper), ["Oak\na tree", "sea"]),
    ],
)
def test_items_with_ids(read, given, texts):
    """A mapping from ids, and a table, are items with these ids, in every way to give items."""
    items = read(given)
    assert ([*items.ids], [*items.texts]) == (["d1", "d2"], texts)


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_every_package(table):
    """A table is read by its columns, whichever package made it."""
    items = ck.read_items(table([row | {"year": 2020} for row in TITLED]))
    assert ([*items.ids], [*items.titles]) == (["d1", "d2"], ["Oak", ""])
    assert items.extra[1] == {"year": 2020}
    asked = table([{"qid": "q1", "query": "a tree"}, {"qid": "q2", "query": "the sea"}])
    assert ck.read_queries(asked) == ck.QuerySet(("q1", "q2"), ("a tree", "the sea"))
    documents = table([{"text": text} for text in TEXTS.values()])
    assert [e["corpus_id"] for e in ck.rerank("the sea", documents, scorer=overlap)] == [1, 0]


@pytest.mark.parametrize(
    "given",
    [
        {"q1": "a tree", "q2": "sea"},
        {"q1": {"text": "a tree"}, "q2": {"query": "sea"}},
        [{"_id": "q1", "text": "a tree"}, {"qid": "q2", "query": "sea"}],
        pd.DataFrame({"qid": ["q1", "q2"], "query": ["a tree", "sea"]}),
        pd.Series({"q1": "a tree", "q2": "sea"}),
        pd.DataFrame({"qid": ["q1", "q2"], "query": ["a tree", "sea"], "text": ["what", "found"]}),
    ],
)
def test_queries_with_ids(given):
    """A search, a comparison and the reader take the same containers of queries."""
    index = ck.ItemIndex.build(TEXTS, lsa=0)
    assert ck.read_queries(given).ids == ("q1", "q2")
    results = ck.Searcher(index, overlap, "exact").search(given, k=1)
    assert (results.query_ids, results.queries) == (("q1", "q2"), ("a tree", "sea"))
    assert [hits[0].id for hits in results] == ["d1", "d2"]
    methods = ck.parse_methods("rerank(retriever=bm25)")
    how = {"qrels": {"q1": {"d1": 1}, "q2": {"d2": 1}}, "measures": ["RR@10"]}
    exact, *_ = ck.compare(index, given, np.eye(2, dtype=np.float32), methods, [1], [1], **how)
    assert [*exact.task["RR@10"]] == [1, 1]


@pytest.mark.parametrize(
    "given", [pd.DataFrame({"text": [*TEXTS.values()]}), pd.Series(TEXTS), TEXTS, BEIR]
)
def test_rerank(given):
    """`rerank` orders what is in a container, and names it by its position."""
    assert [entry["corpus_id"] for entry in ck.rerank("the sea", given, scorer=overlap)] == [1, 0]


def test_embeddings_in_a_data_frame():
    """A column `embedding` is read as the field of a document is."""
    frame = pd.DataFrame({"text": ["a b", "c d", "e"], "embedding": [[1.0, 0], [0, 1.0], [1, 1.0]]})
    assert len(ck.rerank("e", frame, 2, scorer=overlap, query_vector=[1.0, 1.0])) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": "d1", "text": "a tree"}, "is one record: give a list of texts or mappings"),
        ({"text": ["a tree", "the sea"]}, "entry 'text' is a list; each must be a string or a map"),
        ({"d1": ("Oak", "a tree")}, "entry 'd1' is a tuple; each must be a string or a mapping"),
        ({"d1": {"id": "d9", "text": "x"}}, "entry 'd1' has the id 'd9' in its field 'id'"),
        ({None: "a tree"}, "entry None has the id None"),
        ({"d1": {"title": "x"}}, "entry 'd1' has no field 'text'"),
        ({1: "a", "1": "b"}, "entry '1' repeats the id '1'"),
        ([("d1", "a tree")], "entry 0 is a tuple"),
        ({"a tree", "the sea"}, "is neither a file nor a list of texts"),
        (b"a tree", "is neither a file nor a list of texts"),
        (np.array("a tree"), "is neither a file nor a list of texts"),
        (np.array([["d1", "a tree"]]), "entry 0 is a ndarray"),
        (pd.DataFrame({"Body": ["x"]}), "entry 0 has no field 'text'"),
        (pd.DataFrame([["x", "y"]], columns=["text", "text"]), "two columns of the same name"),
        (arrow_of_one_name(), "two columns of the same name"),
        ([{"id": 10**5000, "text": "x"}], "entry 0 has an id of over 4000 digits"),
        ([{"id": "d1", "text": 10**5000}], "field 'text' is a number of over 4000 digits"),
        ([{"id": np.timedelta64(3, "s"), "text": "x"}], "entry 0 has the id"),
        ([{"id": "d1", "text": np.timedelta64(3, "s")}], "field 'text' is a timedelta64, not text"),
        ([{"text": float("inf")}], "entry 0: field 'text' is inf, not text"),
        (pd.DataFrame({"text": ["x"]}, index=[0.5]), "entry 0.5 has the id 0.5"),
        (pd.DataFrame({"text": []}), "holds no items"),
    ],
)
def test_everything_else_is_refused(given, said):
    """What cannot be read as items is refused in one sentence that says why."""
    for read in (ck.read_items, build):
        with pytest.raises(ck.InputError) as error:
            read(given)
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_queries_and_texts_of_the_wrong_kind():
    """A search refuses what is no container of queries; what takes texts alone refuses a table."""
    index = ck.ItemIndex.build(TEXTS, lsa=0)
    for given in (7, {"query": "a tree"}, {"q1": ["a tree"]}, [["a tree"]], b"x"):
        for read in (ck.read_queries, ck.Searcher(index, overlap, "exact").search):
            with pytest.raises(ck.InputError):
                read(given)
    scorer = ck.CallableScorer(overlap, name="overlap")
    for given in (pd.DataFrame({"text": ["a tree"]}), TEXTS, "a tree"):
        for pair in ((given, ["a tree"]), (["a tree"], given)):
            with pytest.raises(ck.InputError, match="give a list of texts"):
                exact_scores(ScoreStore(), scorer, *pair)


def test_training_queries():
    """Fits and collections read data frames as searches do, not as the names of their columns."""
    index = ck.ItemIndex.build({f"d{i}": f"text {i}" for i in range(6)}, lsa=2)
    asked = pd.DataFrame({"qid": ["q1", "q2"], "query": ["text 1", "text 2"]})
    ck.collect_anchors(index, ck.CallableScorer(overlap, name="overlap"), asked)
    assert [*index.anchors.queries.texts] == ["text 1", "text 2"]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_missing_values(value):
    """A missing title is no title, a missing field null; a missing text, query, id or grade is said,
    and no item, query or field says "nan"."""
    items = ck.read_items([{"id": "d1", "title": value, "text": "a tree", "year": value}])
    assert [items.titles[0], items.texts[0], items.extra[0]] == ["", "a tree", {"year": None}]
    assert [*ck.read_items([{"title": "Oak", "text": value}]).texts] == ["Oak"]
    for given in ([{"text": value}], [value], {"d1": value}, {"d1": {"text": value}}):
        with pytest.raises(ck.InputError, match=r"entry (0|'d1') has an empty text"):
            build(given)
    searcher = ck.Searcher(ck.ItemIndex.build(["a tree"], lsa=0), overlap, "exact")
    for given in (["a tree", value], [{"text": "a tree"}, {"query": value}]):
        with pytest.raises(ck.InputError, match="entry 1 has an empty query"):
            ck.read_queries(given)
        with pytest.raises(ck.InputError, match="query 1 is ''; a query must be a text"):
            searcher.search(given)
    for call in (lambda: searcher.search(value), lambda: ck.rerank(value, ["x"], scorer=overlap)):
        with pytest.raises(ck.InputError):
            call()
    for read, text in ((ck.read_items, "text"), (ck.read_queries, "query")):
        with pytest.raises(ck.InputError, match="entry 0 has the id"):
            read([{"id": value, text: "a tree"}])
    with pytest.raises(ck.InputError, match="the judgements of query 'q1' have the grade"):
        ck.read_qrels({"q1": {"d1": value}})


@pytest.mark.parametrize("value", [None, float("nan"), pd.NA, pd.NaT], ids=repr)
def test_a_missing_key(value):
    """A missing key of a mapping is no id."""
    for read in (ck.read_items, ck.read_queries):
        with pytest.raises(ck.InputError, match="has the id"):
            read({value: "a tree"})
    for judgements in ({value: {"d1": 1}}, {"q1": {value: 1}}):
        with pytest.raises(ck.InputError, match="the judgements of query"):
            ck.read_qrels(judgements)


def test_a_data_frame_with_gaps():
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


def test_nan_in_json(tmp_path, monkeypatch, capsys):
    """JSON that Python or pandas wrote with NaN is read as if it said null, and printed so; the text
    "nan" is a text, a bread perhaps."""
    monkeypatch.chdir(tmp_path)
    record = '{"id": 1, "title": NaN, "text": "a tree", "x": NaN, "y": [1, NaN, Infinity]}\n'
    (tmp_path / "docs.jsonl").write_text(record)
    assert ck.read_items(tmp_path / "docs.jsonl").extra[0] == {"x": None, "y": [1, None, None]}
    monkeypatch.setattr("sys.stdin", io.StringIO(record))
    assert run(["index", "build", "-", "d.index", "--encoder", "none"]) == 0
    capsys.readouterr()
    search = ["search", "d.index", "tree", "--method", "retrieve(retriever=bm25)", "--json"]
    assert run(search) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    [hit] = printed["results"][0]["hits"]
    assert (hit["title"], hit["text"], hit["extra"]["x"]) == ("", "a tree", None)
    assert [*ck.read_items(["nan", {"title": "NaN", "text": "NA"}]).texts] == ["nan", "NaN\nNA"]
    assert [*ck.read_items([{"text": np.int64(7)}, {"text": 1.5}]).texts] == ["7", "1.5"]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_a_missing_document_of_a_rerank(value):
    """In a list of documents one may be missing: it is scored as an empty text, not as "nan"."""
    scored = []

    def seen(pairs):
        scored.extend(text for _, text in pairs)
        return overlap(pairs)

    given = ["a tree", value, {"text": value}, {"title": "Oak", "text": value, "embedding": value}]
    answer = ck.rerank("q", given, scorer=seen, return_documents=True)
    assert {*scored} == {entry["text"] for entry in answer} == {"a tree", "", "Oak"}
    assert len(answer) == 4


@pytest.mark.parametrize(
    "document",
    ["  a tree\n", "a tree", "", " ", {"text": " a tree "}, {"text": "\ta tree", "title": None}],
)
def test_texts_as_given(document):
    """Documents and queries come back with their outer blanks."""
    [entry] = ck.rerank("q", [document], scorer=overlap, return_documents=True)
    assert entry["text"] == (document if isinstance(document, str) else document["text"])
    searcher = ck.Searcher(ck.ItemIndex.build(["a tree"], lsa=0), overlap, "exact")
    assert searcher.search([" a tree ", "x\n"]).queries == (" a tree ", "x\n")


@pytest.mark.parametrize(
    ("title", "read"),
    [
        ("price < 5 dollars", "price < 5 dollars"),
        ("a < b and b > c", "a < b and b > c"),
        ("vector<int> in C++", "vector<int> in C++"),
        ("<3 songs", "<3 songs"),
        ("x <", "x <"),
        ("Topic: AT&T </title>", "AT&T"),
        ("two\nlines", "two lines"),
    ],
)
def test_titles_of_old_topics(tmp_path, title, read):
    """A `<` in the title of an old TREC topic does not end it."""
    path = tmp_path / "topics.txt"
    path.write_text(
        f"<top>\n<num> Number: 301\n<title> {title}\n\n<desc> Description:\nmore <num> 7\n</top>\n"
        "<top><num>302</num><title>plain</title><narr>x</narr></top>\n"
    )
    assert ck.read_queries(path) == ck.QuerySet(("301", "302"), (read, "plain"))


def test_rows_without_a_query_id():
    """PyTerrier rows with a NaN qid are refused, not dropped."""
    adapter = pytest.importorskip("crossknn.adapters.pyterrier")
    rows = {"qid": ["q1", float("nan"), "q1"], "query": ["tree", "tree", "tree"]}
    found = pd.DataFrame(rows | {"docno": ["d1", "d2", "d3"], "text": ["a", "b", "c"]})
    searcher = ck.Searcher(ck.ItemIndex.build(["a tree"], lsa=0), overlap, "exact")
    reranker, retriever = adapter.CrossknnReranker(overlap), adapter.CrossknnRetriever(searcher)
    for transformer, frame in ((reranker, found), (retriever, pd.DataFrame(rows))):
        with pytest.raises(ck.InputError, match="the qid of row 1 is nan"):
            transformer.transform(frame)
    ranked = reranker.transform(found.fillna({"qid": "q2"}))
    assert sorted(ranked["docno"]) == ["d1", "d2", "d3"]
