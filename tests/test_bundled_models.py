"""The models in the package: what their folders hold, and that they find the right item."""

import json

import numpy as np
import pytest
from tiny_models import scores_of

import crossknn as ck
from crossknn.models.folder import content_hash
from crossknn.scorers.opening import bundled_folder

RIGHT = {
    "sort the items of a list": "sorted(iterable)\nReturn a new list with the items in ascending order.",
    "read a JSON document from a string": "json.loads(s)\nDeserialize a str with a JSON document.",
    "square root of a number": "math.sqrt(x)\nReturn the square root of x.",
    "copy a file": "shutil.copyfile(src, dst)\nCopy data from src to dst efficiently.",
    "wait until a thread ends": "threading.Thread.join()\nWait until the thread terminates.",
}
QUERIES, ITEMS = list(RIGHT), list(RIGHT.values())


@pytest.mark.parametrize("kind", ["cross-encoder", "dual-encoder"])
def test_the_folder_is_complete(kind):
    folder = bundled_folder(kind)
    names = {"model.onnx", "tokenizer.json", "crossknn.json", "README.md"}
    assert {path.name for path in folder.iterdir()} == names
    content = content_hash(folder)
    about = {"format": 1, "kind": kind, "license": "Apache-2.0", "content": content}
    about["revision"] = content[:12]
    assert f"Revision {content[:12]}" in " ".join((folder / "README.md").read_text().split())
    assert about.items() <= json.loads((folder / "crossknn.json").read_text()).items()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 25_000_000


def test_the_right_item_scores_highest():
    scores = scores_of(ck.CrossEncoder(), QUERIES, ITEMS).reshape(5, 5)
    assert (scores.argmax(axis=1) == np.arange(5)).all()
    encoder = ck.DualEncoder()
    vectors = encoder.encode_queries(QUERIES)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert ((vectors @ encoder.encode_items(ITEMS).T).argmax(axis=1) == np.arange(5)).all()


PIE = "Apple pie\nPeel six apples, lay them on the dough, and bake the pie for fifty minutes."
ADVENTURE = "colossal-cave-adventure\nA text adventure: find the treasures of a cave."
DISK = "cryptsetup\nEncrypts hard disks: sets up encrypted partitions that open with a passphrase."


@pytest.mark.parametrize("query", ["encrypt a hard disk", "how do I unzip a file", "sort a list"])
@pytest.mark.parametrize("item", [PIE, ADVENTURE])
def test_a_pair_of_unrelated_texts_scores_below_zero(query, item):
    assert scores_of(ck.CrossEncoder(), [query], [item]).item() < -2


def test_a_right_answer_scores_above_zero():
    assert scores_of(ck.CrossEncoder(), ["encrypt a hard disk"], [DISK]).item() > 0
