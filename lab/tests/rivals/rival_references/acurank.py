"""AcuRank (Yoon et al., 2505.18512) where a reranker scores single items exactly.

The released code keeps a Gaussian of each candidate's relevance, N(mu, sigma^2), which windows of a
listwise reranker update by TrueSkill. docs/explanation/rivals.md, "acurank", says what takes their
place: a scored item has its exact score, an unscored one a line through the first stage's scores.
"""

from collections.abc import Sequence

import numpy as np
from references.problem import Batch, FloatArray, Problem, Ranked, best_first, observed
from scipy.special import ndtr


def acurank(problem: Problem, batches: Sequence[Batch]) -> Ranked:
    """What is scored next: P(x_i > t) rises with mu_i, and mu_i with the first stage's score."""
    return best_first(problem.retriever, batches)


def beliefs(problem: Problem, batches: Sequence[Batch], candidates: int) -> tuple[FloatArray, ...]:
    """Exact scores so far, and mu and sigma of the candidates that have none."""
    items, scores = observed(batches)
    cheap = problem.retriever
    slope, offset = np.polyfit(cheap[items], scores, 1)
    if slope < 0:
        slope, offset = 0.0, scores.mean()
    sigma = np.sqrt(((scores - slope * cheap[items] - offset) ** 2).sum() / (len(items) - 2))
    left = [item for item in best_first(cheap, []).items[:candidates] if item not in set(items)]
    return scores, slope * cheap[left] + offset, np.full(len(left), sigma)


def n_uncertain(
    problem: Problem, batches: Sequence[Batch], *, k: int, tolerance: float, candidates: int
) -> int:
    """Candidates with tolerance < P(x_i > t) < 1 - tolerance, where the P of all sum to k.

    `_find_threshold_binary_search` and `_compute_probs_above_t`; an exact score is above t or not.
    """
    from scipy.optimize import brentq  # half a second to import

    scores, mu, sigma = beliefs(problem, batches, candidates)

    def expected(t: float) -> float:
        return float((scores > t).sum() + ndtr((mu - t) / sigma).sum()) - k

    low = min(scores.min(), (mu - 9 * sigma).min())
    high = max(scores.max(), (mu + 9 * sigma).max())
    above = ndtr((mu - brentq(expected, low, high, xtol=1e-9)) / sigma)
    return int(((above > tolerance) & (above < 1 - tolerance)).sum())
