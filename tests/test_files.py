"""Files with a checksum for every chunk, atomic writes, locks."""

import ast
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import IndexFormatError, InputError
from crossknn.files import as_path, digest, scratch, translate_os_errors, write_file
from crossknn.index.columns import CHUNK, CheckedFile, StoredArray, write_array

ROOT = Path(__file__).parent.parent


def stored(path, values, *, damaged=None):
    entry = write_array(path.parent, path.name, values)
    if damaged is not None:
        data = bytearray(path.read_bytes())
        data[damaged] ^= 1
        path.write_bytes(data)
    return StoredArray(CheckedFile(path.parent, entry, "the index X"))


@pytest.mark.parametrize("rows", [7, slice(3, 9), [5, 1, -1], "mask", np.array([[2, 3], [4, 2]])])
def test_an_array_checks_what_is_read_of_it(tmp_path, rows):
    values = np.random.default_rng(0).random((9000, 5))  # 40 bytes a row: six chunks
    array = stored(tmp_path / "a.npy", values, damaged=3 * CHUNK + 10)
    rows = np.arange(9000) % 9000 < 20 if isinstance(rows, str) else rows
    np.testing.assert_array_equal(array[rows], values[rows])
    damaged = 3 * CHUNK // 40
    for wrong in (damaged, slice(damaged - 2, damaged + 3), np.array([0, damaged])):
        with pytest.raises(IndexFormatError, match=r"a\.npy have changed; build or copy"):
            array[wrong]
    with pytest.raises(IndexFormatError, match="the index X is damaged"):
        np.asarray(array)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (70_000, 3)])
def test_arrays_of_all_shapes_come_back(tmp_path, shape):
    values = np.random.default_rng(0).random(shape).astype(np.float16)
    array = stored(tmp_path / "a.npy", values)
    np.testing.assert_array_equal(np.asarray(array), values)
    assert (array.shape, array.dtype) == (values.shape, values.dtype)
    if values.ndim:
        np.testing.assert_array_equal(array[:1], values[:1])


def test_a_file_is_written_whole_and_the_disk_speaks_in_sentences(tmp_path):
    write_file(tmp_path, "f", b"one")
    write_file(tmp_path, "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    with (
        pytest.raises(InputError, match=r"scores cannot be kept in .*: No such file"),
        translate_os_errors(tmp_path),
    ):
        write_file(tmp_path / "no", "f", b"")


def test_a_large_scratch_array_lies_in_a_file_and_a_full_disk_says_so_at_once(
    tmp_path, monkeypatch
):
    assert not isinstance(scratch((3, 5)), np.memmap)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("crossknn.files.SCRATCH", 60)
    mapped = scratch((3, 5))
    mapped[:] = np.arange(5)
    assert (type(mapped), mapped[2].tolist()) == (np.memmap, [0, 1, 2, 3, 4])
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="set TMPDIR to a folder with more room"):
        scratch((2**40, 2**20))


def test_a_digest_tells_where_texts_end():
    assert digest(["ab", "c"]) != digest(["a", "bc"]) != digest(["abc"])
    assert len(digest([])) == 32


@pytest.mark.parametrize("value", [3, None, b"x", "a\0b", "x" * 5000])
def test_what_no_file_system_can_have_is_no_path(value):
    with pytest.raises(InputError, match=r"^the index is .*, which cannot be a path"):
        as_path(value, "the index")


DIRECT = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "symlink_to", "hardlink_to", "touch"),
    *("memmap", "fromfile", "tofile", "savez", "savez_compressed", "connect", "read_index"),
    *("write_index", "InferenceSession", "safe_open", "load_file", "save_file", "from_file"),
}
MODULES = {"np", "numpy", "os", "gzip", "torch", "onnx", "shelve", "pickle", "zipfile", "shutil"}
OPENING = {"open", "load", "save", "truncate", "copyfile", "copy", "copytree"}
MAY = {
    "files": "the primitives",
    "index.columns": "touch is a check here",
    "cli.output": "the null device",
    "data.passages": "a tokenizer of the package",
    "crossknn_lab.page": "a file of the package",
    "sample": "files of the package",
    "service.app": "the page of the package",
    "search.results": "a run file that the user names",
    "crossknn_lab.collecting": "into a file of files.new_file",
    "crossknn_train.cli": "settings files of the package",
    "crossknn_train.loop": "into a file of files.new_file; weights after is_file; the processor's name",
    "crossknn_train.late_interaction": "of a file of files.open_file",
    "index.vectors": "into a file of files.new_file",
    "index.storage": "touch is a check here",
    "index.nearest": "faiss maps a file that open_file has looked at",
    "index.pgvector": "a database server",
    "scores.database": "SQLite, after is_file",
    "scorers.token_models": "after check_files",
    "models.folder": "after check_files",
    "crossknn_train.models.base": "after check_files; into a new folder of `filling`",
    "crossknn_train.export": "into a new folder of `filling`",
    "crossknn_lab.cells": "source files of crossknn",
    "crossknn_lab.curves": "the file of a picture",
    "crossknn_lab.experiment": "a file of the package",
    "crossknn_lab.checkpoints": "a checkpoint that the user names",
    "crossknn_lab.sweep_report": "the processor's name",
}
"""Modules that open a file by its path, or whose libraries do, and why they may."""


def opens_directly(node):
    """Whether a call opens a file by its path."""
    if isinstance(node.func, ast.Name):
        return node.func.id in {"open", *DIRECT}
    if not isinstance(node.func, ast.Attribute):
        return False
    name, of = node.func.attr, node.func.value
    if name == "open" and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value) in {"r", "rb", "w", "wb", "a", "ab", "r+b", "x", "xb"}
    by_module = isinstance(of, ast.Name) and of.id in MODULES
    return name in DIRECT or (name in OPENING and by_module)


def test_no_module_opens_a_file_of_a_folder_by_its_path():
    """What lies in a folder is opened by `crossknn.files`, which follows no link."""
    found = set()
    others = "lab/src/crossknn_lab", "train/src/crossknn_train"
    for root in (Path(ck.__file__).parent, *(ROOT / other for other in others)):
        for path in root.rglob("*.py"):
            names = path.relative_to(root).with_suffix("").parts
            module = ".".join((root.name, *names) if root.name != "crossknn" else names)
            calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
            if any(opens_directly(call) for call in calls):
                found.add(module)
    assert found == set(MAY)
