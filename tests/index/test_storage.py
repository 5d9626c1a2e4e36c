"""Whatever happens to the disk or the process, an index is whole or refused in one sentence."""

import os
import signal
from multiprocessing import get_context

import numpy as np
import pytest
from index_helpers import FormulaScorer, corpus, rewrite_manifest

from crossknn.errors import IndexFormatError, InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.index import storage
from crossknn.index.item_index import ItemIndex
from crossknn.index.storage import MANIFEST, VERSION
from crossknn.types import Queries


@pytest.fixture
def folder(tmp_path):
    index = ItemIndex.build(corpus(12), lsa=4)
    collect_anchors(index, FormulaScorer(), ["one", "two"])
    index.put_artifact("own", {}, {"x": np.arange(12.0)})
    index.save(tmp_path / "index")
    return tmp_path / "index"


def files(folder):
    """All but the store of scores, which has tests of its own."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.name.startswith("scores.db"))


def test_every_truncated_or_missing_file_is_noticed(folder):
    ItemIndex.load(folder)
    for path in files(folder):
        whole = path.read_bytes()
        for damaged in {whole[:-1], whole[: len(whole) // 2], b""} - {whole}:
            path.write_bytes(damaged)
            with pytest.raises(IndexFormatError, match=r"damaged") as error:
                ItemIndex.load(folder)
            assert "\n" not in str(error.value)
        path.unlink()
        with pytest.raises(IndexFormatError):
            ItemIndex.load(folder)
        path.write_bytes(whole)
    ItemIndex.load(folder)


def read_all(folder):
    """Touch all that a search may touch."""
    index = ItemIndex.load(folder)
    list(index.items), list(index.items.ids)
    queries = Queries(["cat 1", "river"])
    for name in index.retrievers:
        index.retrievers[name].scores(queries)
    index.query_vectors(queries, "lsa")
    list(index.anchors.queries.texts)
    return index.artifacts["own"].arrays["x"].sum()


def test_changed_bytes_are_noticed_when_they_are_read_and_by_verify(folder):
    read_all(folder)
    assert ItemIndex.load(folder).verify() == []
    silent = set()
    for path in files(folder):
        whole = path.read_bytes()
        for at in (len(whole) // 2, len(whole) - 1) if whole else ():
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            if path.name == MANIFEST:
                with pytest.raises(IndexFormatError, match=r"damaged"):
                    ItemIndex.load(folder)
                continue
            said = f"the contents of {path.name} have changed; build or copy it again"
            assert ItemIndex.load(folder).verify() == [f"the index {folder} is damaged: {said}"]
            try:
                read_all(folder)
                silent.add(path.name)
            except IndexFormatError as error:
                assert said in str(error)  # noqa: PT017
        path.write_bytes(whole)
    # Of postings, only those of the queries' words are read.
    unread = {f"words.bm25.{c}.npy" for c in ("items", "weights")}
    assert silent <= unread


def test_manifests_of_other_versions_and_with_outward_paths(folder):
    rewrite_manifest(folder, lambda manifest: manifest.update(version=2))
    with pytest.raises(IndexFormatError, match=r"another version of crossknn .its format is 2"):
        ItemIndex.load(folder)
    outward = [{"path": "../x.npy", "bytes": 1, "checksums": ""}]
    parts = {"items": {"meta": {}, "columns": {"x": outward}}}
    rewrite_manifest(folder, lambda manifest: manifest.update(version=VERSION, parts=parts))
    with pytest.raises(IndexFormatError, match=r"outside its folder"):
        ItemIndex.load(folder)
    (folder / MANIFEST).write_text("[]")
    with pytest.raises(
        IndexFormatError, match=r"damaged: the checksum of crossknn-index\.json does not match"
    ):
        ItemIndex.load(folder)


def test_folders_that_are_no_index(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("nothing", "other", "file"):
        with pytest.raises(IndexFormatError, match=r"there is no index .*/(noth|oth|file)"):
            ItemIndex.load(tmp_path / name)
    index = ItemIndex.build(["x"])
    with pytest.raises(InputError, match=r"not an index and not empty .it holds 'thesis\.tex'."):
        index.save(tmp_path / "other")
    with pytest.raises(InputError, match=r"file cannot be written: File exists"):
        index.save(tmp_path / "file")
    for bad in ({"when": object()}, {"text": "half \ud800"}):
        unfit = ItemIndex.build([{"id": 1, "text": "x"}])
        unfit.items.extra[0].update(bad)
        unfit.items.titles[0] = bad.get("text", "")
        with pytest.raises(InputError, match=r"cannot be stored as JSON|surrogate pair"):
            unfit.save(tmp_path / "new" / "index")
    unfit = ItemIndex.build(["x"])
    unfit.put_artifact("objects", {}, {"x": np.array([object()])})
    with pytest.raises(InputError, match="array of Python objects"):
        unfit.save(tmp_path / "new" / "index")
    assert not (tmp_path / "new" / "index").exists()
    assert (tmp_path / "other" / "thesis.tex").read_text() == "x"


def start(target, folder):
    process = get_context("spawn").Process(target=target, args=(folder,))
    process.start()
    return process


def exit_of(process):
    process.join()
    return process.exitcode


def killed(folder):
    storage.files.write_file = lambda *manifest: os.kill(os.getpid(), signal.SIGKILL)
    ItemIndex.build(corpus(40)).save(folder)


def test_a_kill_while_saving_leaves_the_old_index_and_an_open_one_outlives_it(folder, tmp_path):
    old = ItemIndex.load(folder)
    texts = list(old.items.texts)
    assert exit_of(start(killed, folder)) == -9
    assert len(list(folder.glob("data-*"))) == 2
    assert ItemIndex.load(folder).n == 12
    ItemIndex.build(corpus(5)).save(folder)
    assert ItemIndex.load(folder).n == 5
    assert len(list(folder.glob("data-*"))) == 1
    assert (list(old.items.texts), old.vectors["lsa"].shape) == (texts, (12, 4))

    assert exit_of(start(killed, tmp_path / "new")) == -9
    with pytest.raises(IndexFormatError, match=r"still being written, or writing was interrupted"):
        ItemIndex.load(tmp_path / "new")
    ItemIndex.build(corpus(5)).save(tmp_path / "new")
    assert ItemIndex.load(tmp_path / "new").n == 5


def rewritten(folder):
    for n in range(10, 15):
        ItemIndex.build(corpus(n), bm25=False, lsa=2).save(folder)


def test_writers_and_readers_at_once_always_meet_a_whole_index(folder):
    writers = [start(rewritten, folder) for _ in range(2)]
    while any(writer.is_alive() for writer in writers):
        index = ItemIndex.load(folder)
        assert len(list(index.items)) == index.n
    assert [exit_of(writer) for writer in writers] == [0, 0]
    assert ItemIndex.load(folder).n == 14
    assert len(list(folder.glob("data-*"))) == 1
