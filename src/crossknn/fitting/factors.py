"""Factorize G, the sparse score matrix of train queries: choice of pairs, scale, and ALS.

Pairs are chosen by query or by item (AXN 2.1, B.4), in an order whose first pairs, of any number,
are representative. `als` is MF_TRNS without torch (AXN 2.1, eq. 3): alternating least squares over
vectors u of train queries and v of items, near a dual encoder's u0 and v0, minimises

    sum over scores (g - u . v)^2 + strength * (c_u sum |v - v0|^2 + c_v sum |u - u0|^2),

where c_u and c_v are the mean squared lengths of u0 and v0, so that the length of vectors does not
matter.

Cross-encoders score some items higher than others for all queries, which a dual encoder's vectors
do not express. With a `bias` all vectors have one more coordinate: `bias` times the root of c_u in
u0, 0 in v0, which comes to hold the item's average level (the item biases of matrix factorization;
Koren et al. 2009, eq. 4).

Axes: q train queries, n items, d dimensions, e scores in G, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.index.vectors import Linear, QueryMap, Same
from crossknn.retrievers.base import Retriever
from crossknn.scores.sparse import SparseScores
from crossknn.types import NO_ITEM, FloatArray, IntArray, Pairs, Progress, Queries, Scale

_CHUNK = 2_048
_QUERIES_AT_ONCE = 256
_SCORES_AT_ONCE = 1 << 26
_DRAWN_AT_ONCE = 256
_NUMBERS_AT_ONCE = 1 << 17


class PairPlan(NamedTuple):
    """The pairs (p,) to score for G, and those among them that were drawn at random, which are a
    representative sample of all pairs."""

    pairs: Pairs
    random: Pairs


def per_query(
    stage: Retriever,
    queries: Queries,
    count: int,
    *,
    n: int,
    random: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> PairPlan:
    """Choose `count` items for each train query (strategy q; AXN 2.1: k_d): `random` ones of all n,
    then the retriever's best, then more random ones if the retriever returns too few.

    Queries are in random order. A smaller `count` or `random` chooses a subset of the same pairs.
    """
    if count < 1:
        raise InputError(f"items per query is {count}; it must be 1 or more")
    count, random = min(count, n), min(random, count, n)
    order = np.random.default_rng(seed).permutation(len(queries))
    at_once = max(1, min(_QUERIES_AT_ONCE, _SCORES_AT_ONCE // n))
    items = np.empty((len(order), count), dtype=np.int64)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        batch = queries.take(chosen)
        top = stage.top(batch, count).items
        for row, best in enumerate(top):
            drawn = _drawn(batch.generator(row, seed), n, count)
            near = best[(best != NO_ITEM) & ~np.isin(best, drawn[:random])][: count - random]
            row_items = np.concatenate([drawn[:random], near])
            more = drawn[~np.isin(drawn, row_items)][: count - len(row_items)]
            items[start + row] = np.concatenate([row_items, more])
        if progress:
            progress(start + len(chosen), len(order))
    pairs = Pairs(np.repeat(order, count), items.ravel())
    return PairPlan(pairs, Pairs(np.repeat(order, random), items[:, :random].ravel()))


def per_item(n: int, q: int, count: int, *, seed: int = 0) -> PairPlan:
    """Choose `count` different random queries, out of q, for each of n items (strategy i; AXN B.4):
    every item, in random order, gets one query before any gets two."""
    if not 1 <= count <= q:
        raise InputError(
            f"{count} queries per item were asked for, but there are only {q}: it must be 1 to {q}"
        )
    rng = np.random.default_rng(seed)
    drawn = np.empty((n, 0), dtype=np.int64)  # each row sorted
    queries, items = [], []
    for done in range(count):
        query = rng.integers(q - done, size=n)
        for before in drawn.T:  # from a number among those left to the query it stands for
            query += query >= before
        items.append(rng.permutation(n))
        queries.append(query[items[-1]])
        drawn = np.sort(np.column_stack([drawn, query]), axis=1)
    pairs = Pairs(np.concatenate(queries), np.concatenate(items))
    return PairPlan(pairs, pairs)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Item vectors (n, d) fitted with the cross-encoder, and the train queries' (q, d).

    `map` and `item_map` map the dual encoder's vectors of other queries and items; None if only
    scores determine a vector. `scale` maps raw scores to the scale of the vectors. `held_out` and
    `initial` are root mean squared errors on held-out scores, of the fit and of the initial
    vectors.
    """

    items: FloatArray
    queries: FloatArray
    map: QueryMap | None
    item_map: QueryMap | None = None
    scale: Scale
    held_out: float
    initial: float
    untouched: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Targets:
    """The data of a fit: normalised scores of G, divided into `fitted` and `held` out; initial
    vectors `items` (n, d), possibly memory-mapped, and `queries` (q, d), which must not be changed;
    and `initial`, the error of these vectors on the held-out scores."""

    items: FloatArray
    queries: FloatArray
    scale: Scale
    fitted: SparseScores
    held: SparseScores
    initial: float

    @staticmethod
    def of(
        scores: SparseScores,
        items: FloatArray,
        queries: FloatArray,
        *,
        scale: Scale | None = None,
        held_out: float = 0.05,
        seed: int = 0,
    ) -> Targets:
        """Normalise G by `scale`, by default to the mean and deviation of `queries . items` on the
        same pairs (AXN A.2); a scale from random pairs is better."""
        queries = np.asarray(queries, np.float32)
        if scale is None:
            products = inner_products(queries, items, scores.query, scores.item)
            scale = Scale.match(scores.score, products)
        values = scale.beta * (scores.score.astype(np.float64) - scale.alpha)
        scaled = replace(scores, score=values.astype(np.float32))
        out = np.random.default_rng(seed).random(len(scaled)) < held_out
        fitted, held = scaled.take(~out), scaled.take(out)
        if not len(fitted):
            raise InputError(
                f"all {len(scores)} scores of train queries are held out: score more pairs, or "
                "hold out fewer"
            )
        return Targets(items, queries, scale, fitted, held, error(held, queries, items))

    @property
    def untouched(self) -> int:
        """Number of items without a score to fit."""
        return self.fitted.n - len(np.unique(self.fitted.item))


