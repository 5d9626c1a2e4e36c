"""Arguments that cannot be meant are refused where they are given, and named."""

from __future__ import annotations

import math

import numpy as np
import pytest

import crossknn as ck
from crossknn.scores.collect import Limits

TEXTS = ["zip a file", "sort a list", "lock a thread"]
NAN = math.nan


def scorer(pairs):
    return [float(len(text)) for _, text in pairs]


@pytest.mark.parametrize(
    "value", [-1, 0, True, False, "3", 2.0, 1.5, NAN, math.inf, [], np.float32(3)]
)
def test_a_budget_that_is_no_number_of_pairs(value):
    with pytest.raises(ck.InputError, match="budget is "):
        ck.Budget(per_query=value)


@pytest.mark.parametrize("name", ["deadline", "target_recall"])
@pytest.mark.parametrize("value", [-1, 0, 0.0, True, "3", NAN, -math.inf, [], 1j])
def test_a_limit_that_is_no_number_above_0(name, value):
    with pytest.raises(ck.InputError, match=rf"{name} is .*; it must be above 0"):
        ck.Budget(**{name: value})


@pytest.mark.parametrize("value", [1.01, 90, math.inf])
def test_a_recall_above_1(value):
    with pytest.raises(
        ck.InputError, match=r"target_recall is .*; it must be above 0, and 1 at most"
    ):
        ck.Budget(target_recall=value)


@pytest.mark.parametrize("value", [-1, 0, True, "3", NAN])
def test_a_deadline_of_a_collection(value):
    with pytest.raises(ck.InputError, match="deadline is "):
        Limits(deadline=value)


@pytest.mark.parametrize(
    "given",
    [
        {"per_query": np.int64(3)},
        {"deadline": np.float32(0.5)},
        {"deadline": 5},
        {"deadline": math.inf},
        {"target_recall": 1},
        {},
    ],
)
def test_numbers_of_any_kind_are_fine(given):
    index = ck.ItemIndex.build(TEXTS, lsa=2)
    budget = ck.Budget(**{"per_query": 2, **given, "target_recall": None})
    assert ck.Searcher(index, scorer).search("a list", k=1, budget=budget).n_calls >= 2
    ck.Budget(**given)


@pytest.mark.parametrize("value", [True, NAN, "3", math.inf])
def test_a_least_score_that_is_no_number(value):
    index = ck.ItemIndex.build(TEXTS, lsa=2)
    with pytest.raises(ck.InputError, match="min_score is "):
        ck.Searcher(index, scorer).search("a list", min_score=value)


@pytest.mark.parametrize("documents", [[], (), iter([]), {}])
def test_no_documents_are_an_empty_answer(documents):
    """As a first stage that found nothing hands them on."""
    for budget in (None, 5, ck.Budget(deadline=1)):
        answer = ck.rerank("q", documents, budget, scorer=scorer, top_k=3)
        assert answer == []
        assert (answer.results.n_calls, answer.results.query_ids) == (0, ("0",))
        assert answer.results.to_run() == {"0": {}}
        assert len(answer.results[0]) == 0


WRONG = {
    "rerank": lambda: ck.rerank("q", TEXTS, scorer=scorer, topk=1),
    "rerank_k": lambda: ck.rerank("q", TEXTS, scorer=scorer, k=1),
    "search": lambda: ck.Searcher(ck.ItemIndex.build(TEXTS), scorer).search("q", top_k=1),
    "Searcher": lambda: ck.Searcher(ck.ItemIndex.build(TEXTS), scorer, metod="exact"),
    "build": lambda: ck.ItemIndex.build(TEXTS, encodr=None),
    "Budget": lambda: ck.Budget(per_qury=3),
    "CrossEncoder": lambda: ck.CrossEncoder("bundled", max_len=64),
    "endpoint": lambda: ck.CrossEncoder("http://localhost:1/rerank", tmeout=1),
    "DualEncoder": lambda: ck.DualEncoder("bundled", device="cpu"),
    "method": lambda: ck.Searcher(ck.ItemIndex.build(TEXTS), scorer, "kriging(roundz=3)"),
}
NAMED = {
    "rerank": "rerank.*'topk'",
    "rerank_k": "rerank.*'k'",
    "search": "'top_k'",
    "Searcher": "'metod'",
    "build": "'encodr'",
    "Budget": "'per_qury'",
    "CrossEncoder": "'max_len': did you mean max_length",
    "endpoint": "'tmeout': did you mean timeout",
    "DualEncoder": "'device'",
    "method": "'roundz'.*rounds",
}


@pytest.mark.parametrize("call", WRONG)
def test_an_unknown_keyword_is_refused_by_name(call):
    with pytest.raises((TypeError, ck.InputError), match=NAMED[call]):
        WRONG[call]()
