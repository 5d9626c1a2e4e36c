"""The verdict's words fit its numbers."""

import numpy as np
import pytest

from crossknn.evaluation.diagnosis import ENOUGH
from crossknn.evaluation.measures import Comparison, fewest_queries, paired
from crossknn.evaluation.verdict import RERANK, RETRIEVER, SEARCH, Way, verdict_of
from crossknn.trial.result import _said


def values(m, lower):
    """Values of m queries by way; reranking is `lower` for two thirds, and higher for the rest."""
    rng = np.random.default_rng(2)
    base = rng.uniform(0.3, 0.6, m)
    worse = np.where(np.arange(m) % 3 < 2, -lower, lower / 2) * rng.uniform(0.5, 1.5, m)
    return {100: {RETRIEVER: base, RERANK: base + worse, SEARCH: base + worse}}


def test_a_cross_encoder_that_hurts():
    """Reranking is below zero with its whole interval: it says so, and what to do instead."""
    said = verdict_of(values(40, 0.3), measure="nDCG@10", retriever="dense").sentence
    assert said.startswith("Keep dense")
    assert "rerank 100 is worse, -0." in said
    assert "cannot tell if rerank" not in said
    assert "this cross-encoder hurts here: answer with dense alone, or let a fusion weigh" in said
    assert "crossknn fit INDEX fusion" in said


def test_an_interval_below_zero_that_a_test_of_signs_does_not_confirm():
    """The issue's example: -0.163 [-0.291, -0.040] is never "cannot tell if it is better"."""
    base = np.full(9, 0.5)
    change = np.array([-0.6, -0.5, -0.3, -0.2, -0.1, 0.05, 0.05, 0.02, 0.02])
    ways = {RETRIEVER: base, RERANK: base + change, SEARCH: base + change}
    found = paired(change)
    assert (found.high < 0, found.sign) == (True, 0)
    said = verdict_of({100: ways}).sentence
    assert "rerank 100 is worse, -0.173 [" in said
    assert "(p = 0." in said
    assert "this cross-encoder hurts here: answer with retriever alone" in said


def test_with_a_fusion_the_fused_retriever_is_named():
    """Where a fusion was weighed, fitting one is no news."""
    ways = values(40, 0.3)[100]
    better = {Way(way.kind, fused=True): of + 0.2 * (way == RETRIEVER) for way, of in ways.items()}
    said = verdict_of({100: {**ways, **better}}).sentence
    assert "answer with the fused retriever alone." in said


def test_no_query_differs():
    """A cross-encoder gives all items the same score: it makes no difference, which is certain."""
    same = np.linspace(0.2, 0.6, 20)
    said = verdict_of({20: dict.fromkeys(WAYS, same)}).sentence
    assert "search 20 makes no difference, +0.000 [+0.000, +0.000]" in said
    assert "cannot tell" not in said
    assert "until more queries are judged" not in said


def test_five_queries():
    """Of five queries no difference can be clear, and it is said how many are needed."""
    five = {w: np.array([0.1, 0.2, 0.3, 0.4, 0.5]) + 0.3 * (w != RETRIEVER) for w in WAYS}
    said = verdict_of({20: five}).sentence
    assert "with 5 queries no difference can be clear: judge 7 or more" in said
    said = _said(Comparison(difference=0.2, low=0.08, high=0.32, p_value=0.063, n=5), "of it")
    assert said.startswith("finds +20 points of it [+8, +32], which says little: of 5 queries no")
    assert "of 6 or more it can" in said


WAYS = RETRIEVER, RERANK, SEARCH


@pytest.mark.parametrize("claims", [1, 3, 4])
def test_as_few_queries_as_can_be_clear(claims):
    """If all queries agree, so many are clear after Holm's correction, and one less is not."""
    n = fewest_queries(claims)
    assert n <= ENOUGH
    for count, clear in ((n, True), (n - 1, False)):
        p = paired(np.linspace(0.1, 0.2, count)).p_value * claims
        assert (p <= 0.05) is clear
