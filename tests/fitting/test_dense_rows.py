"""Every item scored for each train query: what is paid elsewhere is not paid again, and stops."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
from bank_helpers import ITEMS, QUERIES, TellingScorer, open_bank, score_of

from crossknn.errors import InputError, ScorerError
from crossknn.fitting.job import BANK, Spending
from crossknn.fitting.run import align
from crossknn.index import dense
from crossknn.index.item_index import ItemIndex
from crossknn.scorers.cache import CachedScorer
from crossknn.scorers.callable import CallableScorer
from crossknn.scorers.streaming import NothingScoredError
from crossknn.types import Pairs

Q, N = len(QUERIES), len(ITEMS)
CUR = "cur(rank=2)"


def vectors_of(texts):
    """Three dimensions that depend on a text alone."""
    return np.stack(
        [np.random.default_rng(zlib.crc32(t.encode())).normal(size=3) for t in texts]
    ).astype(np.float32)


@pytest.fixture
def index(tmp_path):
    made = ItemIndex.build(ITEMS, vectors=vectors_of(ITEMS), query_vectors=vectors_of, bm25=False)
    made.save(tmp_path / "index")
    return made


def load(index):
    return ItemIndex.load(index.folder, query_vectors=vectors_of)


def once(*scorers):
    """How many pairs were asked; none of them twice."""
    asked = [pair for scorer in scorers for pair in scorer.asked]
    assert len(asked) == len(set(asked))
    return len(asked)


def bank_of(index):
    return open_bank(index.folder / BANK, items=index.items.texts)


def anchors_of(index):
    return np.asarray(load(index).anchors.scores)


def check_anchors(index, queries=QUERIES):
    """The anchors are the scores of these queries, as far as a call does not change them."""
    assert list(index.anchor_queries) == list(queries)
    expected = np.array([[score_of(q, i) for i in index.items.texts] for q in queries])
    np.testing.assert_allclose(index.anchors.scores, expected, atol=2e-4)


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_are_paid_less_what_the_bank_has(index, workers):
    scorer = TellingScorer()
    first = align(index, scorer, QUERIES, per=20)
    second = align(load(index), scorer, QUERIES, CUR, spending=Spending(workers=workers))
    assert (first.calls, first.reused) == (20 * Q, 0)
    assert (second.calls, second.reused) == (Q * N - 20 * Q, 20 * Q)
    assert second.vectors.cost.calls == once(scorer) == Q * N
    check_anchors(load(index))


def test_blocks_that_a_killed_collection_on_ray_left_are_taken_over(index):
    scorer = TellingScorer()
    align(index, scorer, QUERIES, per=20, spending=Spending(max_calls=100))
    token = bank_of(index).token
    np.full(256, 0.5, "<f4").tofile(index.folder / BANK / f"block-{token}-000000-0256.f32")
    found = align(load(index), scorer, QUERIES, CUR)
    assert (found.calls, found.reused) == (Q * N - 356, 356)
    assert np.count_nonzero(anchors_of(index) == 0.5) == 256


def test_pairs_that_anchors_have_are_not_paid(index):
    scorer = TellingScorer()
    assert align(index, scorer, QUERIES[:20], CUR).calls == 20 * N
    found = align(load(index), scorer, QUERIES[:20], per=30)
    assert (found.calls, found.reused, found.vectors.cost.calls) == (0, 600, 600)
    more = align(load(index), scorer, QUERIES, per=30)
    assert (more.calls, more.reused) == (300, 600)
    by_item = align(load(index), scorer, QUERIES, strategy="i", per=4)
    assert 0 < by_item.calls < 4 * N / 2
    assert once(scorer) == 20 * N + 300 + by_item.calls


def test_what_an_unfinished_run_has_paid_is_used_and_only_the_pairs_that_were_asked_are_kept(index):
    scorer = TellingScorer()
    with pytest.raises(InputError, match="scores of all 200 items yet: allow more calls or more"):
        align(index, scorer, QUERIES[:3], CUR, spending=Spending(max_calls=150))
    found = align(load(index), scorer, QUERIES[:3], per=N, spending=Spending(max_calls=0))
    assert (found.calls, found.reused, found.stopped_by) == (0, 150, "max_calls")
    assert align(load(index), scorer, QUERIES[:3], per=50).calls < 150
    align(load(index), scorer, QUERIES[:3], CUR)
    assert once(scorer) == 3 * N
    kept = sum(path.stat().st_size for path in (index.folder / BANK).glob("shard-*"))
    assert kept <= 3 * N * 12
    assert align(load(index), scorer, QUERIES[:3], per=N).calls == 0


def test_anchors_of_another_cross_encoder_are_not_used(index):
    index.add_anchors(TellingScorer("other"), QUERIES[:3])
    scorer = TellingScorer()
    assert align(index, scorer, QUERIES[:3], per=20).calls == 60
    with pytest.raises(InputError, match=r"other, not telling.*--rescore"):
        align(index, scorer, QUERIES[:3], CUR)
    other = TellingScorer("other")
    with pytest.raises(InputError, match=r"are of telling, not of other; discard .*--rescore"):
        align(index, other, QUERIES, CUR)
    assert once(scorer) == 60
    assert not other.asked
    again = align(index, scorer, QUERIES[:3], CUR, spending=Spending(rescore=True))
    assert (again.calls, again.reused) == (3 * N - 60, 60)


def test_a_deadline_stops_the_rows_and_the_next_run_goes_on(index):
    slow = TellingScorer(seconds=0.05)
    found = align(index, slow, QUERIES, CUR, spending=Spending(deadline=0.3))
    assert found.stopped_by == "deadline"
    assert 0 < found.calls < Q * N
    assert found.vectors.cost.queries == len(index.anchor_queries) == found.calls / N
    fast = TellingScorer()
    rest = align(load(index), fast, QUERIES, CUR, spending=Spending(deadline=60, workers=2))
    assert (rest.stopped_by, rest.reused) == (None, found.calls)
    assert once(slow, fast) == found.calls + rest.calls == Q * N
    check_anchors(load(index))


def test_any_number_of_workers_gives_the_same_bits(monkeypatch):
    """Scores tell, in their last digits, in which calls they were asked."""
    monkeypatch.setattr(dense, "_BLOCK", 64)

    def rows(workers):
        index = ItemIndex.build(ITEMS, lsa=0, bm25=False)
        steps = []
        report = index.add_anchors(
            TellingScorer(seconds=0.001 * workers),
            QUERIES,
            workers=workers,
            known=[(QUERIES[4], np.array([3, 70]), np.array([0.25, 0.5], np.float32))],
            progress=lambda done, total: steps.append(done),
        )
        assert (report.calls, report.reused, report.complete) == (Q * N - 2, 2, True)
        assert (steps[0], steps[-1]) == (2, Q * N)
        assert steps == sorted(steps)
        return index.anchors.scores

    alone = rows(1)
    np.testing.assert_array_equal(rows(4), alone)
    np.testing.assert_array_equal(alone[4, [3, 70]], [0.25, 0.5])


def test_calls_are_exact_with_workers(monkeypatch, index):
    monkeypatch.setattr(dense, "_BLOCK", 64)
    scorer = TellingScorer(seconds=0.002)
    report = index.add_anchors(scorer, QUERIES, workers=3, max_calls=1111)
    assert (report.calls, report.rows_done, report.stopped_by) == (1111, 5, "max_calls")
    assert once(scorer) == 1111


@pytest.mark.parametrize("error", [ScorerError, KeyboardInterrupt])
def test_what_is_under_way_when_one_fails_is_kept(index, error):
    def fail():
        raise error("now")

    failing = TellingScorer(seconds=0.01, at=5, do=fail)
    with pytest.raises(error):
        align(index, failing, QUERIES, CUR, spending=Spending(workers=3))
    rest = TellingScorer()
    found = align(load(index), rest, QUERIES, CUR)
    assert found.reused == len(failing.asked) - N  # the call that failed gave nothing
    assert found.reused + found.calls == Q * N
    check_anchors(load(index))


@pytest.mark.parametrize(("method", "options"), [(CUR, {}), ("als", {"per": 50})])
def test_two_runs_in_one_folder_do_not_pay_beside_each_other(index, method, options):
    other, second = load(index), TellingScorer()

    def beside():
        with pytest.raises(InputError, match="another process is adding scores"):
            align(other, second, QUERIES[2:6], method, **options)
        with pytest.raises(InputError, match="another process is adding scores"):
            load(index).add_anchors(second, QUERIES[2:6])

    first = TellingScorer(at=2, do=beside)
    align(load(index), first, QUERIES[:3], CUR)
    assert not second.asked
    align(other, second, QUERIES[2:6], method, **options)
    assert once(first, second) == 3 * N + 3 * options.get("per", N)
    check_anchors(load(index), QUERIES[: 6 if method == CUR else 3])
    assert not list(index.folder.glob("work-anchors"))


def test_unfinished_rows_that_the_next_call_does_not_ask_for_are_kept(index):
    scorer = TellingScorer()
    with pytest.raises(InputError, match="allow more calls"):
        align(index, scorer, QUERIES[:1], "cur", spending=Spending(max_calls=190))
    for texts, calls, reused in ((QUERIES[1:3], 2 * N, 0), (QUERIES[:1], 10, 190)):
        found = align(load(index), scorer, texts, "cur")
        assert (found.calls, found.reused) == (calls, reused)
    assert once(scorer) == 3 * N
    check_anchors(load(index), [*QUERIES[1:3], QUERIES[0]])
    assert not list(index.folder.glob("work-anchors"))


def test_other_anchors_count_for_the_rank_but_are_not_of_the_plan(index):
    scorer = TellingScorer()
    align(index, scorer, QUERIES[:10], CUR)
    found = align(
        load(index), scorer, QUERIES[9:12], "cur(rank=11)", spending=Spending(max_calls=N)
    )
    assert (found.calls, found.reused, found.vectors.cost.queries) == (N, N, 11)
    assert "1 of 3 train queries have too few scores" in found.notes[0]
    with pytest.raises(InputError, match="12 is the highest rank"):
        align(index, scorer, QUERIES[9:12], "cur(rank=13)")


@pytest.mark.parametrize("method", ["als", CUR])
def test_items_of_equal_texts_are_paid_once(tmp_path, method):
    items = [*ITEMS[:30], *ITEMS[10:20], ITEMS[10]]
    index = ItemIndex.build(items, vectors=vectors_of(items), query_vectors=vectors_of, bm25=False)
    index.save(tmp_path / "index")
    scorer = TellingScorer()
    for calls in (90, 0):
        found = align(load(index), scorer, QUERIES[:3], method, per=41)
        assert (found.calls, found.vectors.cost.calls) == (calls, 90)
    assert once(scorer) == 90
    if method == CUR:
        check_anchors(load(index), QUERIES[:3])
        scores = anchors_of(index)
        np.testing.assert_array_equal(scores[:, 30:40], scores[:, 10:20])


class Infinite(TellingScorer):
    def score(self, *call, **limits):
        for where, scores in super().score(*call):
            yield where, scores * np.float32(np.inf)


@pytest.mark.parametrize("method", ["als", CUR])
def test_scores_that_are_none_are_not_kept_and_said(index, method):
    with pytest.raises(ScorerError, match="inf as the score of query"):
        align(index, Infinite(), QUERIES[:3], method, per=20)
    with pytest.raises(ScorerError, match="pairs were asked that could not be scored"):
        align(index, TellingScorer(skip=index.items.texts), QUERIES[:3], method, per=20)
    align(index, TellingScorer(), QUERIES[:3], CUR)
    check_anchors(index, QUERIES[:3])


def test_a_block_without_a_score_leaves_its_row_open_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(dense, "_BLOCK", 40)
    index, bad = ItemIndex.build(ITEMS[:41], lsa=0, bm25=False), True

    def score(pairs):
        if bad and any(item == index.items.texts[40] for _, item in pairs):
            raise ValueError("strange")
        return [score_of(*pair) for pair in pairs]

    index.save(tmp_path / "index")
    scorer = CallableScorer(score, "strange")
    for calls, reused in ((20 * 41, 0), (20, 20 * 40)):  # one left in each row: it does not give up
        report = index.add_anchors(scorer, QUERIES[:20])
        assert (report.calls, report.failed, report.reused) == (calls, 20, reused)
        assert report.rows_done == 0
    bad = False
    assert index.add_anchors(scorer, QUERIES[:20]).complete
    check_anchors(index, QUERIES[:20])


def test_a_model_that_scores_nothing_is_given_up(index):
    class Broken(TellingScorer):
        def score(self, *call, **limits):
            yield from list(super().score(*call))[:0]
            raise NothingScoredError("out of order")

    broken = Broken()
    with pytest.raises(NothingScoredError, match="8 blocks in a row: out of order"):
        align(index, broken, QUERIES, CUR)
    assert once(broken) == 8 * N


@pytest.mark.parametrize("workers", [1, 4])
def test_what_a_cache_answers_leaves_the_calls_to_others(index, tmp_path, workers):
    with CachedScorer(TellingScorer(seconds=0.01), tmp_path / "cache.sqlite") as cached:
        list(cached.score(Pairs(*np.divmod(np.arange(6 * N), N)), QUERIES, index.items.texts))
        report = index.add_anchors(cached, QUERIES, max_calls=600, workers=workers)
        assert (report.calls, report.rows_done, report.stopped_by) == (600, 9, "max_calls")
        assert cached.misses == 6 * N + 600


def test_the_seconds_of_a_run_that_was_interrupted_count(index):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        align(index, TellingScorer(seconds=0.01, at=11, do=stop), QUERIES, CUR)
    assert bank_of(index).seconds_per_pair >= 0.01 / N


def test_seconds_are_of_all_pairs_whichever_run_paid_them(index):
    slow = TellingScorer(seconds=0.01)
    first = align(index, slow, QUERIES, CUR).vectors.cost.scoring_seconds
    again = align(load(index), slow, QUERIES, CUR).vectors.cost.scoring_seconds
    sparse = align(load(index), slow, QUERIES, per=20).vectors.cost.scoring_seconds
    assert first >= 0.01 * Q
    assert again == first
    assert sparse == pytest.approx(first * 20 / N, abs=1e-3)


def test_ray_is_refused_before_anything_is_paid(index):
    scorer = TellingScorer()
    with pytest.raises(InputError, match=r"not on Ray: leave ray \(--ray\) out"):
        align(index, scorer, QUERIES, CUR, spending=Spending(ray="local"))
    assert not scorer.asked
    assert index.anchors is None


def test_any_order_of_ways_pays_each_pair_once(index):
    ways = [(CUR, {}), ("als", {"per": 15}), ("als", {"strategy": "i", "per": 3, "name": "i"})]
    for order in itertools.permutations(ways):
        again = ItemIndex.build(
            ITEMS, vectors=vectors_of(ITEMS), query_vectors=vectors_of, bm25=False
        )
        folder = index.folder / "-".join(str(ways.index(way)) for way in order)
        again.save(folder)
        scorer = TellingScorer()
        calls = [align(load(again), scorer, QUERIES[:12], how, **more).calls for how, more in order]
        assert sum(calls) == once(scorer) == 12 * N
