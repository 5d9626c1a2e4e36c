"""Small score matrices with the structure that search lives on, made by seed."""

from dataclasses import replace

import numpy as np

from crossknn.methods import parse_method
from crossknn.search.loop import Search
from crossknn.types import Observed, Scale
from crossknn_lab.rivals.item_scores import ITEM_SCORES, item_scores_artifact
from crossknn_lab.stored import StoredMatrix

METHODS = (
    "exact",
    "rerank(retriever=dense)",
    "rerank(retriever=hybrid(bm25, dense))",
    "anncur(anchor_share=0.5)",
    "anncur(anchor_share=0.3, retriever=dense)",
    "adacur(retriever=dense, rounds=3)",
    "adacur(retriever=random, rounds=4, sample=softmax, anchor_share=0.5)",
    "axn(retriever=dense, rounds=3, blend=0.0)",
    "axn(retriever=random, rounds=5, blend=0.5, normalize=first)",
    "axn(retriever=hybrid, rounds=4, blend=0.3)",
    "axn(retriever=bm25, rounds=4, ridge=0.3)",
    "tour(retriever=dense, loss=kl, rounds=3)",
    "tour(retriever=dense, loss=mse, rounds=3)",
    "kriging(retriever=dense, rounds=3)",
    "kriging(retriever=hybrid(bm25, dense), rounds=4, shortlist=40)",
    "kriging(retriever=bm25, rounds=5, use_anchors=false)",
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
        dense_items=items / np.linalg.norm(items, axis=1, keepdims=True),
        dense_queries=queries / np.linalg.norm(queries, axis=1, keepdims=True),
        firsts={"bm25": np.maximum(0, scores + 2 * rng.normal(size=(q, n)) - 4).astype(np.float32)},
        query_ids=tuple(f"query {i}" for i in range(q)),
        anchor_items=rng.permutation(n),
        artifacts={
            ITEM_SCORES: item_scores_artifact(pick, (items[pick] @ items.T).astype(np.float32))
        },
    )


ALIGNED_METHODS = (
    "rerank(retriever=mf)",
    "rerank(retriever=hybrid(bm25, mf))",
    "axn(retriever=mf, rounds=3, vectors=mf, blend=0.5)",
    "axn(retriever=hybrid, rounds=3, ridge=0.3)",
    "axn(retriever=bm25, rounds=3, vectors=cur, blend=0)",
    "tour(retriever=hybrid, rounds=3, vectors=mf, normalize=auto)",
    "kriging(retriever=hybrid, rounds=3)",
    "kriging(retriever=bm25, rounds=3, vectors=cur)",
)
"""Specs that search the vectors of `aligned_matrix`."""


def aligned_matrix(**options) -> StoredMatrix:
    """`matrix`, with vectors `cur` in half precision and without queries', and then `mf`."""
    data = matrix(**options)
    rows = (data.scores[: data.n_anchors] - data.anchors.center).astype(np.float16)
    noise = np.random.default_rng(1).normal(size=data.dense_items.shape)
    moved = (data.dense_items + 0.1 * noise).astype(np.float32)
    data = data.with_vectors("cur", rows.T.copy(), scale=Scale(alpha=data.anchors.center))
    return data.with_vectors("mf", moved, data.dense_queries)


def run(
    method,
    data: StoredMatrix,
    budget: int,
    *,
    seed=0,
    allowed=None,
    tests=None,
    lost=(),
    groups=None,
):
    """Search all test queries of a matrix by a method or a spec; `lost` items get no score."""
    method = parse_method(method)
    index, queries, scores = data.prepared(method, budget).rows(0, tests or data.n_tests)
    plan = method.plan(index, budget, seed)
    search = Search(plan, queries, index.n, allowed=allowed, groups=groups)
    while len(pairs := search.ask()):
        told = pairs.take(np.flatnonzero(~np.isin(pairs.item, lost)))
        search.tell(told, scores[told.query, told.item])
    return search


def first_scores(scores: np.ndarray, count: int) -> Observed:
    """Exact scores (m, n) of the first `count` items of every query."""
    m = len(scores)
    return Observed(np.tile(np.arange(count), (m, 1)), scores[:, :count], np.full(m, count))


def permuted(data: StoredMatrix, order: np.ndarray) -> StoredMatrix:
    """The same matrix with its items in another order: new item j is old item order[j]."""
    back = np.argsort(order)
    pairs = data.artifacts[ITEM_SCORES].arrays
    return replace(
        data,
        scores=data.scores[:, order],
        dense_items=data.dense_items[order],
        firsts={name: values[:, order] for name, values in data.firsts.items()},
        anchor_items=back[data.anchor_items],
        artifacts={
            ITEM_SCORES: item_scores_artifact(back[pairs["items"]], pairs["scores"][:, order])
        },
        fitted={n: replace(v, items=v.items[order]) for n, v in data.fitted.items()},
    )
