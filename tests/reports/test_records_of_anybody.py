"""Items, queries and judgements of anybody: containers, data frames, ids, missing values, grades."""

import io
import json
from decimal import Decimal

import numpy as np
import pytest
from adapter_helpers import overlap
from tiny_models import save_beir

import crossknn as ck
from crossknn.cli.app import run
from crossknn.data.qrels import read_run
from crossknn.extend import ScoreStore
from crossknn.scores.collect import exact_scores

pd = pytest.importorskip("pandas")

TEXTS = {"d1": "a tree", "d2": "the sea"}
BEIR = {"d1": {"title": "Oak", "text": "a tree"}, "d2": {"title": "", "text": "sea"}}
TITLED = [{"id": name} | record for name, record in BEIR.items()]


def polars(rows):
    return pytest.importorskip("polars").DataFrame(rows)


def arrow(rows):
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def arrow_of_one_name():
    columns = [[text] for text in TEXTS.values()]
    return pytest.importorskip("pyarrow").Table.from_arrays(columns, names=["text", "text"])


def hugging_face(rows):
    return pytest.importorskip("datasets").Dataset.from_list(rows)


def build(items):
    return ck.ItemIndex.build(items, lsa=0).items


def added(items):
    index = ck.ItemIndex.build([{"id": "there", "text": "a stone"}], lsa=0)
    index.add(items)
    return index.items.take(range(1, index.n))


FRAME = pd.DataFrame(TITLED)


@pytest.mark.parametrize("read", [ck.read_items, build, added])
@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (TEXTS, ["a tree", "the sea"]),
        (pd.Series(TEXTS), ["a tree", "the sea"]),
        ({"d1": {"text": "a tree"}, "d2": "the sea"}, ["a tree", "the sea"]),
        ({"d1": {"_id": "d1", "text": "a tree"}, "d2": {"text": "sea"}}, ["a tree", "sea"]),
        (BEIR, ["Oak\na tree", "sea"]),
        (FRAME, ["Oak\na tree", "sea"]),
        (FRAME.set_index([[7, 9]]), ["Oak\na tree", "sea"]),
        (FRAME.set_index("id"), ["Oak\na tree", "sea"]),
        (FRAME.rename(columns=str.upper), ["Oak\na tree", "sea"]),
    ],
)
def test_items_with_ids(read, given, texts):
    items = read(given)
    assert [*items.ids] == ["d1", "d2"]
    assert [*items.texts] == texts


@pytest.mark.parametrize("table", [pd.DataFrame, polars, arrow, hugging_face])
def test_tables_of_every_package(table):
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
        pd.Series({"q1": "a tree", "q2": "sea"}),
        pd.DataFrame({"qid": ["q1", "q2"], "query": ["a tree", "sea"], "text": ["what", "found"]}),
    ],
)
def test_queries_with_ids(given):
    index, scorer = ck.ItemIndex.build(TEXTS, lsa=0), ck.CallableScorer(overlap, name="overlap")
    assert ck.read_queries(given).ids == ("q1", "q2")
    results = ck.Searcher(index, overlap, "exact").search(given, k=1)
    assert (results.query_ids, results.queries) == (("q1", "q2"), ("a tree", "sea"))
    assert [hits[0].id for hits in results] == ["d1", "d2"]
    scores = np.array([[2.0, 0], [0, 1]], np.float32)
    methods = ck.parse_methods("rerank(retriever=bm25)")
    how = {"qrels": {"q1": {"d1": 1}, "q2": {"d2": 1}}, "measures": ["RR@10"]}
    exact, *_ = ck.compare(index, given, scores, methods, [1], [1], **how)
    assert [*exact.task["RR@10"]] == [1, 1]
    ck.collect_anchors(index, scorer, given)
    assert [*index.anchors.queries.texts] == ["a tree", "sea"]


def test_documents_to_rerank():
    for given in (pd.DataFrame({"text": [*TEXTS.values()]}), pd.Series(TEXTS), TEXTS, BEIR):
        answer = ck.rerank("the sea", given, scorer=overlap)
        assert [entry["corpus_id"] for entry in answer] == [1, 0]
    frame = pd.DataFrame({"text": ["a b", "c d", "e"], "embedding": [[1.0, 0], [0, 1.0], [1, 1.0]]})
    assert len(ck.rerank("e", frame, 2, scorer=overlap, query_vector=[1.0, 1.0])) == 3


