"""Dense scores are exact, paid once whatever happens, and bring their scale along."""

import mmap
import subprocess

import numpy as np
import pytest
from crossknn.index.paid import PaidScores
from crossknn.scorers.cache import CachedScorer
from index_helpers import FormulaScorer, LengthEncoder, corpus, score_of
from test_storage import run

from crossknn.errors import IndexFormatError, InputError
from crossknn.fitting.anchors import collect_anchors, collect_item_scores
from crossknn.index.base import Scale
from crossknn.index.item_index import ItemIndex
from crossknn.scores.collect import Limits
from crossknn.types import Pairs, Queries

QUERIES = ["one fish", "two", "red fish and more"]


def exact(index, queries):
    return np.array([[score_of(q, t) for t in index.items.texts] for q in queries], np.float32)


@pytest.fixture
def saved(tmp_path):
    index = ItemIndex.build(corpus(20), encoder=LengthEncoder())
    index.save(tmp_path / "index")
    return index


def load(index):
    return ItemIndex.load(index.folder, encoder=LengthEncoder())


def test_scores_are_exact_in_memory_and_on_disk(saved):
    for index in (ItemIndex.build(corpus(20)), saved):
        steps = []
        report = collect_anchors(
            index,
            FormulaScorer(),
            QUERIES,
            progress=lambda done, total, s=steps: s.append((done, total)),
        )
        assert (report.rows, report.rows_done, report.calls, report.complete) == (3, 3, 60, True)
        assert np.array_equal(index.anchors.scores, exact(index, QUERIES))
        assert list(index.anchor_queries) == QUERIES
        assert steps[0] == (0, 60)
        assert steps[-1] == (60, 60)
        assert steps == sorted(steps)
    loaded = load(saved)
    assert np.array_equal(loaded.anchors.scores, exact(saved, QUERIES))
    assert loaded.scorer_fingerprint == "formula"
    assert isinstance(loaded.anchors.scores.base, np.memmap)
    assert not list(saved.folder.glob("work-*"))


def test_the_scale_matches_mean_and_deviation(saved):
    assert saved.scale("dense") is None
    collect_anchors(saved, FormulaScorer(), QUERIES)
    for index in (saved, load(saved)):
        scale, scores = index.scale("dense"), index.anchors.scores
        inner = index.query_vectors(Queries(QUERIES), "dense") @ index.vectors("dense").T
        scaled = scale.beta * (scores.astype(np.float64) - scale.alpha)
        assert np.isclose(scaled.mean(), inner.mean())
        assert np.isclose(scaled.std(), inner.std())
        matched = Scale.match(scores, inner)
        assert np.allclose([scale.alpha, scale.beta], [matched.alpha, matched.beta])


def test_vectors_without_query_vectors_have_no_scale():
    index = ItemIndex.build(corpus(5), vectors=np.ones((5, 2)))
    collect_anchors(index, FormulaScorer(), QUERIES)
    assert index.scale("vectors") is None


def test_max_calls_keeps_complete_rows_and_the_rest_for_later(saved):
    first = FormulaScorer()
    report = collect_anchors(saved, first, QUERIES, limits=Limits(max_calls=33))
    assert (report.calls, report.rows_done, report.complete) == (33, 1, False)
    assert np.array_equal(saved.anchors.scores, exact(saved, QUERIES[:1]))
    again = load(saved)
    second = FormulaScorer()
    report = collect_anchors(again, second, QUERIES)
    assert (report.calls, report.reused, report.complete) == (27, 33, True)
    assert not set(first.asked) & set(second.asked)
    assert np.array_equal(load(saved).anchors.scores, exact(saved, QUERIES))
    assert (
        collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=0)).rows_done == 3
    )


def test_more_anchors_join_those_that_are_there(saved):
    collect_anchors(saved, FormulaScorer(), QUERIES[:2])
    report = collect_anchors(saved, FormulaScorer(), [QUERIES[2], QUERIES[0], QUERIES[2]])
    assert report.calls == 20
    assert list(saved.anchor_queries) == QUERIES
    assert np.array_equal(load(saved).anchors.scores, exact(saved, QUERIES))


