"""Fusion: answers by the exact score and the retrievers' beside it, searched for as such."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import matrix

import crossknn as ck
from crossknn.fitting.fusion import fit_fusion
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
    return [TEXTS[i] for i in np.random.default_rng(0).choice(len(TEXTS), m, replace=False)]


def noise(pairs):
    return [float(hash_of(query + item)) for query, item in pairs]


def hash_of(text):
    return sum(ord(letter) * (i + 7) for i, letter in enumerate(text)) % 97


SCORER = ck.CallableScorer(noise, "noise")


def test_weights_are_in_deviations_survive_the_disk_and_order_the_answers(index, tmp_path):
    found = fit_fusion(index, SCORER, asked())
    assert found["weights"] == {"lsa": 0.75, "bm25": 0.5}
    index.save(tmp_path / "i")
    again = ck.ItemIndex.load(tmp_path / "i")
    one, two, plain = (
        ck.Searcher(again, SCORER, fuse=fuse).search("cat x", k=3, budget=20)
        for fuse in ("auto", found["weights"], None)
    )
    final = [hit.final_score for hit in one[0]]
    assert final == sorted(final, reverse=True) == [hit.final_score for hit in two[0]]
    assert all(hit.final_score == hit.score for hit in plain[0])
    assert list(one.to_run()["0"].values()) == final
    hit, known = one[0][0], found["deviations"]
    cheap = {n: ck.open_retriever(again, n).scores(ck.Queries(["cat x"])) for n in ("lsa", "bm25")}
    parts = [w / known[n] * cheap[n][0, hit.position] for n, w in found["weights"].items()]
    assert hit.final_score - hit.score == pytest.approx(sum(parts) * known["exact"], rel=1e-4)


def test_deviations_are_those_of_a_querys_candidates(index):
    texts = asked(4)
    found = fit_fusion(index, SCORER, texts, depth=7)
    items = ck.open_retriever(index, "hybrid").top(ck.Queries(texts), 7).items
    rows = [[hash_of(text + TEXTS[i]) for i in row] for text, row in zip(texts, items, strict=True)]
    assert found["deviations"]["exact"] == pytest.approx(np.std(rows, axis=1).mean())
    assert len(index.scores) == 4 * 7


def test_what_cannot_be_fused_is_said_in_a_sentence(index):
    assert ck.Searcher(index, SCORER, fuse="auto").fusion is None  # nothing is fitted yet
    with pytest.raises(ck.InputError, match="fit them with  crossknn fit INDEX fusion"):
        ck.Searcher(index, SCORER, fuse={"lsa": 1})
    equal = ck.CallableScorer(lambda pairs: [1.0] * len(pairs), "equal")
    for scorer, texts in ((equal, asked(4)), (SCORER, [])):
        with pytest.raises(ck.InputError, match="fusion needs"):
            fit_fusion(index, scorer, texts)
    fit_fusion(index, SCORER, asked(4))
    for fuse in ("always", 5):
        with pytest.raises(ck.InputError, match=f"fuse is {fuse!r}; give 'auto', None, or weights"):
            ck.Searcher(index, SCORER, fuse=fuse)
    for fuse in ({"dense": 1}, {"lsa": float("nan")}, {"exact": 1}, {"lsa": "much"}):
        with pytest.raises(ck.InputError, match="deviations are known, bm25, lsa"):
            ck.Searcher(index, SCORER, fuse=fuse)
    other = ck.CallableScorer(noise, "another")
    with pytest.raises(ck.InputError, match="what the index holds as 'fusion' was made of scores"):
        ck.Searcher(index, other, fuse="auto").search("cat x", k=1, budget=5)