NO_ITEMS = "is neither a file nor a list of texts"
WHAT = "each must be a string or a mapping"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": "d1", "text": "a tree"}, "is one record: give a list of texts or mappings"),
        ({"text": ["a tree", "the sea"]}, f"entry 'text' is a list; {WHAT}"),
        ({"d1": ("Oak", "a tree")}, f"entry 'd1' is a tuple; {WHAT}"),
        ({"d1": {"id": "d9", "text": "x"}}, "entry 'd1' has the id 'd9' in its field 'id'"),
        ({None: "a tree"}, "entry None has the id None"),
        ({"d1": {"title": "x"}}, "entry 'd1' has no field 'text'"),
        ({1: "a", "1": "b"}, "entry '1' repeats the id '1'"),
        ({"a tree", "the sea"}, NO_ITEMS),
        (b"a tree", NO_ITEMS),
        (np.array("a tree"), NO_ITEMS),
        (np.array([["d1", "a tree"]]), "entry 0 is a ndarray"),
        (pd.DataFrame({"Body": ["x"]}), "entry 0 has no field 'text'"),
        (pd.DataFrame([["x", "y"]], columns=["text", "text"]), "two columns of the same name"),
        (arrow_of_one_name(), "two columns of the same name"),
        ([{"id": 10**5000, "text": "x"}], "entry 0 has an id of over 4000 digits"),
        ([{"id": "d1", "text": 10**5000}], "field 'text' is a number of over 4000 digits"),
        ([{"text": float("inf")}], "entry 0: field 'text' is inf, not text"),
        ([{"id": "d1", "text": np.timedelta64(3, "s")}], "field 'text' is a timedelta64, not text"),
        (pd.DataFrame({"text": ["x"]}, index=[0.5]), "entry 0.5 has the id 0.5"),
        (pd.DataFrame({"text": []}), "holds no items"),
    ],
)
def test_everything_else_is_refused(given, said):
    for read in (ck.read_items, build):
        with pytest.raises(ck.InputError) as error:
            read(given)
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_what_takes_texts_alone_refuses_tables():
    scorer, frame = ck.CallableScorer(overlap, name="overlap"), pd.DataFrame({"text": ["a tree"]})
    for given in (frame, TEXTS, "a tree"):
        for pair in ((given, ["a tree"]), (["a tree"], given)):
            with pytest.raises(ck.InputError, match="give a list of texts"):
                exact_scores(ScoreStore(), scorer, *pair)


MISSING = [
    *(None, float("nan"), np.float32("nan"), np.datetime64("NaT"), np.ma.masked),
    *(Decimal("NaN"), Decimal("sNaN"), pd.NA, pd.NaT),
]


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_missing_values_are_null(value):
    items = ck.read_items([{"id": "d1", "title": value, "text": "a tree", "year": value}])
    assert [items.titles[0], items.texts[0], items.extra[0]] == ["", "a tree", {"year": None}]
    assert [*ck.read_items([{"title": "Oak", "text": value}]).texts] == ["Oak"]
    for given in ([{"text": value}], [value], {"d1": value}, {"d1": {"text": value}}):
        with pytest.raises(ck.InputError, match=r"entry (0|'d1') has an empty text"):
            ck.ItemIndex.build(given)
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
    if value is None or value is pd.NA:
        for judgements in ({value: {"d1": 1}}, {"q1": {value: 1}}):
            with pytest.raises(ck.InputError, match="the judgements of query"):
                ck.read_qrels(judgements)
    given = ["a tree", value, {"text": value}, {"title": "Oak", "text": value, "embedding": value}]
    answer = ck.rerank("q", given, scorer=overlap, return_documents=True)
    assert sorted(entry["text"] for entry in answer) == ["", "", "Oak", "a tree"]


def test_a_data_frame_with_gaps():
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
    assert [*ck.read_items(["nan", {"title": "NaN", "text": "NA"}]).texts] == ["nan", "NaN\nNA"]


