"""Aligning a whole index: what is paid, what is kept, what searches gain, and what is said."""

from __future__ import annotations

import numpy as np
import pytest

from crossknn.data.queries import QuerySet
from crossknn.errors import InputError, MissingExtraError, ScorerError, SpecError
from crossknn.evaluation.compare import compare
from crossknn.fitting.fit import fit
from crossknn.index.item_index import ItemIndex
from crossknn.methods import parse_methods
from crossknn.retrievers.specs import default_vectors
from crossknn.scores.collect import Limits
from crossknn.types import Queries
from crossknn_lab.fits import fit_method

N, D, Q = 120, 6, 30


class World:
    """A cross-encoder whose scores are inner products that the dual encoder half knows."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.item = rng.normal(size=(N, D)).astype(np.float32)
        self.query = rng.normal(size=(2 * Q, D)).astype(np.float32)
        self.true = self.item + 1.2 * rng.normal(size=(N, D)).astype(np.float32)
        self.queries = [f"query {q}" for q in range(2 * Q)]
        self.asked, self.fingerprint, self.broken = 0, "world", False

    def index(self, folder=None):
        texts, vectors = [f"item {i}" for i in range(N)], {"query_vectors": self.vectors}
        index = ItemIndex.build(texts, vectors=self.item, bm25=False, **vectors)
        if folder is not None:
            index.save(folder)
        return index

    def vectors(self, texts):
        return self.query[[int(text.split()[1]) for text in texts]]

    def exact(self):
        return (5 + 2 * self.query @ self.true.T).astype(np.float32)

    def score(self, pairs, queries, items, **limits):
        self.asked += len(pairs)
        q = [int(queries[p].split()[1]) for p in pairs.query]
        i = [int(items[p].split()[1]) for p in pairs.item]
        yield np.arange(len(pairs)), self.exact()[q, i] * (np.nan if self.broken else 1)


@pytest.fixture
def world():
    return World()


TRAIN, TEST = slice(0, Q), slice(Q, 2 * Q)


@pytest.mark.parametrize("method", ["als", "als(strength=0.05, sweeps=2)"])
def test_aligned_items_are_kept_and_find_more(world, tmp_path, method):
    index = world.index(tmp_path / "i")
    found = fit(index, world, world.queries[TRAIN], fit_method(method), per=40)
    name = method.split("(")[0]
    assert found.name == name == default_vectors(index)
    assert found.vectors.cost["calls"] == found.collected.calls == world.asked
    again = ItemIndex.load(tmp_path / "i", query_vectors=world.vectors)
    assert again.fitted[name].method == method
    np.testing.assert_array_equal(again.vectors[name], index.vectors[name])
    tests = QuerySet(("",) * Q, tuple(world.queries[TEST]))
    specs = parse_methods(f"rerank(retriever=vectors), rerank(retriever={name})")
    _, *table = compare(again, tests, world.exact()[TEST], specs, budgets=[20], ks=[10])
    rows = {found.method: next(found.rows()) for found in table}
    before, after = rows["rerank(retriever=vectors)"], rows[f"rerank(retriever={name})"]
    assert after["recall"] > before["recall"] + 0.1
    assert (before["index_calls"], after["index_calls"]) == (0, found.vectors.cost["calls"])


def test_no_pair_is_paid_twice_and_a_stop_is_gone_on_from(world, tmp_path):
    index = world.index(tmp_path / "i")
    first = fit(index, world, world.queries[TRAIN], per=10, limits=Limits(max_calls=55))
    assert (first.collected.calls, first.collected.stopped_by, world.asked) == (55, "max_calls", 55)
    assert first.vectors.cost["queries"] < Q
    assert ["some train queries lack" in note for note in first.notes] == [True, False]
    second = fit(index, world, world.queries[TRAIN], per=10)
    assert (second.collected.calls, second.collected.reused) == (10 * Q - 55, 55)
    assert second.collected.stopped_by is None
    third = fit(index, world, world.queries[TRAIN], per=10)
    assert (third.collected.calls, third.collected.reused, world.asked) == (0, 10 * Q, 10 * Q)
    np.testing.assert_array_equal(second.vectors.values, third.vectors.values)
    fewer = fit(index, world, world.queries[TRAIN], per=4)
    assert fewer.vectors.cost["calls"] == 10 * Q  # all that is known of train queries
    whole = fit(world.index(), world, world.queries[TRAIN], per=10)
    np.testing.assert_allclose(whole.vectors.values, third.vectors.values, atol=1e-6)


def test_a_score_that_is_no_number_leaves_the_index_as_it_was(world, tmp_path):
    index = world.index(tmp_path / "i")
    fit(index, world, world.queries[:5], per=20)
    before = np.array(index.vectors["als"])
    world.broken = True
    with pytest.raises(ScorerError, match="nan"):
        fit(index, world, world.queries[TRAIN], per=20)
    np.testing.assert_array_equal(ItemIndex.load(tmp_path / "i").vectors["als"], before)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"queries": []}, "holds no queries"),
        ({"queries": "one text"}, "list of texts"),
        ({"queries": ["a", " "]}, "not empty"),
        ({"name": "two words"}, "two words"),
        ({"name": "vectors"}, "something named"),
        ({"vectors": "none"}, "no item vectors 'none'"),
        ({"per": 0}, "must be 1 or more"),
        ({"method": "als(strength=0)"}, "strength must be"),
        ({"method": "als(held_out=1.5)"}, "must lie between 0 and 0.99"),
        ({"method": "als(sweeps=0)"}, "sweeps must be 1 or more"),
        ({"strategy": "items"}, "must be 'q' or 'i'"),
        ({"method": "alz"}, "did you mean"),
        ({"strategy": "i", "per": Q + 1}, "there are only"),
    ],
)
def test_wrong_input_costs_nothing(world, arguments, said):
    arguments = {"queries": world.queries[TRAIN], **arguments}
    with pytest.raises((InputError, SpecError, MissingExtraError)) as error:
        fit(world.index(), world, **arguments)
    assert said in str(error.value) or isinstance(error.value, MissingExtraError)
    assert world.asked == 0


def test_query_vectors_are_the_encoders_own(world):
    index = world.index()
    fit(index, world, world.queries[TRAIN], per=10)
    with pytest.raises(InputError, match="already fitted"):
        fit(index, world, world.queries[TRAIN], per=10, vectors="als", name="twice")
    texts = world.queries[TEST]
    found = index.query_vectors(Queries(texts), "als")
    np.testing.assert_array_equal(found[:, :-1], world.query[TEST])
    assert np.ptp(found[:, -1]) == 0  # the coordinate of the items' biases
    fit(index, world, world.queries[TRAIN], "als(bias=0)", per=10, name="plain")
    assert index.fitted["plain"].base == "vectors"  # auto starts from the index's own
    np.testing.assert_array_equal(index.query_vectors(Queries(texts), "plain"), world.query[TEST])
