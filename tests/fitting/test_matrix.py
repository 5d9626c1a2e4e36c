"""A score matrix file holds exact scores, is scored once, and replays."""

from __future__ import annotations

import numpy as np
import pytest
from index_helpers import FormulaScorer, LengthEncoder, corpus, score_of

from crossknn.data.queries import QuerySet
from crossknn.errors import InputError, ScorerError
from crossknn.evaluation.replay import replay
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.matrix import MatrixFile
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import StoredMatrix, read_arrays
from crossknn.methods import methods
from crossknn.scores.collect import Limits
from crossknn.types import Queries

TEXTS = ("one fish", "two", "red fish and more", "two", "blue stone")
QUERIES = QuerySet(tuple(f"q{i}" for i in range(5)), TEXTS)


@pytest.fixture
def index():
    return ItemIndex.build(corpus(20), encoder=LengthEncoder(), tfidf=True)


def exact(index, texts):
    return np.array([[score_of(q, t) for t in index.items.texts] for q in texts], np.float32)


def first(count):
    return QuerySet(QUERIES.ids[:count], QUERIES.texts[:count])


def test_what_is_written_is_exact_and_replays(index, tmp_path):
    path, scorer = tmp_path / "m.npz", FormulaScorer()
    file = MatrixFile(path, index, scorer)
    qrels = {"q1": {"gone": 1, "i3": 0, "i7": 2, "i5": 1}, "q2": {"i3": 0}}
    report = file.add_queries(QUERIES, anchors=2, qrels=qrels)
    assert (report.calls, report.complete) == (80, True)  # "two" is asked once
    assert file.add_items(4).calls == 80
    arrays, data = read_arrays(path), StoredMatrix.load(path)
    assert arrays["scores"].dtype == np.float32
    np.testing.assert_array_equal(data.scores, exact(index, TEXTS))
    assert (data.n_anchors, data.query_ids) == (2, QUERIES.ids)
    assert data.labels.tolist() == [-1, 7, -1, -1, -1]
    assert arrays["item_ids"].tolist() == list(index.items.ids)
    np.testing.assert_array_equal(data.anchor_items, index.anchor_items)
    np.testing.assert_allclose(data.item_vectors, index.vectors["dense"], rtol=1e-3)
    assert set(data.firsts) == {"bm25", "tfidf"}
    bm25 = index.retrievers["bm25"].scores(Queries(QUERIES.texts))
    np.testing.assert_allclose(data.firsts["bm25"], bm25, rtol=1e-3)
    chosen = [index.items.texts[i] for i in data.item_scores.items]
    np.testing.assert_array_equal(data.item_scores.scores, exact(index, chosen))
    known = methods(
        "rerank(retriever=bm25), rerank(retriever=dense), adacur, axn, itemcur, fixeditem"
    )
    assert all(row.recall == 1 for row in replay(data, known, [20], [3]))


def test_nothing_that_is_there_is_paid_again(index, tmp_path):
    path = tmp_path / "m.npz"
    MatrixFile(path, index, FormulaScorer()).add_queries(first(2))
    more = MatrixFile(path, index, FormulaScorer()).add_queries(QUERIES, anchors=0)
    assert more.calls == 40
    np.testing.assert_allclose(StoredMatrix.load(path).scores, exact(index, TEXTS), rtol=1e-3)
    before = MatrixFile(path, index, FormulaScorer())
    assert (before.add_items(3).calls, before.add_items(5).calls) == (60, 40)
    after = MatrixFile(path, index, FormulaScorer())
    assert (after.add_queries(QUERIES).calls, after.add_items(5).calls) == (0, 0)
    again = StoredMatrix.load(path)
    assert (again.n_anchors, len(again.item_scores.items)) == (2, 5)
    chosen = [index.items.texts[i] for i in again.item_scores.items]
    np.testing.assert_allclose(again.item_scores.scores, exact(index, chosen), rtol=1e-3)


def test_what_the_index_has_is_taken_over(index, tmp_path):
    collect_anchors(index, FormulaScorer(), TEXTS[:2])
    assert MatrixFile(tmp_path / "m.npz", index, FormulaScorer()).add_queries(QUERIES).calls == 40
    other = MatrixFile(tmp_path / "o.npz", index, FormulaScorer("other"))
    assert other.add_queries(QUERIES).calls == 80


def test_parts_come_in_any_order(index, tmp_path):
    path = tmp_path / "m.npz"
    MatrixFile(path, index, FormulaScorer()).add_items(3)
    with pytest.raises(InputError, match="holds item x item scores only: add queries"):
        StoredMatrix.load(path)
    MatrixFile(path, index, FormulaScorer()).add_queries(QUERIES)
    data = StoredMatrix.load(path)
    assert (data.scores.shape, data.item_scores.scores.shape) == ((5, 20), (3, 20))
    # They are not the index's anchor items in the same order.
    assert data.item_scores.items.tolist() != index.anchor_items[:3].tolist()


