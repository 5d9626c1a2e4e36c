"""Score matrices: exact, scored once, of one cross-encoder."""

from __future__ import annotations

import numpy as np
import pytest
from index_helpers import FormulaScorer, LengthEncoder, corpus, score_of

from crossknn.data.queries import QuerySet
from crossknn.errors import InputError, ScorerError
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.item_index import ItemIndex
from crossknn.methods import parse_methods
from crossknn.scores.collect import Limits
from crossknn.types import Queries
from crossknn_lab.collecting import collect_matrix
from crossknn_lab.replay import replay
from crossknn_lab.rivals.item_scores import ITEM_SCORES
from crossknn_lab.stored import StoredMatrix, read_arrays

QUERIES = ["one fish", "two", "red fish and more"]
N = 20
TEXTS = (*QUERIES, "two", "blue stone")
ASKED = QuerySet(tuple(f"q{i}" for i in range(5)), TEXTS)


def exact(index, texts):
    return np.array([[score_of(q, t) for t in index.items.texts] for q in texts], np.float32)


@pytest.fixture
def index():
    return ItemIndex.build(corpus(N), encoder=LengthEncoder())


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
    assert set(data.firsts) == {"bm25"}
    bm25 = index.retrievers["bm25"].scores(Queries(TEXTS))
    np.testing.assert_allclose(data.firsts["bm25"], bm25, rtol=1e-3)
    pairs = data.artifacts[ITEM_SCORES].arrays
    chosen = [index.items.texts[i] for i in pairs["items"]]
    np.testing.assert_array_equal(pairs["scores"], exact(index, chosen))
    assert pairs["items"].tolist() != index.anchor_items[:4].tolist()
    known = parse_methods(
        "rerank(retriever=bm25), rerank(retriever=dense), adacur, axn, itemcur, fixeditem"
    )
    assert all(row["recall"] == 1 for row in replay(data, known, [20], [3]))


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


def test_a_file_of_something_else_is_not_replaced(index, path):
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
    np.savez(path, scores=np.zeros((2, 20)))
    with pytest.raises(InputError, match="no scores of these items"):
        collect_matrix(path, index, FormulaScorer("x"), ASKED)
