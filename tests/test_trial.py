"""The sample in the package, and reranking against searching at equal calls."""

from __future__ import annotations

import numpy as np
import pytest

import crossknn as ck
from crossknn.evaluation.measures import Comparison
from crossknn.trial.data import questions_from
from crossknn.trial.result import RETURNED, Trial, _said


@pytest.fixture(scope="module")
def sample():
    return ck.sample()


@pytest.fixture(scope="module")
def trial(sample):
    return Trial.run(sample.index, sample.queries, sample.scores, sample.qrels, budget=50)


def test_the_sample_is_what_it_says(sample):
    m, n = sample.scores.shape
    assert (m, n) == (len(sample.queries), sample.index.n)
    assert n == 11_587
    assert m >= 30
    assert repr(sample) == "Sample(n=11587, m=60: index, queries, qrels, scorer, scores)"
    assert all(len(sample.qrels[query]) == 1 for query in sample.queries.ids)
    own = ck.DualEncoder().encode_items(sample.index.items.texts[:20])
    assert (np.sum(own * sample.index.vectors["dense"][:20], axis=1) > 0.999).all()


def test_the_samples_scorer_has_its_own_scores_and_no_others(sample):
    searcher = ck.Searcher(sample.index, sample.scorer)
    row = 5  # not the first: the scorer goes by texts
    [hits] = searcher.search(sample.queries.texts[row], k=3, budget=20)
    for hit in hits:
        column = sample.index.items.position(hit.id)
        assert hit.score == pytest.approx(sample.scores[row, column])
    with pytest.raises(ck.ScorerError, match=r"no stored score for 'an \[other\] one'"):
        searcher.search("an [other] one", k=3, budget=20)


def test_searching_finds_more_than_reranking_on_the_sample(trial):
    assert trial.recall.sign == 1
    assert trial.recall.low > 0.15
    assert trial.gain.difference > 0
    for outcome in trial.diagnosis.outcomes[50].values():
        assert (outcome.calls == outcome.budget).all()


def test_a_trial_counts_what_it_says(trial, sample):
    """Held against exact order, computed here from the scores alone."""
    column = {i: c for c, i in enumerate(sample.index.items.ids)}
    for way in ("rerank", "crossknn"):
        items = trial.answers[way]
        for q, query in enumerate(sample.queries.ids):
            true = np.argsort(-sample.scores[q], kind="stable")[:10]
            assert trial.neighbours[way][q] == np.isin(true, items[q]).mean()
            [right] = (column[item] for item in sample.qrels[query])
            assert trial.returned[way][q] == (right in items[q, :RETURNED])
    cases, opposite = trial.cases
    rerank, search = trial.returned["rerank"], trial.returned["crossknn"]
    assert len(cases) == ((search == 1) & (rerank == 0)).sum()
    assert opposite == ((rerank == 1) & (search == 0)).sum()
    for case in cases:  # beyond what reranking sees
        q = sample.queries.texts.index(case.query)
        vectors = sample.index.vectors["dense"]
        own = ck.DualEncoder().encode_queries([case.query])[0] @ vectors.T
        [right] = (column[item] for item in sample.qrels[sample.queries.ids[q]])
        assert case.retriever_place == (own > own[right]).sum() + 1
        assert case.retriever_place > 50
        assert trial.answers["crossknn"][q, case.search_place - 1] == right


def test_a_single_query_and_a_single_call_are_written_in_the_singular(sample):
    one = sample.queries.take([0])
    trial = Trial.run(sample.index, one, sample.scores[:1], sample.qrels, budget=1)
    assert trial.sentence.startswith("With 1 call for one query, searching")
    assert "crossknn, 1 call" in dict(trial.groups()["the cross-encoder's own top 10, found"])


def test_a_trial_claims_only_what_the_intervals_support():
    def said(difference, low, high, p_value):
        found = {"difference": difference, "low": low, "high": high, "p_value": p_value, "n": 60}
        return _said(Comparison(**found), "of it")

    assert said(0.1, 0.05, 0.15, 0.01) == "finds 10 points more of it [+5, +15]"
    assert said(-0.1, -0.15, -0.05, 0.01) == "finds 10 points fewer of it [-15, -5]"
    assert said(0.1, -0.01, 0.2, 0.01).startswith("makes no clear difference")
    # An interval clear of zero is not called "no difference": the doubt is said with its number.
    chance = "finds 10 points more of it [+1, +20], though that may be chance (p = 0.06)"
    assert said(0.1, 0.01, 0.2, 0.06) == chance


def test_without_judgements_a_trial_speaks_of_neighbours_only(sample):
    trial = Trial.run(sample.index, sample.queries.take(range(6)), sample.scores[:6], budget=20)
    assert trial.gain is None
    assert trial.cases == ([], 0)
    assert "right items" not in trial.sentence
    assert list(trial.groups()) == ["the cross-encoder's own top 10, found"]


def test_questions_are_taken_out_of_the_items_that_answer_them():
    rest = "It has a long explanation of more than eight words in all."
    records = [{"id": f"t{n}", "title": f"Thing number {n}", "text": rest} for n in range(4)]
    records += [{"id": f"s{n}", "text": f"Turn {n} into words. {rest}"} for n in range(4)]
    records += [{"id": "short", "text": "Too short to be asked for."}]
    made = questions_from(ck.read_items(records), 20)
    assert sorted(made.queries.ids) == sorted(f"q:{r['id']}" for r in records[:8])
    for query, text in zip(made.queries.ids, made.queries.texts, strict=True):
        [item] = made.qrels[query]
        assert made.items.texts[made.items.position(item)] == rest
        assert text in (f"Thing number {item[1:]}", f"Turn {item[1:]} into words.")
    assert made.items.texts[-1] == "Too short to be asked for."
    assert len(questions_from(ck.read_items(records), 6).queries) == 6
    with pytest.raises(ck.InputError, match="queries can be made of 4 of the items only"):
        questions_from(ck.read_items(records[:4]), 20)
