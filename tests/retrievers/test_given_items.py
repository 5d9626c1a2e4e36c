"""Every retriever scores given items as it scores all."""

from __future__ import annotations

import numpy as np
import pytest
from late_helpers import WordStates

import crossknn as ck
from crossknn.errors import InputError
from crossknn.extend import ArrayStore, VectorStore
from crossknn.retrievers.base import (
    CandidateLists,
    DenseRetriever,
    ItemPriors,
    RankFusion,
    Retriever,
)
from crossknn.retrievers.specs import open_retriever
from crossknn.types import NO_ITEM, Queries

TEXTS = [f"{a} {b}" for a in ("cat", "dog", "fish", "tree") for b in ("stone", "cloud", "river")]
QUERIES = ["cat stone", "river of fish", "cat"]


@pytest.fixture(scope="module")
def index():
    made = ck.ItemIndex.build(TEXTS, lsa=3)
    made.add_late(WordStates())
    ids = made.items.ids
    lists = {text: [(ids[q * 4 - k], 3.0 - k) for k in range(4)] for q, text in enumerate(QUERIES)}
    made.add_retriever("listed", CandidateLists(lists, ids))
    made.add_retriever("views", ItemPriors(np.arange(12) % 5))
    return made


NAMES = ["bm25", "lsa", "random", "fixed", "listed", "views"]


@pytest.mark.parametrize("spec", [*NAMES, "hybrid(lsa, views)", "cmc(retriever=lsa, depth=4)"])
def test_scores_of_given_items_are_those_of_all(index, spec):
    found = open_retriever(index, spec)
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

    values = None

    def __init__(self, values):
        self.array, self.shape = ArrayStore(values), values.shape
        self.top, self.vectors = self.array.top, self.array.vectors


def test_a_vector_store_of_your_own_is_searched_as_an_array(index):
    store = Database(index.vectors["lsa"])
    assert isinstance(store, VectorStore)
    dense = DenseRetriever(store, lambda queries: index.query_vectors(queries, "lsa"))
    array, queries = open_retriever(index, "lsa"), Queries(QUERIES)
    items = np.array([[3], [7], [1]])
    for allowed in (None, np.arange(12) < 9):
        tops = [stage.top(queries, 5, allowed).items for stage in (dense, array)]
        assert np.array_equal(*tops)
    fused = [RankFusion([stage, open_retriever(index, "bm25")]) for stage in (dense, array)]
    for pair in ((dense, array), fused):
        assert np.array_equal(*(stage.scores(queries, items) for stage in pair))
    with pytest.raises(InputError, match="need an array of vectors"):
        dense.scores(queries)
