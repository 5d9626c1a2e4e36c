"""Items are encoded in parts that are kept as they come: a kill loses one part, memory holds one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from index_helpers import corpus
from late_helpers import WordStates

from crossknn.errors import InputError, ScorerError
from crossknn.files import exclusive_lock
from crossknn.index import late
from crossknn.index.item_index import ItemIndex

N, PART = 23, 4
WORK = "work-late-cmc"


class Counting(WordStates):
    """Notes which texts it encodes; before text `stop` it does `how`."""

    def __init__(self, stop=None, how=None, **given):
        super().__init__(**given)
        self.stop, self.how, self.seen = stop, how, []

    def encode_items(self, texts, progress=None):
        if self.stop in texts:
            self.how()
        self.seen += texts
        return super().encode_items(texts, progress)


class StopError(Exception):
    pass


def stop():
    raise StopError


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setattr(late, "AT_ONCE", PART)
    index = ItemIndex.build(corpus(N), lsa=4)
    index.save(tmp_path / "index")
    return index


def begun(index, at=10, **given):
    """The index, whose encoding was stopped at an item: two parts are there."""
    with pytest.raises(StopError):
        index.add_late(Counting(index.items.texts[at], stop, **given))
    assert not ItemIndex.load(index.folder).late
    return ItemIndex.load(index.folder)


def check(index):
    expected, found = WordStates().encode_items(index.items.texts), index.late["cmc"].states
    assert np.array_equal(found.values, expected.values)
    assert np.array_equal(found.starts, expected.starts)
    assert not (index.folder / WORK).exists()


def test_what_was_encoded_is_not_encoded_again(saved):
    index, model, seen = begun(saved), Counting(), []
    index.add_late(model, progress=lambda done, total: seen.append((done, total)))
    assert model.seen == list(index.items.texts[2 * PART :])
    assert seen == [(12, N), (16, N), (20, N), (N, N)]
    check(index)


@pytest.mark.parametrize("torn", ["*.f16", "*.i64"])
def test_a_part_that_was_torn_is_made_again(saved, torn):
    index, model = begun(saved), Counting()
    (path,) = (saved.folder / WORK).glob(torn)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 3)
    index.add_late(model)
    assert model.seen == list(index.items.texts[PART:])
    check(index)


@pytest.mark.parametrize(
    "others", [{"fingerprint": "x"}, {"dimensions": 5}, {"fingerprint": None}], ids=str
)
def test_those_of_another_model_are_begun_anew(saved, others):
    index, model = begun(saved, **others), Counting()
    index.add_late(model)
    assert model.seen == list(index.items.texts)
    check(index)


def test_those_of_other_items_are_begun_anew(saved):
    begun(saved)
    other = ItemIndex.build([f"another {text}" for text in saved.items.texts], lsa=4)
    other.save(saved.folder)
    model = Counting()
    other.add_late(model)
    assert model.seen == list(other.items.texts)
    check(other)


def test_one_process_at_a_time(saved):
    (saved.folder / WORK).mkdir()
    with (
        exclusive_lock(saved.folder / WORK, what="states"),
        pytest.raises(InputError, match=r"another process is adding states to .*work-late-cmc"),
    ):
        saved.add_late(WordStates())
    saved.add_late(WordStates())
    check(saved)


def test_a_failure_says_where(saved):
    def fail():
        raise ScorerError("the model words gave a state that is not finite for item 2 'x'")

    with pytest.raises(ScorerError, match="in the items from 8 on: the model words gave a state"):
        saved.add_late(Counting(saved.items.texts[10], fail))


FULL = """
import resource, signal, sys
sys.path[:0] = sys.argv[2:]
from late_helpers import WordStates
from crossknn.errors import InputError
from crossknn.index import late
from crossknn.index.item_index import ItemIndex
late.AT_ONCE = 4
index = ItemIndex.load(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
try:
    index.add_late(WordStates())
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="there are no such limits")
def test_a_full_disk_is_said_and_loses_nothing(saved):
    path = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(saved.folder), path], capture_output=True, text=True
    )
    assert "states cannot be kept in " in done.stdout, done.stderr
    assert "File too large; what is there so far stays" in done.stdout
    model = Counting()
    saved.add_late(model)
    assert 0 < len(model.seen) < N
    check(saved)