def test_max_calls_leaves_the_file_alone_and_keeps_the_rest_for_later(index, tmp_path):
    path, scorer = tmp_path / "m.npz", FormulaScorer()
    report = MatrixFile(path, index, scorer).add_queries(QUERIES, limits=Limits(max_calls=33))
    assert (report.calls, report.complete, path.exists()) == (33, False, False)
    # An unfinished part does not get lost with the other one.
    assert MatrixFile(path, index, scorer).add_items(2).calls == 40
    assert MatrixFile(path, index, scorer).add_queries(QUERIES).calls == 47
    assert len(set(scorer.asked)) == len(scorer.asked)


def test_a_score_too_large_for_half_precision_costs_nothing_twice(index, tmp_path):
    class Large(FormulaScorer):
        def score(self, pairs, queries, items, **limits):
            for where, scores in super().score(pairs, queries, items):
                yield where, scores + np.where(pairs.item[where] == 6, 70_000, 0)

    path = tmp_path / "m.npz"
    with pytest.raises(
        InputError, match=r"the score (7|6999).* of query 'q0' and item 'i6'.*--dtype"
    ):
        MatrixFile(path, index, Large(), dtype="float16").add_queries(QUERIES)
    assert not path.exists()
    again = MatrixFile(path, index, Large(), dtype="float32")
    assert again.add_queries(QUERIES).calls == 0
    assert StoredMatrix.load(path).scores[:, 6].min() > 69_000


def test_pairs_left_out_are_asked_again(index, tmp_path):
    path, bad = tmp_path / "m.npz", index.items.texts[4]
    with pytest.raises(ScorerError, match="4 of 80 pairs could not be scored"):
        MatrixFile(path, index, FormulaScorer(skip=[bad])).add_queries(QUERIES)
    assert MatrixFile(path, index, FormulaScorer()).add_queries(QUERIES).calls == 4


def test_scores_of_something_else_are_refused(index, tmp_path):
    path = tmp_path / "m.npz"
    MatrixFile(path, index, FormulaScorer()).add_queries(first(3))
    MatrixFile(path, index, FormulaScorer()).add_items(4)
    before = path.read_bytes()
    np.savez(tmp_path / "own.npz", scores=np.zeros((2, 20)))
    fewer = ItemIndex.build(corpus(19))
    for make, words in {
        lambda: MatrixFile(path, fewer, FormulaScorer()): "scores of other items",
        lambda: MatrixFile(path, index, FormulaScorer("x")): "scores of another cross-encoder",
        lambda: MatrixFile(path, index, FormulaScorer(None)): "scores of another cross-encoder",
        lambda: MatrixFile(path, index, FormulaScorer(), dtype="float16"): "float32, not float16",
        lambda: MatrixFile(tmp_path / "own.npz", index, FormulaScorer()): "that it does not name",
        lambda: MatrixFile(path, index, FormulaScorer()).add_queries(first(2)): "other queries",
        lambda: MatrixFile(path, index, FormulaScorer()).add_items(4, seed=1): "scores of other",
        lambda: MatrixFile(path, index, FormulaScorer()).add_items(3): "scores of other",
    }.items():
        with pytest.raises(InputError, match=words):
            make()
    assert path.read_bytes() == before
    other = MatrixFile(path, index, FormulaScorer("x"), replace=True)
    assert other.add_queries(first(2)).calls == 40
    assert StoredMatrix.load(path).item_scores is None


def test_wrong_arguments(index, tmp_path):
    for name, words in (("m.txt", "must end in .npz"), ("a/m.npz", "there is no folder")):
        with pytest.raises(InputError, match=words):
            MatrixFile(tmp_path / name, index, FormulaScorer())
    with pytest.raises(InputError, match="dtype is 'int8'"):
        MatrixFile(tmp_path / "m.npz", index, FormulaScorer(), dtype="int8")
    file = MatrixFile(tmp_path / "m.npz", index, FormulaScorer())
    for anchors in (-1, 5):
        with pytest.raises(InputError, match=f"anchors is {anchors}, with 5 queries"):
            file.add_queries(QUERIES, anchors=anchors)
    with pytest.raises(InputError, match="no query is judged"):
        file.add_queries(QUERIES, qrels={"x": {"i1": 1}})
    for count in (0, 21):
        with pytest.raises(InputError, match=f"to score is {count}; it must be 1 to 20"):
            file.add_items(count)
    assert not list(tmp_path.iterdir())


def test_a_first_stage_without_query_vectors_is_left_out(tmp_path, caplog):
    index = ItemIndex.build(corpus(6), vectors=np.ones((6, 2)))
    MatrixFile(tmp_path / "m.npz", index, FormulaScorer()).add_queries(QUERIES)
    assert set(StoredMatrix.load(tmp_path / "m.npz").firsts) == {"bm25"}
    assert "no retriever vectors" in caplog.text


def test_rows_of_a_matrix_in_single_precision_are_put_into_an_index(index, tmp_path):
    file = MatrixFile(tmp_path / "m.npz", index, FormulaScorer(), dtype="float32")
    file.add_queries(first(3))
    other = ItemIndex.build(corpus(20), encoder=LengthEncoder())
    again = MatrixFile(tmp_path / "m.npz", other, FormulaScorer())
    assert again.add_queries(QUERIES).calls == 20
    assert collect_anchors(other, FormulaScorer(), TEXTS[:3]).calls == 0
