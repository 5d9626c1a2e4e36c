"""A manifest of somebody else, with the right checksum: each of its values in turn is another one.

Opening, searching and changing the index works or ends with one sentence.
"""

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
from index_helpers import rewrite_manifest

import crossknn as ck
from crossknn.errors import CrossknnError
from crossknn.extend import Pairs, ScoreStore
from crossknn.index.storage import MANIFEST
from crossknn.scores.database import StoreFullError

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
    folder = shutil.copytree(made, tmp_path / "index")
    for at in places(json.loads(good)["parts"][key]):
        for wrong in WRONG:
            shutil.copytree(made, folder, dirs_exist_ok=True)

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
def test_pruning_a_store_with_odd_ids(tmp_path, query):
    with ScoreStore(tmp_path / "scores.db") as store:
        store.put("ce", ["q"], ["a", "b"], Pairs(np.zeros(2, int), np.arange(2)), [1.0, 2.0])
        with store.table().writing() as db:
            db.execute("UPDATE blocks SET query = ?", (query,))
            db.execute("UPDATE blocks SET day = 'x'")
        assert store.prune(before="2000-01-01") in (0, 1)
        assert store.prune(keep=0) in (0, 1)
        assert len(store) == 0


def test_a_store_whose_numbers_are_used_up(tmp_path):
    """Repair was advised, and mended nothing."""
    with ScoreStore(tmp_path / "scores.db") as store:
        store.put("ce", ["q"], ["a"], Pairs([0], [0]), [1.0])
        with store.table().writing() as db:
            db.execute("UPDATE items SET id = ? WHERE id = 1", (2**31 - 1,))
        with pytest.raises(StoreFullError, match="no ids are left for new texts"):
            store.put("ce", ["other"], ["b"], Pairs([0], [0]), [1.0])
        assert store.verify(repair=True)
        assert store.put("ce", ["other"], ["b"], Pairs([0], [0]), [1.0]) == 1