def test_items_left_out_keep_their_row_open(saved):
    bad = saved.items.texts[4]
    report = collect_anchors(saved, FormulaScorer(skip=[bad]), QUERIES)
    assert (report.rows_done, report.calls) == (0, 60)
    assert saved.anchors is None
    report = collect_anchors(saved, FormulaScorer(), QUERIES)
    assert (report.calls, report.complete) == (3, True)


def test_another_cross_encoder_is_refused_or_replaces(saved):
    collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=25))
    with pytest.raises(InputError, match=r"another cross-encoder .formula, not other."):
        collect_anchors(saved, FormulaScorer("other"), QUERIES)
    with pytest.raises(InputError, match="no fingerprint"):
        collect_anchors(saved, FormulaScorer(None), QUERIES)
    for calls in (60, 0):
        report = collect_anchors(saved, FormulaScorer("other"), QUERIES, replace=True)
        assert (report.calls, saved.scorer_fingerprint) == (calls, "other")


def test_unfinished_scores_of_other_items_are_discarded(saved):
    collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=25))
    ItemIndex.build(corpus(19)).save(saved.folder)
    index = ItemIndex.load(saved.folder)
    assert collect_anchors(index, FormulaScorer(), QUERIES).calls == 57
    with pytest.raises(IndexFormatError, match="was replaced; load it again"):
        collect_anchors(saved, FormulaScorer(), QUERIES)


DYING = """
import sys
from index_helpers import FormulaScorer, LengthEncoder
from crossknn.index.item_index import ItemIndex
index = ItemIndex.load(sys.argv[1], encoder=LengthEncoder())
die = int(sys.argv[3]) if len(sys.argv) > 3 else None
scorer = FormulaScorer(log=sys.argv[2], die_after=die)
collect_anchors(index, scorer, ["one fish", "two", "red fish and more"])
"""


def test_a_kill_loses_nothing_and_no_pair_is_paid_twice(saved, tmp_path):
    log = tmp_path / "asked"
    for die_after in (30, 15):
        killed: subprocess.CompletedProcess[str] = run(DYING, saved.folder, log, die_after)
        assert killed.returncode == -9, killed.stderr
        assert load(saved).anchors is None
    assert run(DYING, saved.folder, log).returncode == 0
    asked = log.read_text().splitlines()
    assert len(asked) == len(set(asked)) == 60
    assert np.array_equal(load(saved).anchors.scores, exact(saved, QUERIES))


def test_item_scores_stand_where_their_items_do(saved):
    report = collect_item_scores(saved, FormulaScorer(), np.array([7, 2]))
    assert report.calls == 40
    for index in (saved, load(saved)):
        found = index.item_scores
        assert found.items.tolist() == [7, 2]
        texts = [index.items.texts[i] for i in (7, 2)]
        assert np.array_equal(found.scores, exact(index, texts))
    report = collect_item_scores(saved, FormulaScorer(), limits=Limits(max_calls=0))
    assert (report.rows, report.rows_done) == (20, 2)


def test_what_a_cache_answers_is_no_call(saved, tmp_path):
    with CachedScorer(FormulaScorer(), tmp_path / "cache.sqlite") as cached:
        pairs = Pairs(np.zeros(8, np.int64), np.arange(8))
        list(cached.score(pairs, QUERIES, saved.items.texts))
        report = collect_anchors(saved, cached, QUERIES, limits=Limits(max_calls=35))
        assert (report.calls, report.rows_done, cached.misses) == (35, 2, 8 + 35)
        assert report.stopped_by == "max_calls"
    assert np.array_equal(saved.anchors.scores, exact(saved, QUERIES[:2]))


