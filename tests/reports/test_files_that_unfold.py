"""Small files that claim to hold, or unfold to, more than there is memory for; and odd kinds."""

import gzip
import io
import json
import os
import zipfile
from contextlib import suppress

import numpy as np
import pytest

import crossknn as ck
from crossknn.models.tokens import Tokenizer
from crossknn.scorers.opening import bundled_folder
from crossknn_lab.stored import StoredMatrix


def npz(path, **members):
    """An archive of members given as bytes or as arrays."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            content = io.BytesIO()
            if isinstance(value, bytes):
                content.write(value)
            else:
                np.save(content, value)
            archive.writestr(f"{name}.npy", content.getvalue())


def header(shape, dtype="<f4"):
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        made, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return made.getvalue()


SCORES = np.zeros((3, 4), np.float32)


def test_a_matrix_that_unfolds_to_gigabytes(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("scores.npy", "w", force_zip64=True) as file,
    ):
        file.write(header((200, 250_000)))
        for _ in range(200):
            file.write(bytes(10**6))
    with pytest.raises(ck.InputError, match="would decompress to more than 32 times its size"):
        StoredMatrix.load(tmp_path / "m.npz")


def test_equal_numbers_and_keys_that_nobody_reads_are_no_bombs(tmp_path):
    npz(tmp_path / "m.npz", scores=np.zeros((100, 100_000), np.float32), notes=bytes(80 << 20))
    assert StoredMatrix.load(tmp_path / "m.npz").n == 100_000


IDS = header((4,), "<U1") + b"\xff\xff\xff\x7f" * 4
"""Texts of numbers above the last character."""
CLAIMS = [{"scores": header(shape) + bytes(48)} for shape in ((10**6, 10**6), (2**40,), (-5, 4))]


@pytest.mark.parametrize("arrays", [*CLAIMS, {"scores": SCORES, "item_ids": IDS}])
def test_a_header_that_claims_what_is_not_there(tmp_path, arrays):
    npz(tmp_path / "m.npz", **arrays)
    with pytest.raises(ck.InputError, match=r"m\.npz is not a readable|no matrix"):
        StoredMatrix.load(tmp_path / "m.npz")


@pytest.mark.parametrize("key", ["scores", "item_vectors", "first_bm25"])
def test_numbers_whose_products_have_no_float(tmp_path, key):
    given = {"scores": SCORES, "item_vectors": np.ones((4, 2)), "query_vectors": np.ones((3, 2))}
    given |= {"first_bm25": SCORES}
    np.savez(tmp_path / "m.npz", **given | {key: np.full_like(given[key], 3e38)})
    with pytest.raises(ck.InputError, match=rf"'{key}' is 3[.0-9]*e\+38 at .*1e\+15 at most"):
        StoredMatrix.load(tmp_path / "m.npz")


def test_vectors_of_3e38_are_refused_wherever_they_are_given():
    texts, large = ["a", "b", "c"], np.full((3, 2), 3e38, np.float32)
    with pytest.raises(ck.InputError, match=r"row 0 contains a number above 1e\+15"):
        ck.ItemIndex.build(texts, vectors=large, query_vectors=lambda q: np.ones((len(q), 2)))
    index = ck.ItemIndex.build(
        texts, vectors=np.ones((3, 2)), query_vectors=lambda q: np.full((len(q), 2), 3e38)
    )
    with pytest.raises(ck.InputError, match=r"contains a number above 1e\+15"):
        ck.Searcher(index, lambda pairs: [1.0] * len(pairs)).search("x", k=1)
    scorer = ck.Searcher(ck.ItemIndex.build(texts), lambda pairs: [3e38] * len(pairs))
    with pytest.raises(ck.ScorerError, match=r"gave 3\.\d+e\+38 as the score"):
        scorer.search("a", k=1)


@pytest.mark.parametrize("name", ["corpus.jsonl.gz", "queries.txt.gz"])
def test_a_gzip_file_that_unfolds_to_gigabytes(tmp_path, name):
    with gzip.open(tmp_path / name, "wb") as file:
        for number in range(200):
            file.write(b'{"id": "d%d", "text": "' % number + b"word " * 100_000 + b'"}\n')
    read = ck.read_items if name.startswith("corpus") else ck.read_queries
    with pytest.raises(ck.InputError, match="decompresses to more than 200 times its size"):
        read(tmp_path / name)


def test_a_line_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("crossknn.data.text_files.LONGEST", 2**20)
    with gzip.open(tmp_path / "c.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(5):
            file.write(os.urandom(2**17).hex().encode())
    with pytest.raises(ck.InputError, match="has a line of more than 1 MB"):
        ck.read_items(tmp_path / "c.jsonl.gz")


@pytest.fixture
def bundled(tmp_path):
    """A copy of the bundled cross-encoder's folder."""
    for path in bundled_folder("cross-encoder").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize(("name", "most"), [("model.onnx.data", 64), ("model.onnx", 2)])
def test_a_model_of_a_terabyte(bundled, name, most):
    with (bundled / name).open("ab") as file:
        file.truncate(2**40)
    with pytest.raises(ck.InputError, match=f"{name} is longer than the limit of {most} GB"):
        ck.CrossEncoder(bundled)


DEEP = "[" * 100_000


@pytest.mark.parametrize("file", ["crossknn.json", "config.json", "tokenizer.json"])
def test_deep_json_in_a_model(bundled, file):
    (bundled / file).write_text(DEEP)
    if file == "config.json":
        (bundled / "crossknn.json").unlink()
    with pytest.raises(ck.InputError):
        ck.CrossEncoder(bundled)


def test_deep_json_in_items_and_in_an_index(folder, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": ' + DEEP)
    with pytest.raises(ck.InputError):
        ck.read_items(tmp_path / "c.jsonl")
    (folder / "crossknn-index.json").write_text(DEEP)
    with pytest.raises(ck.IndexFormatError, match="is damaged"):
        ck.ItemIndex.load(folder)


BROKEN = [
    {"model": {"type": "Unigram", "unk_id": 5, "vocab": []}},
    {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0]], "byte_fallback": True}},
    {"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {}}},
    {"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}},
    {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}},
    {
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {},
        },
    },
    {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", float("-1e308")]] * 3}},
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_tokenizer(tmp_path, content):
    """What panics in Rust is no `Exception` in Python."""
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", **content}))
    with suppress(ck.InputError):
        Tokenizer.load(tmp_path / "tokenizer.json").ids(["a word", "ä" * 100, ""])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.jsonl.gz", "q.txt", "m.npz", "s.toml"])
def test_pipes_and_devices_do_not_hang(tmp_path, name):
    from crossknn_train.settings import RunSettings, read_settings

    reads = {"q.txt": ck.read_queries, "m.npz": StoredMatrix.load}
    reads["s.toml"] = lambda path: read_settings(path, RunSettings)
    read = reads.get(name, ck.read_items)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ck.InputError, match=r"is a named pipe|there is no settings file"):
        read(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ck.InputError, match=r"is a device|there is no settings file"):
        read(tmp_path / name)
