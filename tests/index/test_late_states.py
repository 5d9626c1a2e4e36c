"""States of items for late-interaction models: an index keeps them with where their model is."""

from __future__ import annotations

import numpy as np
import pytest
from index_helpers import corpus
from late_helpers import WordStates

from crossknn.errors import IndexFormatError, InputError
from crossknn.index.item_index import ItemIndex
from crossknn.index.rebuild import keep_parts
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import parse
from crossknn.types import States

N = 12


@pytest.fixture
def saved(tmp_path):
    index = ItemIndex.build(corpus(N), encoder=None, lsa=4)
    index.save(tmp_path / "index")
    return index


def same(found, expected):
    return np.array_equal(found.values, expected.values) and np.array_equal(
        found.starts, expected.starts
    )


def test_they_come_back_from_the_disk_mapped(saved, tmp_path):
    seen = []
    assert saved.add_late(WordStates(), progress=lambda done, total: seen.append((done, total)))
    saved.add_late(WordStates("som", "others"), "mine")
    assert seen == [(N, N)]
    expected = WordStates().encode_items(saved.items.texts)
    memory = ItemIndex.build(corpus(N), encoder=None, lsa=4)
    memory.add_late(WordStates())
    memory.add_late(WordStates("som", "others"), "mine")
    memory.save(tmp_path / "other")
    for folder in (saved.folder, tmp_path / "other"):
        given = {"cmc": WordStates(), "mine": WordStates("som", "others")}
        loaded = ItemIndex.load(folder, encoder=given)
        assert tuple(loaded.late) == ("cmc", "mine")
        for name in loaded.late:
            late = loaded.late[name]
            assert same(late.states, expected)
            assert late.states.values.dtype == np.float16
            assert late.model is given[name]
        loaded.save(tmp_path / "third")
        loaded.save(folder)
        assert tuple(ItemIndex.load(tmp_path / "third").late) == ("cmc", "mine")
    meta = ItemIndex.load(saved.folder).description()["late"]["mine"]
    assert (meta["kind"], meta["fingerprint"], meta["dimensions"]) == ("som", "others", 4)
    assert meta["states"] == len(expected.values)


def test_another_model_is_refused(saved):
    saved.add_late(WordStates())
    with pytest.raises(IndexFormatError, match="'cmc' were made by another late-interaction model"):
        ItemIndex.load(saved.folder, encoder={"cmc": WordStates(fingerprint="x")})
    with pytest.raises(IndexFormatError, match=r"\(4 dimensions\), that of given is words \(5\)"):
        ItemIndex.load(saved.folder, encoder={"cmc": WordStates(dimensions=5)})
    nameless = ItemIndex.load(saved.folder)
    with pytest.raises(
        InputError, match=r"that has no name \(fingerprint words\); run  crossknn index add"
    ):
        open_retriever(nameless, parse("cmc"), 0)
    with pytest.raises(InputError, match=r"states 'cmc' of another model \(fingerprint words\)"):
        saved.add_late(WordStates(fingerprint="x"))
    saved.add_late(WordStates(fingerprint="x"), replace=True)
    assert saved.late["cmc"].model.fingerprint == "x"


def test_the_same_model_encodes_once(saved):
    saved.add_late(WordStates())

    class Lazy(WordStates):
        def encode_items(self, texts, progress=None):
            raise AssertionError("the items have been encoded")

    for index in (saved, ItemIndex.load(saved.folder)):
        index.add_late(Lazy())
        assert isinstance(index.late["cmc"].model, Lazy)


class Wrong(WordStates):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def encode_items(self, texts, progress=None):
        return self.change(super().encode_items(texts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.take(0, N - 1), "those of 11 items, out of 12"),
        (lambda s: States(s.values.astype(np.float32), s.starts), "it must be float16"),
        (lambda s: States(s.values[:, :3], s.starts), r"must be float16, \(states, 4\)"),
        (lambda s: States(s.values, np.r_[0, 0, s.starts[2:]]), "at least one state"),
        (lambda s: States(s.values * np.float16(np.inf), s.starts), "a NaN or an infinity"),
    ],
)
def test_states_that_do_not_fit_change_nothing(saved, change, message):
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match=message):
        saved.add_late(Wrong(change))
    assert not saved.late
    assert not ItemIndex.load(saved.folder).late


@pytest.mark.parametrize("name", ["lsa", "bm25", "hybrid", "no name", "lists"])
def test_names_that_are_taken(saved, name):
    with pytest.raises(InputError, match="another name"):
        saved.add_late(WordStates(), name)


def test_what_is_no_model(saved):
    with pytest.raises(InputError, match="object is no late-interaction model: it needs kind"):
        saved.add_late(object())
    with pytest.raises(InputError, match="no vectors 'som' of a dual encoder, nor such states"):
        ItemIndex.load(saved.folder, encoder={"som": WordStates()})
    with pytest.raises(InputError, match="has no late-interaction model 'som'"):
        saved.late["som"]


def test_the_same_items_keep_them_and_others_lose_them(saved, caplog):
    saved.add_late(WordStates())
    again = ItemIndex.build(corpus(N), encoder=None, lsa=3)
    keep_parts(again, saved)
    assert same(again.late["cmc"].states, saved.late["cmc"].states)
    assert not caplog.text
    other = ItemIndex.build(corpus(N + 1), encoder=None, lsa=3)
    keep_parts(other, saved)
    assert not other.late
    assert "dropped the states cmc: the items have changed" in caplog.text