def test_json_with_nan(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record = '{"id": 1, "title": NaN, "text": "a tree", "x": NaN, "y": [1, NaN, Infinity]}\n'
    monkeypatch.setattr("sys.stdin", io.StringIO(record))
    assert run(["index", "build", "-", "d.index", "--encoder", "none"]) == 0
    capsys.readouterr()
    search = ["search", "d.index", "tree", "--method", "retrieve(retriever=bm25)", "--json"]
    assert run(search) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    [hit] = printed["results"][0]["hits"]
    assert (hit["title"], hit["text"]) == ("", "a tree")
    assert hit["extra"] == {"x": None, "y": [1, None, None]}


ID = " d1 "


def test_ids_are_exact(tmp_path, capsys):
    qrels = {"q 1 ": {ID: 1}}
    folder = save_beir(tmp_path, {ID: "a tree", "d1": "the sea"}, {"q 1 ": "tree"}, test=qrels)
    assert ck.read_queries(folder, split="test").ids == ("q 1 ",)
    assert ck.read_qrels(folder) == qrels
    (tmp_path / "run.tsv").write_text(f"q 1 \tQ0\t{ID}\t1\t0.5\tx\n")
    assert read_run(tmp_path / "run.tsv") == {"q 1 ": [(ID, 0.5)]}
    index, place = ck.ItemIndex.build(folder, lsa=0), str(tmp_path / "i")
    index.save(place)
    searcher = ck.Searcher(index, overlap, "exact")
    [[hit]] = searcher.search("tree", filter=[ID])
    assert hit.id == ID
    with pytest.raises(ck.InputError, match="blanks in its id, which a TREC run cannot hold"):
        searcher.search("tree").to_run(tmp_path / "run.trec")
    (tmp_path / "ids.txt").write_text(f"{ID}\r\n\n")
    ids = str(tmp_path / "ids.txt")
    how = ["--filter", ids, "--method", "retrieve(retriever=bm25)", "--json"]
    assert run(["search", place, "tree", *how]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [hit["id"] for hit in found["results"][0]["hits"]] == [ID]
    assert run(["index", "delete", place, "--ids", ids]) == 0
    left = ck.Searcher(ck.ItemIndex.load(place), overlap).search("tree")[0]
    assert [hit.id for hit in left] == ["d1"]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv"])
def test_ids_of_every_format(tmp_path, ending):
    mark = {"csv": ",", "tsv": "\t"}.get(ending)
    rows = [("id", "text"), ("d1", "a tree"), ("d1 ", "the sea")]
    lines = [json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]]
    path = tmp_path / f"docs.{ending}"
    path.write_text("\n".join(lines if mark is None else [mark.join(row) for row in rows]) + "\n")
    assert [*ck.read_items(path).ids] == ["d1", "d1 "]
    assert ck.read_queries(path).ids == ("d1", "d1 ")


def test_what_is_an_id():
    for value in (7, np.int64(7), np.uint8(7), "7", np.str_("7")):
        for given in ([{"id": value, "text": "a tree"}], {value: "a tree"}):
            items, queries = ck.read_items(given), ck.read_queries(given)
            assert ([*items.ids], queries.ids) == (["7"], ("7",))
            assert type(items.ids[0]) is str
    none = (True, np.True_, 1.5, 1.0, "", " ", "a\tb", "a\nb", "a\n", ["a"], b"a")
    for value in (*none, np.timedelta64(3, "s")):
        for read in (ck.read_items, ck.read_queries):
            with pytest.raises(ck.InputError, match=r"entry 0 has the id .*; an id is a non-empty"):
                read([{"id": value, "text": "a tree"}])


READ = {"q1": {"d1": 1, "d2": 0}}


def read(tmp_path, text):
    (tmp_path / "qrels.tsv").write_text(text)
    return ck.read_qrels(tmp_path / "qrels.tsv")


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 d1 1\nq1 0 d2 0\n",
        "q1 0 d1 +1.\nq1 0 d2 -0\n",
        "q1\td1\t1.0\nq1\td2\t0\n",
        "\ufeffquery-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n",
        "\n\nquery_id iter doc_id relevance\nq1 0 d1 1\nq1 0 d2 0\n",
        "TOPIC ITERATION DOCUMENT# RELEVANCY\nq1 0 d1 1\nq1 0 d2 0\n",
        '"query"\t"doc"\t"relevance_score"\nq1\td1\t1\nq1\td2\t0\n',
        "q1\td1\t1\rq1\td2\t0\r",
        "q1\t0\td1\t1\t\r\nq1\t0\td2\t0 \r\n",
    ],
)
def test_every_line_of_judgements_counts(tmp_path, text):
    assert read(tmp_path, text) == READ


