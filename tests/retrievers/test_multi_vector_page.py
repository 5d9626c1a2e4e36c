"""The multi-vector retriever of `docs/how-to/own-method.md`, with a stand-in for PyLate."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import crossknn as ck
from crossknn.retrievers.base import Retriever
from crossknn.types import Queries

PAGE = Path(__file__).parents[2] / "docs/how-to/own-method.md"
TEXTS = [f"{a} {b} hill" for a in ("red", "old", "tall") for b in ("oak", "elm", "gull", "lake")]


class Model:
    """PyLate's `ColBERT` as far as it is used: a unit vector for each word, and MaxSim."""

    def encode(self, texts, is_query):
        return [np.stack([self.vector(word) for word in text.split()]) for text in texts]

    def vector(self, word):
        values = np.random.default_rng([*word.encode()]).normal(size=8)
        return (values / np.linalg.norm(values)).astype(np.float32)

    def maxsim(self, query, text):
        one, other = self.encode([query, text], True)
        return float((one @ other.T).max(axis=1).sum())


class Index:
    """PyLate's index as far as it is used, searched exactly."""

    def __init__(self, folder, *, embedding_size, override):
        assert (embedding_size, override) == (8, True)

    def add_documents(self, documents_ids, documents_embeddings):
        self.rows = dict(zip(documents_ids, documents_embeddings, strict=True))

    def retrieve(self, asked, k):
        for query in asked:
            scores = {i: float((query @ row.T).max(axis=1).sum()) for i, row in self.rows.items()}
            best = sorted(scores, key=lambda i: -scores[i])[:k]
            yield [{"id": i, "score": scores[i]} for i in best]


@pytest.fixture
def index(monkeypatch):
    block = next(
        b for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "pylate" in b
    )
    assert block.count("\n") <= 33
    pylate, names = ModuleType("pylate"), {}
    pylate.indexes, pylate.retrieve = (
        SimpleNamespace(Voyager=Index),
        SimpleNamespace(ColBERT=lambda i: i),
    )
    monkeypatch.setitem(sys.modules, "pylate", pylate)
    exec(block, names)
    index = ck.ItemIndex.build(TEXTS, lsa=4)
    index.add_retriever("colbert", names["MultiVector"](Model(), index.items, "folder"))
    return index


def test_it_ranks_by_maxsim(index):
    stage, asked = index.retrievers["colbert"], ["red oak", "an old lake"]
    assert isinstance(stage, Retriever)
    exact = np.array([[Model().maxsim(query, text) for text in TEXTS] for query in asked])
    np.testing.assert_allclose(stage.scores(Queries(asked)), exact, rtol=1e-5)
    some = np.array([[3, 1], [0, 2]])
    taken = np.take_along_axis(exact, some, axis=1)
    np.testing.assert_allclose(stage.scores(Queries(asked), some), taken, rtol=1e-5)
    assert stage.top(Queries(asked), 1).items.tolist() == np.argmax(exact, axis=1)[:, None].tolist()
    for allowed in (None, np.arange(12) % 2 == 0):
        found = stage.top(Queries(asked), 5, allowed)
        kept = exact if allowed is None else np.where(allowed, exact, -np.inf)
        np.testing.assert_allclose(found.scores, -np.sort(-kept, axis=1)[:, :5], rtol=1e-5)


@pytest.mark.parametrize(
    "method",
    ["rerank(retriever=colbert)", "auto(retriever=colbert, mean=hybrid(bm25, lsa, colbert))"],
)
def test_a_search_starts_from_it(index, method):
    scorer = ck.CallableScorer(lambda pairs: [Model().maxsim(*pair) for pair in pairs])
    hits = ck.Searcher(index, scorer, method).search("tall gull", k=2, budget=9)[0]
    assert hits[0].text == "tall gull hill"
