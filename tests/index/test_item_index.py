"""An index gives back what it was built from, from memory and from the disk."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import LengthEncoder, corpus

from crossknn.data.items import Items
from crossknn.errors import IndexFormatError, InputError
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.lists import CandidateLists
from crossknn.types import Queries


def same_answers(one, other):
    """Both indexes hold and answer the same."""
    queries = ["cat dog", "", "river 5"]
    assert one.n == other.n
    assert [list(one.items)] == [list(other.items)]
    assert one.items.template == other.items.template
    assert set(one.vectors) == set(other.vectors)
    assert set(one.retrievers) == set(other.retrievers)
    assert np.array_equal(one.anchor_items, other.anchor_items)
    for name in one.vectors:
        assert np.array_equal(one.vectors[name], other.vectors[name])
        vectors = [index.query_vectors(Queries(queries), name) for index in (one, other)]
        assert np.array_equal(*vectors)
        assert vectors[0].dtype == np.float32
    for name in one.retrievers:
        found = [index.retrievers[name].top(Queries(queries), 4) for index in (one, other)]
        assert np.array_equal(found[0].items, found[1].items)
        assert np.array_equal(found[0].scores, found[1].scores)


def test_round_trip_with_everything(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    own = {"own": lambda texts: np.ones((len(texts), 4))}
    done = []
    index = ItemIndex.build(
        corpus(30),
        encoder=LengthEncoder(),
        vectors={"own": vectors},
        query_vectors=own,
        lsa=5,
        tfidf=True,
        progress=lambda *numbers: done.append(numbers),
    )
    assert isinstance(index, Index)
    assert done == [(30, 30)]
    index.save(tmp_path / "index")
    loaded = ItemIndex.load(
        tmp_path / "index",
        encoder=LengthEncoder(),
        query_vectors=own,
    )
    same_answers(index, loaded)
    loaded.save(tmp_path / "again")
    loaded.save(tmp_path / "index")
    same_answers(index, loaded)
    again = ItemIndex.load(tmp_path / "again", encoder=LengthEncoder(), query_vectors=own)
    same_answers(index, again)
    assert json.loads(json.dumps(loaded.description()))["vectors"] == {
        "own": 4,
        "dense": 3,
        "lsa": 5,
    }


def test_without_a_model_there_are_lsa_and_bm25():
    index = ItemIndex.build(["a cat", "a dog"])
    assert set(index.vectors) == {"lsa"}
    assert set(index.retrievers) == {"bm25"}
    assert not ItemIndex.build(["a cat"], lsa=0, bm25=False).vectors


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
    calls = []

    def encode(texts):
        calls.append(len(texts))
        return np.ones((len(texts), 2))

    index = ItemIndex.build(["x", "y"], vectors=np.ones((2, 2)), query_vectors=encode)
    queries = Queries(["one", "two"])
    assert index.query_vectors(queries, "vectors") is queries.vectors["vectors"]
    index.query_vectors(queries, "vectors")
    assert calls == [2]
    brought = Queries(["one"], {"vectors": np.zeros((1, 2), np.float32)})
    assert not index.query_vectors(brought, "vectors").any()
    with pytest.raises(InputError, match=r"have 3 dimensions, the items' 2"):
        index.query_vectors(Queries(["one"], {"vectors": np.zeros((1, 3))}), "vectors")


def test_names_that_are_not_there_are_named():
    index = ItemIndex.build(["a cat"], vectors={"own": np.ones((1, 2))})
    with pytest.raises(InputError, match=r"no item vectors 'onw' .did you mean own"):
        index.vectors["onw"]
    with pytest.raises(InputError, match=r"no retriever 'bm26' .did you mean bm25"):
        index.retrievers["bm26"]
    with pytest.raises(InputError, match=r"cannot make query vectors .* 'own': pass query"):
        index.query_vectors(Queries(["x"]), "own")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"vectors": np.ones((3, 2))}, r"'vectors' have the shape \(3, 2\); it must be \(2, d\)"),
        ({"vectors": np.array([[1.0], [np.nan]])}, "row 1 holds a NaN"),
        ({"vectors": {"dense": np.ones((2, 2))}}, "cannot be named 'dense'"),
        ({"vectors": {"a b": np.ones((2, 2))}}, "cannot be named 'a b'"),
        ({"vectors": np.array([["x"], ["y"]])}, "not of numbers"),
        ({"query_vectors": {"own": len}}, "query_vectors names 'own'"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        ItemIndex.build(["x", "y"], **arguments)


def test_another_encoder_is_refused(tmp_path):
    class Other(LengthEncoder):
        fingerprint = "other"

    ItemIndex.build(corpus(3), encoder=LengthEncoder()).save(tmp_path / "index")
    with pytest.raises(IndexFormatError, match=r"its fingerprint is length .* given is other"):
        ItemIndex.load(tmp_path / "index", encoder=Other())
    nameless = ItemIndex.load(tmp_path / "index")
    assert nameless.retrievers["bm25"].top(Queries(["cat"]), 1).items.size
    with pytest.raises(InputError, match=r"no name .*ItemIndex\.load as encoder="):
        nameless.query_vectors(Queries(["cat"]), "dense")
    ItemIndex.build(corpus(3)).save(tmp_path / "words")
    with pytest.raises(InputError, match="no vectors 'dense' of a dual encoder"):
        ItemIndex.load(tmp_path / "words", encoder=LengthEncoder())


def test_the_bundled_encoder_is_found_again(tmp_path):
    index = ItemIndex.build(corpus(4), encoder="bundled")
    index.save(tmp_path / "index")
    loaded = ItemIndex.load(tmp_path / "index")
    assert loaded.description()["encoders"]["dense"]["source"] == "bundled"
    assert loaded.encoder_source("dense") == "bundled"
    assert loaded.encoder_source("lsa") is None
    same_answers(index, loaded)


def test_added_first_stages_are_offered_and_not_saved(tmp_path):
    index = ItemIndex.build(corpus(4))
    index.add_retriever("mine", CandidateLists({"q": ["i2"]}, index.items.ids))
    assert index.retrievers["mine"].top(Queries(["q"]), 3).items.tolist() == [[2]]
    index.save(tmp_path / "index")
    assert "mine" not in ItemIndex.load(tmp_path / "index").retrievers
    with pytest.raises(InputError, match=r"cannot be named 'lsa'"):
        index.add_retriever("lsa", index.retrievers["bm25"])


def test_building_again_encodes_new_texts_only_and_keeps_what_fits(tmp_path):
    class Counting(LengthEncoder):
        seen = ()

        def encode_items(self, texts, progress=None):
            Counting.seen = tuple(texts)
            return super().encode_items(texts, progress)

    index = ItemIndex.build(corpus(6), encoder=Counting(), bm25=False)
    index.add_graph("dense", 2)
    index.put_artifact("kriging", {}, {"x": np.arange(3)})
    index.save(tmp_path / "index")
    loaded, Counting.seen = ItemIndex.load(tmp_path / "index"), ()
    same = ItemIndex.build(corpus(6), encoder=Counting(), bm25=False, tfidf=True, previous=loaded)
    assert Counting.seen == ()
    np.testing.assert_array_equal(same.vectors["dense"], index.vectors["dense"])
    assert (list(same.graphs), list(same.artifacts)) == (["dense"], ["kriging"])
    more = ItemIndex.build(corpus(8)[1:], encoder=Counting(), previous=loaded)
    assert Counting.seen == tuple(more.items.texts[-2:])
    np.testing.assert_array_equal(
        more.vectors["dense"], LengthEncoder().encode_items(more.items.texts)
    )
    assert not {**more.graphs, **more.artifacts}
