"""Judgements of anybody: no line is lost as a header, grades may be written as floats."""

from __future__ import annotations

import numpy as np
import pytest

import crossknn as ck
from crossknn.data.qrels import read_run

READ = {"q1": {"d1": 1, "d2": 0}}


def read(tmp_path, text):
    path = tmp_path / "qrels.tsv"
    path.write_text(text)
    return ck.read_qrels(path)


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 d1 1\nq1 0 d2 0\n",
        "q1 0 d1 1.0\nq1 0 d2 0.0\n",
        "q1 0 d1 +1.\nq1 0 d2 -0\n",
        "q1\td1\t1.0\nq1\td2\t0\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n",
        "\ufeffquery-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n",
        "\n\nquery_id iter doc_id relevance\nq1 0 d1 1\nq1 0 d2 0\n",
        "TOPIC ITERATION DOCUMENT# RELEVANCY\nq1 0 d1 1\nq1 0 d2 0\n",
        "qid\tdocno\tlabel\nq1\td1\t1\nq1\td2\t0\n",
        '"query"\t"doc"\t"relevance_score"\nq1\td1\t1\nq1\td2\t0\n',
        "q1\td1\t1\rq1\td2\t0\r",
        "q1\t0\td1\t1\t\r\nq1\t0\td2\t0 \r\n",
    ],
)
def test_every_line_counts(tmp_path, text):
    """A header is known by its names, whole floats are grades, and no judgement is dropped."""
    assert read(tmp_path, text) == READ


SLIPS = [
    *("q1 0 d1 l", "q1 0 d1 label", f"q1 0 d1 {'9' * 5000}", "q1 0 d1 0.5", "q1 0 d1 nan"),
    *("q1 0 d1 inf", "q1 0 d1 1_0", "q1 0 d1 ١", "q1 d1", "\td1\t1", "q1\t\t1", "q1 0 d1 1e2"),
    *("q1,d1,1", "q1 0 d1 1 more", "a b c"),
]


@pytest.mark.parametrize("line", SLIPS)
def test_what_is_no_judgement_is_refused_on_every_line(tmp_path, line):
    """A first line with a slip of the pen is refused as a second one is."""
    for number, lines in ((1, [line, "q1 0 d2 0"]), (2, ["q1 0 d2 0", line])):
        with pytest.raises(ck.InputError, match=f"line {number} is not a judgement"):
            read(tmp_path, "\n".join(lines))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # A second header is no judgement; columns the other way round are not those of others.
        ("qid\tdocno\tlabel\nqid\tdocno\tlabel\n", "line 2 is not a judgement"),
        ("corpus-id\tquery-id\tscore\nd1\tq1\t1\n", "line 1 names corpus-id first"),
    ],
)
def test_headers_that_are_refused(tmp_path, text, said):
    with pytest.raises(ck.InputError, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "given",
    [
        READ,
        {"q1": {"d1": 1.0, "d2": np.float32(0)}},
        {"q1": {"d1": np.int64(1), "d2": np.False_}},
        {"q1": {"d1": True, "d2": False}},
    ],
)
def test_judgements_of_python(given):
    """A dict of dicts is read like a file."""
    assert ck.read_qrels(given) == READ
    assert {type(grade) for grade in ck.read_qrels(given)["q1"].values()} == {int}


def compared(given, queries, items):
    """Compare reranking with exact search, by these judgements."""
    index, scores = ck.ItemIndex.build(items, lsa=0), np.ones((1, len(items)), np.float32)
    scores[0, 0] += 1
    how = {"qrels": given, "measures": ["RR@10"]}
    methods = ck.parse_methods("rerank(retriever=bm25)")
    return ck.compare(index, queries, scores, methods, [1], [1], **how)


def test_ids_that_are_numbers():
    """Items, queries and judgements may be numbered, by NumPy too, and agree."""
    exact, *_ = compared({np.int64(7): {1: 1.0}}, {7: "tree"}, {1: "a tree", 2: "the sea"})
    assert [*exact.task["RR@10"]] == [1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([("q1", "d1", 1)], "give a mapping {query id: {item id: grade}}"),
        ({"q1": ["d1"]}, "the judgements of query 'q1' are"),
        ({"q1": {"d1": 0.5}}, "the grade 0.5; it must be a whole number"),
        ({"q1": {"d1": "1"}}, "the grade '1'; it must be a whole number"),
        ({"q1": {"d1": float("inf")}}, "the grade inf"),
        ({1: {"d1": 1}, "1": {"d1": 2}}, "a second time, with another grade"),
        (7, "the judgements are 7"),
    ],
)
def test_judgements_of_python_that_are_none(given, said):
    """What is no judgement is refused in one sentence, by the reader and by a comparison."""
    for read in (ck.read_qrels, lambda g: compared(g, {"q1": "tree"}, {"d1": "a tree"})):
        with pytest.raises(ck.InputError) as error:
            read(given)
        assert said in str(error.value)


def test_a_data_frame_is_quoted_in_one_line():
    pd = pytest.importorskip("pandas")
    with pytest.raises(ck.InputError, match=r"give a mapping \{query id: ") as error:
        ck.read_qrels(pd.DataFrame({"qid": ["q1"], "docno": ["d1"], "label": [1]}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "q1\t0\td1\t1\n",
        "q1\td1\t1\nq1\td2\t1\n",
        "q1 Q0 d1 1 nan tag\n",
        "q1 Q0 d1 1 inf tag\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    ],
)
def test_judgements_and_numbers_that_are_no_lists(tmp_path, text):
    """A file of judgements given for ranked lists, and scores that order nothing, are refused."""
    (tmp_path / "lists").write_text(text)
    with pytest.raises(ck.InputError, match=r"line [12]"):
        read_run(tmp_path / "lists")
