"""The models in the package: run with onnxruntime and tokenizers alone, as in the base install."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

BUNDLED = Path(str(files("crossknn") / "bundled"))
KINDS = ("cross-encoder", "dual-encoder")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

RIGHT = {
    "sort the items of a list": "sorted(iterable, key=None, reverse=False)\n"
    "Return a new list with the items in ascending order.",
    "read a JSON document from a string": "json.loads(s)\n"
    "Deserialize a str, bytes or bytearray with a JSON document.",
    "square root of a number": "math.sqrt(x)\nReturn the square root of x.",
    "copy a file": "shutil.copyfile(src, dst)\nCopy data from src to dst efficiently.",
    "wait until a thread ends": "threading.Thread.join(timeout=None)\n"
    "Wait until the thread terminates.",
}


class Model:
    def __init__(self, kind: str) -> None:
        folder = BUNDLED / kind
        self.settings = json.loads((folder / "crossknn.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"),
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],
        )

    def __call__(self, texts, width: int = 0):
        rows = self.tokenizer.encode_batch(texts)
        width = max(width, *(len(row.ids) for row in rows))
        feed = {name: np.zeros((len(rows), width), dtype=np.int64) for name in INPUTS}
        feed["input_ids"][:] = self.settings["pad_token_id"]
        for place, row in enumerate(rows):
            for name, values in zip(
                INPUTS, (row.ids, row.attention_mask, row.type_ids), strict=True
            ):
                feed[name][place, : len(values)] = values
        names = {value.name for value in self.session.get_inputs()}
        return self.session.run(None, {name: feed[name] for name in names})[0]


@pytest.fixture(scope="module")
def cross() -> Model:
    return Model("cross-encoder")


@pytest.fixture(scope="module")
def dual() -> Model:
    return Model("dual-encoder")


def pairs() -> list[tuple[str, str]]:
    return [(query, item) for query in RIGHT for item in RIGHT.values()]


def test_together_they_stay_under_40_megabytes() -> None:
    assert (
        sum(path.stat().st_size for kind in KINDS for path in (BUNDLED / kind).iterdir())
        <= 40_000_000
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_is_complete(kind: str) -> None:
    folder, settings = BUNDLED / kind, json.loads((BUNDLED / kind / "crossknn.json").read_text())
    assert {path.name for path in folder.iterdir()} == {
        "model.onnx",
        "tokenizer.json",
        "crossknn.json",
        "README.md",
    }
    assert settings["format"] == 1
    assert settings["kind"] == kind
    assert settings["precision"] == "int8"
    assert settings["license"] == "Apache-2.0"
    assert settings["max_length"] == 256
    assert (
        settings["revision"]
        == hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()[:12]
    )
    saved = json.loads((folder / "tokenizer.json").read_text())
    assert saved["truncation"] is None
    assert saved["padding"] is None


def test_inputs_and_outputs(cross: Model, dual: Model) -> None:
    for model, output in ((cross, "scores"), (dual, "vectors")):
        assert {value.name for value in model.session.get_inputs()} <= set(INPUTS)
        assert [value.name for value in model.session.get_outputs()] == [output]
    assert cross(pairs()).shape == (25,)
    vectors = dual(list(RIGHT))
    assert vectors.shape == (5, dual.settings["dimensions"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_pair_is_encoded_with_both_types(cross: Model) -> None:
    encoding = cross.tokenizer.encode("query text", "item")
    assert encoding.tokens == ["[CLS]", "query", "text", "[SEP]", "item", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 0, 1, 1]


def test_a_score_depends_on_nothing_but_the_pair(cross: Model) -> None:
    every = pairs()
    together = cross(every)
    order = np.random.default_rng(0).permutation(len(every))
    np.testing.assert_allclose(cross([every[o] for o in order]), together[order], atol=1e-5)
    np.testing.assert_allclose(cross(every, width=150), together, atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([cross([pair]) for pair in every]), together, atol=1e-5
    )


def test_a_vector_depends_on_nothing_but_the_text(dual: Model) -> None:
    texts = list(RIGHT.values())
    together = dual(texts)
    np.testing.assert_allclose(dual(texts[::-1])[::-1], together, atol=1e-5)
    np.testing.assert_allclose(dual(texts, width=100), together, atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([dual([text]) for text in texts]), together, atol=1e-5
    )


def test_the_right_item_scores_highest(cross: Model, dual: Model) -> None:
    scores = cross(pairs()).reshape(5, 5)
    assert (scores.argmax(axis=1) == np.arange(5)).all()
    similar = dual(list(RIGHT)) @ dual(list(RIGHT.values())).T
    assert (similar.argmax(axis=1) == np.arange(5)).all()


def test_empty_texts_have_finite_scores(cross: Model, dual: Model) -> None:
    assert np.isfinite(cross([("", ""), ("a", ""), ("", "a")])).all()
    assert np.isfinite(dual(["", "a"])).all()
