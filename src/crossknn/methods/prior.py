"""Kriging's prior: what exact scores of other queries say about a query before it has any.

    score of item i = w . [1, retrievers' scores, cokriging, mean score of i] + residual of i

Columns are standardised over the items of a query. The weights w are a query's own: those of the
other queries say what to expect of them, for two trends, whose predictions are averaged:

    [1, leading retriever, mean score]          few columns: the best ten
    [1, all retrievers, cokriging, mean score]  all that is known: the best hundred

Residuals say which items are liked by the same queries. Cokriging is the residual that the queries'
vectors predict: queries of like vectors like the same items.

Axes: q queries, n items, s retrievers, g columns, t trends, r factors, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from crossknn.index.base import Index
from crossknn.linalg import standardised
from crossknn.methods.features import Spread
from crossknn.methods.posterior import Trend
from crossknn.types import Artifact, BoolArray, FloatArray

NAME = "kriging"
"""Of the artifact that an index keeps a prior as."""

SLOPE = 1.0
"""Precision of a slope, where no other query is known, in units of the residuals' variance."""


@dataclass(frozen=True, slots=True)
class Cokriging:
    """Coordinates of queries in the space of the factors, by kernel ridge regression.

    z(query) = k' (K + ridge I)^-1 Z with K = exp(-scale |v - v'|^2), v being the vectors of the q
    known queries about their mean, brought to a mean square length of 1, and Z their coordinates.

    Args:
        known: Vectors (q, d) of the known queries.
        solved: (K + ridge I)^-1 Z: (q, r).
        scale: Of squared distances.
    """

    known: FloatArray
    solved: FloatArray
    scale: float

    def __call__(self, vectors: FloatArray) -> FloatArray:
        """Coordinates (m, r) of queries with `vectors` (m, d)."""
        return near(vectors, self.known, self.scale) @ self.solved


def near(left: FloatArray, known: FloatArray, scale: float) -> FloatArray:
    """exp(-scale |v - v'|^2) between queries (a, d) and known ones (q, d): (a, q)."""
    centre = known.mean(axis=0, dtype=np.float64)
    size = np.sqrt(np.square(known - centre).sum(axis=1).mean()) or 1.0
    v, w = (left - centre) / size, (known - centre) / size
    squares = np.square(v).sum(axis=1)[:, None] + np.square(w).sum(axis=1) - 2 * v @ w.T
    return np.exp(-scale * np.maximum(squares, 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What is known before a query's first score, and what it was fitted to.

    Args:
        factor: (n, r), whose products with themselves are the residuals' covariance of items.
        mean: (n,) the items' mean scores, about their mean.
        trends: Of columns 1, the retrievers, cokriging if there is any, and the mean.
        variance: Mean square of the residuals.
        cokriging: Where queries have vectors, of the space `space`.
        retriever: Retrievers that the trends are linear in, as a spec.
        fingerprint: Of the cross-encoder.
        queries, pairs: How many were scored, the `n_anchor_queries` among them with every item.
        added: How many items, the last ones, came after the fit, and have the rows of `factor` and
            `mean` that their vectors say (`crossknn.index.updates`).
    """

    factor: FloatArray
    mean: FloatArray
    trends: Sequence[Trend]
    variance: float
    cokriging: Cokriging | None = None
    space: str | None = None
    retriever: str = ""
    fingerprint: str | None = None
    queries: int = 0
    pairs: int = 0
    n_anchor_queries: int = 0
    added: int = 0

    @property
    def from_searches(self) -> bool:
        """Whether it was fitted to scores of more queries than the anchors."""
        return self.queries > self.n_anchor_queries

    @cached_property
    def column(self) -> FloatArray:
        """The items' mean scores, standardised as those of the items fitted to were: (n,)."""
        fitted = self.mean[: len(self.mean) - self.added]
        if not self.added or not len(fitted):
            return standardised(self.mean)
        # Theirs stay, to the last bit: an approximate index of points that has them goes on.
        of_fitted = standardised(fitted)
        size = np.std(fitted, dtype=np.float64)
        later = self.mean[len(fitted) :].astype(np.float64) - np.mean(fitted, dtype=np.float64)
        later = later / size if of_fitted.any() else np.zeros(self.added)
        return np.concatenate([of_fitted, later.astype(np.float32)])

    @cached_property
    def spread(self) -> Spread:
        """Of the factors."""
        return Spread.of(lambda items: self.factor[items], len(self.factor))

    def kept(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """As JSON and arrays; see `from_artifact`."""
        arrays = {"factor": self.factor, "mean": self.mean}
        arrays |= {
            name: np.stack([getattr(trend, field) for trend in self.trends])
            for name, field in _TRENDS.items()
        }
        meta = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        if self.cokriging is not None:
            meta["query_scale"] = self.cokriging.scale
            arrays |= {"known_queries": self.cokriging.known, "solved": self.cokriging.solved}
        return meta, arrays

    @staticmethod
    def from_artifact(artifact: Artifact) -> Prior:
        """What `kept` gave."""
        meta, arrays = dict(artifact.meta), artifact.arrays
        scale, cokriging = meta.pop("query_scale", None), None
        if scale is not None:
            cokriging = Cokriging(arrays["known_queries"], arrays["solved"], scale)
        trends = zip(*(arrays[name] for name in _TRENDS), strict=True)
        return Prior(
            factor=arrays["factor"],
            mean=arrays["mean"],
            trends=[Trend(*trend) for trend in trends],
            cokriging=cokriging,
            **meta,
        )


_ARRAYS = ("factor", "mean", "trends", "cokriging")
_TRENDS: Mapping[str, str] = {
    "trend_columns": "columns",
    "trend_means": "mean",
    "trend_precisions": "precision",
}


def trend_columns(retrievers: int, lead: int, cokriging: bool) -> BoolArray:
    """Which of the columns [1, retrievers, cokriging, mean] each trend has: (t, g)."""
    few = [True, *(r == lead for r in range(retrievers)), *[False] * cokriging, True]
    return np.unique([few, [True] * len(few)], axis=0)


def flat_trends(retrievers: int, lead: int) -> list[Trend]:
    """Where no other query is known: [1], [1, leading retriever], [1, all retrievers], with slopes
    that are probably small; averaged."""
    precision = SLOPE * np.diag([0.0, *np.ones(retrievers)])
    level = [[True, *[False] * retrievers]]
    columns = np.vstack([level, trend_columns(retrievers, lead, False)[:, :-1]])
    return [Trend(row, np.zeros(len(row)), precision) for row in columns]


def stored_prior(index: Index) -> Prior | None:
    """The prior that is kept with an index, if there is one."""
    artifact = index.artifacts.get(NAME)
    if artifact is None:
        return None
    return index.cache.get("prior", (artifact,), lambda: Prior.from_artifact(artifact))
