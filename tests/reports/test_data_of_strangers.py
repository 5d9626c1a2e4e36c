"""An index folder and a `scores.db` of somebody else, made by one who knows how: either works, or is
refused in one sentence before anything in it runs."""

import json
import shutil
import sqlite3
import struct
import time
import zlib
from contextlib import suppress

import numpy as np
import pytest
from index_helpers import rewrite_manifest

import crossknn as ck
from crossknn.errors import CrossknnError
from crossknn.extend import Pairs, ScoreStore
from crossknn.index.storage import MANIFEST
from crossknn.scores.database import StoredScoresError, StoreFullError

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"


@pytest.fixture
def path(tmp_path):
    with ScoreStore(tmp_path / "scores.db") as store:
        store.put("ce", ["q"], ["a", "b"], Pairs(np.zeros(2, int), np.arange(2)), [1.0, 2.0])
    return tmp_path / "scores.db"


def changed(path, *statements):
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(*([statement] if isinstance(statement, str) else statement))
    db.close()


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE blocks", f"CREATE VIEW blocks AS {ENDLESS}"],
        [
            "CREATE TRIGGER grow AFTER INSERT ON blocks BEGIN "
            "INSERT INTO items (digest, text, crc) VALUES (zeroblob(9), zeroblob(800000000), 0); END"
        ],
        ["CREATE VIEW more AS SELECT 1"],
        ["CREATE TABLE more (x)"],
        ["CREATE INDEX more ON items (text_crc(id, digest, text))"],
        ["DROP INDEX blocks_of"],
        [
            "DROP TABLE scorers",
            "CREATE TABLE scorers (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, "
            "pairs INTEGER NOT NULL DEFAULT 0, seconds REAL AS (pairs * 2))",
        ],
    ],
)
def test_a_schema_that_is_not_ours(path, statements):
    """A recursive view hung the opening; a trigger grew a write of one score to 859 MB."""
    with sqlite3.connect(path) as db:
        db.create_function("text_crc", 3, lambda *_: 0, deterministic=True)
        for statement in statements:
            db.execute(statement)
    db.close()
    began, size = time.perf_counter(), path.stat().st_size
    with pytest.raises(
        ck.InputError, match=r"has other tables, views or triggers|malformed database schema"
    ):
        ScoreStore(path)
    assert time.perf_counter() - began < 5
    assert path.stat().st_size == size


def block(start, items, scores, query=1, fingerprint="ce"):
    """Return the SQL that inserts a forged block of scores, with a valid checksum."""
    head = fingerprint.encode() + struct.pack("<qq?", query, start, items is None)
    crc = zlib.crc32(scores, zlib.crc32(items or b"", zlib.crc32(head)))
    row = 1, query, start, items, scores, crc
    names = "scorer, query, start, items, scores, crc"
    return f"INSERT INTO blocks ({names}) VALUES (?, ?, ?, ?, ?, ?)", row


ONE, TWO = struct.pack("<f", 1), struct.pack("<ff", 1, 2)


@pytest.mark.parametrize(
    "row",
    [
        block(-5, None, TWO),
        block(0, None, ONE),
        block(2**62, None, TWO),
        block(2**31 - 1, None, TWO),
        block(2, struct.pack("<ii", 2, -7), TWO),
        block(2, struct.pack("<ii", 2, 2), TWO),
        block(2, struct.pack("<i", 2), TWO),
        block(9, struct.pack("<ii", 2, 3), TWO),
        block(2, None, b"abc"),
        block(2, None, b""),
        block(2, None, struct.pack("<f", np.nan)),
        block(2, None, struct.pack("<f", 3e38)),
        ("UPDATE blocks SET start = 'x', crc = -1", ()),
        ("UPDATE blocks SET scores = 'text', crc = -1", ()),
        ("UPDATE blocks SET scores = 7, crc = -1", ()),
        ("UPDATE queries SET digest = 'text', crc = -1", ()),
        ("UPDATE blocks SET query = 'x', crc = -1", ()),
    ],
)
def test_a_crafted_block(path, row):
    """Negative and huge ids ended in a traceback, or took all memory."""
    changed(path, row)
    store = ScoreStore(path)
    reads = (
        lambda: store.rows("ce", ["q"], ["a", "b"]),
        lambda: store.sparse_scores("ce", ["a", "b"], ["q"]),
    )
    for read in reads:
        with suppress(StoredScoresError):
            read()
    assert any("damaged" in said for said in store.verify(repair=True))
    assert store.verify() == []
    for read in reads:
        read()


