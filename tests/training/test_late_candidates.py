"""What late-interaction models learn from: a retriever's items, and lists drawn from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import labelled

torch = pytest.importorskip("torch")

from crossknn.errors import InputError  # noqa: E402
from crossknn.retrievers.lexical import BM25, TFIDF  # noqa: E402
from crossknn.training.candidates import CandidateRetriever, Lists  # noqa: E402
from crossknn.training.corpora import Corpora  # noqa: E402
from crossknn.training.settings import CandidateSettings  # noqa: E402
from crossknn.types import NO_ITEM, Candidates, Queries  # noqa: E402

pytestmark = pytest.mark.torch

DEPTH = 60


def wanted(**changes):
    return CandidateSettings(**({"retriever": "random", "count": 6, "depth": DEPTH} | changes))


def found_of(scores, right=((0,),)):
    """Rows as `Retriever.found` gives them: `scores` (m, depth) of wrong items 100, 101, ..."""
    scores = np.asarray(scores, np.float32)
    width = max(len(items) for items in right)
    found = np.zeros((len(scores), width + scores.shape[1]), [("item", "i4"), ("score", "f4")])
    found["item"] = NO_ITEM
    found["score"] = -np.inf
    for row, items in enumerate(right):
        found[row, : len(items)]["item"] = items
        found[row, : len(items)]["score"] = [0.25 + item for item in items]
    found["item"][:, width:] = np.where(scores > -np.inf, 100 + np.arange(scores.shape[1]), NO_ITEM)
    found["score"][:, width:] = scores
    return found


class Words:
    """An encoder of bags of words at unit length, or longer; reads no marks."""

    fingerprint = None
    words = ("oak", "elm", "fir", "ash")
    dimensions = 4

    def __init__(self, length=1.0):
        self.length, self.seen = length, []

    def encode_queries(self, texts):
        self.seen += texts
        counts = np.array([[t.split().count(w) + 0.1 for w in self.words] for t in texts])
        norms = np.linalg.norm(counts, axis=1, keepdims=True)
        return (self.length * counts / norms).astype(np.float32)

    def encode_items(self, texts, progress=None):
        return self.encode_queries(texts)


PART = labelled(
    ["oak elm", "oak", "elm fir", "ash", "oak oak elm"],
    ["oak elm", "fir ash", "oak"],
    [[0], [2, 3], [1]],
)
OTHER = labelled(["oak", "elm", "oak fir"], ["oak", "elm"], [[0], [1]], name="other")


LISTS = Candidates.from_rows(
    [
        (np.array([1, 0, 4]), np.array([3.0, 2.0, 1.0])),
        (np.array([4, 1]), np.array([-1.0, -2.0])),  # neither of the right items
        (np.array([], dtype=np.int64), np.array([])),
    ]
)


# What a retriever finds


@pytest.mark.parametrize(("name", "stage", "scale"), [("bm25", BM25, 1), ("tfidf", TFIDF, 20)])
def test_words_find_the_best_wrong_items_and_score_right_ones_too(name, stage, scale):
    found = CandidateRetriever(wanted(retriever=name, depth=4, count=2)).found(Corpora([PART]))
    scores = stage.fit(PART.items.texts).scores(Queries(PART.queries.texts)) * scale
    assert found.shape == (3, 2 + 4)
    for row, positives in enumerate(PART.positives):
        assert found["item"][row, : len(positives)].tolist() == positives.tolist()
        np.testing.assert_allclose(found["score"][row, : len(positives)], scores[row, positives])
        known = found["item"][row, 2:]
        known = known[known != NO_ITEM]
        near = [i for i in np.argsort(-scores[row], kind="stable") if scores[row, i] > 0]
        assert known.tolist() == [i for i in near if i not in positives]
        np.testing.assert_allclose(found["score"][row, 2 : 2 + len(known)], scores[row, known])
        assert (found["score"][row, 2 + len(known) :] == -np.inf).all()
    assert found["item"][1, 2] == NO_ITEM  # no wrong item shares a word with the second query


@pytest.mark.parametrize(("length", "scale"), [(1.0, 20.0), (3.0, 1.0)])
def test_unit_vectors_are_multiplied_by_twenty(length, scale):
    encoder = Words(length)
    retriever = CandidateRetriever(wanted(retriever="words", depth=3, count=3), lambda: encoder)
    found = retriever.found(Corpora([PART]))
    vectors = encoder.encode_items(PART.items.texts)
    scores = scale * encoder.encode_queries(PART.queries.texts) @ vectors.T
    for row, positives in enumerate(PART.positives):
        order = [i for i in np.argsort(-scores[row], kind="stable") if i not in positives][:3]
        assert found["item"][row, 2:].tolist() == order
        np.testing.assert_allclose(found["score"][row, 2:], scores[row, order], rtol=1e-5)
    given_one = CandidateRetriever(wanted(retriever="words", scale=2.0), lambda: Words(length))
    np.testing.assert_allclose(
        given_one.found(Corpora([PART]))["score"][:, 0] / 2, found["score"][:, 0] / scale, rtol=1e-5
    )


def test_candidates_come_from_the_querys_own_corpus():
    corpora = Corpora([PART, OTHER])
    retriever = CandidateRetriever(wanted(retriever="words"), Words)
    found = retriever.found(corpora)["item"]
    assert found.shape == (5, 2 + 5)
    assert set(found[:3].ravel()) <= {NO_ITEM, 0, 1, 2, 3, 4}
    assert set(found[3:].ravel()) == {NO_ITEM, 5, 6, 7}
    assert found[3].tolist() == [5, NO_ITEM, 7, 6, NO_ITEM, NO_ITEM, NO_ITEM]
    top = retriever.top(corpora, 2)
    assert top[3].tolist() == [5, 7]  # the right one stands where the retriever puts it


def test_what_is_no_retriever():
    def none():
        raise InputError("there is no folder bm52")

    for opener in (none, None):
        with pytest.raises(InputError, match=r"the retriever 'bm52' is neither 'bm25', 'tfidf'"):
            CandidateRetriever(wanted(retriever="bm52"), opener).found(Corpora([PART]))
    lonely = labelled(["oak", "elm"], ["oak"], [[0]])
    with pytest.raises(InputError, match="'bm25' finds no wrong item for any query"):
        CandidateRetriever(wanted(retriever="bm25")).found(Corpora([lonely]))


# Lists


def test_a_list_begins_with_the_right_item_and_the_very_best():
    scores = np.linspace(3, 0, DEPTH)[None]
    lists = Lists(found_of(scores), 1, wanted(count=7, fixed=0.5))
    for epoch in range(5):
        drawn = lists.draw([0], epoch)
        assert drawn.items.shape == (1, 8)
        assert drawn.items[0, :5].tolist() == [0, 100, 101, 102, 103]
        rest = drawn.items[0, 5:]
        assert (rest > 103).all()
        assert len(set(rest)) == 3
        np.testing.assert_allclose(drawn.scores[0], [0.25, *scores[0, drawn.items[0, 1:] - 100]])


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 12),
    st.floats(0, 1),
    st.integers(0, 20),
    st.integers(0, 1000),
    st.sampled_from(["score", "uniform"]),
)
def test_lists_hold_each_item_once_whatever_there_is(count, fixed, n_wrong, seed, sampling):
    scores = np.full((1, 20), -np.inf)
    scores[0, :n_wrong] = np.random.default_rng(seed).normal(size=n_wrong) * 10
    choice = wanted(count=count, fixed=fixed, depth=20, sampling=sampling)
    drawn = Lists(found_of(scores, [(3, 7)]), 2, choice, seed).draw([0], 1)
    (row,) = drawn.items
    assert len(set(row)) == len(row) == 1 + min(count, n_wrong)
    assert row[0] in (3, 7)
    assert NO_ITEM not in row
    top = round(fixed * count)
    assert row[1 : 1 + top].tolist() == [100 + i for i in range(min(top, n_wrong))]


def frequencies(sampling, scores, count=1, epochs=4000):
    choice = wanted(count=count, fixed=0.0, sampling=sampling)
    lists = Lists(found_of(scores[None]), 1, choice)
    drawn = np.concatenate([lists.draw([0], epoch).items[0, 1:] for epoch in range(epochs)])
    return np.bincount(drawn - 100, minlength=len(scores)) / epochs


def test_scores_draw_in_proportion_to_their_exponentials():
    """Eq. 6 and 7 for one draw; without replacement, the second by what is left."""
    scores = np.array([2.0, 1.0, 0.0, -1.0], np.float32)
    p = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(frequencies("score", scores), p, atol=0.025)
    np.testing.assert_allclose(frequencies("uniform", scores), 0.25, atol=0.025)
    second = [p[i] + sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)]
    np.testing.assert_allclose(frequencies("score", scores, count=2), second, atol=0.025)


def test_lists_that_come_with_the_queries_are_candidates():
    part, other = (
        replace(PART, lists=LISTS),
        replace(OTHER, lists=Candidates(LISTS.items[1:], LISTS.scores[1:])),
    )
    corpora = Corpora([other, part])
    retriever = CandidateRetriever(wanted(retriever="lists", count=1, depth=2, scale=2.0))
    found = retriever.found(corpora)
    assert found["item"][2:].tolist() == [
        [3, NO_ITEM, 4, 7],
        [5, 6, 7, 4],
        [4, NO_ITEM, NO_ITEM, NO_ITEM],
    ]
    np.testing.assert_array_equal(
        found["score"][2:], [[4, -np.inf, 6, 2], [-4, -4, -2, -4], [0, *[-np.inf] * 3]]
    )
    assert retriever.top(corpora, 2).tolist()[2:] == [[4, 3], [7, 4], [NO_ITEM, NO_ITEM]]
    taken = part.take([2, 0]).lists
    assert taken.items.tolist() == LISTS.items[[2, 0]].tolist()
    with pytest.raises(InputError, match="woods was read without its lists"):
        retriever.found(Corpora([PART]))
