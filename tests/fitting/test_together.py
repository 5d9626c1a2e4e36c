"""Queries that are searched together teach each other, and what they teach has to predict."""

from dataclasses import replace

import numpy as np
import pytest
from library import Library, N
from references.multitask import Tasks

from crossknn import CallableScorer
from crossknn.fitting import kriging, multitask
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.fusion import fit_fusion
from crossknn.fitting.kriging import Gain, prior_of, with_gain
from crossknn.fitting.learning import FIRST_FIT, learn
from crossknn.fitting.multitask import Known, complete, predict_each_other
from crossknn.linalg import directions_of, standardised
from crossknn.methods import parse_method
from crossknn.methods.kriging import Kriging
from crossknn.methods.prior import Column, stored_prior
from crossknn.scores.sparse import SparseScores
from crossknn.search.loop import Search
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import Observed, Pairs, Queries

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
    monkeypatch.setattr(multitask, "PER_ITEM", 100.0)
    assert searched(library).together == 0


def test_a_few_queries_or_a_deadline_or_anchors_leave_them_alone(library):
    few = multitask.FEWEST_QUERIES - 1
    alone, found = searched(library, few, together=False), searched(library, few)
    assert list(found) == list(alone)
    assert found.together == 0
    # Predictions of a query in batches of other sizes may differ in their last digits.
    batches = [searched(library, 1 + q, together=False)[q] for q in range(few)]
    for hits, others in zip(found, batches, strict=True):
        assert [(h.id, h.score, h.round) for h in hits] == [
            (h.id, h.score, h.round) for h in others
        ]
    search = Searcher(library.index(), library.scorer).search
    assert search(library.texts(0, 30), budget=Budget(per_query=BUDGET, deadline=600)).together == 0
    assert search(library.texts(0, 12), budget=22).together == 12
    assert search(library.texts(0, 12), budget=21).together == 0
    index = library.index()
    collect_anchors(index, library.scorer, library.texts(150, 160))
    assert Searcher(index, library.scorer).search(library.texts(0, 50)).together == 0


@pytest.mark.parametrize("method", ["auto", "auto(shortlist=60)"])
def test_queries_learn_from_each_other_and_from_past_searches(library, method):
    index = library.index()
    library.search(index, 100, 180, "auto")
    learn(index, library.scorer)
    search = Searcher(index, library.scorer, method).search
    alone, found = (search(library.texts(0, 60), budget=30, together=t) for t in (False, True))
    assert (alone.together, found.together) == (0, 60)
    assert recall(library, found).mean() > recall(library, alone).mean()


@pytest.fixture
def exact(monkeypatch):
    """Solve to the last digits."""
    monkeypatch.setattr(multitask, "TOLERANCE", 1e-6)
    monkeypatch.setattr(multitask, "MOST_STEPS", 1_000)


def scored_by(rng, count):
    """Draw each query's retrievers' scores (count, n, 2) and scored items."""
    cheap = rng.normal(size=(count, N, 2)).astype(np.float32)
    items = [rng.permutation(N)[: rng.integers(20, 40)] for _ in range(count)]
    known = [
        (i, rng.normal(size=len(i)) - 3, stage[i]) for i, stage in zip(items, cheap, strict=True)
    ]
    return cheap, known


def folds_of(count):
    return np.array_split(np.random.default_rng(0).permutation(count), multitask.FOLDS)


@pytest.mark.parametrize("of_queries", [True, False])
def test_what_others_predict_and_all_scores_equal_the_reference(library, exact, of_queries):
    cheap, scored = scored_by(np.random.default_rng(0), 30)
    vectors = library.queries[:30] if of_queries else None
    units = [None if of is None else directions_of(of) for of in (library.items, vectors)]
    reference, known = Tasks(units[0], scored, units[1]), [Known(*row) for row in scored]
    shared = predict_each_other(known, library.items, vectors)
    expected = reference.by_others(folds_of(30))
    np.testing.assert_allclose(shared.at(library.items), expected, atol=2e-3)
    found = complete(known, cheap.transpose(2, 0, 1), library.items, vectors)
    np.testing.assert_allclose(found, reference.completed(cheap), atol=2e-3)


def test_a_search_scores_the_same_items_as_with_the_reference(library, exact):
    """By hand, each lesson starts a new process, with the reference's values as a column."""
    count = 24
    index, queries = library.index(), Queries(library.texts(0, count))
    method, truth = Kriging(), library.scores[:count]
    plan = method.plan(index, BUDGET, 0)
    first = plan.predictor
    by_hand = Search(plan, queries, index.n)
    taught = Search(multitask.plan_together(method, index, BUDGET, 0), queries, index.n)
    after = [int(np.ceil(share * BUDGET)) for share in multitask.SHARES]
    order = np.random.default_rng(0).permutation(count)
    cheap = standardised((library.queries[:count] @ library.items.T).astype(np.float32))
    units = directions_of(library.items), directions_of(library.queries[order])
    lessons, rounds = 0, 0
    while True:
        seen = by_hand.observed()
        if lessons < len(after) and len(seen.counts) and seen.counts.max() >= after[lessons]:
            lessons += 1
            scored = [(seen.items[q], seen.scores[q], cheap[q, seen.items[q], None]) for q in order]
            means = np.empty((count, index.n), np.float32)
            means[order] = Tasks(units[0], scored, units[1]).by_others(folds_of(count))
            column = Column(of_all=lambda queries, means=means: means)
            model = replace(first.model, trends=[t.with_column() for t in first.model.trends])
            process = replace(first, columns=[*first.columns, column], model=model)
            by_hand.plan = replace(by_hand.plan, predictor=process)
            by_hand._state = by_hand._state._replace(belief=None)
        one, other = by_hand.ask(), taught.ask()
        chosen = [{*zip(p.query.tolist(), p.item.tolist(), strict=True)} for p in (one, other)]
        assert chosen[0] == chosen[1]
        if not len(one):
            break
        rounds += 1
        for search in (by_hand, taught):
            search.tell(one, truth[one.query, one.item])
    assert lessons == len(after)
    assert rounds > 10