def test_ids_that_no_text_has(path):
    changed(path, block(2**30, None, TWO))
    store = ScoreStore(path)
    assert store.sparse_scores("ce", ["b", "a", "b"]).score.tolist() == [2, 1, 2]


TEXTS = [f"how to {verb} a {noun}" for verb in ("zip", "sort", "read") for noun in ("file", "list")]
WRONG = (None, -1, 2**80, 10**400, 1e308, "", "../../x", [None], {"a": None})


def scorer(pairs):
    return [float(len(item)) for _, item in pairs]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "index"
    ck.ItemIndex.build(TEXTS, lsa=2).save(folder)
    ck.collect_anchors(ck.ItemIndex.load(folder), ck.CrossEncoder(), ["zip it", "sort a list"])
    return folder


def places(value, at=()):
    """Where values stand: of the meta of parts, and the kinds and files of columns."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*at, key))


@pytest.mark.parametrize("part", ["words/bm25", "words/lsa", "vectors/lsa", "artifacts", "items"])
def test_each_value_of_a_manifest(made, tmp_path, part):
    outside = tmp_path.parent / "x"
    good = (made / MANIFEST).read_text()
    key = next(key for key in json.loads(good)["parts"] if key.startswith(part))
    folder, as_made = tmp_path / "index", False
    for at in places(json.loads(good)["parts"][key]):
        for wrong in WRONG:
            if not as_made:
                shutil.copytree(made, folder, dirs_exist_ok=True)
            (folder / MANIFEST).write_text(good)
            as_made = True

            def change(manifest, at=at, wrong=wrong):
                holder = manifest["parts"][key]
                for name in at[:-1]:
                    holder = holder[name]
                holder[at[-1]] = wrong

            rewrite_manifest(folder, change)
            with suppress(CrossknnError):
                index = ck.ItemIndex.load(folder)
                assert isinstance(index.verify(), list)
                with suppress(CrossknnError):
                    ck.Searcher(index, scorer).search("zip it", k=2)
                with suppress(CrossknnError):
                    as_made = False
                    index.delete(["1"])
                    index.compact()
                assert index.anchors is None or len(index.anchors.queries)
    assert not outside.exists()


@pytest.mark.parametrize("column", ["ids", "texts", "titles"])
def test_numbers_where_texts_are_due(made, tmp_path, column):
    """A column of texts that names only the file of their offsets was read as one of numbers."""
    folder = shutil.copytree(made, tmp_path / "index")

    def change(manifest):
        del manifest["parts"]["items"]["columns"][column][0]

    rewrite_manifest(folder, change)
    with pytest.raises(ck.IndexFormatError, match=f"{column} are numbers"):
        ck.ItemIndex.load(folder)


@pytest.mark.parametrize("query", [2**62, 2**31, -3])
def test_pruning_a_store_with_odd_ids(path, query):
    with ScoreStore(path) as store:
        with store.table().writing() as db:
            db.execute("UPDATE blocks SET query = ?", (query,))
        assert store.prune(keep=0) in (0, 1)
        assert len(store) == 0


def test_a_store_whose_numbers_are_used_up(path):
    """Repair was advised, and mended nothing."""
    with ScoreStore(path) as store:
        with store.table().writing() as db:
            db.execute("UPDATE items SET id = ? WHERE id = 1", (2**31 - 1,))
        with pytest.raises(StoreFullError, match="no ids are left for new texts"):
            store.put("ce", ["other"], ["c"], Pairs([0], [0]), [1.0])
        assert store.verify(repair=True)
        assert store.put("ce", ["other"], ["c"], Pairs([0], [0]), [1.0]) == 1
