"""Rows of exact scores, exact, scored once, of one cross-encoder."""

from __future__ import annotations

import numpy as np
import pytest
from index_helpers import FormulaScorer, LengthEncoder, corpus, score_of

from crossknn.data.queries import QuerySet
from crossknn.errors import InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.item_index import ItemIndex
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
    with pytest.raises(InputError, match="holds no queries"):
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
    assert saved.artifacts["anchors"].meta["fingerprint"] == "other"
    assert len(saved.anchors.queries) == 2
    assert collect_anchors(saved, FormulaScorer(), QUERIES).calls == 0


def test_a_scorer_without_a_name_serves_an_index_in_memory_once():
    index = ItemIndex.build(corpus(5), lsa=2)
    collect_anchors(index, FormulaScorer(None), QUERIES[:2])
    assert index.anchors.scores.shape == (2, 5)
    with pytest.raises(InputError, match="belong to a cross-encoder without a name"):
        collect_anchors(index, FormulaScorer(None), QUERIES)


def test_an_index_built_again_keeps_scores(saved, caplog):
    collect_anchors(saved, FormulaScorer(), QUERIES[:2])
    more = ItemIndex.build(corpus(N + 5), encoder=LengthEncoder(), folder=saved.folder)
    assert more.anchors is None
    assert "its anchors and fits are dropped" in caplog.text
    assert collect_anchors(more, FormulaScorer(), QUERIES).calls == 2 * 5 + N + 5
    check(more)
