"""What the factorizations of G share: what they fit, on which scale, and what they give.

Axes: q train queries, n items, d dimensions, e entries of G.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Scale
from crossknn.index.vectors import QueryMap
from crossknn.scores.store import SparseScores
from crossknn.types import FloatArray, IntArray

_CHUNK = 2_048


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Item vectors (n, d) fitted with the cross-encoder, and how they are searched.

    `queries` (q, d) are fitted train queries, where a method has them. `map` gives other queries
    their vectors, and `item_map` other items, both from the dual encoder's; None where only scores
    give one (queries of CUR without an encoder; items of all methods but MF_IND). `scale` brings
    raw scores to the scale of the vectors. `held_out` and `initial` are root mean squared errors on
    held-out entries, on that scale, of the fit and of the initial vectors; NaN if nothing was held
    out. `untouched` items had no score to fit to.
    """

    items: FloatArray
    queries: FloatArray | None
    map: QueryMap | None
    item_map: QueryMap | None
    scale: Scale
    held_out: float
    initial: float
    untouched: int
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Targets:
    """What is fitted: normalised scores of G, apart from those `held` out; and the start.

    `items` (n, d) and `queries` (q, d) are the initial vectors, float32, not to be written to;
    `initial` is their error on the entries held out.
    """

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
        """Normalise G by `scale`, by default to the mean and deviation of `queries . items` on its
        entries (AXN A.2).

        Where G holds the top of that retriever, the default is of a selection in which
        `queries . items` hardly varies; a scale from random pairs, or from anchors, is better.
        InputError if the vectors do not belong to G, if G is empty, or if all of it is held out.
        """
        items, queries = np.asarray(items, np.float32), np.asarray(queries, np.float32)
        _check(scores, items, queries, held_out)
        if scale is None:
            products = inner_products(queries, items, scores.query, scores.item)
            scale = Scale.match(scores.score, products)
        values = scale.beta * (scores.score.astype(np.float64) - scale.alpha)
        scaled = replace(scores, score=values.astype(np.float32))
        fitted, held = scaled.split(held_out, seed)
        if not len(fitted):
            raise InputError(
                f"all {len(scores)} scores of train queries are held out: score more pairs, or "
                "hold out fewer"
            )
        return Targets(items, queries, scale, fitted, held, error(held, queries, items))

    @property
    def untouched(self) -> int:
        """Number of items without an entry to fit."""
        return self.fitted.n - len(self.fitted.scored_items)


def inner_products(
    queries: FloatArray, items: FloatArray, query: IntArray, item: IntArray
) -> FloatArray:
    """Inner products of the pairs: queries (q, d), items (n, d), positions (e,) twice -> (e,)."""
    found = np.empty(len(query), np.float32)
    for start in range(0, len(query), _CHUNK):
        part = slice(start, start + _CHUNK)
        np.einsum("ed,ed->e", queries[query[part]], items[item[part]], out=found[part])
    return found


def error(entries: SparseScores, queries: FloatArray, items: FloatArray) -> float:
    """Root mean squared error of `queries . items` on normalised entries; NaN if there are none."""
    if not len(entries):
        return float("nan")
    miss = inner_products(queries, items, entries.query, entries.item) - entries.score
    return float(np.sqrt(np.mean(np.square(miss, dtype=np.float64))))


def _check(scores: SparseScores, items: FloatArray, queries: FloatArray, held_out: float) -> None:
    for what, vectors, count in (
        ("item", items, scores.n),
        ("query", queries, len(scores.queries)),
    ):
        if vectors.ndim != 2 or len(vectors) != count:
            raise InputError(
                f"the initial {what} vectors have the shape {vectors.shape}; the scores are of "
                f"{count}, so that it must be ({count}, d)"
            )
        if not np.isfinite(vectors).all():
            row = int(np.argmin(np.isfinite(vectors).all(axis=1)))
            raise InputError(
                f"the initial vector of {what} {row} holds a number that is not finite"
            )
    if items.shape[1] != queries.shape[1]:
        raise InputError(
            f"item vectors have {items.shape[1]} dimensions and query vectors {queries.shape[1]}: "
            "both must come from one dual encoder"
        )
    if not len(scores):
        raise InputError("no train query has a score: score some pairs first")
    if not 0 <= held_out < 1:
        raise InputError(f"held_out is {held_out}; it is a share, from 0 to below 1")
