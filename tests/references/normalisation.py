"""Exact scores on the scale of the vectors' products: AXN A.4, "Cross-Encoder Score Normalization".

s_final = beta (s_init - alpha). The paper estimates alpha and beta "by re-normalizing cross-encoder
distribution to match dual-encoder score distribution using 100 training queries"; the estimator is
that of shared/matrices/README.md: score' = (score - mean_A) * std(DE_A) / std_A + mean(DE_A).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .problem import Batch, FloatArray, Problem, given

Normalize = Literal["none", "anchors", "first"]


@dataclass(frozen=True)
class Scale:
    """The two numbers of A.4."""

    alpha: float
    beta: float

    def to_vectors(self, scores: FloatArray) -> FloatArray:
        """Exact scores on the scale of the dual encoder's products."""
        return self.beta * (scores - self.alpha)

    def to_scores(self, products: FloatArray) -> FloatArray:
        """Products on the scale of exact scores."""
        return products / self.beta + self.alpha


def match(exact: FloatArray, products: FloatArray) -> Scale:
    """Equal means and standard deviations; equal means alone where either deviation is 0."""
    spread_exact, spread_products = float(exact.std()), float(products.std())
    both = spread_exact > 0 and spread_products > 0
    beta = spread_products / spread_exact if both else 1.0
    return Scale(alpha=float(exact.mean() - products.mean() / beta), beta=beta)


def settle(problem: Problem, batches: Sequence[Batch], normalize: Normalize) -> Scale:
    """The scale of the whole search.

    "anchors": over all anchor queries and items. "first": over the query's own first batch, and
    kept from then on. "none": scores as they are.
    """
    if normalize == "none":
        return Scale(alpha=0.0, beta=1.0)
    items = given(problem.items, "items")
    if normalize == "anchors":
        queries = given(problem.anchor_queries, "anchor_queries")
        return match(given(problem.anchor_scores, "anchor_scores"), queries @ items.T)
    query = given(problem.query, "query")
    return match(batches[0].scores, items[batches[0].items] @ query)
