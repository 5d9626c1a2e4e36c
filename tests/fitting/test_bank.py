"""Scores of pairs are paid once, whatever happens, and are the same however they were paid."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from bank_helpers import (
    ITEMS,
    QUERIES,
    TellingScorer,
    open_bank,
    pay,
    random_pairs,
    run,
    same,
    score_of,
    straight,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError, ScorerError
from crossknn.fitting import blocks
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.collect import collect
from crossknn.scorers import CachedScorer, CallableScorer, MatrixScorer, NothingScoredError
from crossknn.types import Pairs

PAIRS = random_pairs(5500)  # two shards; 22 blocks


@pytest.fixture(scope="module")
def expected():
    return straight(PAIRS)


@pytest.mark.parametrize("on_disk", [False, True])
def test_scores_are_those_of_their_pairs(tmp_path, expected, on_disk):
    folder = tmp_path / "work" if on_disk else None
    bank, steps = open_bank(folder), []
    report = pay(bank, TellingScorer(), PAIRS, progress=lambda *step: steps.append(step))
    assert (report.calls, report.reused, report.failed) == (5500, 0, 0)
    assert report.complete
    assert report.stopped_by is None
    assert steps[0] == (0, 5500)
    assert steps[-1] == (5500, 5500)
    assert steps == sorted(steps)
    assert len(bank) == 5500
    for known in (bank, open_bank(folder) if on_disk else bank):
        found = known.scores(QUERIES)
        assert same(found, expected)
        assert found.fingerprint == "telling"
        exact = [
            score_of(QUERIES[q], ITEMS[i]) for q, i in zip(found.query, found.item, strict=True)
        ]
        assert np.allclose(found.score, exact, atol=2e-4)
    assert pay(bank, TellingScorer(), PAIRS).calls == 0


def test_blocks_hold_texts_of_similar_length_and_any_shard_mixes_them():
    class Lengths(TellingScorer):
        spans, means = [], []

        def score(self, pairs, queries, items, **limits):
            known = [
                len(queries[q]) + len(items[i])
                for q, i in zip(pairs.query, pairs.item, strict=True)
            ]
            self.spans.append(np.ptp(known))
            self.means.append(np.mean(known))
            return super().score(pairs, queries, items)

    scorer = Lengths()
    pay(open_bank(), scorer, PAIRS.take(slice(4096)))
    assert len(scorer.spans) == 16
    assert np.median(scorer.spans) <= 10  # of 130
    half = np.mean(scorer.means[:8]), np.mean(scorer.means[8:])
    assert abs(half[0] - half[1]) < np.ptp(scorer.means) / 3


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 3])), max_size=4))
def test_interrupted_anywhere_it_ends_in_the_same_bits(tmp_path_factory, expected, stops):
    folder, asked = tmp_path_factory.mktemp("work"), []
    for after, workers in stops:
        seen = []

        def progress(done, total, seen=seen, after=after):
            seen.append(done)
            if len(seen) == after + 1:
                raise KeyboardInterrupt

        scorer = TellingScorer()
        try:
            pay(open_bank(folder), scorer, PAIRS, workers=workers, progress=progress)
        except KeyboardInterrupt:
            assert len(open_bank(folder)) >= seen[-1]
        asked += scorer.asked
    scorer = TellingScorer()
    bank = open_bank(folder)
    reused = len(bank)
    report = pay(bank, scorer, PAIRS, workers=2)
    assert (report.reused, report.calls) == (reused, 5500 - reused)
    assert same(open_bank(folder).scores(QUERIES), expected)
    if all(workers == 1 for _, workers in stops):
        assert len(asked) + len(scorer.asked) == len({*asked, *scorer.asked}) == 5500


def test_an_interrupt_keeps_the_blocks_under_way(tmp_path, expected):
    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    folder, scorer = tmp_path / "work", TellingScorer(at=5, do=interrupt, seconds=0.02)
    with pytest.raises(KeyboardInterrupt):
        pay(open_bank(folder), scorer, PAIRS, workers=3)
    assert len(open_bank(folder)) == len(scorer.asked) < 5500
    again = TellingScorer()
    assert pay(open_bank(folder), again, PAIRS).complete
    assert len(scorer.asked) + len(again.asked) == 5500
    assert same(open_bank(folder).scores(QUERIES), expected)


DYING = """
import sys
from bank_helpers import *
scorer = TellingScorer(log=sys.argv[2], at=int(sys.argv[3]), do=die, seconds=0.005)
pay(open_bank(Path(sys.argv[1])), scorer, random_pairs(5500), workers=int(sys.argv[4]))
"""


def test_a_kill_loses_the_blocks_in_flight_alone(tmp_path, expected):
    folder, log, ends = tmp_path / "work", tmp_path / "asked", []
    in_flight = 0
    for at, workers in ((3, 1), (9, 2), (2, 1), (0, 2)):
        done = run(DYING, folder, log, at, workers)
        ends.append(done.returncode)
        in_flight += workers if at else 0
    assert ends == [-9, -9, -9, 0], done.stderr
    asked = log.read_text().splitlines()
    assert len(set(asked)) == 5500
    assert len(asked) - 5500 <= in_flight * blocks.BLOCK
    assert same(open_bank(folder).scores(QUERIES), expected)


def test_any_number_of_workers_gives_the_same_bits(expected):
    for workers in (2, 5):
        bank = open_bank()
        assert pay(bank, TellingScorer(), PAIRS, workers=workers).complete
        assert same(bank.scores(QUERIES), expected)


def test_workers_score_at_the_same_time():
    both = threading.Barrier(2, timeout=20)
    scorer = TellingScorer()
    scorer.score = lambda *call: (both.wait(), TellingScorer().score(*call))[1]
    assert pay(open_bank(), scorer, PAIRS.take(slice(1024)), workers=2).complete


@given(st.lists(st.integers(0, 3000), max_size=4))
@settings(max_examples=10, deadline=None)
def test_max_calls_is_exact(budgets):
    bank, paid = open_bank(), 0
    for budget in budgets:
        scorer = TellingScorer()
        report = pay(bank, scorer, PAIRS, max_calls=budget, workers=2)
        assert report.calls == len(scorer.asked) == min(budget, 5500 - paid)
        assert report.reused == paid
        paid += report.calls
        assert len(bank) == paid
        assert report.complete == (paid == 5500)
        assert report.stopped_by == (None if report.complete else "max_calls")
    report = pay(bank, TellingScorer(), PAIRS)
    assert (report.calls, report.complete) == (5500 - paid, True)


def test_a_budget_pays_the_beginning_of_the_plan(expected):
    bank = open_bank()
    pay(bank, TellingScorer(), PAIRS, max_calls=4096 + 512)
    assert bank.count(QUERIES, PAIRS.take(slice(4096))) == (4096, 0)
    pay(bank, TellingScorer(), PAIRS)
    assert same(bank.scores(QUERIES), expected)  # cut between blocks


def test_after_the_deadline_no_block_is_begun(tmp_path, expected):
    bank = open_bank(tmp_path)
    report = pay(bank, TellingScorer(), PAIRS, deadline=0)
    assert (report.calls, report.stopped_by, report.complete) == (0, "deadline", False)
    report = pay(bank, TellingScorer(seconds=0.03), PAIRS, deadline=0.1, workers=2)
    assert 0 < report.calls < 5500
    assert report.calls % blocks.BLOCK == 0
    assert report.stopped_by == "deadline"
    assert report.seconds >= 0.1
    assert pay(bank, TellingScorer(), PAIRS, deadline=100).stopped_by is None
    assert same(bank.scores(QUERIES), expected)


def test_plans_that_overlap_pay_no_pair_twice(tmp_path):
    first, second = PAIRS.take(slice(3000)), PAIRS.take(np.arange(5499, 1500, -1))
    scorer = TellingScorer()
    pay(open_bank(tmp_path), scorer, first, max_calls=2000)  # some of the second stay in its blocks
    report = pay(open_bank(tmp_path), scorer, second, workers=2)
    assert report.complete
    assert pay(open_bank(tmp_path), scorer, first).complete
    assert len(scorer.asked) == len(set(scorer.asked)) == 5500
    assert len(open_bank(tmp_path).scores(QUERIES, second)) == 3999


def test_a_function_is_asked_once_for_equal_pairs_and_equal_texts():
    asked = []

    def fn(found):
        asked.extend(found)
        return [score_of(*pair) for pair in found]

    queries, items = ["one", "two", "one"], ["a", "bb", "ccc"]
    bank = ScoreBank.open(items, fingerprint="callable:f")
    pairs = Pairs(np.array([0, 1, 2, 0, 2]), np.array([1, 1, 1, 1, 2]))
    report = collect(bank, CallableScorer(fn, "f"), queries, pairs)
    assert sorted(asked) == [("one", "bb"), ("one", "ccc"), ("two", "bb")]
    assert report.complete
    found = bank.scores(queries)
    assert found.query.tolist() == [0, 0, 1, 2, 2]
    assert found.item.tolist() == [1, 2, 1, 1, 2]
    assert len(bank.scores(queries, pairs)) == 4


def test_queries_are_known_by_their_text_not_their_position(tmp_path):
    scores = np.arange(12, dtype=np.float32).reshape(3, 4)
    items, pairs = ["a", "b", "c", "d"], Pairs(np.array([2, 0, 1]), np.array([3, 1, 2]))
    options = {"fingerprint": "m", "folder": tmp_path}
    collect(ScoreBank.open(items, **options), MatrixScorer(scores), ["x", "y", "z"], pairs)
    bank = ScoreBank.open(items, **options)
    found = bank.scores(["z", "new", "x"])
    assert found.query.tolist() == [0, 2]
    assert found.score.tolist() == [11.0, 1.0]
    more = Pairs(np.array([0, 0, 1, 1]), np.array([3, 0, 0, 3]))
    lookup = MatrixScorer(scores, ["x", "y", "z"])
    assert bank.count(["z", "y"], more) == (4, 3)
    assert collect(bank, lookup, ["z", "y"], more).calls == 3
    assert bank.scores(["z", "y"]).score.tolist() == [8.0, 11.0, 4.0, 6.0, 7.0]


def test_pairs_left_out_stay_unpaid_and_are_asked_again_by_the_next_run(tmp_path):
    bad = {ITEMS[4], ITEMS[90]}
    missing = int(np.isin(PAIRS.item, [4, 90]).sum())
    scorer = TellingScorer(skip=bad)
    report = pay(open_bank(tmp_path), scorer, PAIRS, workers=2)
    assert (report.calls, report.failed, report.complete) == (5500, missing, False)
    assert report.stopped_by is None
    assert len(scorer.asked) == 5500
    bank = open_bank(tmp_path)
    assert bank.count(QUERIES, PAIRS) == (5500, missing)
    assert not np.isin(bank.scores(QUERIES).item, [4, 90]).any()
    report = pay(bank, TellingScorer(), PAIRS)
    assert (report.calls, report.reused, report.failed) == (missing, 5500 - missing, 0)


def test_pairs_that_fail_again_and_again_are_no_broken_model():
    bad = {item for i, item in enumerate(ITEMS) if not i % 9}

    def fn(found):
        if any(item in bad for _, item in found):
            raise ValueError("too strange")
        return [score_of(*pair) for pair in found]

    bank = open_bank(fingerprint="callable:f")
    missing = int((PAIRS.item % 9 == 0).sum())
    for calls in (5500, missing):
        report = pay(bank, CallableScorer(fn, "f"), PAIRS)
        assert (report.calls, report.failed) == (calls, missing)


def test_a_broken_model_is_given_up_soon():
    def fn(found):
        raise ValueError("no memory")

    for pairs in (PAIRS, PAIRS.take(slice(40))):
        with pytest.raises(NothingScoredError, match="no memory"):
            pay(open_bank(), CallableScorer(fn, "f"), pairs)


def test_a_score_that_is_no_number_stops_and_keeps_the_rest(tmp_path, expected):
    class Broken(TellingScorer):
        def score(self, pairs, queries, items, **limits):
            for where, scores in super().score(pairs, queries, items):
                if self.calls == 4:
                    scores[2] = np.inf
                yield where, scores

    with pytest.raises(ScorerError, match=r"gave inf as the score of query \d+ 'query"):
        pay(open_bank(tmp_path), Broken(), PAIRS)
    bank = open_bank(tmp_path)
    assert len(bank) == 3 * blocks.BLOCK
    pay(bank, TellingScorer(), PAIRS)
    assert same(bank.scores(QUERIES), expected)


def test_another_cross_encoder_is_refused_or_replaces(tmp_path):
    pay(open_bank(tmp_path), TellingScorer(), PAIRS, max_calls=300)
    with pytest.raises(InputError, match=r"of telling, not of other; discard .*--rescore"):
        open_bank(tmp_path, "other")
    assert len(open_bank(tmp_path)) == 300
    assert len(open_bank(tmp_path, "other", rescore=True)) == 0
    with pytest.raises(InputError, match="of other, not of telling"):
        open_bank(tmp_path)


def test_scores_of_a_cross_encoder_without_a_name_are_not_kept_in_a_folder(tmp_path):
    pay(open_bank(tmp_path / "named"), TellingScorer(), PAIRS, max_calls=300)
    for folder in (tmp_path / "new", tmp_path / "named"):
        for rescore in (False, True):
            with pytest.raises(InputError, match=r"no fingerprint, .* name it \(--model NAME"):
                open_bank(folder, None, rescore=rescore)
    assert not (tmp_path / "new").exists()
    assert len(open_bank(tmp_path / "named")) == 300
    assert pay(open_bank(fingerprint=None), TellingScorer(None), PAIRS, max_calls=5).calls == 5


def test_scores_are_not_discarded_under_a_running_collection(tmp_path):
    bank = open_bank(tmp_path)
    with bank.exclusive(), pytest.raises(InputError, match="another process is adding scores"):
        open_bank(tmp_path, "other", rescore=True)


def test_another_thread_of_the_same_bank_does_not_pay_beside_the_first(tmp_path):
    bank = open_bank(tmp_path)
    with bank.exclusive(), ThreadPoolExecutor(1) as pool:
        with bank.exclusive():  # again, by the thread that has it
            pass
        beside = pool.submit(pay, bank, TellingScorer(), PAIRS, max_calls=5)
        with pytest.raises(InputError, match="another process is adding scores"):
            beside.result()


FULL = """
import resource, sys
from bank_helpers import *
from crossknn.errors import InputError
bank = open_bank(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    pay(bank, TellingScorer(), random_pairs(5500))
except InputError as error:
    print(error)
"""


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    pay(open_bank(tmp_path), TellingScorer(), PAIRS.take(slice(300)))
    done = run(FULL, tmp_path)
    assert "scores cannot be kept in" in done.stdout, done.stderr
    assert "File too large; what is there so far stays" in done.stdout
    report = pay(open_bank(tmp_path), TellingScorer(), PAIRS)
    assert (report.reused, report.complete) == (300, True)


def test_what_a_kill_leaves_half_done_is_no_harm(tmp_path, expected):
    pay(open_bank(tmp_path), TellingScorer(), PAIRS, max_calls=512)
    shard = tmp_path / "shard-000000.bin"
    found = np.fromfile(shard, "<f4", count=4096)
    full = straight(PAIRS)
    with (tmp_path / "queries.jsonl").open("a") as file:
        file.write('"half a li')
    with (tmp_path / "items.bin").open("ab") as file:
        file.write(b"half a di")
    (tmp_path / "shard-000001.bin.part").write_bytes(b"half")
    # A block that a worker wrote, and that did not come into its shard.
    bank = open_bank(tmp_path)
    block = next(iter(bank.blocks(QUERIES, PAIRS)))
    paid = np.array(
        [
            full.score[(full.query == q) & (full.item == i)][0]
            for q, i in zip(block.pairs.query, block.pairs.item, strict=True)
        ]
    )
    block.file(tmp_path, bank.token).write_bytes(paid.astype("<f4").tobytes())
    assert np.count_nonzero(~np.isnan(found)) == 512
    report = pay(bank, TellingScorer(), PAIRS)
    assert (report.reused, report.calls) == (768, 5500 - 768)
    assert same(open_bank(tmp_path).scores(QUERIES), expected)
    more = Pairs(np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert collect(open_bank(tmp_path), TellingScorer(), ["a new\nquery"], more).complete
    assert len(open_bank(tmp_path).scores(["a new\nquery"])) == 1


@pytest.mark.parametrize("name", ["shard-000000.bin", "queries.jsonl", "items.bin", "work.json"])
@pytest.mark.parametrize("left", [0.5, None])
def test_damage_and_loss_are_noticed_and_cost_no_other_file(tmp_path, name, left):
    pay(open_bank(tmp_path), TellingScorer(), PAIRS, max_calls=4500)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if left:
        (tmp_path / name).write_bytes(whole[: int(left * len(whole)) - 1])
    for options in ({}, {"rescore": True}):
        with pytest.raises(InputError, match=rf"damaged .*, or remove the folder {tmp_path} and"):
            open_bank(tmp_path, **options)
    (tmp_path / name).write_bytes(whole)
    assert len(open_bank(tmp_path)) == 4500


def test_a_lost_shard_is_named_and_none_takes_its_place(tmp_path):
    bank = open_bank(tmp_path)
    pay(bank, TellingScorer(), PAIRS, max_calls=4500)
    (tmp_path / "shard-000000.bin").unlink()
    last = (tmp_path / "shard-000001.bin").read_bytes()
    for ask in (lambda: open_bank(tmp_path), lambda: pay(bank, TellingScorer(), PAIRS)):
        with pytest.raises(InputError, match=r"damaged \(shard-000000.bin is missing\): bring"):
            ask()
    assert (tmp_path / "shard-000001.bin").read_bytes() == last


def test_seconds_that_cannot_be_read_are_none(tmp_path):
    pay(open_bank(tmp_path), TellingScorer(seconds=0.01), PAIRS, max_calls=300)
    (tmp_path / "seconds.json").write_text('{"pairs": 3')
    bank = open_bank(tmp_path)
    assert bank.seconds_per_pair == 0.0
    assert pay(bank, TellingScorer(seconds=0.01), PAIRS, max_calls=300).reused == 300
    assert open_bank(tmp_path).seconds_per_pair > 0


@pytest.mark.parametrize("dies", range(6))
def test_discarding_that_is_killed_leaves_a_bank(tmp_path, dies, monkeypatch):
    pay(open_bank(tmp_path), TellingScorer(), PAIRS, max_calls=4500)
    whole, unlink, removed = open_bank(tmp_path).scores(QUERIES), Path.unlink, []

    def dying(path, **options):
        if len(removed) == dies:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", dying)
    with pytest.raises(KeyboardInterrupt):
        open_bank(tmp_path, "other", rescore=True)
    monkeypatch.undo()
    there = (tmp_path / "work.json").exists()
    left = open_bank(tmp_path, "telling" if there else "other").scores(QUERIES)
    assert len(left) == (0 if dies > 1 else 4096 if dies else 4500)
    assert set(left.score) <= set(whole.score)
    assert len(open_bank(tmp_path, "other", rescore=True)) == 0


def block_file(folder, token, start=0, values=(7.0,) * 256):
    path = folder / f"block-{token}-000000-{start:04d}.f32"
    path.write_bytes(np.array(values, "<f4").tobytes())
    return path


def test_what_slow_workers_leave_overwrites_nothing_that_is_paid(tmp_path):
    few = PAIRS.take(slice(300))
    pay(open_bank(tmp_path), TellingScorer(), few, max_calls=270)
    bank = open_bank(tmp_path)
    before = bank.scores(QUERIES)
    block_file(tmp_path, bank.token)
    block_file(tmp_path, bank.token, 256, [7.0] * 100)  # longer than the shard, 300
    block_file(tmp_path, bank.token, 4096)
    (tmp_path / "block-half.f32.123").write_bytes(b"half")
    assert pay(bank, TellingScorer(), few, max_calls=0).reused == 300
    assert not list(tmp_path.glob("block-*"))
    for found in (bank.scores(QUERIES), open_bank(tmp_path).scores(QUERIES)):
        assert np.count_nonzero(found.score == 7.0) == 30
        assert set(before.score) <= set(found.score)


def test_scores_that_come_after_all_were_discarded_are_not_taken(tmp_path):
    token = open_bank(tmp_path).token
    open_bank(tmp_path, "other", rescore=True)
    bank = open_bank(tmp_path, "telling", rescore=True)
    assert bank.token != token
    pay(bank, TellingScorer(), PAIRS, max_calls=10)
    late = block_file(tmp_path, token)
    assert pay(bank, TellingScorer(), PAIRS, max_calls=0).reused == 10
    assert not late.exists()


def test_a_folder_that_is_gone_is_one_sentence(tmp_path):
    bank = open_bank(tmp_path / "work")
    rmtree(tmp_path / "work")
    with pytest.raises(InputError, match="were discarded meanwhile; open them again"):
        pay(bank, TellingScorer(), PAIRS)


def test_what_a_cache_has_is_no_call(tmp_path):
    with CachedScorer(TellingScorer(), tmp_path / "scores.sqlite") as scorer:
        pay(open_bank(), scorer, PAIRS.take(slice(1000)))
        for workers in (1, 3):
            bank = open_bank()
            report = pay(bank, scorer, PAIRS, max_calls=600, workers=workers)
            assert (report.calls, report.stopped_by) == (600, "max_calls")
            assert len(bank) >= 600


def test_two_collections_at_once_in_one_folder_are_refused(tmp_path):
    bank, other = open_bank(tmp_path), open_bank(tmp_path)
    with bank.exclusive(), pytest.raises(InputError, match="another process is adding scores"):
        pay(other, TellingScorer(), PAIRS)
    pay(bank, TellingScorer(), PAIRS)
    assert pay(other, TellingScorer(), PAIRS).reused == 5500


def test_wrong_arguments_are_refused():
    bank, scorer = open_bank(), TellingScorer()
    with pytest.raises(InputError, match="max_calls is -1"):
        pay(bank, scorer, PAIRS, max_calls=-1)
    with pytest.raises(InputError, match="workers is 0"):
        pay(bank, scorer, PAIRS, workers=0)
    with pytest.raises(InputError, match="names item 200, but there are 200"):
        pay(bank, scorer, Pairs(np.array([0]), np.array([200])))
