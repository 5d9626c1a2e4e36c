"""Learning from use: when it is time, what is learned, and what that is worth."""

from __future__ import annotations

import threading

import pytest
from library import Library, N

from crossknn import CallableScorer
from crossknn.errors import InputError
from crossknn.fitting import learning
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.learning import FIRST_FIT, Learner, is_due, learn
from crossknn.index.item_index import ItemIndex
from crossknn.methods.prior import stored_prior
from crossknn.scores.collect import exact_scores
from crossknn.scores.stored import StoredScorer

QUICK = "rerank(retriever=vectors)"
"""Scores as many pairs of a query as any other method, at once."""


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(learning, "LOW", 0)  # the fit need not wait for other processes
    return Library()


def test_the_first_searches_are_learned_from_when_there_are_enough_of_them(library):
    index = library.index()
    library.search(index, 0, FIRST_FIT - 1, "auto")
    assert learn(index, library.scorer) is None
    assert stored_prior(index) is None
    library.search(index, FIRST_FIT - 1, FIRST_FIT, "auto")
    found = learn(index, StoredScorer(library.scorer, index.scores))
    assert (found.queries, found.pairs, found.stored) == (FIRST_FIT, FIRST_FIT * 25, FIRST_FIT * 25)
    assert stored_prior(index).queries == FIRST_FIT
    assert learn(index, library.scorer) is None


def test_it_is_learned_again_when_the_scores_have_grown_by_a_tenth(library):
    index = library.index()
    library.search(index, 0, FIRST_FIT, QUICK)
    learn(index, library.scorer)
    library.search(index, 30, 32, "axn")
    assert not is_due(index, library.scorer)
    library.search(index, 32, 34, "axn")
    assert learn(index, library.scorer).queries == 34


def test_an_index_with_ten_anchors_or_more_is_fitted_to_them_alone(library):
    index = library.index()
    collect_anchors(index, library.scorer, library.texts(0, 10))
    library.search(index, 10, 10 + FIRST_FIT, QUICK)
    assert not is_due(index, library.scorer)


def test_queries_scored_with_every_item_are_the_truth_of_a_comparison_and_not_learned_from(library):
    index = library.index()
    exact_scores(index.scores, library.scorer, library.texts(0, 2 * FIRST_FIT), index.items.texts)
    assert not is_due(index, library.scorer)
    assert learn(index, library.scorer) is None
    assert stored_prior(index) is None


def test_anchors_of_another_cross_encoder_are_never_mixed_with_what_is_learned(library):
    index = library.index()
    collect_anchors(index, CallableScorer(library.score, "other"), library.texts(0, 4))
    library.search(index, 10, 10 + FIRST_FIT, QUICK)
    assert learn(index, library.scorer).queries == FIRST_FIT
    assert stored_prior(index.for_scorer(library.scorer.fingerprint)).n_anchor_queries == 0
    assert stored_prior(index.for_scorer("other")) is None


def test_an_index_whose_queries_have_no_vectors_learns_what_its_words_can_tell(library):
    records = [{"id": str(i), "text": f"item {i}"} for i in range(N)]
    index = ItemIndex.build(records, vectors=library.items)
    method = "kriging(retriever=bm25)"
    library.search(index, 0, FIRST_FIT, method)
    assert learn(index, library.scorer).queries == FIRST_FIT
    assert len(library.search(index, 50, 51, method)[0]) == 10


def test_a_saved_index_keeps_what_was_learned_and_when(library, tmp_path):
    index = library.index()
    index.save(tmp_path / "index")
    library.search(index, 0, FIRST_FIT, QUICK)
    learn(index, library.scorer)
    again = ItemIndex.load(tmp_path / "index", query_vectors=library.vectors_of)
    assert stored_prior(again).stored == FIRST_FIT * 25
    assert not is_due(again, library.scorer)


def test_it_is_learned_in_the_background_once_while_searches_go_on(library, monkeypatch):
    index, begun, goes_on = library.index(), threading.Event(), threading.Event()
    learner = Learner(index, library.scorer)
    assert not learner.notice()
    library.search(index, 0, FIRST_FIT, QUICK)

    def slow(*args):
        begun.set()
        assert goes_on.wait(30)
        return learn(*args)

    monkeypatch.setattr("crossknn.fitting.learning.learn", slow)
    assert learner.notice()
    assert begun.wait(30)
    assert not learner.notice()
    assert len(library.search(index, 100, 101, "auto")[0]) == 10
    assert stored_prior(index) is None
    goes_on.set()
    learner.wait(30)
    assert stored_prior(index).queries == FIRST_FIT + 1
    assert not learner.notice()


def test_nothing_is_learned_of_items_that_changed_meanwhile(library, monkeypatch, caplog):
    index = library.index()
    library.search(index, 0, FIRST_FIT, QUICK)
    learner, fit = Learner(index, library.scorer), learning.fit_prior

    def slow(*args, **options):
        index.delete(["7"])
        index.add([{"id": "new", "text": "item 7"}], vectors=library.items[:1])
        index.compact()
        return fit(*args, **options)

    monkeypatch.setattr("crossknn.fitting.learning.fit_prior", slow)
    assert learner.notice()
    learner.wait(30)
    assert "nothing was learned from the searches: items were added or removed" in caplog.text
    assert (index.n, stored_prior(index)) == (N, None)


def test_what_cannot_be_learned_from_is_said_and_searches_go_on(library, monkeypatch, caplog):
    index = library.index()
    library.search(index, 0, FIRST_FIT, QUICK)

    def full(*args, **options):
        raise InputError("the disk is full")

    monkeypatch.setattr("crossknn.fitting.learning.fit_prior", full)
    learner = Learner(index, library.scorer)
    assert learner.notice()
    learner.wait(30)
    assert "nothing was learned from the searches: the disk is full" in caplog.text
    assert len(library.search(index, 100, 101, "auto")[0]) == 10
    with pytest.raises(InputError, match="has no fingerprint"):
        Learner(index, CallableScorer(library.score))
