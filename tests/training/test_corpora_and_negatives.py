"""Several corpora as one, wrong items that are wrong, and what is kept of them on disk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import corpus, labelled

pytest.importorskip("torch")

from crossknn.data.dataset import Labelled
from crossknn.errors import InputError
from crossknn.training.checkpoint import kept
from crossknn.training.corpora import Corpora, nearest, nearest_wrong, plain, retriever_of
from crossknn.training.settings import NegativesSettings
from crossknn.types import NO_ITEM, Queries

pytestmark = pytest.mark.torch


class Letters:
    """An encoder: how often each of four letters occurs."""

    fingerprint = None
    dimensions = 4

    def encode_queries(self, texts):
        return np.array([[text.count(c) for c in "abcd"] for text in texts], dtype=np.float32)

    def encode_items(self, texts, progress=None):
        return self.encode_queries(texts)


TEXTS = st.lists(st.sampled_from(["aa", "bb", "cc", "dd"]), min_size=1, max_size=5).map(" ".join)


@st.composite
def corpora(draw):
    texts = draw(st.lists(TEXTS, min_size=1, max_size=12))
    queries = draw(st.lists(TEXTS, min_size=1, max_size=4))
    rows = st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=4, unique=True)
    return labelled(texts, queries, [draw(rows) for _ in queries])


# Negatives


@settings(deadline=None)
@given(
    corpora(),
    st.sampled_from(["random", "tfidf", "dual-encoder"]),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_wrong_items_are_wrong_nearest_first_and_all_there_are(part, kind, depth, skip):
    chosen = NegativesSettings(kind=kind, count=1, depth=depth, skip=skip)
    wrong = nearest_wrong(part, chosen, encoder=Letters())
    assert wrong.shape == (len(part), depth)
    everything = (
        None
        if kind == "random"
        else retriever_of(part, kind, Letters()).scores(Queries(part.queries.texts))
    )
    for row, positives in enumerate(part.positives):
        found = wrong[row][wrong[row] != NO_ITEM].tolist()
        assert not set(found) & set(positives.tolist())
        assert len(set(found)) == len(found)
        assert all(0 <= item < len(part.items) for item in found)
        others = [i for i in range(len(part.items)) if i not in positives]
        if everything is None:
            assert len(found) == min(depth, len(others))
            continue
        # TF-IDF finds only what shares a word with the query; random items fill the list.
        least = 0 if kind == "tfidf" else -np.inf
        order = sorted(others, key=lambda item: (-everything[row, item], item))
        near = [i for i in order if everything[row, i] > least][skip : skip + depth]
        assert found[: len(near)] == near
        assert len(found) == min(depth, max(0, len(others) - skip))


def test_marks_are_no_words():
    """By TF-IDF a marked query finds the item of its words, not one that says Ms or ENT."""
    texts = ["Ms [ENT] Me ENT Ms Me", "oak [ENT] tree", "elm [ENT] tree"]
    part = labelled(texts, ["the [Ms] oak [Me] ENT"], [[2]])
    assert nearest(part, "tfidf", 3)[0, 0] in (0, 1)
    marked = labelled(["oak [ENT] tree", "elm [ENT] tree"], ["the [Ms] oak [Me]"], [[1]])
    chosen = NegativesSettings(kind="tfidf", count=1, depth=1)
    assert nearest_wrong(marked, chosen).tolist() == [[0]]
    unmarked = plain(marked)
    assert unmarked.items.texts == ["oak tree", "elm tree"]
    assert unmarked.queries.texts == ("the oak",)


def test_a_dual_encoder_must_be_given():
    with pytest.raises(InputError, match=r"set negatives\.encoder"):
        nearest_wrong(corpus(3, 3), NegativesSettings(count=1, depth=2))


# Corpora


def two():
    return Corpora([corpus(3, 4, name="a"), corpus(2, 5, name="b", start=20)])


def test_corpora_are_numbered_one_after_the_other():
    both = two()
    assert len(both) == 5
    assert both.ids == ["a/q0", "a/q1", "a/q2", "b/q20", "b/q21"]
    assert [p.tolist() for p in both.positives] == [[0], [1], [2], [4], [5]]
    for query, positives in zip(both.queries, both.positives, strict=True):
        assert both.items[positives[0]].startswith(query)


@given(st.integers(1, 8), st.integers(0, 5), st.data())
def test_lists_hold_a_right_item_and_different_known_wrong_ones(count, seed, data):
    part = labelled([f"t{i}" for i in range(12)], ["x", "y", "z"], [[0, 1], [2], [3, 4, 5]])
    both = Corpora([part])
    depths = data.draw(st.lists(st.integers(0, 6), min_size=3, max_size=3))
    wrong = np.full((3, 6), NO_ITEM)
    for row, depth in enumerate(depths):
        wrong[row, :depth] = 6 + np.arange(depth)
    rows = data.draw(st.permutations([0, 1, 2]))
    lists = both.lists(rows, wrong, count, seed)
    assert lists.shape == (3, 1 + count)
    for row, found in zip(rows, lists, strict=True):
        assert found[0] in part.positives[row]
        drawn = found[1:][found[1:] != NO_ITEM]
        assert len(set(drawn.tolist())) == len(drawn) == min(count, depths[row])
        assert np.isin(drawn, wrong[row]).all()
    # A query's list depends on the seed and the query alone, not on the batch it is in.
    again = np.concatenate([both.lists([row], wrong, count, seed) for row in rows])
    np.testing.assert_array_equal(lists, again)


def test_no_queries_are_an_error():
    with pytest.raises(InputError, match="no train queries"):
        Corpora([])
    with pytest.raises(InputError, match="no train queries"):
        Corpora([corpus(3, 3).take([])])


def test_a_digest_tells_data_apart():
    base = corpus(4, 4)
    others = [corpus(4, 5), corpus(4, 4, start=1), corpus(4, 4, name="other"), base.take([0, 1])]
    other = Labelled(
        name=base.name, items=base.items, queries=base.queries, positives=base.positives[::-1]
    )
    digests = [Corpora([part]).digest for part in (base, *others, other)]
    assert len(set(digests)) == len(digests)
    assert Corpora([corpus(4, 4)]).digest == digests[0]


# What is kept


def test_what_was_mined_is_kept_for_its_key(tmp_path):
    made = []

    def make():
        made.append(len(made))
        return np.array([[len(made), 2], [3, NO_ITEM]])

    path = tmp_path / "negatives.npy"
    first = kept(path, "key", make)
    assert first.tolist() == [[1, 2], [3, -1]]
    np.testing.assert_array_equal(kept(path, "key", make), first)
    assert made == [0]
    assert kept(path, "another", make).tolist() == [[2, 2], [3, -1]]
    assert kept(path, "another", make).tolist() == [[2, 2], [3, -1]]
    assert made == [0, 1]
    np.testing.assert_array_equal(np.load(path), [[2, 2], [3, -1]])


def test_a_full_disk_leaves_nothing(tmp_path):
    (tmp_path / "negatives.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        kept(tmp_path / "negatives.npy", "key", lambda: np.zeros((100, 100)))
    assert list(tmp_path.iterdir()) == []
