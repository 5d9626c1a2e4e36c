"""Rows of exact scores, in an index or a matrix file: exact, scored once, of one cross-encoder."""

from __future__ import annotations

import numpy as np
import pytest
from index_helpers import FormulaScorer, LengthEncoder, corpus, score_of

from crossknn.data.queries import QuerySet
from crossknn.errors import InputError, ScorerError
from crossknn.evaluation.replay import replay
from crossknn.fitting.anchors import (
    collect_anchors,
    collect_item_scores,
    collect_matrix,
    fit_scales,
)
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import StoredMatrix, read_arrays
from crossknn.methods import parse_methods
from crossknn.scores.collect import Limits
from crossknn.types import Queries

QUERIES = ["one fish", "two", "red fish and more"]
N = 20
TEXTS = (*QUERIES, "two", "blue stone")
ASKED = QuerySet(tuple(f"q{i}" for i in range(5)), TEXTS)


@pytest.fixture
def saved(tmp_path):
    index = ItemIndex.build(corpus(N), encoder=LengthEncoder())
    index.save(tmp_path / "i")
    return index


def load(index):
    return ItemIndex.load(index.folder, encoder=LengthEncoder())


def exact(index, texts):
    return np.array([[score_of(q, t) for t in index.items.texts] for q in texts], np.float32)


def check(index, queries=QUERIES):
    for one in (index, load(index)):
        assert list(one.anchors.queries.texts) == list(queries)
        np.testing.assert_array_equal(one.anchors.scores, exact(index, queries))
        inner = one.query_vectors(Queries(queries), "dense") @ np.asarray(one.vectors["dense"]).T
        scaled = one.scale("dense").beta * (exact(index, queries) - one.scale("dense").alpha)
        np.testing.assert_allclose(
            [scaled.mean(), scaled.std()], [inner.mean(), inner.std()], rtol=1e-4
        )


def test_a_stop_is_gone_on_from_and_only_whole_rows_are_anchors(saved):
    first, second = FormulaScorer(), FormulaScorer()
    report = collect_anchors(saved, first, QUERIES, limits=Limits(max_calls=33))
    assert (report.calls, report.stopped_by, len(saved.anchors.queries)) == (33, "max_calls", 1)
    again = load(saved)
    report = collect_anchors(again, second, QUERIES)
    assert (report.calls, report.reused) == (27, 33)
    assert not set(first.asked) & set(second.asked)
    check(again)


def test_two_open_indexes_of_one_folder_share_their_anchors(saved):
    other = load(saved)
    collect_anchors(saved, FormulaScorer(), QUERIES[:2])
    report = collect_anchors(other, FormulaScorer(), [*QUERIES[1:], QUERIES[0], QUERIES[2]])
    assert (report.calls, report.reused) == (N, 2 * N)  # equal queries are one
    check(other)
    with pytest.raises(InputError, match="there are no texts"):
        collect_anchors(other, FormulaScorer(), [])


def test_scores_of_two_cross_encoders_are_not_mixed(saved):
    collect_anchors(saved, FormulaScorer(), QUERIES)
    assert collect_anchors(saved, FormulaScorer("other"), QUERIES[:2]).calls == 2 * N
    for index in (saved, load(saved)):
        own = index.for_scorer("formula").anchors
        np.testing.assert_array_equal(own.scores, exact(index, QUERIES))
        assert list(own.queries.texts) == QUERIES
        assert len(index.for_scorer("other").anchors.queries) == 2
        assert index.for_scorer("a third").anchors is None
    with pytest.raises(InputError, match="the cross-encoder has no fingerprint"):
        collect_anchors(saved, FormulaScorer(None), QUERIES)
    assert collect_anchors(saved, FormulaScorer("other"), QUERIES[:1], replace=True).calls == 0
    assert saved.for_scorer("formula").anchors is None
    assert (saved.scorer_fingerprint("anchors"), len(saved.anchors.queries)) == ("other", 2)
    assert collect_anchors(saved, FormulaScorer(), QUERIES, replace=True).calls == 0
    collect_anchors(saved, FormulaScorer(), QUERIES[:1], replace=True)
    check(saved)  # nothing of the same cross-encoder is dropped


def test_a_scorer_without_a_name_serves_an_index_in_memory_once():
    index = ItemIndex.build(corpus(5), lsa=2)
    collect_anchors(index, FormulaScorer(None), QUERIES[:2])
    assert index.anchors.scores.shape == (2, 5)
    with pytest.raises(InputError, match="of a cross-encoder without a name, and so is"):
        collect_anchors(index, FormulaScorer(None), QUERIES)


def test_items_in_the_querys_place(saved):
    report = collect_item_scores(saved, FormulaScorer(), np.array([7, 2]))
    assert report.calls == 2 * N
    report = collect_item_scores(saved, FormulaScorer(), np.array([2, 5]))
    assert report.calls == N
    for index in (saved, load(saved)):
        assert index.item_scores.items.tolist() == [7, 2, 5]
        texts = [index.items.texts[i] for i in (7, 2, 5)]
        np.testing.assert_array_equal(index.item_scores.scores, exact(index, texts))


