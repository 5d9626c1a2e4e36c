"""A data set counts what does not fit together and leaves nothing out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.data.dataset import Dataset, check
from crossknn.data.items import Items
from crossknn.data.queries import QuerySet
from crossknn.data.reading import (
    FORMATS,
    open_folder,
    read_dataset,
    read_items,
    read_labelled,
    read_qrels,
    read_queries,
)
from crossknn.errors import InputError


def items_of(ids, texts):
    return Items(
        ids=list(ids),
        texts=list(texts),
        titles=[""] * len(texts),
        extra=[{}] * len(texts),
    )


def dataset(*, queries=("q1", "q2"), items=("d1", "d2"), qrels=None, candidates=None):
    return Dataset(
        name="x",
        items=items_of(items, [f"text of {item}" for item in items]),
        queries=QuerySet(tuple(queries), tuple(f"text of {query}" for query in queries)),
        qrels={"q1": {"d1": 1}, "q2": {"d2": 1}} if qrels is None else qrels,
        candidates=candidates,
    )


@pytest.fixture
def beir(tmp_path):
    lines = [{"_id": "d1", "title": "", "text": "one"}, {"_id": "d2", "title": "", "text": ""}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (tmp_path / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": f"query {i}"}) + "\n" for i in range(4))
    )
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq2\td1\t1\nq0\td9\t1\nq8\td1\t1\nq1\td1\t0\n"
    )
    return tmp_path


def test_what_fits_together_has_no_findings():
    run = {"q1": [("d1", 1.0), ("d2", 0.5)]}
    assert dataset(candidates=run).findings == ()
    assert str(dataset()) == "x: 2 queries, 2 items, 2 judgements"
    one = dataset(queries=["q1"], items=["d1"], qrels={"q1": {"d1": 1}})
    assert str(one) == "x: 1 query, 1 item, 1 judgement"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"qrels": {"q1": {"d1": 1}}}, "1 query has no judgement: 'q2'"),
        (
            {"qrels": {"q1": {"d1": 0, "d2": -1}, "q2": {"d2": 1}}},
            "1 query has no relevant item among its judgements: 'q1'",
        ),
        (
            {"qrels": {"q1": {"d1": 1}, "q2": {"d2": 1}, "q7": {"d1": 1}, "q8": {"d1": 1}}},
            "2 judged queries are not there, the first 'q7'",
        ),
        (
            {"qrels": {"q1": {"d1": 1, "d8": 1}, "q2": {"d9": 1}}},
            "2 judgements name items that are not there, the first 'd8'",
        ),
        (
            {"candidates": {"q1": [("d1", 2.0), ("d2", 1.0), ("d1", 0.5)]}},
            "1 item is listed twice for a query: 'd1'",
        ),
        ({"candidates": {"q9": [("d1", 1.0)]}}, "1 list is of a query that is not there: 'q9'"),
        ({"candidates": {"q1": [("d9", 1.0)]}}, "1 listed item is not there: 'd9'"),
    ],
)
def test_what_does_not_fit_together_is_counted_and_kept(change, sentence):
    found = dataset(**change)
    (finding,) = found.findings
    assert str(finding).startswith(sentence)
    assert sentence in str(found)
    assert len(found) == 2
    for name, value in change.items():
        assert getattr(found, name) == value


def test_empty_texts_are_counted():
    found = Dataset(
        name="x",
        items=items_of(["d1", "d2"], ["one", " "]),
        queries=QuerySet(("q1",), ("",)),
        qrels={"q1": {"d1": 1}},
    )
    assert [finding.what for finding in found.findings] == [
        "items have an empty text",
        "queries have an empty text",
    ]


def test_ids_that_come_twice_are_refused():
    with pytest.raises(InputError, match="the query id 'q1' comes twice"):
        dataset(queries=("q1", "q1"))
    with pytest.raises(InputError, match="the item id 'd1' comes twice"):
        dataset(items=("d1", "d1"))


names = st.sampled_from("abcdef")


@given(
    st.sets(names),
    st.sets(names),
    st.dictionaries(names, st.dictionaries(names, st.integers(-1, 2), min_size=1)),
    st.dictionaries(names, st.lists(st.tuples(names, st.just(1.0)))),
)
def test_counts_agree_with_a_plain_count(queries, items, qrels, lists):
    found = dataset(queries=queries, items=items, qrels=qrels, candidates=lists)
    counts = {finding.what: finding.count for finding in check(found)}
    listed = [(q, i) for q, entries in lists.items() for i, _ in entries]
    relevant = {q for q, judged in qrels.items() if max(judged.values()) > 0}
    assert counts.get("queries have no judgement", 0) == len(queries - set(qrels))
    assert counts.get("queries have no relevant item among their judgements", 0) == len(
        (queries & set(qrels)) - relevant
    )
    assert counts.get("judged queries are not there", 0) == len(set(qrels) - queries)
    assert counts.get("judgements name items that are not there", 0) == sum(
        item not in items for judged in qrels.values() for item in judged
    )
    assert counts.get("items are listed twice for a query", 0) == len(listed) - len(set(listed))
    assert set(found.judged().queries.ids) == queries & relevant


def test_taken_queries_keep_their_judgements_and_lists():
    run = {"q1": [("d1", 1.0)], "q2": [("d2", 1.0)]}
    found = dataset(candidates=run)
    taken = found.take([1])
    assert taken.queries == QuerySet(("q2",), ("text of q2",))
    assert (taken.qrels, taken.candidates) == ({"q2": {"d2": 1}}, {"q2": [("d2", 1.0)]})
    assert taken.items is found.items
    assert dataset().take([0]).candidates is None


# Reading


def test_a_folder_is_read_with_what_does_not_fit(beir, caplog):
    found = read_dataset(beir, split="test")
    assert found.name == beir.name
    assert found.queries == QuerySet(("q0", "q1", "q2"), ("query 0", "query 1", "query 2"))
    assert list(found.items.texts) == ["one", ""]
    assert found.qrels["q0"] == {"d9": 1}
    assert [finding.what for finding in found.findings] == [
        "queries have no relevant item among their judgements",
        "judged queries are not there",
        "judgements name items that are not there",
        "items have an empty text",
    ]
    for finding in found.findings:
        assert f"{beir.name}: {finding}" in caplog.text
    assert found.candidates is None


def test_a_split_that_judges_other_queries_names_the_ids_of_both_sides(beir):
    (beir / "qrels" / "test.tsv").write_text("".join(f"r{i}\td1\t1\n" for i in range(4)))
    for read in (read_dataset, read_queries):
        with pytest.raises(InputError) as caught:
            read(beir, split="test")
        assert str(caught.value) == (
            f"{beir}/qrels/test.tsv judges none of the queries in {beir}/queries.jsonl: it names "
            "'r0', 'r1', 'r2', ..., and there are 'q0', 'q1', 'q2', ..."
        )


def test_limit_keeps_the_first_queries_and_all_items(beir):
    found = read_dataset(beir, limit=2)
    assert found.queries.ids == ("q0", "q1")
    assert set(found.qrels) == {"q0", "q1"}
    assert len(found.items) == 2
    assert len(read_dataset(beir, limit=99)) == 3
    with pytest.raises(InputError, match="limit is 0"):
        read_dataset(beir, limit=0)


def test_training_refuses_what_a_data_set_counts(beir):
    with pytest.raises(InputError, match=r"test\.tsv, line 4: the query 'q8' is not among"):
        read_labelled(beir, "test")


def test_items_queries_and_judgements_are_read_from_the_same_folder(beir):
    with pytest.raises(InputError, match="line 2 has an empty text"):
        read_items(beir)
    assert len(read_queries(beir)) == 4
    assert read_queries(beir, split="test").ids == ("q0", "q1", "q2")
    assert set(read_qrels(beir)) == {"q0", "q1", "q2", "q8"}


def test_the_format_is_seen_or_said(beir, tmp_path):
    assert open_folder(beir).format == "beir"
    (beir / "topics.tsv").write_text("1\tone\n")
    with pytest.raises(InputError, match=r"looks like beir and trec: say which .format="):
        read_dataset(beir)
    assert open_folder(beir, format="trec").format == "trec"
    with pytest.raises(InputError, match="unknown data format 'bier': did you mean beir"):
        read_dataset(beir, format="bier")
    known = "beir zeshel trec msmarco dstc7 aida wned blink irds"
    assert list(FORMATS) == known.split()


def test_what_is_no_data_folder(beir, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="another sign of a known format"):
        read_dataset(tmp_path / "empty")
    with pytest.raises(InputError, match="there is no file or folder"):
        read_dataset(tmp_path / "absent")
    with pytest.raises(InputError, match="is a file, where a folder of data is expected"):
        read_dataset(beir / "corpus.jsonl")
    with pytest.raises(InputError, match=r"no judgements qrels/tset\.tsv .did you mean test"):
        read_dataset(beir, split="tset")
    with pytest.raises(InputError, match="a BEIR folder, which has no domains"):
        read_dataset(beir, domain="x")
