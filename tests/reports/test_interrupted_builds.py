"""An index build that was stopped goes on with the vectors that it has made."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tiny_models import jsonl

import crossknn as ck
from crossknn.errors import InputError

N, AT_ONCE, WORK = 400, 16, "work-vectors"
TEXTS = [f"text {i}" for i in range(60)]


@pytest.fixture(autouse=True)
def few_vectors_in_a_file(monkeypatch):
    monkeypatch.setattr("crossknn.index.work.AT_ONCE", AT_ONCE)


class Counting:
    """The bundled encoder, which counts the texts that it encodes, and fails after `most`."""

    def __init__(self, most=10**9):
        self.model, self.texts, self.most = ck.DualEncoder(), 0, most
        self.fingerprint, self.dimensions = self.model.fingerprint, self.model.dimensions
        self.encode_queries = self.model.encode_queries

    def encode_items(self, texts, progress=None):
        if self.texts + len(texts) > self.most:
            raise InputError("enough")
        self.texts += len(texts)
        return self.model.encode_items(texts, progress)


BUILD = f"""
import sys
from crossknn.cli.app import run
from crossknn.index import work
work.AT_ONCE = {AT_ONCE}
sys.exit(run(["index", "build", "docs.jsonl", "docs.index"]))
"""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_build_goes_on_with_its_vectors(tmp_path, by):
    texts = [f"text number {i}, " + "of quite a few words on topic " * 3 for i in range(N)]
    jsonl(tmp_path / "docs.jsonl", ({"text": text} for text in texts))
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while not [*tmp_path.glob(f"docs.index/{WORK}/*.npz")]:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(by)
    message = process.communicate(timeout=60)[1]
    if by == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted; no file is damaged: run the same command again to resume" in message
    counting = Counting()
    place = tmp_path / "docs.index"
    index = ck.ItemIndex.build(tmp_path / "docs.jsonl", encoder=counting, folder=place)
    assert 0 < counting.texts < N
    assert not [*place.glob("work*")]
    some = np.arange(0, N, 50)
    alone = ck.DualEncoder().encode_items([texts[i] for i in some])
    np.testing.assert_allclose(index.vectors["dense"][some], alone, atol=1e-5)


@pytest.fixture
def place(tmp_path):
    """A folder where a build stopped after some of the texts."""
    with pytest.raises(InputError, match="enough"):
        ck.ItemIndex.build(TEXTS, encoder=Counting(40), folder=tmp_path / "an.index")
    return tmp_path / "an.index"


def encoded(place, texts, encoder=None):
    """How many texts a build in this folder encodes."""
    counting = encoder or Counting()
    ck.ItemIndex.build(texts, encoder=counting, folder=place)
    return counting.texts


def test_it_goes_on_with_other_items(place):
    texts = [*reversed(TEXTS), "new", "new", "text 1"]
    assert encoded(place, texts) == len(TEXTS) + 1 - 2 * AT_ONCE


def test_vectors_of_another_model_are_not_used(place):
    other = Counting()
    other.fingerprint += " another"
    assert encoded(place, TEXTS, other) == len(TEXTS)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-100], lambda data: b"", lambda data: data[:200] + bytes(100) + data[300:]],
)
def test_damaged_vectors_are_made_again(place, damage):
    for path in (place / WORK).iterdir():
        path.write_bytes(damage(path.read_bytes()))
    assert encoded(place, TEXTS) == len(TEXTS)


def test_adding_items_goes_on_with_its_vectors(tmp_path):
    ck.ItemIndex.build(["one", "two"], encoder=ck.DualEncoder()).save(tmp_path / "index")
    items, counting = [{"id": text, "text": text} for text in TEXTS], Counting()
    with pytest.raises(InputError, match="enough"):
        ck.ItemIndex.load(tmp_path / "index", encoder=Counting(40)).add(items)
    ck.ItemIndex.load(tmp_path / "index", encoder=counting).add(items)
    assert counting.texts == len(TEXTS) - 2 * AT_ONCE
    assert len(ck.ItemIndex.load(tmp_path / "index")) == len(TEXTS) + 2
    assert not [*(tmp_path / "index").glob("work*")]


def test_a_link_in_the_place_of_the_vectors_is_refused(tmp_path):
    outside, place = tmp_path / "outside", tmp_path / "an.index"
    for folder in (outside, place):
        folder.mkdir()
    (outside / "mine.txt").write_text("mine")
    os.symlink(outside, place / WORK)
    with pytest.raises(InputError, match=WORK):
        ck.ItemIndex.build(TEXTS, encoder=Counting(), folder=place)
    assert (outside / "mine.txt").read_text() == "mine"
