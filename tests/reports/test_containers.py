"""Containers of Python are read by what they hold: mappings by their ids, tables by their names.

Users pass BEIR's dicts and data frames; read as a plain iterable, those are their keys.
"""

from __future__ import annotations

import numpy as np
import pytest

import crossknn as ck
from crossknn.extend import ScoreStore
from crossknn.scores.collect import exact_scores

pd = pytest.importorskip("pandas")

TEXTS = {"d1": "a tree", "d2": "the sea"}
TITLED = [{"id": "d1", "title": "Oak", "text": "a tree"}, {"id": "d2", "title": "", "text": "sea"}]
BEIR = {"d1": {"title": "Oak", "text": "a tree"}, "d2": {"title": "", "text": "sea"}}


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
        (pd.DataFrame(TITLED)[::-1][::-1].set_index([[7, 9]]), ["Oak\na tree", "sea"]),
        (pd.DataFrame.from_dict(BEIR, orient="index"), ["Oak\na tree", "sea"]),
        (pd.DataFrame(TITLED).set_index("id"), ["Oak\na tree", "sea"]),
        (pd.DataFrame(TITLED).rename(columns=str.upper), ["Oak\na tree", "sea"]),
    ],
)
def test_items_with_ids(read, given, texts):
    """A mapping from ids, and a table, are items with these ids, in every way to give items."""
    items = read(given)
    assert [*items.ids] == ["d1", "d2"]
    assert [*items.texts] == texts


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_every_package(table):
    """A table is read by its columns, whichever package made it."""
    items = ck.read_items(table([row | {"year": 2020} for row in TITLED]))
    assert [*items.ids] == ["d1", "d2"]
    assert [*items.titles] == ["Oak", ""]
    assert items.extra[1] == {"year": 2020}
    asked = table([{"qid": "q1", "query": "a tree"}, {"qid": "q2", "query": "the sea"}])
    assert ck.read_queries(asked) == ck.QuerySet(("q1", "q2"), ("a tree", "the sea"))


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
    assert results.query_ids == ("q1", "q2")
    assert results.queries == ("a tree", "sea")
    assert [hits[0].id for hits in results] == ["d1", "d2"]
    scores = np.array([[2.0, 0], [0, 1]], np.float32)
    methods = ck.parse_methods("rerank(retriever=bm25)")
    how = {"qrels": {"q1": {"d1": 1}, "q2": {"d2": 1}}, "measures": ["RR@10"]}
    exact, *_ = ck.compare(index, given, scores, methods, [1], [1], **how)
    assert [*exact.task["RR@10"]] == [1, 1]


@pytest.mark.parametrize(
    "given", [pd.DataFrame({"text": [*TEXTS.values()]}), pd.Series(TEXTS), TEXTS, BEIR]
)
def test_rerank(given):
    """`rerank` orders what is in a container, and names it by its position."""
    assert [entry["corpus_id"] for entry in ck.rerank("the sea", given, scorer=overlap)] == [1, 0]


@pytest.mark.parametrize("table", TABLES)
def test_rerank_of_tables(table):
    """A table of any package is reranked by its column `text`."""
    documents = table([{"text": text} for text in TEXTS.values()])
    assert [e["corpus_id"] for e in ck.rerank("the sea", documents, scorer=overlap)] == [1, 0]


def test_embeddings_in_a_data_frame():
    """A column `embedding` is read as the field of a document is."""
    frame = pd.DataFrame({"text": ["a b", "c d", "e"], "embedding": [[1.0, 0], [0, 1.0], [1, 1.0]]})
    answer = ck.rerank("e", frame, 2, scorer=overlap, query_vector=[1.0, 1.0])
    assert len(answer) == 3


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


@pytest.mark.parametrize("given", [7, {"query": "a tree"}, {"q1": ["a tree"]}, [["a tree"]], b"x"])
def test_queries_that_are_none(given):
    """A search refuses what is no container of queries."""
    index = ck.ItemIndex.build(TEXTS, lsa=0)
    for read in (ck.read_queries, ck.Searcher(index, overlap, "exact").search):
        with pytest.raises(ck.InputError):
            read(given)


def test_exact_scores_of_a_data_frame():
    """What takes texts alone refuses a table and a mapping instead of reading their keys."""
    scorer, frame = ck.CallableScorer(overlap, name="overlap"), pd.DataFrame({"text": ["a tree"]})
    for given in (frame, TEXTS, "a tree"):
        for pair in ((given, ["a tree"]), (["a tree"], given)):
            with pytest.raises(ck.InputError, match="give a list of texts"):
                exact_scores(ScoreStore(), scorer, *pair)


def test_training_queries():
    """Fits and collections read data frames as searches do, not as the names of their columns."""
    index = ck.ItemIndex.build({f"d{i}": f"text {i}" for i in range(6)}, lsa=2)
    asked = pd.DataFrame({"qid": ["q1", "q2"], "query": ["text 1", "text 2"]})
    scorer = ck.CallableScorer(overlap, name="overlap")
    ck.collect_anchors(index, scorer, asked)
    assert [*index.anchors.queries.texts] == ["text 1", "text 2"]
