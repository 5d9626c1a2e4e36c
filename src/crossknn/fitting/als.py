"""Alternating least squares towards the initial vectors: MF_TRNS without torch (AXN 2.1, eq. 3).

Minimises, over vectors u of train queries and v of items, with those of a dual encoder u0 and v0,

    sum over entries (g - u . v)^2 + strength * (c_u sum |v - v0|^2 + c_v sum |u - u0|^2),

c_u and c_v the mean squared lengths of u0 and v0, so that the length of vectors does not matter.

Cross-encoders like some items better than others whatever the query, which no dual encoder's vector
says. With a `bias` all vectors have one more coordinate: `bias` times the root of c_u in u0, 0 in
v0, so that it comes to hold how much an item is liked in general (the item biases of matrix
factorization; Koren et al. 2009, eq. 4).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.fitting.factors import Fit, Targets, error
from crossknn.index.vectors import Linear, QueryMap, Same
from crossknn.types import FloatArray, IntArray, Progress

_NUMBERS_AT_ONCE = 1 << 17


def als(
    targets: Targets,
    *,
    strength: float = 0.3,
    bias: float = 2.0,
    sweeps: int = 6,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fit:
    """Item and query vectors that explain G, near the initial ones.

    They are (n, d) and (q, d), with a bias (n, d + 1) and (q, d + 1).

    A sweep fits all items to the queries, then all queries to the items. The sweep with the lowest
    error on held-out entries is kept, and the first that is worse is the last. Nothing is drawn, by
    whatever `seed`. Raises InputError
    for a strength or a number of sweeps that is not positive, and a negative bias.
    """
    if not strength > 0 or not bias >= 0 or sweeps < 1:
        raise InputError(
            f"strength is {strength}, bias {bias} and sweeps {sweeps}; the first must be above 0, "
            "the second at least 0, the third at least 1"
        )
    began = time.perf_counter()
    fitted, constant = targets.fitted, bias * math.sqrt(_mean_square(targets.queries))
    u0 = Start(targets.queries, constant if bias else None)
    v0 = Start(targets.items, 0.0 if bias else None)
    item_rows = Rows.of(fitted.item, fitted.query, fitted.score, len(v0))
    query_rows = Rows.of(fitted.query, fitted.item, fitted.score, len(u0))
    towards_items = strength * (_mean_square(u0.vectors) + constant**2)
    towards_queries = strength * _mean_square(v0.vectors)
    best, u, before = targets.initial, u0.take(), None
    errors: list[float] = []
    for sweep in range(sweeps):
        moved = item_rows.fit(u, v0, towards_items)
        turned = query_rows.fit(moved, u0, towards_queries)
        errors.append(error(targets.held, turned, moved))
        del moved  # items follow from queries, so that one table of them at a time is enough
        if progress:
            progress(sweep + 1, sweeps)
        if errors[-1] >= best:
            break
        best, u, before = errors[-1], turned, u
    return Fit(
        items=v0.take() if before is None else item_rows.fit(before, v0, towards_items),
        queries=u,
        map=u0.map(),
        item_map=None,
        scale=targets.scale,
        held_out=best,
        initial=targets.initial,
        untouched=targets.untouched,
        seconds=time.perf_counter() - began,
        details={"strength": strength, "bias": bias, "sweeps": len(errors), "errors": errors},
    )


@dataclass(frozen=True, eq=False)
class Start:
    """Initial vectors (r, d), and one coordinate more if there is a `last`, the same for all."""

    vectors: FloatArray
    last: float | None

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, part: IntArray | slice = slice(None)) -> FloatArray:
        """A copy of the rows at `part`."""
        chosen = self.vectors[part]
        if self.last is None:
            return chosen.copy()
        longer = np.full((len(chosen), chosen.shape[1] + 1), self.last, np.float32)
        longer[:, :-1] = chosen
        return longer

    def map(self) -> QueryMap:
        """From vectors of the encoder to these."""
        if self.last is None:
            return Same()
        d = self.vectors.shape[1]
        offset = np.zeros(d + 1, np.float32)
        offset[d] = self.last
        return Linear(np.eye(d, d + 1, dtype=np.float32), offset)


@dataclass(frozen=True, eq=False)
class Rows:
    """Entries by the row they determine: row r has those at `starts[r]:starts[r + 1]`.

    `other` (e,) are positions on the other side, `target` (e,) normalised scores.
    """

    other: IntArray
    target: FloatArray
    starts: IntArray

    @staticmethod
    def of(row: IntArray, other: IntArray, target: FloatArray, count: int) -> Rows:
        """From entries in any order, for `count` rows."""
        order = np.argsort(row, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))])
        return Rows(other[order].astype(np.int32), target[order], starts)

    def fit(self, others: FloatArray, start: Start, strength: float) -> FloatArray:
        """The best vector of every row, given those of the `others`, near the `start`.

        Rows with as many entries are solved together; rows without keep their initial vector.
        """
        found = start.take()
        counts = np.diff(self.starts)
        by_count = np.argsort(counts, kind="stable")
        sizes, first = np.unique(counts[by_count], return_index=True)
        for b, rows in zip(sizes, np.split(by_count, first[1:]), strict=True):
            at_once = max(1, _NUMBERS_AT_ONCE // max(1, int(b) * max(int(b), found.shape[1])))
            for begin in range(0, len(rows) if b else 0, at_once):
                part = rows[begin : begin + at_once]
                entries = self.starts[part][:, None] + np.arange(b)
                known = others[self.other[entries]]
                miss = self.target[entries] - (known @ start.take(part)[:, :, None])[:, :, 0]
                found[part] += ridge(known, miss, strength)
        return found


def ridge(known: FloatArray, target: FloatArray, strength: float) -> FloatArray:
    """argmin over x of |target - known x|^2 + strength |x|^2: (c, b, d), (c, b) -> (c, d).

    By the (b, b) systems where b < d (the dual form), by the (d, d) ones otherwise.
    """
    b, d = known.shape[1:]
    turned = known.transpose(0, 2, 1)
    gram = known @ turned if b < d else turned @ known
    side = np.arange(gram.shape[1])
    gram[:, side, side] += strength
    right = target[:, :, None]
    found = (
        turned @ np.linalg.solve(gram, right) if b < d else np.linalg.solve(gram, turned @ right)
    )
    return found[:, :, 0]


def _mean_square(vectors: FloatArray) -> float:
    """Mean squared length of vectors; 1 if all are zero."""
    return float(np.einsum("nd,nd->", vectors, vectors) / len(vectors)) or 1.0
