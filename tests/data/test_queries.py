"""Queries, judgements and runs in the formats people have."""

import pytest

from crossknn.data.queries import QuerySet, read_run
from crossknn.data.reading import read_qrels, read_queries
from crossknn.errors import InputError


@pytest.fixture
def beir(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "one"}\n{"_id": "q2", "text": "two"}\n{"_id": "q3", "text": "3"}\n'
    )
    (tmp_path / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq3\td1\t1\nq1\td2\t0\nq1\td3\t2\n"
    )
    return tmp_path


def test_beir_folder(beir):
    assert read_queries(beir) == QuerySet(("q1", "q2", "q3"), ("one", "two", "3"))
    assert read_queries(beir, split="test") == QuerySet(("q1", "q3"), ("one", "3"))
    assert read_queries(beir, limit=1).batch().texts == ("one",)
    assert read_qrels(beir) == {"q3": {"d1": 1}, "q1": {"d2": 0, "d3": 2}}


def test_other_query_files(tmp_path):
    (tmp_path / "q.txt").write_text("one\n\ntwo\n")
    (tmp_path / "bare.tsv").write_text("7\tone\n8\ttwo\n")
    (tmp_path / "named.tsv").write_text("qid\tquery\n7\tone\n8\ttwo\n")
    (tmp_path / "q.csv").write_text('id,text\n7,"one"\n8,two\n')
    assert read_queries(tmp_path / "q.txt") == QuerySet(("1", "3"), ("one", "two"))
    for name in ("bare.tsv", "named.tsv", "q.csv"):
        assert read_queries(tmp_path / name) == QuerySet(("7", "8"), ("one", "two"))
    assert read_queries(["one", "two"]) == QuerySet(("0", "1"), ("one", "two"))


def test_trec_judgements_and_runs(tmp_path):
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq1 0 d2 0\n")
    (tmp_path / "run.txt").write_text(
        "q1 Q0 d2 2 1.5 tag\nq1 Q0 d1 1 2.5 tag\nq1 Q0 d3 3 1.5 tag\nq2 Q0 d1 1 0 tag\n"
    )
    assert read_qrels(tmp_path / "qrels.txt") == {"q1": {"d1": 1, "d2": 0}}
    assert read_run(tmp_path / "run.txt") == {
        "q1": [("d1", 2.5), ("d2", 1.5), ("d3", 1.5)],
        "q2": [("d1", 0.0)],
    }


@pytest.mark.parametrize(
    ("reader", "content", "sentence"),
    [
        (
            read_queries,
            "7\tone\textra\n",
            "line 1 has 3 fields and names none of id, .*; a table .* has the fields id, text",
        ),
        (read_queries, "7\t \n", "line 1 has an empty query"),
        (read_queries, "7\tone\n7\ttwo\n", "line 2 repeats the id '7' of line 1"),
        (read_queries, "", "holds no queries"),
        (read_qrels, "query-id\tcorpus-id\tscore\nq\td\tgood\n", "line 2 is not a judgement"),
        (read_qrels, "q\td\t1\nq\td\t2\n", "line 2 judges query 'q' and item 'd' a second time"),
        (read_qrels, "query-id\tcorpus-id\tscore\n", "holds no judgements"),
        (read_run, "q Q0 d one 1.0 tag\n", "line 1 is not a line of a TREC run"),
        (read_run, "q Q0 d 1 1.0 t\nq Q0 d 2 0.5 t\n", "line 2 lists item 'd' twice"),
    ],
)
def test_bad_files_are_named(tmp_path, reader, content, sentence):
    path = tmp_path / "file.tsv"
    path.write_text(content)
    with pytest.raises(InputError, match=sentence) as error:
        reader(path)
    assert str(path) in str(error.value)


def test_missing_splits_are_named(beir):
    with pytest.raises(InputError, match=r"no judgements qrels/tset\.tsv .did you mean test"):
        read_qrels(beir, split="tset")
    with pytest.raises(InputError, match="needs a data folder such as a BEIR folder"):
        read_queries(["one"], split="test")
