"""Folders from others: what lies in them is a regular file of theirs, or is refused.

A link in an archive would lead a reading, or worse a writing, to any file of the user.
"""

import os
import sqlite3
import stat

import pytest
from index_helpers import rewrite_manifest

import crossknn as ck
from crossknn.errors import CrossknnError
from crossknn.extend import Pairs, ScoreStore
from crossknn.index.storage import MANIFEST
from crossknn.models.folder import check_files, json_in
from crossknn.scorers.opening import bundled_folder
from crossknn_lab.collecting import collect_matrix
from crossknn_lab.curves import write_report
from crossknn_lab.page import Page, write_page

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
PRECIOUS = b"the only copy of a thesis"


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "thesis.txt"
    path.write_bytes(PRECIOUS)
    return path


def data_file(folder, ending="items.texts.utf8"):
    return next(path for path in folder.glob("data-*/*") if path.name.endswith(ending))


def link(path, to):
    path.unlink(missing_ok=True)
    path.symlink_to(to)


def use(folder):
    """Everything that a new user does with an index, as far as it goes."""
    done = []
    steps = (
        lambda: ck.ItemIndex.load(folder).verify(),
        lambda: ck.Searcher(ck.ItemIndex.load(folder), ck.CrossEncoder()).search("zip", k=1),
        lambda: ck.ItemIndex.load(folder).add([{"id": "new", "text": "how to move a mountain"}]),
        lambda: ck.ItemIndex.load(folder).delete(["0"]),
        lambda: ck.ItemIndex.load(folder).compact(),
        lambda: ck.collect_anchors(ck.ItemIndex.load(folder), ck.CrossEncoder(), ["zip it"]),
        lambda: ck.ItemIndex.load(folder).save(folder),
    )
    for step in steps:
        try:
            step()
        except CrossknnError as error:
            done.append(str(error))
    return done


def test_a_link_in_the_place_of_a_temporary_file(folder, victim):
    """An `index add-items` replaced the file that `crossknn-index.json.part` pointed to."""
    link(folder / f"{MANIFEST}.part", victim)
    (folder.parent / "linked").symlink_to(folder)  # the folder itself may be a link
    assert not use(folder.parent / "linked")
    assert victim.read_bytes() == PRECIOUS


@pytest.mark.parametrize("name", [MANIFEST, "scores.db", "scores.db-wal", "scores.db.lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_what_is_no_file_in_the_place_of_one(folder, victim, name, kind):
    """A linked `scores.db` turned the file behind it into a database; a pipe hung."""
    path = folder / name
    path.unlink(missing_ok=True)
    outside = victim if kind == "link" else victim.with_name("new.txt")
    if "link" in kind:
        path.symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    said = use(folder)
    assert any(
        f"{name} is a {named}, but crossknn needs a regular file" in sentence
        for sentence in said
        for named in ("symbolic link", "named pipe", "folder")
    )
    assert victim.read_bytes() == PRECIOUS
    assert not victim.with_name("new.txt").exists()


def test_an_add_through_a_linked_file_of_items(folder, victim):
    """With `bytes: 0, checksums: ""` an `add` replaced an outside file by the item's text."""
    path = data_file(folder)

    def emptied(manifest):
        entry = manifest["parts"]["items"]["columns"]["texts"][0]
        entry |= {"bytes": 0, "checksums": ""}

    rewrite_manifest(folder, emptied)
    link(path, victim)
    assert all("symbolic link" in said for said in use(folder)[:3])
    assert victim.read_bytes() == PRECIOUS


def test_a_linked_folder_of_data(folder, victim, tmp_path):
    data = next(folder.glob("data-*"))
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").iterdir())
    assert "is a symbolic link, but crossknn needs a folder" in use(folder)[0]
    assert sorted((tmp_path / "elsewhere").iterdir()) == before


def test_a_hard_link_is_read_and_never_changed(folder, victim):
    path = data_file(folder)
    before = path.read_bytes()
    os.link(path, victim.with_name("backup"))
    assert len(ck.ItemIndex.load(folder).items.texts) == 6
    with pytest.raises(
        ck.InputError, match="has hard links, through which a change would affect other files"
    ):
        ck.ItemIndex.load(folder).add([{"id": "new", "text": "how to move a mountain"}])
    assert victim.with_name("backup").read_bytes() == before


def test_a_store_with_two_names_is_only_read(tmp_path):
    path = tmp_path / "scores.db"
    with ScoreStore(path) as store:
        store.put("ce", ["q"], ["a"], Pairs([0], [0]), [1.0])
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.link(path, tmp_path / "backup.db")
    before = path.read_bytes()
    store = ScoreStore(path)
    assert store.rows("ce", ["q"], ["a"]).tolist() == [[1.0]]
    with pytest.raises(ck.InputError, match="cannot be kept"):
        store.put("ce", ["q"], ["b"], Pairs([0], [0]), [1.0])
    assert path.read_bytes() == before


def test_parts_that_name_files_elsewhere(folder, tmp_path):
    """The name of a part became a path: `--nearest` emptied the folder that it led to."""
    (folder / "nearest-..").mkdir()

    def renamed(manifest):
        manifest["parts"]["vectors/../../outside"] = manifest["parts"].pop("vectors/lsa")

    rewrite_manifest(folder, renamed)
    assert "names a part outside its folder" in use(folder)[0]


@pytest.mark.parametrize("name", ["model.onnx", "crossknn.json"])
def test_a_model_with_a_linked_file(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in bundled_folder("cross-encoder").iterdir():
        if path.name != name:
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / name).symlink_to(bundled_folder("cross-encoder") / name)
    with pytest.raises(ck.InputError, match="a model's files must be regular files in its folder"):
        ck.CrossEncoder(folder)


def test_the_links_of_the_hub_s_cache_are_followed(tmp_path):
    repository = tmp_path / "models--a--b"
    folder = repository / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in bundled_folder("cross-encoder").iterdir():
        (repository / "blobs" / path.name).write_bytes(path.read_bytes())
        (folder / path.name).symlink_to(f"../../blobs/{path.name}")
    assert ck.CrossEncoder(folder).score(Pairs([0], [0]), ["a"], ["b"])
    (folder / "more.json").symlink_to("/etc/hostname")
    with pytest.raises(ck.InputError, match="is a link, a device or a pipe"):
        check_files(folder)
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "tokenizer_config.json")
    with pytest.raises(ck.InputError, match="is a link, a device or a pipe"):
        ck.CrossEncoder(tmp_path)
    assert json_in(tmp_path, "tokenizer_config.json", {}) == {}


def test_what_writes_into_a_folder_follows_no_link(folder, tmp_path, victim):
    names = ("page.md", "index.html")
    for name in (*names, "m.npz"):
        (tmp_path / name).symlink_to(victim)
    write_page(Page(title="A page"), tmp_path)
    for name in names:
        assert stat.S_ISREG((tmp_path / name).lstat().st_mode)
    with pytest.raises(ck.InputError, match=r"m\.npz"):
        collect_matrix(tmp_path / "m.npz", ck.ItemIndex.load(folder), ck.CrossEncoder(), ["zip"])
    assert victim.read_bytes() == PRECIOUS
    pages, outside = tmp_path / "pages", tmp_path / "outside"
    pages.mkdir()
    outside.mkdir()
    (pages / "images").symlink_to(outside)
    with pytest.raises(ck.InputError, match="is a symbolic link, but crossknn needs a folder"):
        write_report(Page(title="A"), pages)
    assert not list(outside.iterdir())