def test_groups_have_few_queries_and_items(monkeypatch):
    items = list(np.arange(400).reshape(40, 10))
    assert [len(g) for g in multitask.groups(np.arange(40), items)] == [40]
    monkeypatch.setattr(multitask, "MOST_ITEMS", 250)
    assert [len(g) for g in multitask.groups(np.arange(40), items)] == [20, 20]
    monkeypatch.setattr(multitask, "MOST_ITEMS", 10)
    groups = multitask.groups(np.arange(40), items)
    assert [len(g) for g in groups] == [10] * 4
    assert sorted(np.concatenate(groups)) == list(range(40))
    assert [len(g) for g in multitask.groups(np.arange(19), items)] == [19]


def test_the_column_has_the_same_values_for_all_items_and_for_some(library):
    vectors, known = directions_of(library.items).astype(np.float32), []
    for q, (items, _, cheap) in enumerate(scored_by(np.random.default_rng(1), 12)[1]):
        known.append(Known(items, library.scores[q, items], cheap))
    column = multitask._column(predict_each_other(known, vectors, None), vectors)
    queries = Queries(library.texts(0, 12))
    values, of_some = column.of_all(queries), column.of_some(queries)
    weights, offsets = column.linear(queries)
    for q in range(12):
        some = np.arange(q, N, 7)
        np.testing.assert_allclose(of_some(q, some, vectors[some]), values[q, some], atol=1e-4)
        approximate = vectors @ weights[q] + offsets[q]
        assert np.corrcoef(approximate, values[q])[0, 1] > 0.8
    assert (column.highest(queries) <= values.max(axis=1) + 1e-4).all()


def test_more_queries_learn_in_groups(library, monkeypatch):
    whole = searched(library, 40)
    monkeypatch.setattr(multitask, "MOST_QUERIES", 20)
    found = searched(library, 40)
    assert found.together == 40
    assert found.hits != whole.hits
    apart = searched(library, 40, together=False)
    assert recall(library, found).mean() > recall(library, apart).mean()


@pytest.mark.parametrize("spec", ["kriging", "kriging(shortlist=60)"])
def test_an_added_column_gives_the_state_of_a_new_process(library, spec):
    index, queries = library.index(), Queries(library.texts(0, 12))
    plan = parse_method(spec).plan(index, BUDGET, 0)
    first, rng = plan.predictor, np.random.default_rng(0)
    items = np.stack([rng.permutation(150)[:30] for _ in range(12)])
    exact = library.scores[np.arange(12)[:, None], items].astype(np.float32)
    seen = Observed(items, exact, np.full(12, 30))
    pool = np.stack([rng.permutation(150)[:60] for _ in range(12)]) if plan.shortlist else None
    state = first.update(first.start(queries), seen)
    first.predict(state, pool)
    for seed in (1, 2):  # the second column replaces the first
        values = np.random.default_rng(seed).normal(size=(12, 150)).astype(np.float32)
        column = Column(of_all=lambda queries, values=values: values)
        process, state = first.with_column(state, column)
        state = process.update(state, seen)
        found = process.predict(state, pool)
    new = process.update(process.start(queries), seen)
    for one, other in zip(found, process.predict(new, pool), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


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
    prior = prior_of(index, sparse)
    assert with_gain(index, sparse, prior) is prior


def test_mean_scores_count_half_if_that_predicts_better(library, monkeypatch):
    index = library.index()
    pairs = Pairs(np.repeat(np.arange(4), 25), np.tile(np.arange(25), 4))
    scores = library.scores[pairs.query, pairs.item]
    sparse = SparseScores.of(library.texts(0, 4), index.n, pairs, scores)
    prior = prior_of(index, sparse)
    for whole, share in ((1.0, 1.0), (3.0, 0.5)):
        errors = np.array([[4.0], [whole], [2.0]])
        monkeypatch.setattr(kriging, "late_errors", lambda *given, e=errors: e)
        found = with_gain(index, sparse, prior)
        assert found.gain.mean == 1 - min(whole, 2.0) / 4
        shares = np.append(np.ones(len(prior.trends[-1].mean) - 1), share)
        np.testing.assert_array_equal(found.trends[-1].mean, shares * prior.trends[-1].mean)
