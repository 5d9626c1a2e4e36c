"""Several corpora as one, what a retriever finds in them, and the lists that are drawn from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import corpus, labelled, write_beir, write_zeshel

from crossknn.errors import InputError
from crossknn.retrievers.lexical import BM25
from crossknn.types import NO_ITEM, Candidates, Queries
from crossknn_train.corpora import (
    TFIDF,
    Corpora,
    nearest_wrong,
    read_corpora,
    retrieved,
    retrieved_wrong,
)
from crossknn_train.late_interaction import draw_list
from crossknn_train.settings import CandidateSettings, CrossEncoderSettings, NegativesSettings


class Letters:
    """Counts four letters: vectors of some length or as they are. Reads no marks."""

    fingerprint = None
    dimensions = 4

    def __init__(self, length=None):
        self.length, self.seen = length, []

    def encode_queries(self, texts):
        self.seen += texts
        counts = np.array([[text.count(c) for c in "abcd"] for text in texts], dtype=np.float32)
        if self.length is None:
            return counts
        return self.length * (counts + 0.1) / np.linalg.norm(counts + 0.1, axis=1, keepdims=True)

    def encode_items(self, texts, progress=None):
        return self.encode_queries(texts)


def all_scores(part, kind, length=None):
    """Scores of all items (m, n), as a softmax takes them."""
    queries, items = part.queries.texts, part.items.texts
    if kind == "dual-encoder":
        encoder = Letters(length)
        scale = 20 if length == 1 else 1
        return scale * encoder.encode_queries(queries) @ encoder.encode_items(items).T
    fitted = TFIDF(items) if kind == "tfidf" else BM25.fit(items)
    return fitted.scores(Queries(queries)) * (20 if kind == "tfidf" else 1)


TEXTS = st.lists(st.sampled_from(["aa", "bb", "cc", "dd"]), min_size=1, max_size=5).map(" ".join)


@st.composite
def parts(draw):
    texts = draw(st.lists(TEXTS, min_size=1, max_size=12))
    queries = draw(st.lists(TEXTS, min_size=1, max_size=4))
    rows = st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=4, unique=True)
    return labelled(texts, queries, [draw(rows) for _ in queries])


KIND = st.sampled_from(["random", "tfidf", "dual-encoder"])


@settings(max_examples=30)
@given(parts(), KIND, st.integers(1, 8), st.integers(0, 3))
def test_wrong_items_are_wrong_nearest_first_and_as_many_as_there_are(part, kind, depth, skip):
    wanted = NegativesSettings(kind=kind, count=1, depth=depth, skip=skip)
    wrong = nearest_wrong(Corpora([part]), wanted, Letters())
    assert wrong.shape == (len(part), depth)
    for row, positives in enumerate(part.positives):
        found = wrong[row][wrong[row] != NO_ITEM].tolist()
        assert not set(found) & set(positives.tolist())
        assert len(set(found)) == len(found)
        others = [i for i in range(len(part.items)) if i not in positives]
        if kind == "random":
            assert set(found) <= set(others)
            assert len(found) == min(depth, len(others))
            continue
        # Random items follow those that share a word with the query.
        scores, least = all_scores(part, kind)[row], 0 if kind == "tfidf" else -np.inf
        order = sorted(others, key=lambda item: (-scores[item], item))
        near = [i for i in order if scores[i] > least][skip : skip + depth]
        np.testing.assert_allclose(scores[found[: len(near)]], scores[near], rtol=1e-6)  # ties
        assert len(found) == min(depth, max(0, len(others) - skip))


HOW = st.sampled_from([("bm25", None), ("tfidf", None), ("dual-encoder", 1), ("dual-encoder", 3)])


@settings(max_examples=40)
@given(parts(), HOW)
def test_candidates_have_the_retrievers_scores_and_cosines_times_twenty(part, how):
    kind, length = how
    right, wrong = retrieved_wrong(Corpora([part]), kind, 5, Letters(length))
    for row, scores in enumerate(all_scores(part, kind, length)):
        positives = part.positives[row]
        assert right.items[row, : len(positives)].tolist() == positives.tolist()
        np.testing.assert_allclose(right.scores[row, : len(positives)], scores[positives], 1e-4)
        known = wrong.items[row][wrong.items[row] != NO_ITEM]
        others = np.setdiff1d(np.arange(len(scores)), positives)
        near = others if kind == "dual-encoder" else others[scores[others] > 0]
        assert set(known) <= set(near)
        best = -np.sort(-scores[near])[:5]
        for expected in (scores[known], best):
            np.testing.assert_allclose(wrong.scores[row, : len(known)], expected, 1e-4, 1e-6)


TEXTS_OF_PART = ["aa bb", "aa", "bb cc", "dd", "aa aa bb"]
PART = labelled(TEXTS_OF_PART, ["aa bb", "cc dd", "aa"], [[0], [2, 3], [1]])
OTHER = labelled(["aa", "bb", "aa cc"], ["aa", "bb"], [[0], [1]], name="other")


@pytest.mark.parametrize("kind", ["dual-encoder", "random"])
def test_items_come_from_the_querys_own_corpus(kind):
    both = Corpora([PART, OTHER])
    top = retrieved(both, kind, 4, Letters())[1].items
    wrong = nearest_wrong(both, NegativesSettings(kind=kind, count=1, depth=4), Letters())
    for found in (top, wrong):
        assert set(found[:3].ravel()) <= {NO_ITEM, 0, 1, 2, 3, 4}
        assert set(found[3:].ravel()) <= {NO_ITEM, 5, 6, 7}
    assert sorted(top[3]) == [NO_ITEM, 5, 6, 7]
    assert sorted(wrong[4]) == [NO_ITEM, NO_ITEM, 5, 7]


def test_mixed_negatives_are_of_three_kinds_and_none_comes_twice():
    part = corpus(6, 40)
    wanted = NegativesSettings(kind="mixed", count=4, depth=16)
    for row, items in enumerate(nearest_wrong(Corpora([part]), wanted, Letters())):
        own = items[items != NO_ITEM]
        assert len(items) == 16
        assert len(set(own)) == len(own) > 8
        assert not set(own) & set(part.positives[row])
    near = nearest_wrong(Corpora([part]), NegativesSettings(count=4, depth=8), Letters())
    assert (nearest_wrong(Corpora([part]), wanted, Letters())[:, :8] == near).all()


def test_lists_that_come_with_the_queries_are_candidates():
    second = [("i4", -1.0), ("i1", -2.0)]  # has no right item
    lists = {"woods0": [("i1", 3.0), ("i0", 2.0), ("i4", 1.0)], "woods1": second}
    part, other = replace(PART, candidates=lists), replace(OTHER, candidates={"other0": second[1:]})
    both = Corpora([other, part])
    right, wrong = retrieved_wrong(both, "lists", 2)
    assert right.items[2:].tolist() == [[3, NO_ITEM], [5, 6], [4, NO_ITEM]]
    assert right.scores[2:].tolist() == [[2, -np.inf], [-2, -2], [0, -np.inf]]
    assert wrong.items[2:].tolist() == [[4, 7], [7, 4], [NO_ITEM, NO_ITEM]]
    assert wrong.scores[2:4].tolist() == [[3, 1], [-1, -2]]
    top = retrieved(both, "lists", 2)[1].items
    assert top[2:].tolist() == [[4, 3], [7, 4], [NO_ITEM, NO_ITEM]]


def test_marks_are_no_words_for_who_does_not_know_them():
    texts = ["Ms [ENT] Me ENT Ms Me", "dd [ENT] aa", "bb [ENT] aa"]
    part, encoder = labelled(texts, ["the [Ms] dd [Me] bb"], [[2]]), Letters()
    wanted = NegativesSettings(kind="tfidf", count=1, depth=1)
    assert nearest_wrong(Corpora([part]), wanted).tolist() == [[1]]
    retrieved(Corpora([part]), "dual-encoder", 1, encoder)
    assert set(encoder.seen) >= {"the dd bb", "dd aa"}
    assert not any("[" in text for text in encoder.seen)


def test_corpora_are_numbered_one_after_the_other():
    both = Corpora([corpus(3, 4, name="a"), corpus(2, 5, name="b", start=20)])
    assert both.ids == ["a/q0", "a/q1", "a/q2", "b/q20", "b/q21"]
    assert [p.tolist() for p in both.positives] == [[0], [1], [2], [4], [5]]
    assert both.items[4].startswith(both.queries[3])
    with pytest.raises(InputError, match="no train queries"):
        Corpora([corpus(0, 3)])


def drawn_list(scores, generator, **changes):
    """A list from the right items 3 and 7 and wrong ones 100, 101, ... with `scores` (depth,)."""
    right = Candidates(np.array([3, 7, NO_ITEM]), np.array([3.25, 7.25, -np.inf]))
    items = np.where(np.isfinite(scores), 100 + np.arange(len(scores)), NO_ITEM)
    chosen = CandidateSettings(retriever="bm25", depth=60, **changes)
    return draw_list(right, Candidates(items, scores), chosen, generator)


SAMPLING = st.sampled_from(["score", "uniform"])


@settings(max_examples=50)
@given(st.integers(1, 12), st.floats(0, 1), st.integers(0, 20), st.integers(0, 1000), SAMPLING)
def test_a_list_begins_with_a_right_item_and_the_very_best(count, fixed, n_wrong, seed, sampling):
    generator = np.random.default_rng(seed)
    scores = np.full(20, -np.inf)
    scores[:n_wrong] = -np.sort(-10 * generator.normal(size=n_wrong))
    options = {"count": count, "fixed": fixed, "sampling": sampling}
    items, values = drawn_list(scores, generator, **options)
    assert len(set(items)) == len(items) == 1 + min(count, n_wrong)
    assert items[0] in (3, 7)
    top = round(fixed * count)
    assert items[1 : 1 + top].tolist() == [100 + i for i in range(min(top, n_wrong))]
    expected = [0.25 + items[0], *scores[items[1:] - 100]]
    np.testing.assert_array_equal(values, expected)


def frequencies(sampling, scores, count=1, draws=4000):
    generator = np.random.default_rng(0)
    options = {"sampling": sampling, "count": count, "fixed": 0.0}
    drawn = [drawn_list(scores, generator, **options)[0][1:] for _ in range(draws)]
    return np.bincount(np.concatenate(drawn) - 100, minlength=len(scores)) / draws


def test_scores_draw_in_proportion_to_their_exponentials():
    """Eq. 6 and 7 for one draw; without replacement, the second by what is left."""
    scores = np.array([2.0, 1.0, 0.0, -1.0])
    p = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(frequencies("score", scores), p, atol=0.025)
    np.testing.assert_allclose(frequencies("uniform", scores), 0.25, atol=0.025)
    second = [p[i] + sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)]
    np.testing.assert_allclose(frequencies("score", scores, count=2), second, atol=0.025)


def test_a_mixture_has_all_folders_and_samples_its_dev_queries(tmp_path):
    beir, zeshel = write_beir(tmp_path / "beir"), write_zeshel(tmp_path / "zeshel")
    both = {"folder": (beir, zeshel), "dev_folder": beir, "dev": "dev", "dev_queries": 2}
    seeds = [CrossEncoderSettings(encoder="", data=both, training={"seed": s}) for s in (0, 0, 1)]
    found = [read_corpora(settings) for settings in seeds]
    train, dev = found[0]
    assert [(part.name, len(part)) for part in train] == [("beir", 8), ("forest", 8)]
    assert [(part.name, len(part)) for part in dev] == [("beir", 2)]
    ids = [dev[0].queries.ids for _, dev in found]
    assert ids[0] == ids[1] != ids[2]
    shared = CrossEncoderSettings(encoder="", data=both | {"dev": "train", "dev_queries": 20})
    with pytest.raises(InputError, match=r"the query 'q\d' of beir is in both train and dev"):
        read_corpora(shared)
