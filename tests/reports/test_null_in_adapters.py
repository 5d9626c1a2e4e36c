"""None for an optional argument of an adapter is its default, as in a pipeline's YAML."""

import pytest
from adapter_helpers import FRAMEWORKS, TEXTS, overlap

import crossknn as ck


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks(framework):
    """Of retrievers and rerankers; the searcher is made with a method that is None."""
    searcher = ck.Searcher(ck.ItemIndex.build(TEXTS[:3], lsa=2), overlap, None)
    assert len(framework().retrieve(searcher, None, None, None)) == 3
    assert len(framework().rerank(None, None, None, texts=TEXTS[:3])) == 3


@pytest.mark.torch
def test_mteb():
    """Of the search model; documents whose text or title is null are empty ones."""
    pytest.importorskip("mteb")
    from crossknn.adapters import mteb as adapter

    model = adapter.CrossknnSearch(overlap, method=None, budget=None)
    null = [{"id": "a", "text": None, "title": float("nan")}, {"id": "b", "title": None}]
    model.index([*TEXTS[:3], *null])
    found = model.search([{"id": "q", "text": "zip file", "instruction": None}], top_k=9)["q"]
    assert len(found) == 5
    assert next(iter(found)) == "zip-file"
