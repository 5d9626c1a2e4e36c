"""What an index of other items had paid for, and what of it cannot be kept."""

from contextlib import nullcontext

import numpy as np
import pytest
from bank_helpers import ITEMS, QUERIES, TellingScorer

from crossknn.errors import InputError
from crossknn.fitting.job import BANK, Spending
from crossknn.fitting.rebuilt import LeftBehind, known_pairs
from crossknn.fitting.run import align
from crossknn.index.fitted import FittedVectors
from crossknn.index.item_index import ItemIndex

TEXTS = [text.strip() for text in ITEMS[:40]]
TRAIN = QUERIES[:6]


def vectors(found):
    return np.random.default_rng(0).normal(size=(len(found), 4)).astype(np.float32)


def built(items):
    return ItemIndex.build(items, vectors=vectors(items), query_vectors=vectors, bm25=False)


@pytest.fixture
def saved(tmp_path):
    index = built(TEXTS[:30])
    index.save(tmp_path / "index")
    return index


def left(saved, items=TEXTS):
    return LeftBehind.of(built(items), ItemIndex.load(saved.folder, query_vectors=vectors))


def rebuilt(saved, items=TEXTS):
    index = built(items)
    behind = LeftBehind.of(index, ItemIndex.load(saved.folder, query_vectors=vectors))
    index.save(saved.folder)
    return index, behind.keep()


def test_rows_in_several_parts_are_kept_with_their_scores(saved, monkeypatch):
    monkeypatch.setattr("crossknn.fitting.rebuilt._AT_ONCE", 70)
    saved.add_anchors(TellingScorer(), TRAIN)
    saved.add_anchors(TellingScorer(), QUERIES[6:8], max_calls=45)
    first = dict(zip(saved.anchor_queries, saved.anchors.scores, strict=True))
    index, kept = rebuilt(saved)
    assert kept == 6 * 30 + 45
    scorer = TellingScorer()
    with known_pairs(index, "telling", QUERIES[:8]) as known:
        assert index.add_anchors(scorer, QUERIES[:8], known=known).calls == 8 * 40 - kept
    for text, row in zip(index.anchor_queries[:6], index.anchors.scores, strict=False):
        np.testing.assert_array_equal(row[:30], first[text])


def test_the_same_items_leave_nothing_behind(saved):
    saved.add_anchors(TellingScorer(), TRAIN, max_calls=45)
    found = left(saved, TEXTS[:30])
    assert (found.dropped, found.rows, found.lost) == ([], [], [])
    assert found.keep() == 0
    assert not (saved.folder / BANK).exists()


def test_scores_of_no_or_another_cross_encoder_are_lost(saved):
    saved.add_anchors(TellingScorer(None), TRAIN[:1])
    assert left(saved).lost == ["anchors (their cross-encoder has no fingerprint)"]
    saved.add_anchors(TellingScorer("a"), TRAIN[:1], replace=True)
    assert left(saved).lost == []
    align(saved, TellingScorer("b"), TRAIN, per=30)
    (anchors,) = left(saved).lost  # als can be fitted again
    assert "are of b, not of a" in anchors
    assert (left(saved).rows, left(saved).dropped) == ([], ["anchors", "als"])


def test_vectors_without_their_pairs_are_lost(saved):
    made = FittedVectors(values=vectors(TEXTS[:30]), method="by hand", fingerprint="telling")
    saved.add_fitted("mine", made)
    (sentence,) = left(saved).lost
    assert "mine (the pairs they were fitted to are not in the folder)" in sentence


def test_pairs_of_another_cross_encoder_are_not_known(saved, caplog):
    align(saved, TellingScorer("a"), TRAIN, per=30)
    for fingerprint, rows in (("a", 6), ("b", 0), (None, 0)):
        with known_pairs(saved, fingerprint, TRAIN) as known:
            assert len(list(known)) == rows
    assert "are of a, not of b" in caplog.text


@pytest.mark.parametrize("name", ["items.bin", "work.json"])
def test_damaged_pairs_are_not_paid_again(saved, name):
    align(saved, TellingScorer(), TRAIN, per=30)
    (saved.folder / BANK / name).write_bytes(b"")
    with pytest.raises(InputError, match="are damaged"), known_pairs(saved, "telling", TRAIN):
        pass
    (sentence,) = left(saved).lost
    assert sentence.startswith("the vectors als (the scores in")
    with pytest.raises(InputError, match="are damaged"):
        align(saved, TellingScorer(), TRAIN, per=30)


@pytest.mark.parametrize("before", [None, "telling", "other"])
def test_nothing_is_aligned_while_anchors_are_paid_for(saved, before):
    if before:
        align(saved, TellingScorer(before), TRAIN, per=5)
    second, spending = TellingScorer(), Spending(rescore=True)

    def beside():
        with pytest.raises(InputError, match="another process is adding scores"):
            align(ItemIndex.load(saved.folder, query_vectors=vectors), second, TRAIN, **options)

    options = {"per": 20, "spending": spending}
    first = TellingScorer(at=1, do=beside)
    with known_pairs(saved, "telling", TRAIN) as known:
        saved.add_anchors(first, TRAIN, known=known)
    assert first.calls
    assert not second.asked
    assert (saved.folder / BANK).exists() == bool(before)
    assert align(saved, second, TRAIN, **options).calls == 0


def test_no_anchors_are_paid_for_between_what_align_knows_and_what_it_pays(saved):
    tried = []

    def beside(what, unit):
        if what == "scoring train queries":
            with (
                pytest.raises(InputError, match="another process is adding scores"),
                known_pairs(saved, "telling", TRAIN),
            ):
                raise AssertionError("both may pay")
            tried.append(what)
        return nullcontext()

    align(ItemIndex.load(saved.folder, query_vectors=vectors), TellingScorer(), TRAIN, tell=beside)
    assert tried