def inner_products(
    queries: FloatArray, items: FloatArray, query: IntArray, item: IntArray
) -> FloatArray:
    """Inner products of pairs: queries (q, d), items (n, d), positions (e,) twice -> (e,)."""
    products = np.empty(len(query), np.float32)
    for start in range(0, len(query), _CHUNK):
        part = slice(start, start + _CHUNK)
        np.einsum("ed,ed->e", queries[query[part]], items[item[part]], out=products[part])
    return products


def error(entries: SparseScores, queries: FloatArray, items: FloatArray) -> float:
    """Root mean squared error of `queries . items` on normalised scores; NaN without scores."""
    if not len(entries):
        return float("nan")
    miss = inner_products(queries, items, entries.query, entries.item) - entries.score
    return float(np.sqrt(np.mean(np.square(miss, dtype=np.float64))))


def als(
    targets: Targets,
    *,
    strength: float = 0.3,
    bias: float = 2.0,
    sweeps: int = 6,
    progress: Progress | None = None,
) -> Fit:
    """Fit item and query vectors to G, near the initial ones, by alternating least squares; with a
    bias they have d + 1 dimensions. Sweeps end when the error on held-out scores rises."""
    # Items without a score keep their vectors, so the sweeps leave them out.
    used = np.unique(np.concatenate([targets.fitted.item, targets.held.item]))
    fitted, held = (
        replace(part, item=np.searchsorted(used, part.item), n=len(used))
        for part in (targets.fitted, targets.held)
    )
    u0, v0 = targets.queries, targets.items[used].astype(np.float32)
    c_u, c_v = _mean_square(u0), _mean_square(targets.items)
    mapped: QueryMap = Same()
    if bias:
        constant, d = bias * math.sqrt(c_u), v0.shape[1]
        offset = np.append(np.zeros(d, np.float32), np.float32(constant))
        mapped = Linear(np.eye(d, d + 1, dtype=np.float32), offset)
        c_u += constant**2
        u0, v0 = mapped(u0), np.pad(v0, ((0, 0), (0, 1)))
    g = csr_array((fitted.score, (fitted.query, fitted.item)), shape=(len(u0), len(v0)))
    by_item, best, u, v = g.T.tocsr(), targets.initial, u0, v0
    errors: list[float] = []
    for sweep in range(sweeps):
        moved = _fit_rows(by_item, u, v0, strength * c_u)
        turned = _fit_rows(g, moved, u0, strength * c_v)
        errors.append(error(held, turned, moved))
        if progress:
            progress(sweep + 1, sweeps)
        if errors[-1] >= best:
            break
        best, u, v = errors[-1], turned, moved
    items = scratch((len(targets.items), v.shape[1]))
    for start in range(0, len(items), _CHUNK):
        part = slice(start, start + _CHUNK)
        items[part, : targets.items.shape[1]] = targets.items[part]
        items[part, targets.items.shape[1] :] = 0
    items[used] = v
    return Fit(
        items=items,
        queries=u,
        map=mapped,
        scale=targets.scale,
        held_out=best,
        initial=targets.initial,
        untouched=targets.untouched,
        details={"strength": strength, "bias": bias, "sweeps": len(errors), "errors": errors},
    )


