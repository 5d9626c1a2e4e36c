"""Fusion: answers by the exact score and the retrievers' beside it, searched for as such."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import matrix

import crossknn as ck
from crossknn.data.queries import QuerySet
from crossknn.fitting.fusion import DEFAULT, fit_fusion
from crossknn.search.fusion import Fusion
from crossknn.search.loop import simulate

METHODS = """
rerank(retriever=bm25)
axn(retriever=dense, rounds=4, ridge=0.3)
axn(retriever=bm25, rounds=3, vectors=dense, normalize=anchors)
adacur(retriever=dense, rounds=3, sample=softmax)
gp(retriever=dense, rounds=4)
kriging(retriever=bm25, rounds=4, vectors=dense)
gar(retriever=dense, neighbours=4, batch=5)
tour(retriever=dense, rounds=3)
exact
""".strip().splitlines()


def fused(index, spec, budget, names=("dense", "bm25"), weights=(0.7, 0.4)):
    fusion = Fusion(tuple(ck.open_retriever(index, name) for name in names), weights)
    return fusion, fusion.plan(ck.parse_method(spec).plan(index, budget, 0))


@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize("budget", [20, 80])
def test_answers_are_the_best_final_scores_of_what_was_scored(spec, budget):
    index, queries, scores = matrix().rows(0, 6)
    fusion, plan = fused(index, spec, budget)
    search = simulate(plan, queries, scores)
    final = scores + fusion.known(queries)
    found, picks = search.best(10), search.picks()
    for q, items in enumerate(picks.items):
        best = items[np.argsort(-final[q, items], kind="stable")][:10]
        np.testing.assert_allclose(final[q, found.items[q]], final[q, best], rtol=1e-6)
    at = np.take_along_axis(final, found.items, axis=1)
    np.testing.assert_allclose(found.scores + found.known, at, rtol=1e-5)
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, found.items, axis=1))
    if budget == 80:  # all items
        np.testing.assert_allclose(at, -np.sort(-final, axis=1)[:, :10], rtol=1e-5)


@pytest.mark.parametrize("spec", [METHODS[0], *METHODS[6:7]])
def test_a_method_without_predictions_searches_final_scores_as_it_would_exact_ones(spec):
    index, queries, scores = matrix().rows(0, 6)
    fusion, plan = fused(index, spec, 30)
    plain = ck.parse_method(spec).plan(index, 30, 0)
    both = simulate(plan, queries, scores), simulate(plain, queries, scores + fusion.known(queries))
    np.testing.assert_array_equal(*(search.picks().items for search in both))


def test_a_predictor_gets_exact_scores_and_its_predictions_are_final():
    index, queries, scores = matrix().rows(0, 6)
    fusion, plan = fused(index, METHODS[1], 30)
    inner, predictor = plan.predictor.predictor, plan.predictor
    items = np.tile(np.arange(12), (6, 1))
    seen = ck.Observed(items, scores[:, :12], np.full(6, 12))
    state = predictor.update(predictor.start(queries), seen)
    exact = inner.predict(inner.update(inner.start(queries), seen)).mean
    np.testing.assert_allclose(
        predictor.predict(state).mean, exact + fusion.known(queries), rtol=1e-5
    )


# On texts: weights in deviations, fitted and kept


TEXTS = [
    f"{a} {b} number {i}" for i in range(8) for a in ("cat", "dog", "fish") for b in ("x", "y")
]


@pytest.fixture
def index():
    return ck.ItemIndex.build(TEXTS, lsa=4)


def asked(m=30):
    rng = np.random.default_rng(0)
    texts = [TEXTS[i] for i in rng.choice(len(TEXTS), m, replace=False)]
    return QuerySet(tuple(f"q{i}" for i in range(m)), tuple(texts))


def noise(pairs):
    return [float(hash_of(query + item)) for query, item in pairs]


def hash_of(text):
    return sum(ord(letter) * (i + 7) for i, letter in enumerate(text)) % 97


def judged(index, queries):
    return {
        q: {index.items.ids[TEXTS.index(t)]: 1}
        for q, t in zip(queries.ids, queries.texts, strict=True)
    }


def test_weights_are_fitted_where_the_retriever_is_right_and_the_scorer_is_noise(index):
    queries, scorer = asked(), ck.CallableScorer(noise, "noise")
    found = fit_fusion(index, scorer, queries, judged(index, queries))
    assert found.judged == 30
    assert found.ndcg["fused"] > found.ndcg["cross-encoder"] + 0.2
    assert max(found.weights.values()) >= max(DEFAULT.values())
    results = ck.Searcher(index, scorer, fuse="auto").search(queries.texts[0], k=5, budget=48)
    plain = ck.Searcher(index, scorer).search(queries.texts[0], k=5, budget=48)
    final = [hit.final_score for hit in results[0]]
    assert final == sorted(final, reverse=True)
    assert results[0][0].text == queries.texts[0]
    assert all(hit.final_score == hit.score for hit in plain[0])
    run = results.to_run()["0"]
    assert run[results[0][0].id] == final[0]


def test_weights_survive_the_disk_and_ours_are_in_deviations(index, tmp_path):
    scorer = ck.CallableScorer(noise, "noise")
    found = fit_fusion(index, scorer, asked(8))
    assert (found.ndcg, found.judged, found.shrinkage) == (None, 0, 0.0)
    assert found.weights == {"lsa": DEFAULT["dense"], "bm25": DEFAULT["bm25"]}
    index.save(tmp_path / "i")
    again = ck.ItemIndex.load(tmp_path / "i")
    one, two = (
        ck.Searcher(again, scorer, fuse=fuse).search("cat x", k=3, budget=20)
        for fuse in ("auto", found.weights)
    )
    assert [hit.final_score for hit in one[0]] == [hit.final_score for hit in two[0]]
    (hit, *_), known = two[0], again.artifacts["fusion"].meta["deviations"]
    cheap = {n: ck.open_retriever(again, n).scores(ck.Queries(["cat x"]))[0] for n in found.weights}
    parts = [
        w * known["exact"] / known[n] * cheap[n][hit.position] for n, w in found.weights.items()
    ]
    assert hit.final_score - hit.score == pytest.approx(sum(parts), rel=1e-4)


def test_what_cannot_be_fused_is_said_in_a_sentence(index):
    scorer, queries = ck.CallableScorer(noise, "noise"), asked(8)
    assert ck.Searcher(index, scorer, fuse="auto").fusion is None  # nothing is fitted yet
    with pytest.raises(ck.InputError, match="fit them with  crossknn fit INDEX fusion"):
        ck.Searcher(index, scorer, fuse={"lsa": 1})
    with pytest.raises(ck.InputError, match="1 of the 8 queries have a relevant item"):
        fit_fusion(index, scorer, queries, {"q0": {"unknown": 1}})
    with pytest.raises(ck.InputError, match="all candidates have equal scores"):
        fit_fusion(index, ck.CallableScorer(lambda pairs: [1.0] * len(pairs), "one"), queries)
    fit_fusion(index, scorer, queries)
    for fuse, words in (
        ({"dense": 1}, "no deviation is known of 'dense': known: bm25, lsa"),
        ({"lsa": float("nan")}, "the weight of 'lsa' is nan"),
        ("always", "fuse is 'always'; give 'auto', None"),
    ):
        with pytest.raises(ck.InputError, match=words):
            ck.Searcher(index, scorer, fuse=fuse)
    other = ck.CallableScorer(noise, "another")
    with pytest.raises(
        ck.InputError, match="what the index holds as 'fusion' was made of scores of"
    ):
        ck.Searcher(index, other, fuse="auto").search("cat x", k=1, budget=5)
    empty = replace(queries, ids=(), texts=())
    with pytest.raises(ck.InputError):
        fit_fusion(index, scorer, empty)
