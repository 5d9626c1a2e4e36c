"""Small score matrices with the structure that search lives on, made by seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crossknn.indexes.base import ItemScores, Scale
from crossknn.indexes.stored import StoredMatrix
from crossknn.search import Search

METHODS = (
    "exact",
    "rnr(first=de)",
    "rnr(first=hybrid(bm25, de))",
    "anncur(anchors=0.5)",
    "anncur(anchors=0.3, first=de)",
    "adacur(first=de, rounds=3)",
    "adacur(first=random, rounds=4, sample=softmax, split=0.5)",
    "adacur(first=bm25, rounds=3, sample=random)",
    "adacur(first=de, rounds=3, shortlist=30)",
    "axn(first=de, rounds=3, blend=0.0)",
    "axn(first=random, rounds=5, blend=0.5, normalize=first)",
    "axn(first=hybrid, rounds=4, blend=0.3, shortlist=25)",
    "axn(first=bm25, rounds=4, ridge=0.3)",
    "tour(first=de, loss=kl, rounds=3)",
    "tour(first=de, loss=mse, rounds=3)",
    "fixeditem(anchors=0.5)",
    "itemcur(anchors=0.5)",
    "gp(first=de, rounds=3)",
    "gp(first=hybrid, rounds=4, mean=first, query=true, shortlist=40)",
    "gp(first=bm25, rounds=3, kernel=matern, mean=average, beta=0.5)",
    "gp(first=random, rounds=3, kernel=linear, mean=none, beta=0)",
    "kriging(first=de, rounds=3)",
    "kriging(first=hybrid(bm25, de), rounds=4, beta=0.5, shortlist=40)",
    "kriging(first=bm25, rounds=5, anchors=false, noise=0)",
    "feedback(first=de)",
    "feedback(first=hybrid, sample=0.3, rounds=2, b=0.5, normalize=first)",
    "refit(first=hybrid, steps=5)",
    "gar(first=de, neighbours=4, batch=5)",
    "gar(first=hybrid, neighbours=6, batch=7, affinity=set)",
    "ladr(first=bm25, neighbours=4, depth=5, batch=5)",
    "ladr(first=de, neighbours=4, mode=proactive)",
    "greedy(first=hybrid, neighbours=4, batch=5)",
)
"""One spec at least of every method and of every option that changes the flow."""


def matrix(
    *,
    n: int = 80,
    anchors: int = 20,
    tests: int = 6,
    d: int = 12,
    noise: float = 0.3,
    seed: int = 0,
) -> StoredMatrix:
    """Scores that a dual encoder half explains, of rank d plus noise."""
    rng = np.random.default_rng(seed)
    q = anchors + tests
    items = rng.normal(size=(n, d)).astype(np.float32)
    queries = rng.normal(size=(q, d)).astype(np.float32)
    hidden = queries + 0.7 * rng.normal(size=(q, d))
    scores = 3 + hidden @ items.T + noise * rng.normal(size=(q, n))
    pick = rng.permutation(n)[:15]
    return StoredMatrix(
        scores=scores.astype(np.float32),
        n_anchors=anchors,
        item_vectors=items / np.linalg.norm(items, axis=1, keepdims=True),
        query_vectors=queries / np.linalg.norm(queries, axis=1, keepdims=True),
        firsts={"bm25": np.maximum(0, scores + 2 * rng.normal(size=(q, n)) - 4).astype(np.float32)},
        query_ids=tuple(f"query {i}" for i in range(q)),
        anchor_items=rng.permutation(n),
        item_scores=ItemScores(pick, (items[pick] @ items.T).astype(np.float32)),
    )


ALIGNED_METHODS = (
    "rnr(first=mf)",
    "rnr(first=hybrid(bm25, mf))",
    "axn(first=mf, rounds=3, vectors=mf, blend=0.5)",
    "axn(first=hybrid, rounds=3, ridge=0.3)",
    "axn(first=bm25, rounds=3, vectors=cur, blend=0)",
    "tour(first=hybrid, rounds=3, vectors=mf, normalize=auto)",
    "kriging(first=hybrid, rounds=3)",
    "kriging(first=bm25, rounds=3, vectors=cur)",
)
"""Specs that search the vectors of `aligned_matrix`."""


def aligned_matrix(**options) -> StoredMatrix:
    """`matrix`, with vectors `cur` in half precision and without queries', and then `mf`."""
    data = matrix(**options)
    rows = (data.scores[: data.n_anchors] - data.scale.alpha).astype(np.float16)
    noise = np.random.default_rng(1).normal(size=data.item_vectors.shape)
    moved = (data.item_vectors + 0.1 * noise).astype(np.float32)
    data = data.with_vectors("cur", rows.T.copy(), scale=Scale(alpha=data.scale.alpha))
    return data.with_vectors("mf", moved, data.query_vectors)


def run(method, data: StoredMatrix, budget: int, *, seed: int = 0, allowed=None, tests=None):
    """Search all test queries of a matrix to the end."""
    index, queries, scores = data.rows(0, tests or data.n_tests)
    search = Search(method.plan(index, budget, seed), queries, index.n, allowed=allowed)
    while len(pairs := search.ask()):
        search.tell(pairs, scores[pairs.query, pairs.item])
    return search


def permuted(data: StoredMatrix, order: np.ndarray) -> StoredMatrix:
    """The same matrix with its items in another order: new item j is old item order[j]."""
    back = np.argsort(order)
    assert data.item_scores is not None
    return StoredMatrix(
        scores=data.scores[:, order],
        n_anchors=data.n_anchors,
        item_vectors=data.item_vectors[order],
        query_vectors=data.query_vectors,
        firsts={name: values[:, order] for name, values in data.firsts.items()},
        query_ids=data.query_ids,
        anchor_items=back[data.anchor_items],
        item_scores=ItemScores(back[data.item_scores.items], data.item_scores.scores[:, order]),
        aligned={n: replace(v, items=v.items[order]) for n, v in data.aligned.items()},
    )
