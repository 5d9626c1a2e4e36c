"""The store against a dictionary; damages are found; processes share a file."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError, ScorerError
from crossknn.scores.database import LARGEST_ID, block_crc, parsed_block
from crossknn.scores.store import ScoreStore
from crossknn.types import Pairs

ONE = Pairs(np.zeros(1, int), np.zeros(1, int))
TEXTS = st.sampled_from(["", "a", "b", "a\nb", "é", "\ud800", "x" * 300, "0"])


@st.composite
def writes(draw):
    queries = draw(st.lists(TEXTS, min_size=1, max_size=4))
    items = draw(st.lists(TEXTS, min_size=1, max_size=6))
    pair = st.tuples(st.integers(0, len(queries) - 1), st.integers(0, len(items) - 1))
    rows = draw(st.lists(pair, max_size=12))
    pairs = Pairs(*np.array(rows, np.int64).reshape(-1, 2).T)
    scores = draw(st.lists(st.floats(-9, 9, width=32), min_size=len(rows), max_size=len(rows)))
    return draw(st.sampled_from(["f", "g"])), queries, items, pairs, np.array(scores)


@given(st.lists(writes(), max_size=6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_store_is_a_dictionary_that_keeps_the_first_score(steps, in_memory):
    known = {}
    with tempfile.TemporaryDirectory() as folder:
        path = None if in_memory else Path(folder) / "scores.db"
        store = ScoreStore(path)
        for fingerprint, queries, items, pairs, scores in steps:
            before = len(known)
            for q, i, score in zip(pairs.query, pairs.item, scores, strict=True):
                known.setdefault((fingerprint, queries[q], items[i]), np.float32(score))
            assert store.put(fingerprint, queries, items, pairs, scores) == len(known) - before
            if not in_memory:
                store.close()
                store = ScoreStore(path)
        copy = ScoreStore(Path(folder) / "copy.db")
        if known:
            store.copy_to(copy.path)
        for one in (store, copy):
            assert len(one) == len(known)
            assert one.verify() == []
            for fingerprint, queries, items, pairs, _ in steps:
                wanted = [[known.get((fingerprint, q, i), np.nan) for i in items] for q in queries]
                dense = one.rows(fingerprint, queries, items)
                np.testing.assert_array_equal(dense, np.array(wanted, np.float32))
                by_ids = one.table().lookup(
                    fingerprint, *one.table().pair_ids(queries, items, pairs)
                )
                np.testing.assert_array_equal(by_ids, dense[pairs.query, pairs.item])
                log = one.sparse_scores(fingerprint, items)
                assert len(log) == sum(
                    f == fingerprint and i == item for f, _, i in known for item in items
                )
                for q, i, score in zip(log.query, log.item, log.score, strict=True):
                    assert known[fingerprint, log.queries[q], items[i]] == score
                own = set(one.queries(fingerprint))
                assert own == {q for f, q, _ in known if f == fingerprint}


def test_many_small_batches_become_few_blocks(tmp_path):
    store, items = ScoreStore(tmp_path / "s"), [f"i{i}" for i in range(500)]
    wanted = np.random.default_rng(0).normal(size=500).astype(np.float32)
    for item in np.random.default_rng(1).permutation(500):
        pair = Pairs(np.zeros(1, int), np.array([item]))
        store.put("f", ["q"], items, pair, wanted[[item]])
    np.testing.assert_array_equal(store.rows("f", ["q"], items)[0], wanted)
    db = sqlite3.connect(tmp_path / "s")
    assert db.execute("SELECT count(*) FROM blocks").fetchone()[0] < 40
    with pytest.raises(ScorerError, match="a score is nan"):
        store.put("f", ["q"], ["d"], ONE, [np.nan])
    assert len(store) == 500


@pytest.fixture
def filled(tmp_path):
    path, n = tmp_path / "s.db", 3_000
    items, queries = [f"item {i}" for i in range(n)], [f"query {q}" for q in range(12)]
    table = np.random.default_rng(2).normal(size=(12, n)).astype(np.float32)
    pairs = Pairs(*(place.ravel() for place in np.indices(table.shape)))
    with ScoreStore(path) as store:
        store.put("f", queries, items, pairs, table.ravel())
    return path, queries, items, table


@pytest.mark.parametrize("kind", ["flip", "noise", "zero", "cut"])
def test_damage_is_one_sentence_or_changes_nothing(filled, kind):
    path, queries, items, table = filled
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=20).tolist():
        data = bytearray(whole)
        if kind == "flip":
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == "noise":
            for at in rng.integers(len(data), size=20).tolist():
                data[at] = rng.integers(256)
        elif kind == "zero":
            data[place : place + 512] = bytes(len(data[place : place + 512]))
        else:
            data = data[:place]
        path.write_bytes(data)
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
        try:
            with ScoreStore(path) as store:
                found = store.rows("f", queries, items)
                store.put("f", ["new"], ["another"], ONE, [1.0])
        except InputError as error:
            said = str(error)
            assert str(path) in said
            continue
        known = ~np.isnan(found)  # what cannot be found any more is scored again
        np.testing.assert_array_equal(found[known], table[known])


def changed(path, statements):
    """The store in a database after these statements."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(statements)
    return ScoreStore(path)


@pytest.mark.parametrize(
    ("damage", "what", "lost"),
    [
        ("UPDATE blocks SET scores = zeroblob(length(scores)) WHERE id = 3", "block", np.s_[2]),
        ("UPDATE items SET crc = crc + 1 WHERE id = 3000", "item", np.s_[:, -1]),
    ],
)
def test_what_is_damaged_is_refused_until_it_is_repaired(filled, damage, what, lost):
    path, queries, items, table = filled
    store = changed(path, damage)
    with pytest.raises(
        InputError, match=r"s\.db are damaged \(checksum mismatch in a .*verify --repair"
    ):
        store.rows("f", queries, items)
    assert store.verify() == [f"1 of the {what}s of scores in {path} are damaged"]
    assert store.verify(repair=True)
    assert store.verify() == []
    store.put("f", ["new"], ["another"], ONE, [1.0])
    found = store.rows("f", queries, [*items, "another"])
    assert np.isnan(found[:, -1]).all()  # a damaged text never becomes another
    table[lost] = np.nan
    np.testing.assert_array_equal(found[:, :-1], table)


def test_a_block_ends_at_the_largest_id():
    for start, whole in ((LARGEST_ID - 1, True), (LARGEST_ID, False)):
        block = b"f", 1, start, None, np.ones(2, "<f4").tobytes()
        assert (parsed_block(*block, block_crc(*block)) is not None) == whole


def test_other_files_are_refused_and_opening_makes_no_file(tmp_path):
    old_format = "PRAGMA application_id = 2020306542; PRAGMA user_version = 1"
    for name, statements in (("other", "CREATE TABLE t (a)"), ("old", old_format)):
        with pytest.raises(InputError, match="holds no scores of crossknn in the format 6"):
            changed(tmp_path / name, statements)
        before = (tmp_path / name).read_bytes()
        with pytest.raises(InputError, match="holds no scores of crossknn in the format 6"):
            ScoreStore(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    (tmp_path / "text").write_text("no database, and long enough to be none " * 9)
    with pytest.raises(InputError, match="text are damaged"):
        ScoreStore(tmp_path / "text")
    with pytest.raises(InputError, match="there is no folder"):
        ScoreStore(tmp_path / "none" / "s")
    store = ScoreStore(tmp_path / "s")
    assert (len(store), store.queries("f")) == (0, [])
    assert np.isnan(store.rows("f", ["q"], ["a"])).all()
    assert not store.path.exists()
