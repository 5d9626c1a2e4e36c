"""Verdicts say what the queries show, in words that fit the numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from crossknn.evaluation.diagnosis import ENOUGH
from crossknn.evaluation.measures import Comparison, fewest_queries, holm, paired
from crossknn.evaluation.verdict import RERANK, RETRIEVER, SEARCH, Way, doubt, verdict_of


def way_of(name):
    kind, _, fused = name.partition("_")
    return Way(kind, fused=bool(fused))


def ways(budgets=(20, 50), m=200, seed=0, **means):
    """Values of m queries: noise around the means given by way, such as `rerank_fused`; one mean
    for all budgets, or one for each."""
    rng, base = np.random.default_rng(seed), np.random.default_rng(1).normal(size=m)
    return {
        b: {
            way_of(way): mean[place] + base + 0.1 * rng.normal(size=m)
            for way, mean in ((w, np.broadcast_to(v, len(budgets))) for w, v in means.items())
        }
        for place, b in enumerate(budgets)
    }


def plain(retriever, rerank, search, **fused):
    """Means by way."""
    return {"retriever": retriever, "rerank": rerank, "search": search} | fused


KEEP, DEEP = ("retriever", 50, "rerank"), ("search", 20, "rerank")
FIRST, BOTH = ("rerank", 20, "retriever"), ("rerank_fused", "search_fused")


def fused(*means):
    """`plain`, with reranking and searching by fused scores."""
    return plain(*means[:3], **dict(zip(BOTH, means[3:], strict=True)))


@pytest.mark.parametrize(
    ("means", "expected", "words"),
    [
        (plain(0.5, 0.6, 0.7), DEEP, "Search 20: M +"),
        (plain(0.5, 0.6, 0.6), FIRST, "cannot tell if search 20"),
        (plain(0.5, 0.6, 0.5), FIRST, "search 20 is worse"),
        (plain(0.5, 0.5, 0.5), KEEP, "cannot"),
        (plain(0.5, 0.4, 0.3), KEEP, "50 is wo"),
        (plain(0.5, 0.51, 0.5), KEEP, "until"),
        # A search that beats reranking is not advised where it does not beat the retriever.
        (plain(0.5, 0.4, 0.5), KEEP, "search 50 is better"),
        (
            plain(0.5, 0.6, 0.5, retriever_fused=0.7, rerank_fused=0.6, search_fused=0.6),
            ("retriever fused", 50, "rerank"),
            "Keep the fused retriever; search 50 fused is worse",
        ),
        # The smallest budget that is not clearly worse than the largest.
        (plain(0.5, 0.6, (0.7, 0.8)), ("search", 50, "rerank"), "Search 50"),
        (plain(0.5, (0.5, 0.6), 0.5), ("rerank", 50, "retriever"), "Rerank 50"),
        (plain(0.5, (0.6, 0.5), 0.5), FIRST, "Rerank 20"),
        (fused(0.5, 0.6, 0.5, 0.8, 0.9), ("search fused", 20, "rerank"), "Search 20 fused: M +"),
        (fused(0.5, 0.6, 0.5, 0.5, 0.5), FIRST, "rerank 20 fused is worse"),
        (fused(0.5, 0.4, 0.3, 0.6, 0.6), ("rerank fused", 20, "rerank"), "+0.2"),
    ],
)
def test_a_verdict_says_what_is_clear(means, expected, words):
    values = ways(**means)
    found = verdict_of(values, measure="M", retriever="dense")
    assert (str(found.way), found.budget, str(found.than)) == expected
    assert words in found.sentence
    assert found.gain == paired(values[found.budget][found.way] - values[found.budget][found.than])
    others = ways(**means, seed=7)
    for claim in found.claims:  # what is clear is not the contrary on other queries
        again = paired(others[claim.budget][claim.way] - others[claim.budget][claim.than]).sign
        assert claim.difference.sign * again >= 0


@pytest.mark.parametrize("mean", [0.53, 0.51, 0.5])
def test_an_unclear_verdict_says_how_many_queries_would_tell(mean):
    few = ways(budgets=[20], m=20, **plain(0.5, mean, 0.4))[20]
    said = verdict_of({20: few}).sentence
    assert "until more queries are judged: nothing is proven better, and it costs no calls;" in said
    [found] = re.findall(r"about (\d+) judged queries will decide \(20 now", said)
    times = -(-int(found) // 20)  # the same differences, so many times
    many = verdict_of({20: {way: np.tile(values, times) for way, values in few.items()}})
    assert many.way == RERANK
    assert "will decide" not in many.sentence
    if times > 2:
        half = verdict_of({20: {way: np.tile(values, times // 2) for way, values in few.items()}})
        assert half.way == RETRIEVER


def hurting(m=40):
    """A cross-encoder that is worse for two thirds of the queries, and better for the rest."""
    rng = np.random.default_rng(2)
    base = rng.uniform(0.3, 0.6, m)
    worse = np.where(np.arange(m) % 3 < 2, -0.3, 0.15) * rng.uniform(0.5, 1.5, m)
    return {RETRIEVER: base, RERANK: base + worse, SEARCH: base + worse}


def changed(change):
    base = np.full(len(change), 0.5)
    return {RETRIEVER: base, RERANK: base + change, SEARCH: base + change}


# An interval below zero that a test of signs does not confirm.
DOUBTFUL = np.array([-0.6, -0.5, -0.3, -0.2, -0.1, 0.05, 0.05, 0.02, 0.02])


@pytest.mark.parametrize(
    ("values", "words", "never"),
    [
        (
            hurting(),
            "Keep dense; search 20 is worse, -0.;this cross-encoder hurts here: answer with dense "
            "alone, or let a fusion weigh its scores (crossknn fit INDEX fusion)",
            "cannot tell if rerank",
        ),
        # Where a fusion was weighed, fitting one is no news.
        (
            {
                **hurting(),
                **{
                    Way(way.kind, fused=True): of + 0.2 * (way == RETRIEVER)
                    for way, of in hurting().items()
                },
            },
            "answer with the fused retriever alone.",
            "let a fusion",
        ),
        (
            changed(DOUBTFUL),
            "rerank 20 is worse, -0.173 [;(p = 0.;this cross-encoder hurts here",
            "cannot tell",
        ),
        (
            changed(np.zeros(20)),
            "search 20 makes no difference, +0.000 [+0.000, +0.000]",
            "until more queries are judged",
        ),
        (
            changed(np.linspace(0.25, 0.35, 5)),
            "with 5 queries no difference can be clear: judge 7 or more",
            "is worse",
        ),
    ],
    ids=["hurts", "hurts with a fusion", "doubtful", "no query differs", "five queries"],
)
def test_the_words_fit_the_interval(values, words, never):
    said = verdict_of({20: values}, retriever="dense").sentence
    assert all(part in said for part in words.split(";") if part.strip()), said
    assert never not in said


@pytest.mark.parametrize("claims", [1, 3, 4])
def test_as_few_queries_as_can_be_clear(claims):
    """If all queries agree, so many are clear after Holm's correction, and one less is not."""
    n = fewest_queries(claims)
    assert n <= ENOUGH
    for count, clear in ((n, True), (n - 1, False)):
        p = paired(np.linspace(0.1, 0.2, count)).p_value * claims
        assert (p <= 0.05) is clear


def test_corrected_p_values():
    p = [0.012, 0.9, 0.011, 0.02, 0.012]
    order = np.argsort(p, kind="stable")
    steps = [max((5 - j) * p[order[j]] for j in range(i + 1)) for i in range(5)]
    assert holm(p) == pytest.approx([steps[list(order).index(i)] for i in range(5)])


@pytest.mark.parametrize(
    ("low", "high", "p_value", "words"),
    [
        (0.05, 0.15, 0.01, ""),
        (-0.01, 0.2, 0.01, " (unclear)"),
        # An interval clear of zero is not called "no difference": the doubt has its number.
        (0.01, 0.2, 0.06, " (unclear, p = 0.06)"),
    ],
)
def test_a_difference_is_said_to_be_unclear(low, high, p_value, words):
    found = Comparison(difference=0.1, low=low, high=high, p_value=p_value, n=60)
    assert f"{found}{doubt(found)}" == f"+0.100 [{low:+.3f}, {high:+.3f}]{words}"
