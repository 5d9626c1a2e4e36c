"""Scores of pairs are kept by their texts: what is paid stays paid whatever becomes of the items."""

import json

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
    texts,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError, ScorerError
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.collect import collect
from crossknn.fitting.lines import ItemLines, digests
from crossknn.types import Pairs

PAIRS = random_pairs(1500)


def all_pairs(q, n):
    return Pairs(np.repeat(np.arange(q), n), np.tile(np.arange(n), q))


def by_text(found, items):
    """The scores of G by their texts."""
    pairs = zip(found.query.tolist(), found.item.tolist(), strict=True)
    return {
        (found.queries[q], items[i]): score
        for (q, i), score in zip(pairs, found.score, strict=True)
    }


corpora = st.lists(st.sampled_from(texts(9, "item")), min_size=1, max_size=12)
asked_for = st.lists(st.sampled_from(texts(4, "query")), min_size=1, max_size=4)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(asked_for, corpora, st.integers(0, 40)), max_size=5), st.booleans())
def test_each_pair_of_texts_is_asked_once_however_items_change(tmp_path_factory, steps, apart):
    folder = tmp_path_factory.mktemp("work")
    known = {}
    for queries, items, budget in steps:
        bank, scorer = open_bank(folder, items=items), TellingScorer()
        pairs = all_pairs(len(queries), len(items))
        wanted = {(query, item) for query in queries for item in items}
        assert bank.count(queries, pairs) == (len(wanted), len(wanted - set(known)))
        report = collect(bank, scorer, queries, pairs, max_calls=budget)
        assert report.calls == len(scorer.asked) == min(budget, len(wanted - set(known)))
        assert not set(known) & set(scorer.asked)
        for found in (bank.scores(queries), bank.scores(queries, pairs)):
            now = by_text(found, items)
            assert set(now) == wanted & {*known, *scorer.asked}
            assert all(now[pair] == known[pair] for pair in wanted & set(known))
            positions = sum(queries.count(query) * items.count(item) for query, item in now)
            assert len(found) == positions  # of equal texts, every one
        if apart:
            assert same(open_bank(folder, items=items).scores(queries), bank.scores(queries))
        known.update(now)
    assert len(open_bank(folder)) == len(known)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 2**4 - 1).map(lambda b: bytes(b >> k & 1 for k in range(4)) * 4)),
        max_size=4,
    )
)
def test_digests_have_the_lines_they_had_zeros_included(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("lines") / "items.bin"
    path.touch()
    line = {}
    for step in steps:
        lines = ItemLines(path)
        found = lines.of(np.frombuffer(b"".join(step), "S16")).tolist()
        assert found == [line.setdefault(digest, len(line)) for digest in step]
        lines.keep()
        assert path.read_bytes()[: 16 * len(line)] == b"".join(line)
        path.write_bytes(b"".join(line) + b"cut off")


def test_lines_that_a_power_cut_left_empty_shift_no_other(tmp_path):
    path, told = tmp_path / "items.bin", digests(["a", "b", "c"])
    path.write_bytes(told[:1].tobytes() + bytes(48))
    lines = ItemLines(path)
    assert lines.of(told[[1, 0, 1]]).tolist() == [4, 0, 4]
    lines.keep()
    assert ItemLines(path).of(told).tolist() == [0, 4, 5]


def test_texts_that_differ_in_anything_differ_in_their_digest():
    found = digests(["", "a", "a ", "A", "\0", "é", "e\u0301", "\ud800", "?"])
    assert len(set(found.tolist())) == 9


def test_items_that_are_gone_keep_their_scores(tmp_path):
    pay(open_bank(tmp_path), TellingScorer(), PAIRS)
    before = open_bank(tmp_path).scores(QUERIES)
    fewer = open_bank(tmp_path, items=ITEMS[100:])
    assert len(fewer) == 1500
    kept = before.take(before.item >= 100)
    found = fewer.scores(QUERIES)
    assert np.array_equal(found.item + 100, kept.item)
    assert np.array_equal(found.score, kept.score)
    assert pay(fewer, TellingScorer(), Pairs(np.array([0]), np.array([99]))).complete
    assert same(open_bank(tmp_path).scores(QUERIES, PAIRS), before)


DYING = """
import sys
from bank_helpers import *
items = ITEMS[::-1] + texts(300, "more") if int(sys.argv[4]) else ITEMS
scorer = TellingScorer(log=sys.argv[2], at=int(sys.argv[3]), do=die)
pay(open_bank(Path(sys.argv[1]), items=items), scorer, random_pairs(5500, n=len(items)))
"""


def test_a_kill_and_a_new_corpus_lose_the_block_in_flight_alone(tmp_path):
    folder, log, ends = tmp_path / "work", tmp_path / "asked", []
    for at, more in ((6, 0), (4, 1), (0, 0), (0, 1)):
        ends.append(run(DYING, folder, log, at, more).returncode)
    assert ends == [-9, -9, 0, 0]
    items = ITEMS[::-1] + texts(300, "more")
    planned = {
        (QUERIES[q], among[i])
        for among in (ITEMS, items)
        for q, i in zip(*vars_of(random_pairs(5500, n=len(among))), strict=True)
    }
    asked = log.read_text().splitlines()
    assert {tuple(line.split("|")) for line in asked} == planned
    assert len(asked) - len(planned) <= 2 * 256
    found = by_text(open_bank(folder, items=items).scores(QUERIES), items)
    assert set(found) == planned
    exact = [score_of(*pair) for pair in found]
    np.testing.assert_allclose(list(found.values()), exact, atol=2e-4)


def vars_of(pairs):
    return pairs.query.tolist(), pairs.item.tolist()


def test_an_older_format_is_dropped_only_if_asked(tmp_path):
    pay(open_bank(tmp_path), TellingScorer(), PAIRS)
    meta = {"format": 1, "items": "d", "n": 200, "fingerprint": "telling"}
    (tmp_path / "work.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match=r"have the format 1, not 2: .*--rescore"):
        open_bank(tmp_path)
    assert len(list(tmp_path.glob("shard-*"))) == 1
    assert len(open_bank(tmp_path, rescore=True)) == 0
    assert pay(open_bank(tmp_path), TellingScorer(), PAIRS).complete


def test_scores_that_were_discarded_meanwhile_are_not_mixed_with_others(tmp_path):
    bank = open_bank(tmp_path)
    open_bank(tmp_path, "other", rescore=True)
    with pytest.raises(InputError, match="were discarded meanwhile; open them again"):
        pay(bank, TellingScorer(), PAIRS)


def test_scores_paid_elsewhere_are_not_paid_again(tmp_path):
    bank, scorer = open_bank(tmp_path), TellingScorer()
    pay(bank, scorer, PAIRS, max_calls=300)
    paid = bank.scores(QUERIES)
    rows = all_pairs(3, 200)
    given = np.arange(600, dtype=np.float64)
    assert bank.know(QUERIES[:3], ITEMS, rows, given) == 600 - np.count_nonzero(paid.query < 3)
    assert bank.know(QUERIES[:3], ITEMS, rows, given) == 0
    again = open_bank(tmp_path)
    assert pay(again, scorer, PAIRS).complete
    assert pay(again, scorer, rows).calls == 0
    assert len(scorer.asked) == len(set(scorer.asked))
    assert same(again.scores(QUERIES, Pairs(paid.query, paid.item)), paid)
    found = again.scores(QUERIES[:3])
    known = {*zip(paid.query.tolist(), paid.item.tolist(), strict=True)}
    free = np.array([p not in known for p in zip(*vars_of(found), strict=True)])
    assert np.array_equal(found.score[free], given[free].astype(np.float32))


@pytest.mark.parametrize("on_disk", [False, True])
def test_scores_of_other_items_wait_until_those_come(tmp_path, on_disk):
    bank = open_bank(tmp_path if on_disk else None)
    others = ["one that is not there", ITEMS[7]]
    assert bank.know(["q"], others, all_pairs(1, 2), np.array([1.5, 2.5])) == 2
    found = bank.scores(["q"])
    assert (found.item.tolist(), found.score.tolist()) == ([7], [2.5])
    if on_disk:
        assert open_bank(tmp_path, items=others).scores(["q"]).score.tolist() == [1.5, 2.5]


def test_what_cannot_be_known_is_refused(tmp_path):
    bank, two = open_bank(tmp_path), all_pairs(1, 2)
    for scores in ([1.0], [1.0, np.nan], [np.inf, 0.0]):
        with pytest.raises(InputError, match="scores of 2 pairs must be so many finite numbers"):
            bank.know(QUERIES, ITEMS, two, np.array(scores))
    with pytest.raises(InputError, match="names item 1, but there are 1"):
        bank.know(QUERIES, ITEMS[:1], two, np.zeros(2))
    with (
        open_bank(tmp_path).exclusive(),
        pytest.raises(InputError, match="another process is adding scores"),
    ):
        bank.know(QUERIES, ITEMS, two, np.zeros(2))
    assert len(bank) == 0


def test_seconds_are_those_of_all_collections(tmp_path):
    bank = open_bank(tmp_path)
    assert bank.seconds_per_pair == 0.0
    pay(bank, TellingScorer(seconds=0.05), PAIRS, max_calls=512)
    first = bank.seconds_per_pair
    assert 2 * 0.05 / 512 <= first < 60 / 512
    assert open_bank(tmp_path).seconds_per_pair == pytest.approx(first, abs=1e-8)

    def stop(done, total):
        if done >= 1024:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pay(open_bank(tmp_path), TellingScorer(seconds=0.1), PAIRS, progress=stop)
    second = open_bank(tmp_path).seconds_per_pair
    assert second >= (2 * 0.05 + 2 * 0.1) / 1024

    class Broken(TellingScorer):
        def score(self, pairs, queries, items, **limits):
            for where, scores in super().score(pairs, queries, items):
                yield where, scores if self.calls == 1 else scores * np.nan

    with pytest.raises(ScorerError):
        pay(open_bank(tmp_path), Broken(seconds=0.2), PAIRS)
    assert len(open_bank(tmp_path)) == 1024 + 256
    third = open_bank(tmp_path).seconds_per_pair
    assert third >= (2 * 0.05 + 2 * 0.1 + 2 * 0.2) / 1280
    bank = open_bank(tmp_path)
    pay(bank, TellingScorer(), PAIRS, max_calls=0)
    bank.know(QUERIES, ITEMS, PAIRS, np.zeros(1500))
    assert open_bank(tmp_path).seconds_per_pair == third
    assert open_bank(tmp_path, "other", rescore=True).seconds_per_pair == 0.0


def test_workers_that_score_at_once_share_their_seconds():
    banks = {workers: open_bank() for workers in (1, 4)}
    for workers, bank in banks.items():
        pay(bank, TellingScorer(seconds=0.3), PAIRS.take(slice(1024)), workers=workers)
    assert banks[4].seconds_per_pair < banks[1].seconds_per_pair / 1.5


def test_a_bank_without_items_or_pairs_is_empty():
    bank = ScoreBank.open([], fingerprint=None)
    assert len(bank.scores(["q"])) == 0
    none = Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
    assert bank.count(["q"], none) == (0, 0)
    assert bank.know(["q"], [], none, np.empty(0)) == 0
    assert bank.seconds_per_pair == 0.0
