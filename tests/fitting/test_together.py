"""Queries that are searched together teach each other, and what they teach has to predict."""

from dataclasses import replace

import numpy as np
import pytest
from library import Library

from crossknn.fitting import together
from crossknn.fitting.fusion import fit_fusion
from crossknn.fitting.gain import Gain
from crossknn.fitting.kriging import expected_gain, prior_of
from crossknn.fitting.learning import FIRST_FIT, learn
from crossknn.methods.kriging import Kriging
from crossknn.methods.prior import stored_prior
from crossknn.scorers import CallableScorer
from crossknn.scores.sparse import SparseScores
from crossknn.search.loop import Search
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import Pairs, Queries

BUDGET, COUNT = 50, 100


@pytest.fixture(scope="module")
def library():
    return Library()


def searched(library, count=COUNT, **options):
    search = Searcher(library.index(), library.scorer).search
    return search(library.texts(0, count), k=10, budget=BUDGET, **options)


def recall(library, results):
    truth = np.argsort(-library.scores[: len(results)], axis=1)[:, :10]
    found = [[int(hit.id) for hit in hits] for hits in results]
    return np.array([np.isin(t, f).mean() for t, f in zip(truth, found, strict=True)])


def test_queries_that_are_searched_together_find_more(library):
    apart, found = searched(library, together=False), searched(library)
    assert (apart.together, found.together) == (0, COUNT)
    assert found.n_calls == apart.n_calls == COUNT * BUDGET
    assert recall(library, found).mean() > recall(library, apart).mean() + 0.02
    assert searched(library).hits == found.hits
    assert found.to_dict()["together"] == COUNT


@pytest.mark.parametrize("method", ["auto(shortlist=60)", "auto(rounds=3)"])
def test_a_pool_and_few_rounds_learn_too(library, method):
    found = searched(library, method=method)
    apart = searched(library, method=method, together=False)
    assert recall(library, found).mean() > recall(library, apart).mean()


def test_with_a_fusion_the_exact_scores_teach(library):
    index, judged = library.index(), {}
    for q in range(150, 160):
        best = np.argsort(-library.scores[q])[:10]
        judged[str(q)] = {str(i): 1 for i in best.tolist()}
    queries = {str(q): f"query {q}" for q in range(150, 160)}
    fit_fusion(index, library.scorer, queries, judged, depth=20)
    search = Searcher(index, library.scorer, fuse={"vectors": 0.5}).search
    texts = library.texts(0, COUNT)
    found, apart = (search(texts, budget=BUDGET, together=both) for both in (True, False))
    assert found.together == COUNT
    finals = [[np.mean([hit.final_score for hit in hits]) for hits in of] for of in (found, apart)]
    assert np.mean(finals[0]) > np.mean(finals[1])


def test_queries_with_too_few_scores_for_the_items_do_not_count_as_taught(library, monkeypatch):
    monkeypatch.setattr(together, "PER_ITEM", 100.0)
    assert searched(library).together == 0


def test_a_few_queries_or_a_deadline_or_a_prior_leave_them_alone(library):
    few = together.FEWEST_QUERIES - 1
    alone = [searched(library, 1 + q, together=False)[q] for q in range(few)]
    assert list(searched(library, few)) == alone
    assert searched(library, few).together == 0
    search = Searcher(library.index(), library.scorer).search
    assert search(library.texts(0, 30), budget=Budget(per_query=BUDGET, deadline=600)).together == 0
    assert search(library.texts(0, 12), budget=24).together == 12
    assert search(library.texts(0, 12), budget=23).together == 0
    index = library.index()
    library.search(index, 0, FIRST_FIT, "auto")
    learn(index, library.scorer)
    assert Searcher(index, library.scorer).search(library.texts(100, 150)).together == 0


