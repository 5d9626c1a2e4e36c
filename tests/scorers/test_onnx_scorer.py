"""The ONNX cross-encoder, on the bundled model."""

import json
import shutil
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import collect, grid

from crossknn import CrossEncoder, DualEncoder
from crossknn.errors import InputError
from crossknn.models.tokens import Encoding, Tokenizer, Window
from crossknn.scorers.base import Encoder
from crossknn.scorers.opening import bundled_folder
from crossknn.scorers.token_models import OnnxModel
from crossknn.types import Pairs

FOLDER = bundled_folder("cross-encoder")
QUERIES = ["how do I open a file", "sort a list", "", "ÄÖ naïve 東京 🎉 don't", "x " * 300]
ITEMS = [
    "open(file, mode='r') Open file and return a stream.",
    "list.sort(*, key=None, reverse=False) Sort the list in ascending order.",
    "",
    "json.loads",
    "time.sleep suspends execution of the calling thread for the given seconds. " * 6,
    "word " * 400,
    "a\n\tb  c",
]
# Scores differ by the last bit or two of float32, whatever the batch.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def scorer():
    return CrossEncoder(FOLDER)


@cache
def parts_of(folder):
    import onnxruntime
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    exact = onnxruntime.SessionOptions()
    exact.add_session_config_entry("session.x64quantprecision", "1")
    return tokenizer, onnxruntime.InferenceSession(str(folder / "model.onnx"), exact)


def alone_in(folder, output, *texts):
    """What a graph gives for one text or pair, with the tokenizer's own encoding, unpadded."""
    tokenizer, session = parts_of(folder)
    limit = json.loads((folder / "crossknn.json").read_text())["max_length"]
    tokenizer.enable_truncation(limit, strategy="longest_first")
    encoding = tokenizer.encode(*texts)
    feeds = {
        "input_ids": np.array([encoding.ids]),
        "attention_mask": np.array([encoding.attention_mask]),
        "token_type_ids": np.array([encoding.type_ids]),
    }
    return session.run([output], feeds)[0][0]


@pytest.fixture(scope="module")
def alone():
    """Scores (5, 7), each pair by itself."""
    own = [[alone_in(FOLDER, "scores", query, item) for item in ITEMS] for query in QUERIES]
    return np.array(own).reshape(5, 7)


@pytest.mark.parametrize("size", [1, 100, 600, 5000])
def test_a_score_depends_on_nothing_but_its_pair(alone, size, monkeypatch):
    monkeypatch.setattr(OnnxModel, "tokens_per_run", size)
    chosen = np.random.default_rng(size).permutation(35)[:16]
    pairs = grid(5, 7).take(chosen)
    found = collect(CrossEncoder(FOLDER), pairs, QUERIES, ITEMS)
    np.testing.assert_allclose(found, alone.ravel()[chosen], **TOLERANCE)
    assert np.std(found) > 1e-3


def test_vectors_are_the_models_own(monkeypatch):
    folder = bundled_folder("dual-encoder")
    expected = [alone_in(folder, "vectors", text) for text in ITEMS]
    encoder = DualEncoder()
    assert isinstance(encoder, Encoder)
    together = encoder.encode_items(ITEMS)
    monkeypatch.setattr(OnnxModel, "tokens_per_run", 1)
    for found in (together, encoder.encode_queries(ITEMS)):
        assert found.shape == (len(ITEMS), encoder.dimensions)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert encoder.encode_queries([]).shape == (0, encoder.dimensions)
    with pytest.raises(InputError, match="item 1: a text is not a valid string"):
        encoder.encode_items(["fine", "\ud800"])


words = st.lists(st.sampled_from(["open", "[MASK]", "東京", "naïve", "##", "un##able", "3.14"]))
texts = st.one_of(st.text(max_size=20), words.map(" ".join))


@given(query=texts, item=texts, limit=st.sampled_from([5, 6, 9, 16, 256]))
@settings(max_examples=60, deadline=None)
def test_token_ids_are_the_tokenizers_own(query, item, limit):
    encoding = Encoding(Tokenizer.load(FOLDER / "tokenizer.json"), Window(max_length=limit))
    (row,) = encoding.pairs(Pairs(np.array([0]), np.array([0])), [query], [item])
    own = parts_of(FOLDER)[0]
    own.enable_truncation(limit, strategy="longest_first")
    expected = own.encode(query, item)
    assert row.ids.tolist() == expected.ids
    assert row.kinds.tolist() == expected.type_ids
    assert row.cut == bool(expected.overflowing)


def test_truncation_is_counted_and_progress_told():
    short, told = CrossEncoder(FOLDER, max_length=16), []
    for total in (2, 4):
        collect(short, Pairs(np.zeros(4, int), np.array([3, 4, 5, 2])), QUERIES, ITEMS)
        assert short.truncated == total
    encoder = DualEncoder(bundled_folder("dual-encoder"), max_length=8)
    encoder.encode_items(ITEMS, progress=lambda *report: told.append(report))
    assert told[-1] == (7, 7)
    assert told == sorted(set(told))
    assert encoder.truncated == 4


def test_a_fingerprint_names_the_files_and_the_length_limit(tmp_path, scorer):
    folder = copy(tmp_path)
    assert CrossEncoder(folder).fingerprint == scorer.fingerprint
    raw = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    assert CrossEncoder(folder).fingerprint != scorer.fingerprint
    short = CrossEncoder(FOLDER, max_length=16)
    assert short.fingerprint != scorer.fingerprint
    assert short.fingerprint == CrossEncoder(FOLDER, max_length=16).fingerprint
    assert scorer.fingerprint == CrossEncoder().fingerprint == CrossEncoder("bundled").fingerprint
    for wrong in (0, 4, scorer.max_length + 1):
        with pytest.raises(InputError, match="max_length must be"):
            CrossEncoder(FOLDER, max_length=wrong)


def copy(tmp_path, model="cross-encoder", **changes):
    """A copy of a bundled model folder with some fields of its description changed."""
    folder = tmp_path / model
    shutil.copytree(bundled_folder(model), folder)
    about = json.loads((folder / "crossknn.json").read_text()) | changes
    (folder / "crossknn.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"format 2.*upgrade crossknn"),
        ({"format": "1"}, "format '1'"),
        ({"kind": "dual-encoder"}, r"holds a dual-encoder, but a cross-encoder"),
        ({"precision": None}, "no usable 'precision'"),
        ({"max_length": None}, "no usable 'max_length'"),
    ],
)
def test_foreign_and_newer_descriptions_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        CrossEncoder(copy(tmp_path, **changes))


def test_folders_that_are_no_models_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"neither crossknn\.json nor config\.json"):
        CrossEncoder(tmp_path)
    with pytest.raises(InputError, match=r"has no crossknn\.json"):
        OnnxModel(tmp_path, "cross-encoder")
    # A description that lies is found out by the graph.
    with pytest.raises(InputError, match=r"its outputs \['vectors'\].*'scores'"):
        CrossEncoder(copy(tmp_path, "dual-encoder", kind="cross-encoder"))


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "crossknn.json"])
def test_truncated_and_missing_files_are_refused(tmp_path, name):
    folder = copy(tmp_path)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=name) as caught:
        CrossEncoder(folder)
    assert "\n" not in str(caught.value)
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing|neither {name}"):
        CrossEncoder(folder)
