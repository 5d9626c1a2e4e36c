"""An index gives back what it was built from, from memory and from the disk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import LengthEncoder, corpus
from late_helpers import WordStates

from crossknn.data.items import Items
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.base import CandidateLists, ItemPriors
from crossknn.types import Queries

text = st.text(max_size=20)
column = st.lists(st.tuples(text, text, st.dictionaries(text, text | st.none() | st.integers())))


@settings(max_examples=15, deadline=None)
@given(column)
def test_any_text_survives_the_disk(tmp_path_factory, rows):
    items = Items(
        ids=[str(i) for i in range(len(rows))],
        texts=[row[0] for row in rows],
        titles=[row[1] for row in rows],
        extra=[row[2] for row in rows],
    )
    folder = tmp_path_factory.mktemp("any") / "index"
    ItemIndex.build(items, vectors=np.ones((len(rows), 1)), lsa=0, bm25=False).save(folder)
    loaded = ItemIndex.load(folder)
    assert list(loaded.items) == list(items)
    assert list(loaded.items.texts) == [loaded.items.texts[i] for i in range(len(rows))]
    assert loaded.items.texts[-2:] == list(items.texts)[-2:]


def test_query_vectors_are_kept_with_the_queries():
    ones = np.ones((2, 2))
    made, queries = iter([ones]), Queries(["one", "two"])
    index = build(vectors=ones, query_vectors=lambda texts: next(made))
    assert index.query_vectors(queries, "vectors") is queries.vectors["vectors"]
    assert index.query_vectors(queries, "vectors").all()
    brought = Queries(["one"], {"vectors": np.zeros((1, 2), np.float32)})
    assert not index.query_vectors(brought, "vectors").any()
    with pytest.raises(InputError, match=r"have 3 dimensions, but the item vectors have 2"):
        index.query_vectors(Queries(["one"], {"vectors": np.zeros((1, 3))}), "vectors")


def build(**given):
    return ItemIndex.build(["x", "y"], **given)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda i: i.vectors["onw"], r"no vectors 'onw' .did you mean own"),
        (lambda i: i.retrievers["bm26"], r"no words 'bm26' .did you mean bm25"),
        (lambda i: i.late["som"], "no late 'som'"),
        (lambda i: i.query_vectors(Queries(["x"]), "own"), "cannot make query vectors .* 'own'"),
        (lambda i: i.add_retriever("lsa", i.retrievers["bm25"]), "cannot be named 'lsa'"),
        (lambda i: i.add_retriever("mine", len), "is not a retriever: it lacks top or scores"),
        (lambda i: i.add_retriever("mine", ItemPriors([1, 2, 3])), "3 priors for 1 items"),
        (lambda i: i.put_artifact("a b", {}, {}), "cannot be named 'a b'"),
        (lambda i: i.put_artifact("a", {"x": object()}, {}), "cannot be stored as JSON"),
        (lambda i: i.add_late(WordStates(), "lsa"), "cannot be named 'lsa'; use another name"),
        (lambda i: i.add_late(WordStates(), "own"), "something named 'own': use another name"),
        (lambda i: i.add_late(WordStates(), "no name"), "cannot be named 'no name'"),
        (lambda i: i.add_late(object()), "is not a late-interaction model: give a model"),
        (lambda _: build(vectors={"dense": np.ones((2, 2))}), "cannot be named 'dense'"),
        (lambda _: build(query_vectors={"own": len}), "query_vectors names 'own'"),
    ],
)
def test_what_is_not_there_or_does_not_fit_is_named_and_changes_nothing(ask, sentence):
    index = ItemIndex.build(["a cat"], vectors={"own": np.ones((1, 2))}, lsa=1)
    before = repr(index)
    with pytest.raises(InputError, match=sentence):
        ask(index)
    assert repr(index) == before


def test_an_artifact_is_kept_and_replaced_and_an_added_retriever_is_not_saved(tmp_path):
    index = ItemIndex.build(corpus(20), lsa=3)
    index.add_retriever("mine", CandidateLists({"q": ["i2"]}, index.items.ids))
    assert index.retrievers["mine"].top(Queries(["q"]), 3).items.tolist() == [[2]]
    index.put_artifact("early", {"a": (1, 2)}, {"x": np.arange(6.0).reshape(2, 3)})
    index.save(tmp_path / "index")
    for value in (1, 2):
        arrays = {"x": np.full(4, value), "y": np.zeros(0), "z": ["some", "texts"]}
        index.put_artifact("kriging", {"value": value}, arrays)
    loaded = ItemIndex.load(tmp_path / "index")
    assert "mine" not in loaded.retrievers
    for found in (index.artifacts, loaded.artifacts):
        assert [*found] == ["early", "kriging"]
        assert (found["early"].meta, found["kriging"].meta) == ({"a": [1, 2]}, {"value": 2})
        assert found["early"].arrays["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        kept = {key: list(values) for key, values in found["kriging"].arrays.items()}
        assert kept == {"x": [2, 2, 2, 2], "y": [], "z": ["some", "texts"]}


def test_building_again_encodes_new_texts_only(tmp_path, caplog):
    class Counting(LengthEncoder):
        def encode_items(self, texts, progress=None):
            seen.append(list(texts))
            return super().encode_items(texts, progress)

    seen, given = [], {"encoder": Counting(), "folder": tmp_path / "index"}
    index = ItemIndex.build(corpus(6), **given)
    index.put_artifact("kriging", {}, {"x": np.arange(3)})
    same = ItemIndex.build(corpus(6), **given)
    np.testing.assert_array_equal(same.vectors["dense"], index.vectors["dense"])
    assert not same.artifacts
    assert "its anchors and fits are dropped" in caplog.text
    more = ItemIndex.build(corpus(8)[1:], **given)
    assert seen == [list(index.items.texts), more.items.texts[-2:]]
    expected = LengthEncoder().encode_items(more.items.texts)
    np.testing.assert_array_equal(more.vectors["dense"], expected)