def _fit_rows(g: Any, others: FloatArray, start: FloatArray, strength: float) -> FloatArray:
    """Fit the vector of every row of G near its `start`, given the columns' vectors `others`. Rows
    with the same number of scores are solved together."""
    fitted, counts = start.copy(), np.diff(g.indptr)
    for b in np.unique(counts[counts > 0]).tolist():
        rows = np.flatnonzero(counts == b)
        at_once = max(1, _NUMBERS_AT_ONCE // (b * max(b, fitted.shape[1])))
        for begin in range(0, len(rows), at_once):
            part = rows[begin : begin + at_once]
            entries = g.indptr[part][:, None] + np.arange(b)
            vectors = others[g.indices[entries]]
            miss = g.data[entries] - (vectors @ start[part][:, :, None])[:, :, 0]
            fitted[part] += ridge(vectors, miss, strength)
    return fitted


def ridge(vectors: FloatArray, target: FloatArray, strength: float) -> FloatArray:
    """Solve argmin over x of |target - vectors x|^2 + strength |x|^2: (c, b, d), (c, b) -> (c, d).

    If b < d the (b, b) systems of the dual form are solved, otherwise the (d, d) ones.
    """
    b, d = vectors.shape[1:]
    turned, right = vectors.transpose(0, 2, 1), target[:, :, None]
    penalty = strength * np.eye(min(b, d), dtype=vectors.dtype)
    if b < d:
        return (turned @ np.linalg.solve(vectors @ turned + penalty, right))[:, :, 0]
    return np.linalg.solve(turned @ vectors + penalty, turned @ right)[:, :, 0]


def _mean_square(vectors: FloatArray) -> float:
    """Mean squared length of vectors; 1 if all are zero."""
    parts = (vectors[start : start + _CHUNK] for start in range(0, len(vectors), _CHUNK))
    total = sum(float(np.square(part, dtype=np.float32).sum(dtype=np.float64)) for part in parts)
    return total / len(vectors) or 1.0


def _drawn(rng: np.random.Generator, n: int, count: int) -> IntArray:
    """Draw `count` different items of n; a smaller count gives the first of these."""
    items: IntArray = np.empty(0, dtype=np.int64)
    while len(items) < count:
        more = np.concatenate([items, rng.integers(n, size=max(_DRAWN_AT_ONCE, len(items)))])
        items = more[np.sort(np.unique(more, return_index=True)[1])]
    return items[:count]