def test_the_prior_is_fitted_to_all_scores_after_each_share_of_the_budget(library):
    """Fitting the prior by hand between rounds gives a search that scores the same items."""
    index, queries = library.index(), Queries(library.texts(0, COUNT))
    method, exact = Kriging(), library.scores[:COUNT]
    by_hand = Search(method.plan(index, BUDGET, 0), queries, index.n)
    taught = Search(together.plan_together(method, index, BUDGET, 0), queries, index.n)
    after = [int(np.ceil(share * BUDGET)) for share in together.SHARES]
    fits = 0
    while True:
        seen = by_hand.observed()
        if fits < len(after) and len(seen.counts) and seen.counts.max() >= after[fits]:
            fits += 1
            rows = np.repeat(np.arange(COUNT), seen.items.shape[1])
            pairs = Pairs(rows, seen.items.ravel())
            scores = SparseScores.of(queries.texts, index.n, pairs, seen.scores.ravel())
            prior = prior_of(index, scores)
            learned = method.plan_with(prior, index, BUDGET, 0).predictor
            by_hand.plan = replace(by_hand.plan, predictor=learned)
            by_hand._state = replace(by_hand._state, belief=None)
        one, other = by_hand.ask(), taught.ask()
        chosen = [{*zip(p.query.tolist(), p.item.tolist(), strict=True)} for p in (one, other)]
        assert chosen[0] == chosen[1]
        if not len(one):
            break
        for search in (by_hand, taught):
            search.tell(one, exact[one.query, one.item])
    assert fits == len(after)


def test_a_query_that_fails_ends_alone(library):
    def score(pairs):
        if any(query == "query 3" for query, _ in pairs):
            raise RuntimeError("no")
        return library.score(pairs)

    searcher = Searcher(library.index(), CallableScorer(score, "fails"))
    results = searcher.search(library.texts(0, 30), budget=BUDGET)
    assert [q for q, error in enumerate(results.errors) if error] == [3]
    assert results.n_scored == 29 * BUDGET


def test_what_was_learned_is_expected_to_gain(library):
    index = library.index()
    library.search(index, 0, FIRST_FIT, "rerank(retriever=vectors)")
    prior = learn(index, library.scorer)
    mean, low, high = prior.gain
    assert 0 < low < mean < high < 1
    assert Kriging().prior(index) is not None


def test_a_prior_that_predicts_no_better_is_stored_and_not_used(library):
    """The scores are random, so a prior fitted to some of them cannot predict the others."""
    noise = np.random.default_rng(1).normal(size=library.scores.shape)
    scorer = CallableScorer(
        lambda pairs: [noise[int(q.split()[1]), int(i.split()[1])] for q, i in pairs], "noise"
    )
    index = library.index()
    library.search(index, 0, FIRST_FIT, "rerank(retriever=vectors)", scorer=scorer)
    prior = learn(index, scorer)
    assert prior.gain[0] <= 0
    view = index.for_scorer(scorer.fingerprint)
    assert stored_prior(view) is not None
    assert Kriging().prior(view) is None
    before = library.index().for_scorer(scorer.fingerprint)
    plans = [Kriging().plan(of, BUDGET, 0).predictor for of in (view, before)]
    assert plans[0].model.trends[0].columns.tolist() == plans[1].model.trends[0].columns.tolist()
    assert len(plans[0].columns) == len(plans[1].columns)


def test_searches_of_few_pairs_teach_nothing(library):
    index = library.index()
    search = Searcher(index, library.scorer, "rerank(retriever=vectors)").search
    assert search(library.texts(0, 40), budget=10).n_scored == 400
    assert learn(index, library.scorer) is None


def test_gain_is_a_share_of_the_error_with_an_interval():
    errors = np.array([[4.0] * 20, [1.0] * 20])
    assert Gain.of(errors) == (0.75, 0.75, 0.75)
    assert Gain.of(errors[::-1]).mean == -3.0


def test_too_few_queries_have_no_expected_gain(library):
    index = library.index()
    pairs = Pairs(np.repeat(np.arange(3), 25), np.tile(np.arange(25), 3))
    scores = library.scores[pairs.query, pairs.item]
    sparse = SparseScores.of(library.texts(0, 3), index.n, pairs, scores)
    assert expected_gain(index, sparse, prior_of(index, sparse)) is None
