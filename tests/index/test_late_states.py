"""States of items for late-interaction models: made in batches, of which a kill loses one."""

from unittest.mock import patch

import numpy as np
import pytest
from index_helpers import corpus
from late_helpers import WordStates

from crossknn.errors import IndexFormatError, InputError, ScorerError
from crossknn.files import exclusive_lock
from crossknn.index import vectors as work
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import parse
from crossknn.types import States

N, PART = 23, 4


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "AT_ONCE", PART)
    index = ItemIndex.build(corpus(N), lsa=4)
    index.save(tmp_path / "index")
    return index


def check(found, index):
    expected = WordStates().encode_items(index.items.texts)
    assert found.values.dtype == np.float16
    assert np.array_equal(found.values, expected.values)
    assert np.array_equal(found.starts, expected.starts)


def test_they_come_back_from_the_disk_with_their_models(saved):
    seen, others = [], WordStates("som", "others")
    saved.add_late(WordStates(), progress=lambda *n: seen.append(n))
    saved.add_late(others, "mine")
    assert seen == [(done, N) for done in (4, 8, 12, 16, 20, N)]
    assert not list(saved.folder.glob("work-*"))
    loaded = ItemIndex.load(saved.folder, encoder={"cmc": WordStates(), "mine": others})
    loaded.save(saved.folder)
    assert tuple(loaded.late) == ("cmc", "mine")
    assert loaded.late["mine"].model is others
    for found in loaded.late.values():
        check(found.states, saved)
    model = ItemIndex.load(saved.folder).model_of("mine")
    assert (model.fingerprint, model.dimensions) == ("others", 4)


def test_another_model_is_refused_and_the_same_encodes_once(saved):
    saved.add_late(WordStates())
    with pytest.raises(IndexFormatError, match="'cmc' was made by another late-interaction model"):
        ItemIndex.load(saved.folder, encoder={"cmc": WordStates(fingerprint="x")})
    nameless = ItemIndex.load(saved.folder)
    with pytest.raises(InputError, match=r"'cmc' .fingerprint words.* no folder or name"):
        open_retriever(nameless, parse("cmc"), 0)
    with pytest.raises(InputError, match=r"named 'cmc' from another model \(fingerprint words\)"):
        saved.add_late(WordStates(fingerprint="x"))
    memory = ItemIndex.build(corpus(N), lsa=4)
    memory.add_late(WordStates())
    for index in (saved, nameless, memory):
        same = Counting()
        index.add_late(same)
        assert index.late["cmc"].model is same
        assert same.seen == []
    saved.add_late(WordStates(fingerprint="x"), replace=True)
    assert saved.late["cmc"].model.fingerprint == "x"


@pytest.mark.parametrize(
    "change",
    [
        lambda s: States(s.values[: s.starts[-2]], s.starts[:-1]),
        lambda s: States(s.values.astype(np.float32), s.starts),
        lambda s: States(s.values[:, :3], s.starts),
        lambda s: States(s.values, np.r_[0, 0, s.starts[2:]]),
        lambda s: States(s.values, np.r_[1, s.starts[1:]]),
        lambda s: States(s.values * np.float16(np.inf), s.starts),
    ],
)
def test_states_that_do_not_fit_change_nothing(saved, change):
    wrong = WordStates()
    wrong.encode_items = lambda texts, progress: change(WordStates().encode_items(texts))
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match="at least one of each"):
        saved.add_late(wrong)
    assert not saved.late
    assert not ItemIndex.load(saved.folder).late


class Counting(WordStates):
    """Notes which texts it encodes; at the text `stop` it fails."""

    def __init__(self, stop=None, **given):
        super().__init__(**given)
        self.stop, self.seen = stop, []

    def encode_items(self, texts, progress=None):
        if self.stop in texts:
            raise ScorerError("not finite")
        self.seen += texts
        return super().encode_items(texts, progress)


def test_a_failure_loses_one_batch(saved):
    with pytest.raises(ScorerError, match="not finite"):
        saved.add_late(Counting(saved.items.texts[10]))
    full = patch.object(work.files, "new_file", side_effect=OSError(28, "No space left"))
    with full, pytest.raises(InputError, match=r"cannot be kept in .*: No space left; files"):
        saved.add_late(WordStates())
    with (
        exclusive_lock(saved.folder / "work-late-cmc"),
        pytest.raises(InputError, match=r"another process is adding vectors to .*work-late-cmc"),
    ):
        saved.add_late(WordStates())
    index, model, seen = ItemIndex.load(saved.folder), Counting(), []
    index.add_late(model, progress=lambda *n: seen.append(n))
    assert model.seen == list(index.items.texts[2 * PART :])
    assert seen[0] == (3 * PART, N)
    check(index.late["cmc"].states, index)
    assert not list(saved.folder.glob("work-*"))
