"""Write a method: a retriever for the first items, a predictor for the others, rounds.

    python examples/own_method.py

The method moves the query's vector towards the items that scored best so far (Rocchio's idea).
"""

from dataclasses import dataclass

import numpy as np

import crossknn as ck
from crossknn.extend import (
    Method,
    Plan,
    Prediction,
    Predictor,
    equal_rounds,
    open_retriever,
    option,
)


class MovedQueries(Predictor):
    """Approximate score = (query vector + mean vector of the best scored items) . item vector."""

    predicts_scores = False  # inner products rank items, on another scale than exact scores

    def __init__(self, index, n_best):
        self.index, self.n_best = index, n_best
        self.item_vectors = index.vectors["dense"]  # (n, d)

    def start(self, queries):
        """The state before the first score: the vectors (m, d), and the same again, to be moved."""
        encoded = self.index.query_vectors(queries, "dense")
        return encoded, encoded

    def update(self, state, observed):
        """The state after a round; `observed` has all exact scores so far."""
        encoded, moved = state[0], state[0].copy()
        for query, items, scores in observed.rows():
            best = items[np.argsort(-scores)[: self.n_best]]
            moved[query] += self.item_vectors[best].mean(axis=0)
        return encoded, moved

    def predict(self, state, items=None):
        """Approximate scores (m, n), or (m, p) of the given items."""
        approx = state[1] @ self.item_vectors.T
        return Prediction(approx if items is None else np.take_along_axis(approx, items, axis=1))


@dataclass(frozen=True, kw_only=True)
class Rocchio(Method):
    """Rounds of equal size, the first by BM25."""

    name = "rocchio"
    rounds: int = option(5, least=1)
    n_best: int = 3

    def plan(self, index, budget, seed):
        """What to run for one budget."""
        return Plan(
            retriever=open_retriever(index, "bm25"),
            predictor=MovedQueries(index, self.n_best),
            batches=equal_rounds(budget, self.rounds),  # they sum to the budget
        )


sample = ck.sample()
searcher = ck.Searcher(sample.index, sample.scorer, Rocchio())
results = searcher.search(sample.queries.texts[:3], k=1, budget=50)
for query, hits in zip(results.queries, results, strict=True):
    print(query, "->", hits[0].text.splitlines()[0])
