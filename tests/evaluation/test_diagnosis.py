"""Diagnoses: figures by their definitions, and verdicts that say what the queries show."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy.stats import spearmanr

import crossknn as ck
from crossknn.errors import InputError
from crossknn.evaluation.measures import bootstrap_ratio, holm, paired
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.evaluation.verdict import RERANK, RETRIEVER, SEARCH, Way, verdict_of
from crossknn.extend import Queries, open_retriever
from crossknn.scorers import MatrixScorer

METHOD = "axn(retriever=lsa, rounds=3, ridge=0.3)"


def way_of(name):
    kind, _, fused = name.partition("_")
    return Way(kind, fused=bool(fused))


def ways(budgets=(20, 50), m=200, seed=0, **means):
    """Values of m queries: noise around the means given by way, such as `rerank_fused`; one mean for
    all budgets, or one for each."""
    rng, base = np.random.default_rng(seed), np.random.default_rng(1).normal(size=m)
    return {
        b: {
            way_of(way): mean[place] + base + 0.1 * rng.normal(size=m)
            for way, mean in ((w, np.broadcast_to(v, len(budgets))) for w, v in means.items())
        }
        for place, b in enumerate(budgets)
    }


PLAIN = {"retriever": 0.5, "rerank": 0.6}


@pytest.mark.parametrize(
    ("means", "expected", "says"),
    [
        (PLAIN | {"search": 0.7}, ("search", 20, "rerank"), "Search 20: M +"),
        (PLAIN | {"search": 0.6}, ("rerank", 20, "retriever"), "cannot tell if search 20"),
        (PLAIN | {"search": 0.5}, ("rerank", 20, "retriever"), "search 20 is worse"),
        ({"retriever": 0.5, "rerank": 0.5, "search": 0.5}, ("retriever", 50, "rerank"), "cannot"),
        ({"retriever": 0.5, "rerank": 0.4, "search": 0.3}, ("retriever", 50, "rerank"), "50 is wo"),
        ({"retriever": 0.5, "rerank": 0.51, "search": 0.5}, ("retriever", 50, "rerank"), "until"),
        # A search that beats reranking is not advised where it does not beat the retriever.
        (
            {"retriever": 0.5, "rerank": 0.4, "search": 0.5},
            ("retriever", 50, "rerank"),
            "search 50 is better",
        ),
        (
            PLAIN
            | {"search": 0.5, "retriever_fused": 0.7, "rerank_fused": 0.6, "search_fused": 0.6},
            ("retriever fused", 50, "rerank"),
            "Keep the fused retriever; search 50 fused is worse",
        ),
        # The smallest budget that is not clearly worse than the largest.
        (PLAIN | {"search": (0.7, 0.8)}, ("search", 50, "rerank"), "Search 50"),
        (PLAIN | {"rerank": (0.5, 0.6), "search": 0.5}, ("rerank", 50, "retriever"), "Rerank 50"),
        (PLAIN | {"rerank": (0.6, 0.5), "search": 0.5}, ("rerank", 20, "retriever"), "Rerank 20"),
        (
            PLAIN | {"search": 0.5, "rerank_fused": 0.8, "search_fused": 0.9},
            ("search fused", 20, "rerank"),
            "Search 20 fused: M +",
        ),
        (
            PLAIN | {"search": 0.5, "rerank_fused": 0.5, "search_fused": 0.5},
            ("rerank", 20, "retriever"),
            "rerank 20 fused is worse",
        ),
        (
            {
                "retriever": 0.5,
                "rerank": 0.4,
                "search": 0.3,
                "rerank_fused": 0.6,
                "search_fused": 0.6,
            },
            ("rerank fused", 20, "rerank"),
            "+0.2",
        ),
    ],
)
def test_verdicts_say_what_is_clear_and_that_they_cannot_tell(means, expected, says):
    values = ways(**means)
    found = verdict_of(values, measure="M", retriever="dense")
    assert (str(found.way), found.budget, str(found.than)) == expected
    assert says in found.sentence
    assert found.gain == paired(values[found.budget][found.way] - values[found.budget][found.than])
    others = ways(**means, seed=7)
    for claim in found.claims:  # what is clear is not the contrary on other queries
        again = paired(others[claim.budget][claim.way] - others[claim.budget][claim.than]).sign
        assert claim.difference.sign * again >= 0


@pytest.mark.parametrize("mean", [0.53, 0.52, 0.51, 0.5])
def test_an_unclear_verdict_says_how_many_queries_would_tell(mean):
    few = ways(budgets=[20], m=20, retriever=0.5, rerank=mean, search=0.4)[20]
    said = verdict_of({20: few}).sentence
    assert "until more queries are judged: nothing is proven better, and it costs no calls;" in said
    [found] = re.findall(r"about (\d+) judged queries would tell \(20 now", said)
    times = -(-int(found) // 20)  # the same differences, so many times
    many = verdict_of({20: {way: np.tile(values, times) for way, values in few.items()}})
    assert many.way == RERANK
    assert "would tell" not in many.sentence
    if times > 2:
        half = verdict_of({20: {way: np.tile(values, times // 2) for way, values in few.items()}})
        assert half.way == RETRIEVER


def test_corrected_p_values_and_ratios():
    p = [0.012, 0.9, 0.011, 0.02, 0.012]
    order = np.argsort(p, kind="stable")
    steps = [max((5 - j) * p[order[j]] for j in range(i + 1)) for i in range(5)]
    assert holm(p) == pytest.approx([steps[list(order).index(i)] for i in range(5)])
    parts, wholes = np.array([1.0, 0, 2, 0, 9]), np.array([2.0, 0, 4, 4, np.nan])
    found = bootstrap_ratio(parts, wholes)
    assert (found.mean, found.n) == (0.3, 3)
    assert 0 <= found.low < 0.3 < found.high <= 0.5
    assert np.isnan(bootstrap_ratio(parts, 0 * wholes).mean)


def test_figures_by_their_definitions(world):
    index, queries, scores, qrels = world
    steps, options = [], {"budgets": [30, 15], "method": METHOD}
    told = lambda *step: steps.append(step)  # noqa: E731
    found = ck.diagnose(index, MatrixScorer(scores), queries, qrels, **options, progress=told)
    assert steps[-1] == (69 * 45 * 2, 69 * 45 * 2)
    first = open_retriever(index, "lsa").top(Queries(queries.texts), 80).items
    for at, budget in zip(found.figures, (15, 30), strict=True):
        searcher = ck.Searcher(index, MatrixScorer(scores), METHOD)
        top = searcher.search(queries, k=10, budget=budget)
        reach, beyond, right = [], [], 0
        for q in range(69):
            seen, gold = set(first[q, :budget].tolist()), set(map(int, qrels[f"q{q}"]))
            reach.append(len(gold - seen) / len(gold))
            new = {index.items.position(hit.id) for hit in top[q]} - seen
            beyond.append(len(new))
            right += len(new & gold)
        assert at.budget == budget
        assert at.reach.mean == pytest.approx(np.mean(reach))
        assert at.beyond.mean == pytest.approx(np.mean(beyond))
        assert at.relevant.mean == pytest.approx(right / sum(beyond))
        trust = at.means[RERANK] - at.means[RETRIEVER]
        assert at.trust.difference == pytest.approx(trust)
    assert found.queries == 69
    assert f"{found.figures[0].reach.mean:.0%}" in str(found)
    assert str(found).splitlines()[0].split()[:4] == ["calls", "retriever", "rerank", "search"]
    said = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert said["sentence"] == found.verdict.sentence
    assert set(said["verdict"]["claims"][0]) == {"budget", "way", "than", "difference"}


def test_fused_ways_are_those_of_a_fused_search(world):
    known, queries, scores, qrels = world
    index, scorer = ck.ItemIndex.build(known.items, lsa=6), MatrixScorer(scores)
    ck.fit_fusion(index, scorer, queries)
    method = "kriging(rounds=2, vectors=lsa)"
    found = ck.diagnose(index, scorer, queries, qrels, budgets=[20], method=method)
    assert (found.retriever, len(found.figures[0].means)) == ("bm25", 6)
    task = TaskMeasures(Judgements.from_qrels(qrels, queries.ids, index.items.ids), ["nDCG@10"])
    searcher = ck.Searcher(index, scorer, fuse="auto")
    for way, spec in ((Way("rerank", fused=True), "rerank"), (Way("search", fused=True), method)):
        hits = searcher.search(queries, k=10, budget=20, method=spec)
        items = np.array([[index.items.position(hit.id) for hit in row] for row in hits])
        [ours] = task.values(items).values()
        np.testing.assert_allclose(found.values[20][way], ours[:69])
    plain = ck.diagnose(index, scorer, queries, qrels, budgets=[20], method=method, fuse=None)
    assert plain.figures[0].means == {
        w: found.figures[0].means[w] for w in (RETRIEVER, RERANK, SEARCH)
    }


def test_scores_of_another_cross_encoder_are_not_read(world):
    known, queries, scores, qrels = world
    index = ck.ItemIndex.build(known.items, lsa=3)
    fitted = {"weights": {"bm25": 1}, "deviations": {"exact": 1, "bm25": 1}}
    index.put_artifact("fusion", fitted | {"fingerprint": "another"}, {})
    found = ck.diagnose(index, MatrixScorer(scores), queries, qrels, budgets=[20], method=METHOD)
    assert not any(way.fused for way in found.figures[0].means)


def test_without_judgements_it_says_what_it_cannot_say(world):
    index, queries, scores, _ = world
    found = ck.diagnose(index, MatrixScorer(scores), queries, budgets=[20], method=METHOD)
    assert found.verdict is None
    assert "only judgements" in found.sentence
    assert str(found).splitlines()[0].split()[:2] == ["calls", "agreement"]
    lists = open_retriever(index, "lsa").top(Queries(queries.texts), 20).items
    ranks = [
        spearmanr(-np.arange(20), row[of]).statistic for row, of in zip(scores, lists, strict=True)
    ]
    assert found.figures[0].agreement.mean == pytest.approx(np.mean(ranks))


def test_what_has_no_value_is_null(world):
    index, queries, scores, qrels = world
    scorer, options = MatrixScorer(scores), {"budgets": [1, 80], "method": METHOD}
    found = ck.diagnose(index, scorer, queries, qrels, **options)
    one, whole = json.loads(json.dumps(found.as_dict(), allow_nan=False))["figures"]
    assert one["agreement"] is None  # of one item there is no order
    assert whole["relevant"] is None  # nothing lies beyond the first 80 of 80
    assert (whole["reach"]["mean"], whole["beyond"]["mean"]) == (0, 0)
    assert str(found).splitlines()[2].split()[-1] == "-"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"qrels": {f"q{q}": {"1": 1} for q in range(4)}}, "in the index, and got 4"),
        ({"qrels": {f"q{q}": {"1": 0} for q in range(9)}}, "in the index, and got 0"),
        ({"qrels": {f"q{q}": {"gone": 1} for q in range(9)}}, "in the index, and got 0"),
        ({"qrels": {"other": {"1": 1}}}, "the qrels judge none"),
        ({"queries": ["a", "b"]}, "queries with ids"),
        ({"budgets": [20, 81]}, "give budgets of at most 80"),
        ({"budgets": [0]}, "a budget is 0"),
        ({"budgets": []}, "give budgets"),
        ({"measure": "nDCG@x"}, "unknown measure 'nDCG@x'"),
        ({"method": "retrieve(retriever=lsa)"}, "a method with calls"),
        ({"method": "adacur"}, "anchor"),
        ({"fuse": {"dense": 1}}, "which the index lacks"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_sentence(world, options, words):
    index, queries, _, qrels = world
    scored = []
    given = {"queries": queries, "qrels": qrels, "method": METHOD, "budgets": [20]} | options
    with pytest.raises(InputError, match=words) as raised:
        ck.diagnose(index, lambda pairs: scored.append(pairs), **given)
    assert not scored
    assert "\n" not in str(raised.value)
