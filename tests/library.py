"""A corpus of 150 items that 200 queries like in part for what no vector shows."""

import numpy as np

from crossknn import CallableScorer
from crossknn.fitting.learning import fit_from_store
from crossknn.index.item_index import ItemIndex
from crossknn.scores.stored import StoredScorer
from crossknn.search.searcher import Searcher
from crossknn.spec import parse

N, D = 150, 6
METHOD = "kriging(retriever=vectors, rounds=4)"


class Library:
    """Items liked for their place in the dual encoder's space, and for what it does not see."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.items = rng.normal(size=(N, D)).astype(np.float32)
        self.queries = rng.normal(size=(200, D)).astype(np.float32)
        hidden, liked = rng.normal(size=(D, D)), 2 * rng.normal(size=N)
        self.scores = self.queries @ (self.items + self.items @ hidden).T + liked
        self.scorer = CallableScorer(self.score, "true")
        self.calls = 0

    def index(self):
        records = [{"id": str(i), "text": f"item {i}"} for i in range(N)]
        made = {"vectors": self.items, "query_vectors": self.vectors_of}
        return ItemIndex.build(records, **made, bm25=False)

    def vectors_of(self, texts):
        return self.queries[[int(text.split()[1]) for text in texts]]

    def score(self, pairs):
        self.calls += len(pairs)
        return [self.scores[int(q.split()[1]), int(i.split()[1])] for q, i in pairs]

    def texts(self, start, stop):
        return [f"query {q}" for q in range(start, stop)]

    def search(self, index, start, stop, spec=METHOD, scorer=None):
        stored = StoredScorer(scorer or self.scorer, index.scores)
        search = Searcher(index, stored, spec).search
        return search(self.texts(start, stop), k=10, budget=25)

    def recall(self, index):
        texts = self.texts(150, 200)
        found = Searcher(index, self.scorer, METHOD).search(texts, k=10, budget=25)
        truth = np.argsort(-self.scores[150:], axis=1)[:, :10]
        got = [[int(hit.id) for hit in row] for row in found]
        return np.mean([np.isin(t, g).mean() for t, g in zip(truth, got, strict=True)])

    def learn(self, index, scorer=None):
        return fit_from_store(index, scorer or self.scorer, retriever=parse("vectors"))