def test_an_index_built_again_keeps_scores_and_what_fits(saved):
    collect_anchors(saved, FormulaScorer(), QUERIES[:2])
    same = ItemIndex.build(corpus(N), encoder=LengthEncoder(), lsa=3, previous=saved)
    same.save(saved.folder)
    fit_scales(same)
    assert same.scale("lsa") is not None
    check(same, QUERIES[:2])
    more = ItemIndex.build(corpus(N + 5), encoder=LengthEncoder(), previous=load(same))
    more.save(saved.folder)
    assert more.anchors is None
    assert collect_anchors(more, FormulaScorer(), QUERIES).calls == 2 * 5 + N + 5
    check(more)


@pytest.fixture
def index():
    return ItemIndex.build(corpus(N), encoder=LengthEncoder(), tfidf=True)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.npz"


def test_a_matrix_file_is_exact_and_replays(index, path):
    qrels = {"q1": {"gone": 1, "i3": 0, "i7": 2, "i5": 1}, "q2": {"i3": 0}}
    options = {"n_anchors": 2, "qrels": qrels, "item_scores": 4}
    report = collect_matrix(path, index, FormulaScorer(), ASKED, **options)
    assert (report.calls, report.complete) == (160, True)  # "two" is asked once
    arrays, data = read_arrays(path), StoredMatrix.load(path)
    np.testing.assert_array_equal(data.scores, exact(index, TEXTS))
    assert (data.n_anchors, data.query_ids) == (2, ASKED.ids)
    assert data.qrels.tolist() == [[1, -1, 1], [1, 3, 0], [1, 7, 2], [1, 5, 1], [2, 3, 0]]
    assert arrays["item_ids"].tolist() == list(index.items.ids)
    np.testing.assert_array_equal(data.anchor_items, index.anchor_items)
    np.testing.assert_allclose(data.dense_items, index.vectors["dense"], rtol=1e-3)
    assert set(data.firsts) == {"bm25", "tfidf"}
    bm25 = index.retrievers["bm25"].scores(Queries(TEXTS))
    np.testing.assert_allclose(data.firsts["bm25"], bm25, rtol=1e-3)
    chosen = [index.items.texts[i] for i in data.item_scores.items]
    np.testing.assert_array_equal(data.item_scores.scores, exact(index, chosen))
    assert data.item_scores.items.tolist() != index.anchor_items[:4].tolist()
    known = parse_methods(
        "rerank(retriever=bm25), rerank(retriever=dense), adacur, axn, itemcur, fixeditem"
    )
    assert all(row.recall == 1 for row in replay(data, known, [20], [3]))


def test_a_stopped_collection_writes_no_file_and_goes_on(index, path):
    scorer = FormulaScorer()
    report = collect_matrix(path, index, scorer, ASKED, limits=Limits(max_calls=33))
    assert (report.calls, report.complete, path.exists()) == (33, False, False)
    collect_anchors(index, scorer, TEXTS[:3])
    assert collect_matrix(path, index, scorer, ASKED).calls == 20
    assert len(set(scorer.asked)) == len(scorer.asked) == 80
    assert collect_matrix(path, index, scorer, ASKED, item_scores=3).calls == 60
    assert collect_matrix(path, index, scorer, ASKED, item_scores=5).calls == 40


def test_pairs_that_a_matrix_lacks_are_asked_again(index, path):
    bad = index.items.texts[4]
    with pytest.raises(ScorerError, match="4 of 80 pairs could not be scored"):
        collect_matrix(path, index, FormulaScorer(skip=[bad]), ASKED)
    assert collect_matrix(path, index, FormulaScorer(), ASKED).calls == 4


def test_a_file_of_something_else_is_only_replaced_on_demand(index, path):
    collect_matrix(path, index, FormulaScorer(), ASKED, item_scores=4)
    before = path.read_bytes()
    for other, scorer in (
        (ItemIndex.build(corpus(19)), FormulaScorer()),
        (index, FormulaScorer("x")),
        (index, FormulaScorer(None)),
    ):
        with pytest.raises(InputError, match="no scores of these items by this cross-encoder"):
            collect_matrix(path, other, scorer, ASKED)
    assert path.read_bytes() == before
    assert collect_matrix(path, index, FormulaScorer("x"), ASKED, replace=True).calls == 80
    assert StoredMatrix.load(path).item_scores is None
    np.savez(path, scores=np.zeros((2, 20)))
    with pytest.raises(InputError, match="no scores of these items"):
        collect_matrix(path, index, FormulaScorer("x"), ASKED)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("m.txt", {}, "an .npz file in an existing folder"),
        ("a/m.npz", {}, "an .npz file in an existing folder"),
        ("m.npz", {"n_anchors": -1}, "n_anchors is -1; it must be 0 to 4"),
        ("m.npz", {"n_anchors": 5}, "n_anchors is 5; it must be 0 to 4"),
        ("m.npz", {"qrels": {"x": {"i1": 1}}}, "the qrels judge none"),
        ("m.npz", {"item_scores": 21}, "item_scores is 21; it must be 0 to 20"),
    ],
)
def test_wrong_arguments_of_a_matrix_cost_nothing(index, tmp_path, name, options, said):
    scorer = FormulaScorer()
    with pytest.raises(InputError, match=said):
        collect_matrix(tmp_path / name, index, scorer, ASKED, **options)
    assert (scorer.asked, list(tmp_path.iterdir())) == ([], [])


def test_a_retriever_without_query_vectors_is_left_out(path, caplog):
    index = ItemIndex.build(corpus(6), vectors=np.ones((6, 2)))
    collect_matrix(path, index, FormulaScorer(), ASKED)
    assert set(StoredMatrix.load(path).firsts) == {"bm25"}
    assert "no retriever vectors" in caplog.text
