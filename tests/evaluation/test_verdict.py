"""Verdicts say what the queries show, in words that fit the numbers."""

from __future__ import annotations

from dataclasses import replace

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
        (
            plain(0.5, 0.6, 0.7),
            DEEP,
            "Search with 20 calls: 200 judged queries show that it is better",
        ),
        (plain(0.5, 0.6, 0.6), FIRST, "about 2,400 would show whether search is better still"),
        (plain(0.5, 0.6, 0.5), FIRST, "the first stage alone and than search with 20 calls."),
        (plain(0.5, 0.5, 0.5), KEEP, "Undecided: 200 queries judged, about 2,900 needed. So far"),
        (plain(0.5, 0.4, 0.3), KEEP, "first stage: 200 judged queries show that search and rer"),
        # A search that beats reranking is not advised where it does not beat the retriever.
        (plain(0.5, 0.4, 0.5), KEEP, "Undecided"),
        (
            plain(0.5, 0.6, 0.5, retriever_fused=0.7, rerank_fused=0.6, search_fused=0.6),
            ("retriever fused", 50, "rerank"),
            "Keep the first stage (fused): 200 judged queries show that search and reranking are w",
        ),
        # The smallest budget that is not clearly worse than the largest.
        (plain(0.5, 0.6, (0.7, 0.8)), ("search", 50, "rerank"), "M over the first stage alone;"),
        (plain(0.5, (0.5, 0.6), 0.5), ("rerank", 50, "retriever"), "Rerank 50: 200"),
        (plain(0.5, (0.6, 0.5), 0.5), FIRST, "Rerank 20: 200"),
        (fused(0.5, 0.6, 0.5, 0.8, 0.9), ("search fused", 20, "rerank"), "20 calls (fused): 200"),
        (fused(0.5, 0.6, 0.5, 0.5, 0.5), FIRST, "average, reranking 20: +0.090 M over"),
        (fused(0.5, 0.4, 0.3, 0.6, 0.6), ("rerank fused", 20, "rerank"), "Rerank 20 (fused): 200"),
    ],
)
def test_a_verdict_says_what_is_clear(means, expected, words):
    values = ways(**means)
    found = verdict_of(values, measure="M")
    assert (str(found.way), found.budget, str(found.than)) == expected
    assert words in found.sentence
    assert "[" not in found.sentence  # intervals are in the table
    assert found.sentence.lower().startswith(found.decision)
    assert (found.decision in ("search", "rerank")) is (found.way.kind == found.decision)
    assert found.gain == paired(values[found.budget][found.way] - values[found.budget][found.than])
    others = ways(**means, seed=7)
    for claim in found.claims:  # what is clear is not the contrary on other queries
        again = paired(others[claim.budget][claim.way] - others[claim.budget][claim.than]).sign
        assert claim.difference.sign * again >= 0


@pytest.mark.parametrize("mean", [1.0, 0.5])
def test_the_needed_queries_decide_in_four_of_five_cases(mean):
    rng = np.random.default_rng(4)

    def verdict(n):
        change = rng.normal(mean, 1, n)
        return verdict_of({20: {RETRIEVER: np.zeros(n), RERANK: change, SEARCH: change}})

    needed = paired(np.tile(mean + np.array([-1.0, 1.0]), 500)).needed(3)
    found = [verdict(round(needed)) for _ in range(60)]
    assert 0.68 <= np.mean([each.decision == "rerank" for each in found]) <= 0.92


def hurting(m=40):
    """A cross-encoder that is worse for two thirds of the queries, and better for the rest."""
    rng = np.random.default_rng(2)
    base = rng.uniform(0.3, 0.6, m)
    worse = np.where(np.arange(m) % 3 < 2, -0.3, 0.15) * rng.uniform(0.5, 1.5, m)
    return {RETRIEVER: base, RERANK: base + worse, SEARCH: base + worse}


WEIGHED = {replace(w, fused=True): of + 0.2 * (w == RETRIEVER) for w, of in hurting().items()}


def changed(change):
    base = np.full(len(change), 0.5)
    return {RETRIEVER: base, RERANK: base + change, SEARCH: base + change}


# An interval below zero that a test of signs does not confirm.
DOUBTFUL = np.array([-0.6, -0.5, -0.3, -0.2, -0.1, 0.05, 0.05, 0.02, 0.02])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            hurting(),
            "that search and reranking are worse; fusion may help (crossknn fit INDEX fusion). On "
            "average, search with 20 calls: -0.168 M against the first stage alone; reranking 20: the",
        ),
        # Where a fusion was weighed, fitting one is no news.
        (
            hurting() | WEIGHED,
            "stage (fused): 40 judged queries show that search and reranking are worse. On average",
        ),
        (changed(DOUBTFUL), "on 9 judged queries, neither search nor reranking is better. On "),
        (
            changed(-DOUBTFUL),
            "Undecided: 9 queries judged, about 30 needed. So far, search with 20 calls: +0.173 M "
            "over the first stage alone; reranking 20: the same. An interval above zero does not "
            "decide while p, corrected for the 3 comparisons at a budget, exceeds 0.05.",
        ),
        (changed(np.zeros(20)), "Keep the first stage: on 20 judged queries, neither search nor "),
        (
            changed(np.linspace(0.25, 0.35, 5)),
            "Undecided: 5 queries judged, about 10 needed; with fewer than 7, any difference can be "
            "chance. So far, search with 20 calls: +0.300 M over the first stage alone; reranking ",
        ),
        (changed(np.full(5, -0.1)), "Undecided: 5 queries judged, about 10 needed; with fewer "),
        (changed(np.resize([1e-3, -1e-3, 1e-5], 30)), "judged, more than 3,000 needed. So far"),
        (
            changed(np.array([0.4] * 15 + [-0.4] * 5)) | {SEARCH: 0.55 + np.linspace(0, 0.1, 20)},
            "needed; search is clearly better than the first stage alone, but not than reranking.",
        ),
    ],
)
def test_the_words_fit_the_numbers(values, words):
    assert words in verdict_of({20: values}, measure="M").sentence


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
        (0.01, 0.2, 0.06, " (unclear: p = 0.06)"),
    ],
)
def test_a_difference_is_said_to_be_unclear(low, high, p_value, words):
    found = Comparison(difference=0.1, low=low, high=high, p_value=p_value, n=60)
    assert f"{found}{doubt(found)}" == f"+0.100 [{low:+.3f}, {high:+.3f}]{words}"
