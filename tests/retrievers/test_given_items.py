"""Every retriever scores given items as it scores all."""

from __future__ import annotations

import numpy as np
import pytest
from late_helpers import WordStates

import crossknn as ck
from crossknn.retrievers.base import CandidateLists, ItemPriors, Retriever
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
