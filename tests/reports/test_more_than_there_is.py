"""A k above the number of items or documents: every adapter returns all there are."""

import pytest
from adapter_helpers import FRAMEWORKS, overlap
from adapter_helpers import TEXTS as ITEMS

import crossknn as ck

TEXTS = ["zip a file", "sort a list", "lock a thread"]
QUERY = "sort the list"


@pytest.fixture(scope="module")
def searcher():
    return ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=2), overlap)


def test_rerank():
    assert len(ck.rerank(QUERY, TEXTS, 2, scorer=overlap, top_k=99)) == 3


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks(searcher, framework):
    assert len(framework().retrieve(searcher, 50)) == 3
    assert len(framework().rerank(overlap, 50, 2, texts=ITEMS[:3])) == 3


def test_items_that_are_all_deleted():
    index = ck.ItemIndex.build([{"id": str(i), "text": text} for i, text in enumerate(TEXTS)])
    index.delete(["0", "1", "2"])
    for options in {}, {"k": 1}, {"min_score": 0.0}, {"filter": []}, {"method": "rerank"}:
        with pytest.raises(ck.InputError, match="every item of the index is deleted: add items"):
            ck.Searcher(index, overlap).search(QUERY, **options)


@pytest.mark.torch
def test_mteb(searcher):
    pytest.importorskip("mteb")
    from crossknn.adapters import mteb as adapter

    model = adapter.CrossknnSearch(overlap)
    model.index([{"id": text, "text": text} for text in TEXTS])
    assert len(model.search([{"id": "q", "text": QUERY}], top_k=1000)["q"]) == 3