@pytest.mark.parametrize(
    "line", ["q1 0 d1 l", "q1 0 d1 label", f"q1 0 d1 {'9' * 5000}", "q1 0 d1 0.5", "q1 0 d1 nan", "q1 0 d1 1_0", "q1 0 d1 ١",
             "q1 d1", "\td1\t1", "q1\t\t1", "q1 0 d1 1e2", "q1,d1,1", "q1 0 d1 1 more", "a b c"]
)  # fmt: skip
def test_what_is_no_judgement_is_refused_on_every_line(tmp_path, line):
    for number, lines in ((1, [line, "q1 0 d2 0"]), (2, ["q1 0 d2 0", line])):
        with pytest.raises(ck.InputError, match=f"line {number} is not a judgement"):
            read(tmp_path, "\n".join(lines))


def test_a_header_of_judgements_stands_once_and_names_the_query_first(tmp_path):
    with pytest.raises(ck.InputError, match="line 2 is not a judgement"):
        read(tmp_path, "qid\tdocno\tlabel\nqid\tdocno\tlabel\n")
    with pytest.raises(ck.InputError, match="line 1 names corpus-id first"):
        read(tmp_path, "corpus-id\tquery-id\tscore\nd1\tq1\t1\n")


def test_judgements_of_python():
    for grades in ((1.0, np.float32(0)), (np.int64(1), np.False_), (True, False)):
        given = {"q1": dict(zip(("d1", "d2"), grades, strict=True))}
        assert ck.read_qrels(given) == READ
        assert {type(grade) for grade in ck.read_qrels(given)["q1"].values()} == {int}
    assert ck.read_qrels({np.int64(7): {1: 1.0}}) == {"7": {"1": 1}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([("q1", "d1", 1)], "give a mapping {query id: {item id: grade}}"),
        (pd.DataFrame({"qid": ["q1"], "docno": ["d1"], "label": [1]}), "give a mapping {query id"),
        ({"q1": ["d1"]}, "the judgements of query 'q1' are"),
        ({"q1": {"d1": 0.5}}, "the grade 0.5; it must be a whole number"),
        ({"q1": {"d1": "1"}}, "the grade '1'; it must be a whole number"),
        ({"q1": {"d1": float("inf")}}, "the grade inf"),
        ({1: {"d1": 1}, "1": {"d1": 2}}, "a second time, with another grade"),
    ],
)
def test_judgements_of_python_that_are_none(given, said):
    index = ck.ItemIndex.build({"d1": "a tree"}, lsa=0)
    scores, methods = np.ones((1, 1), np.float32), ck.parse_methods("rerank(retriever=bm25)")
    compared = (index, {"q1": "tree"}, scores, methods, [1], [1])
    for call in (
        lambda: ck.read_qrels(given),
        lambda: ck.compare(*compared, qrels=given, measures=["RR@10"]),
    ):
        with pytest.raises(ck.InputError) as error:
            call()
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_judgements_and_numbers_that_are_no_lists(tmp_path):
    for text in ("q1\t0\td1\t1\n", "q1\td1\t1\n", "q1 Q0 d1 1 nan tag\n", "q1 Q0 d1 1 inf tag\n"):
        (tmp_path / "lists").write_text(text)
        with pytest.raises(ck.InputError, match="line 1 is not a line of a TREC run"):
            read_run(tmp_path / "lists")


@pytest.mark.parametrize(
    "document",
    ["  a tree\n", "a tree", "", " ", {"text": " a tree "}, {"text": "\ta tree", "title": None}],
)
def test_texts_as_given(document):
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
    path = tmp_path / "topics.txt"
    path.write_text(
        f"<top>\n<num> Number: 301\n<title> {title}\n\n<desc> Description:\nmore <num> 7\n</top>\n"
        "<top><num>302</num><title>plain</title><narr>x</narr></top>\n"
    )
    assert ck.read_queries(path) == ck.QuerySet(("301", "302"), (read, "plain"))
