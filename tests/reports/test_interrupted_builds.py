"""An index build that was stopped goes on with the vectors that it has made."""

from __future__ import annotations

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
from crossknn.index.work import WORK

N = 800
BUILD = ("index", "build", "docs.jsonl", "docs.index")


@pytest.fixture
def folder(tmp_path):
    texts = (f"text number {i}, " + "of quite a few words on topic " * 3 for i in range(N))
    jsonl(tmp_path / "docs.jsonl", ({"text": text} for text in texts))
    return tmp_path


def stopped(folder, by, command=BUILD):
    """Stop the build once it has kept vectors; returns the exit code and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "crossknn", *command],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while not [*folder.glob(f"docs.index/{WORK}/*.npz")]:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(by)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_build_goes_on_with_its_vectors(folder, by):
    code, said = stopped(folder, by)
    if by == signal.SIGINT:
        assert code == 130
        assert "the vectors made so far are kept; the same command goes on with them" in said
        assert "interrupted" in said
    asked = Asked()
    index = ck.ItemIndex.build(folder / "docs.jsonl", encoder=asked, folder=folder / "docs.index")
    assert 0 < asked.texts < N
    assert not [*folder.glob("docs.index/work*")]
    some = np.arange(0, N, 50)
    alone = ck.DualEncoder().encode_items([index.items.texts[i] for i in some])
    np.testing.assert_allclose(index.vectors["dense"][some], alone, atol=1e-5)


class Asked:
    """The bundled encoder, and how many texts it was asked for."""

    def __init__(self, most=10**9):
        self.model, self.texts, self.most = ck.DualEncoder(), 0, most
        self.fingerprint, self.dimensions = self.model.fingerprint, self.model.dimensions
        self.encode_queries = self.model.encode_queries

    def encode_items(self, texts, progress=None):
        if self.texts + len(texts) > self.most:
            raise InputError("enough")
        self.texts += len(texts)
        return self.model.encode_items(texts, progress)


TEXTS = [f"text {i}" for i in range(1000)]


def begun(where, most=600):
    """A build that has stopped after so many texts, at most; how many it has encoded."""
    asked = Asked(most)
    with pytest.raises(InputError, match="enough"):
        ck.ItemIndex.build(TEXTS, encoder=asked, folder=where)
    assert asked.texts > 0
    return asked.texts


def finished(where, texts, encoder=None):
    asked = encoder or Asked()
    ck.ItemIndex.build(texts, encoder=asked, folder=where)
    return asked.texts


def test_it_goes_on_with_other_items(tmp_path):
    """The file has new lines, in another order, and a text twice, which is encoded once."""
    before = begun(tmp_path / "an.index")
    texts = [*reversed(TEXTS), "new", "new", "text 1"]
    assert finished(tmp_path / "an.index", texts) == len(TEXTS) + 1 - before


def test_vectors_of_another_model_are_not_used(tmp_path):
    begun(tmp_path / "an.index")
    other = Asked()
    other.fingerprint += " another"
    assert finished(tmp_path / "an.index", TEXTS, other) == len(TEXTS)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-100], lambda data: b"", lambda data: data[:200] + bytes(100) + data[300:]],
)
def test_damaged_vectors_are_made_again(tmp_path, damage):
    begun(tmp_path / "an.index")
    for path in (tmp_path / "an.index" / WORK).iterdir():
        path.write_bytes(damage(path.read_bytes()))
    assert finished(tmp_path / "an.index", TEXTS) == len(TEXTS)


def test_adding_items_goes_on_with_its_vectors(tmp_path):
    where = tmp_path / "an.index"
    ck.ItemIndex.build(["one", "two"], encoder=ck.DualEncoder()).save(where)
    index = ck.ItemIndex.load(where, encoder=Asked(600))
    with pytest.raises(InputError, match="enough"):
        index.add([{"id": text, "text": text} for text in TEXTS])
    asked = Asked()
    index = ck.ItemIndex.load(where, encoder=asked)
    index.add([{"id": text, "text": text} for text in TEXTS])
    assert 0 < asked.texts < len(TEXTS)
    assert len(ck.ItemIndex.load(where)) == len(TEXTS) + 2
    assert not [*where.glob("work*")]


def test_a_link_in_the_place_of_the_vectors_is_refused(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    (tmp_path / "an.index").mkdir()
    os.symlink(outside, tmp_path / "an.index" / WORK)
    with pytest.raises(InputError, match=WORK):
        ck.ItemIndex.build(TEXTS, encoder=Asked(), folder=tmp_path / "an.index")
    assert (outside / "mine.txt").read_text() == "mine"