def test_scores_known_from_elsewhere_are_neither_paid_nor_put_over_those_that_are_there(saved):
    collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=25))
    items = np.arange(10, 20)
    known = [(text, items, np.full(10, 9, np.float32)) for text in (*QUERIES, "not asked for")]
    scorer = FormulaScorer()
    report = collect_anchors(load(saved), scorer, QUERIES, known=known)
    assert (report.calls, report.reused, report.complete) == (15, 45, True)
    expected = exact(saved, QUERIES)
    expected[1:, 10:] = 9
    assert np.array_equal(load(saved).anchors.scores, expected)


def test_rows_that_are_paid_are_told_of_one_cross_encoder_only(saved):
    assert saved.paid_rows("formula") == []
    collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=33))
    for index in (saved, load(saved)):
        done, begun = index.paid_rows("formula")
        pairs = Pairs(np.array([0, 1, 1, 2, 3]), np.array([7, 12, 13, 0, 5]))
        texts = [*QUERIES, "another"]
        whole = exact(index, QUERIES)
        assert np.array_equal(done.of(texts, pairs), [whole[0, 7], *[np.nan] * 4], equal_nan=True)
        found = begun.of(texts, pairs)
        assert np.count_nonzero(~np.isnan(begun.scores)) == 33
        assert np.array_equal(found, [*whole[[0, 1], [7, 12]], *[np.nan] * 3], equal_nan=True)
        assert index.paid_rows("other") == index.paid_rows(None) == []


def test_work_without_its_table_is_none(saved):
    collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=33))
    for table in (saved.folder / "work-anchors").glob("scores-*"):
        table.unlink()
    assert len(saved.paid_rows("formula")) == 1
    assert collect_anchors(saved, FormulaScorer(), QUERIES).calls == 40


def mapped(values):
    while isinstance(values, np.ndarray):
        values = values.base
    return isinstance(values, mmap.mmap)


def test_rows_that_are_there_are_neither_copied_nor_written_again(saved, monkeypatch):
    stored = []
    write = PaidScores.write
    monkeypatch.setattr(PaidScores, "write", lambda *a: (stored.append(a[0]), write(*a)))
    collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=25))
    collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=5))
    work = saved.folder / "work-anchors"
    assert [path.stat().st_size for path in work.glob("*.f32")] == [2 * 20 * 4]
    collect_anchors(saved, FormulaScorer(), QUERIES)
    assert [len(paid.rows) for paid in stored] == [1, 3]
    assert all(mapped(row) for paid in stored for row in paid.rows)
    report = collect_anchors(saved, FormulaScorer(), QUERIES[1:])
    assert (report.rows, report.reused, report.calls, report.complete) == (2, 40, 0, True)
    assert len(stored) == 2
    assert not work.exists()
    assert np.array_equal(load(saved).anchors.scores, exact(saved, QUERIES))


def test_wrong_arguments(saved):
    with pytest.raises(InputError, match="max_calls is -1"):
        collect_anchors(saved, FormulaScorer(), QUERIES, limits=Limits(max_calls=-1))
    with pytest.raises(InputError, match="workers is 0"):
        collect_anchors(saved, FormulaScorer(), QUERIES, workers=0)
    assert not list(saved.folder.glob("work-*"))
    with pytest.raises(InputError, match="no texts"):
        collect_anchors(saved, FormulaScorer(), [])


def test_two_open_indexes_of_one_folder_do_not_pay_for_each_other(saved):
    other = load(saved)
    collect_anchors(saved, FormulaScorer(), QUERIES[:2])
    assert collect_anchors(other, FormulaScorer(), QUERIES[1:]).calls == 20
    assert list(other.anchor_queries) == QUERIES


FULL = """
import resource, sys
from index_helpers import FormulaScorer, LengthEncoder
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
index = ItemIndex.load(sys.argv[1], encoder=LengthEncoder())
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    collect_anchors(index, FormulaScorer(), ["one fish", "two"])
except InputError as error:
    print(error)
"""


def test_a_full_disk_is_noticed_before_anything_is_paid(saved):
    done = run(FULL, saved.folder)
    assert "2 x 20 scores cannot be kept in" in done.stdout, done.stderr
    assert "File too large" in done.stdout
    assert collect_anchors(load(saved), FormulaScorer(), QUERIES).complete
