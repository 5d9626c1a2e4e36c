"""Every retriever scores given items as it scores all."""

from __future__ import annotations

import numpy as np
import pytest
from late_helpers import WordStates

import crossknn as ck
from crossknn.errors import InputError
from crossknn.retrievers.base import CandidateLists, ItemPriors, Retriever, VectorArray
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import parse
from crossknn.types import NO_ITEM, Queries

TEXTS = [f"{a} {b}" for a in ("cat", "dog", "fish", "tree") for b in ("stone", "cloud", "river")]
QUERIES = ["cat stone", "river of fish", "cat"]


@pytest.fixture(scope="module")
def index():
    made = ck.ItemIndex.build(TEXTS, lsa=3, tfidf=True)
    made.add_late(WordStates())
    ids = made.items.ids
    lists = {
        text: [(ids[(q * 5 + k) % 12], 3.0 - k) for k in range(5)] for q, text in enumerate(QUERIES)
    }
    made.add_retriever("listed", CandidateLists(lists, ids))
    made.add_retriever("views", ItemPriors(np.arange(12) % 5))
    return made


@pytest.mark.parametrize(
    "spec",
    [
        "bm25",
        "tfidf",
        "lsa",
        "random",
        "fixed",
        "listed",
        "views",
        "hybrid(lsa, views)",
        "cmc(retriever=lsa, depth=4)",
    ],
)
def test_scores_of_given_items_are_those_of_all(index, spec):
    found = open_retriever(index, parse(spec), 0)
    assert isinstance(found, Retriever)
    items = np.array([[3, 0, 11], [7, 7, 2], [1, 4, 9]])
    whole = found.scores(Queries(QUERIES))
    np.testing.assert_allclose(
        found.scores(Queries(QUERIES), items), np.take_along_axis(whole, items, 1), rtol=1e-5
    )
    padded = found.scores(Queries(QUERIES), np.where(items == 7, NO_ITEM, items))
    assert padded.shape == items.shape


class Database:
    """A vector store that is no array, and asks one."""

    def __init__(self, values):
        self.top, self.vectors = VectorArray(values).top, VectorArray(values).vectors


def test_a_vector_store_of_your_own_is_searched_as_an_array(index):
    vectors = index.vectors["lsa"]
    store = Database(vectors)
    assert isinstance(store, ck.VectorStore)
    dense = ck.DenseRetriever(store, lambda queries: index.query_vectors(queries, "lsa"))
    index.add_retriever("database", dense)
    allowed = np.arange(12) < 9
    for asked in ((5, None), (5, allowed)):
        one, two = (
            open_retriever(index, parse(name), 0).top(Queries(QUERIES), *asked)
            for name in ("database", "lsa")
        )
        assert np.array_equal(one.items, two.items)
    items = np.array([[3, 0], [7, 2], [1, 9]])
    expected = open_retriever(index, parse("lsa"), 0).scores(Queries(QUERIES), items)
    assert np.array_equal(dense.scores(Queries(QUERIES), items), expected)
    with pytest.raises(InputError, match="need their vectors as an array"):
        dense.scores(Queries(QUERIES))
    found = store.top(vectors[:2], 3, np.array([[0], [NO_ITEM]]), allowed)
    products = vectors[:2] @ vectors.T
    products[0, 0], products[:, 9:] = -np.inf, -np.inf
    np.testing.assert_allclose(found.scores, -np.sort(-products, axis=1)[:, :3], rtol=1e-6)
