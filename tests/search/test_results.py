"""What a search returns: runs, data frames; query ids; budgets as objects."""

from __future__ import annotations

import pytest

import crossknn as ck

TEXTS = [f"{verb} a {noun}" for verb in ("zip", "sort", "lock") for noun in ("file", "list", "key")]


def overlap(pairs):
    return [len(set(q.split()) & set(t.split())) + len(t) / 100 for q, t in pairs]


@pytest.fixture(scope="module")
def searcher():
    items = [{"id": f"i{n}", "text": text} for n, text in enumerate(TEXTS)]
    return ck.Searcher(
        ck.ItemIndex.build(items, lsa=2), overlap, ck.AXN(retriever="bm25", rounds=2)
    )


@pytest.fixture(scope="module")
def results(searcher):
    return searcher.search({"q7": "zip a file", "q8": "<b>lock</b> it"}, k=2, budget=4)


def test_a_run_has_the_queries_ids(results, tmp_path):
    run = results.to_run(tmp_path / "run.txt")
    assert list(run) == ["q7", "q8"]
    assert run["q7"] == {hit.id: hit.score for hit in results[0]}
    lines = (tmp_path / "run.txt").read_text().splitlines()
    assert lines[0].split()[:4] == ["q7", "Q0", results[0][0].id, "1"]
    assert [line.split()[-1] for line in lines] == ["axn"] * 4
    assert float(lines[0].split()[4]) == pytest.approx(results[0][0].score)


def test_a_run_refuses_ids_with_blanks_and_folders(results, searcher, tmp_path):
    blank = searcher.search({"my query": "zip"}, k=1, budget=2)
    with pytest.raises(ck.InputError, match="has blanks in its id"):
        blank.to_run(tmp_path / "run.txt")
    with pytest.raises(ck.InputError, match="cannot be written"):
        results.to_run(tmp_path)


def test_a_data_frame_has_a_row_for_each_hit(results):
    frame = pytest.importorskip("pandas") and results.to_pandas()
    assert frame[["qid", "docno", "rank"]].to_numpy().tolist() == [
        [qid, hit.id, rank]
        for qid, hits in zip(results.query_ids, results, strict=True)
        for rank, hit in enumerate(hits)
    ]


def test_it_is_shown_in_a_line(results):
    assert repr(results).startswith("<Results of axn(retriever=bm25, rounds=2): 2 queries, 4 hits")


def test_queries_come_as_a_set_too(searcher):
    found = searcher.search(ck.QuerySet(("a",), ("zip",)), k=1, budget=2)
    assert (found.query_ids, found.queries) == (("a",), ("zip",))
    assert searcher.search(["zip", "lock"], k=1, budget=2).query_ids == ("0", "1")


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (ck.Budget(per_query=3, total=9), "a total and pairs per query: give one of them"),
        (ck.Budget(target_recall=0.9), "axn does not say how much it expects to have found"),
        (ck.Budget(deadline=-1), "deadline is -1; it must be above 0"),
    ],
)
def test_budgets_that_cannot_be(searcher, budget, words):
    with pytest.raises(ck.InputError, match=words):
        searcher.search("zip", k=2, budget=budget)


def test_a_target_is_the_methods_and_for_the_k_that_is_wanted():
    index = ck.ItemIndex.build(TEXTS, lsa=3)
    ck.collect_anchors(index, overlap, ["zip it", "sort it", "a list", "lock the key"])
    search = ck.Searcher(index, overlap, "kriging(retriever=bm25, rounds=3)").search
    found = search("zip a list", k=2, budget=ck.Budget(per_query=9, target_recall=0.5))
    assert "target_recall=0.5, k=2" in found.method
    assert found[0][0].text == "zip a list"
