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
KINDS = {"cross-encoder": "scores", "dual-encoder": "vectors"}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

RIGHT = {
    "sort the items of a list": "sorted(iterable)\nReturn a new list with the items in ascending order.",
    "read a JSON document from a string": "json.loads(s)\nDeserialize a str with a JSON document.",
    "square root of a number": "math.sqrt(x)\nReturn the square root of x.",
    "copy a file": "shutil.copyfile(src, dst)\nCopy data from src to dst efficiently.",
    "wait until a thread ends": "threading.Thread.join()\nWait until the thread terminates.",
}
QUERIES, ITEMS = list(RIGHT), list(RIGHT.values())
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]


class Model:
    def __init__(self, kind: str) -> None:
        self.settings = json.loads((BUNDLED / kind / "crossknn.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(BUNDLED / kind / "tokenizer.json"))
        self.session = onnxruntime.InferenceSession(
            str(BUNDLED / kind / "model.onnx"),
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
def models() -> dict[str, Model]:
    return {kind: Model(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_is_complete(models, kind: str) -> None:
    folder, model = BUNDLED / kind, models[kind]
    names = {"model.onnx", "tokenizer.json", "crossknn.json", "README.md"}
    assert {path.name for path in folder.iterdir()} == names
    revision = hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()[:12]
    about = {"format": 1, "kind": kind, "license": "Apache-2.0", "revision": revision}
    assert {name: model.settings[name] for name in about} == about
    assert [value.name for value in model.session.get_outputs()] == [KINDS[kind]]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 20_000_000


@pytest.mark.parametrize(
    ("kind", "texts"), [("cross-encoder", [*PAIRS, ("", "")]), ("dual-encoder", [*ITEMS, ""])]
)
def test_an_answer_depends_on_nothing_but_the_text(models, kind, texts) -> None:
    model = models[kind]
    together = model(texts)
    np.testing.assert_allclose(model(texts[::-1])[::-1], together, atol=1e-5)
    np.testing.assert_allclose(model(texts, width=150), together, atol=1e-5)
    alone = np.concatenate([model([text]) for text in texts])
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_the_right_item_scores_highest(models) -> None:
    scores = models["cross-encoder"](PAIRS).reshape(5, 5)
    assert (scores.argmax(axis=1) == np.arange(5)).all()
    vectors = models["dual-encoder"](QUERIES)
    assert vectors.shape == (5, models["dual-encoder"].settings["dimensions"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert ((vectors @ models["dual-encoder"](ITEMS).T).argmax(axis=1) == np.arange(5)).all()
