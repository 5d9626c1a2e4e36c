"""Fusion: answers by the exact score and the retrievers' beside it, searched for as such."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import matrix

import crossknn as ck
from crossknn.data.queries import QuerySet
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.extend import Observed, Queries, open_retriever
from crossknn.fitting.fusion import SCALES, SHRINKAGE, _ndcg, by_judgements, fit_fusion
from crossknn.retrievers.base import WeightedSum
from crossknn.retrievers.specs import AUTO, first_stage, stage_names
from crossknn.search.fusion import Fusion
from crossknn.search.loop import simulate

METHODS = """
rerank(retriever=bm25)
axn(retriever=dense, rounds=4, ridge=0.3)
axn(retriever=bm25, rounds=3, vectors=dense, normalize=anchors)
adacur(retriever=dense, rounds=3, sample=softmax)
kriging(retriever=bm25, rounds=4, vectors=dense)
gar(retriever=dense, neighbours=4, batch=5)
tour(retriever=dense, rounds=3)
exact
""".strip().splitlines()


def fused(index, spec, budget, names=("dense", "bm25"), weights=(0.7, 0.4)):
    fusion = Fusion(WeightedSum([open_retriever(index, name) for name in names], weights))
    return fusion, fusion.plan(ck.parse_method(spec).plan(index, budget, 0))


@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize("budget", [20, 80])
def test_answers_are_the_best_final_scores_of_what_was_scored(spec, budget):
    index, queries, scores = matrix().rows(0, 6)
    fusion, plan = fused(index, spec, budget)
    search = simulate(plan, queries, scores)
    final = scores + fusion.added(queries)
    found, picks = search.best(10), search.picks()
    for q, items in enumerate(picks.items):
        best = items[np.argsort(-final[q, items], kind="stable")][:10]
        np.testing.assert_allclose(final[q, found.items[q]], final[q, best], rtol=1e-6)
    at = np.take_along_axis(final, found.items, axis=1)
    np.testing.assert_allclose(found.final, at, rtol=1e-5)
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, found.items, axis=1))
    if budget == 80:  # all items
        np.testing.assert_allclose(at, -np.sort(-final, axis=1)[:, :10], rtol=1e-5)


@pytest.mark.parametrize("spec", [METHODS[0], METHODS[5]])
def test_a_method_without_predictions_searches_final_scores_as_it_would_exact_ones(spec):
    index, queries, scores = matrix().rows(0, 6)
    fusion, plan = fused(index, spec, 30)
    plain = ck.parse_method(spec).plan(index, 30, 0)
    both = simulate(plan, queries, scores), simulate(plain, queries, scores + fusion.added(queries))
    np.testing.assert_array_equal(*(search.picks().items for search in both))


def test_a_predictor_gets_exact_scores_and_its_predictions_are_final():
    index, queries, scores = matrix().rows(0, 6)
    fusion, plan = fused(index, METHODS[1], 30)
    inner, predictor = plan.predictor.predictor, plan.predictor
    items = np.tile(np.arange(12), (6, 1))
    seen = Observed(items, scores[:, :12], np.full(6, 12))
    state = predictor.update(predictor.start(queries), seen)
    exact = inner.predict(inner.update(inner.start(queries), seen)).mean
    np.testing.assert_allclose(
        predictor.predict(state).mean, exact + fusion.added(queries), rtol=1e-5
    )


def test_what_fusion_adds_is_computed_once_for_a_search():
    asked = []

    class Counted(WeightedSum):
        def of_all(self, queries):
            asked.append(queries)
            return super().of_all(queries)

    index, queries, scores = matrix().rows(0, 6)
    fusion = Fusion(Counted([open_retriever(index, "bm25")], [0.5]))
    simulate(fusion.plan(ck.parse_method(METHODS[1]).plan(index, 30, 0)), queries, scores)
    assert asked == [queries]


# On texts: weights in deviations, fitted and kept


TEXTS = [
    f"{a} {b} number {i}" for i in range(8) for a in ("cat", "dog", "fish") for b in ("x", "y")
]


@pytest.fixture
def index():
    return ck.ItemIndex.build(TEXTS, lsa=4)


def asked(m=30):
    texts = [TEXTS[i] for i in np.random.default_rng(0).choice(len(TEXTS), m, replace=False)]
    return QuerySet(tuple(f"q{i}" for i in range(m)), tuple(texts))


def judged(index, queries):
    """The item that a query is the text of."""
    pairs = zip(queries.ids, queries.texts, strict=True)
    return {query: {index.items.ids[TEXTS.index(text)]: 1} for query, text in pairs}


def noise(pairs):
    return [float(hash_of(query + item)) for query, item in pairs]


def hash_of(text):
    return sum(ord(letter) * (i + 7) for i, letter in enumerate(text)) % 97


SCORER = ck.CallableScorer(noise, "noise")


def test_weights_are_in_deviations_survive_the_disk_and_order_the_answers(index, tmp_path):
    found = fit_fusion(index, SCORER, asked())
    assert set(found["weights"]) == {"lsa", "bm25"}
    assert found["judged"] == 0
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
    cheap = {n: open_retriever(again, n).scores(Queries(["cat x"])) for n in ("lsa", "bm25")}
    parts = [w / known[n] * cheap[n][0, hit.position] for n, w in found["weights"].items()]
    assert hit.final_score - hit.score == pytest.approx(sum(parts) * known["exact"], rel=1e-4)


def test_deviations_are_those_of_a_querys_candidates(index):
    queries = asked(4)
    found = fit_fusion(index, SCORER, queries.texts, depth=7)
    items = open_retriever(index, "hybrid").top(Queries(queries.texts), 7).items
    both = zip(queries.texts, items, strict=True)
    rows = [[hash_of(text + TEXTS[i]) for i in row] for text, row in both]
    assert found["deviations"]["exact"] == pytest.approx(np.std(rows, axis=1).mean())
    assert len(index.scores) <= found["pairs"] == 4 * 7


def test_weights_go_where_judgements_say_and_stay_at_the_shipped_ones_where_they_do_not(index):
    queries = asked()
    right = fit_fusion(index, SCORER, queries, judged(index, queries))
    assert right["ndcg"]["both"] > right["ndcg"]["cross-encoder"] + 0.2
    assert right["judged"] == 30
    assert right["weights"]["bm25"] >= 0.5
    best = ck.Searcher(index, SCORER).search(queries.texts[0], k=1, budget=48)[0][0]
    assert best.text == queries.texts[0]
    gold = ck.CallableScorer(lambda pairs: [float(q == t) for q, t in pairs], "gold")
    trusted = fit_fusion(index, gold, queries, judged(index, queries))
    assert "note" not in trusted
    assert trusted["weights"] == {"lsa": 0, "bm25": pytest.approx(0.5)}


@pytest.mark.parametrize("with_judgements", [False, True])
def test_vectors_of_lsa_without_words_are_fused_as_vectors_are(with_judgements):
    index, queries = ck.ItemIndex.build(TEXTS, bm25=False, lsa=4), asked()
    found = fit_fusion(index, SCORER, queries, judged(index, queries) if with_judgements else None)
    assert set(found["weights"]) == {"lsa"}
    assert found["weights"]["lsa"] > 0.25
    [hit, *_] = ck.Searcher(index, SCORER).search("cat x", k=1, budget=5)[0]
    assert hit.final_score != hit.score


def test_retrievers_are_weighed_by_what_they_find_and_their_sum_by_the_order():
    rng = np.random.default_rng(1)
    m, p = 80, 60
    wide = np.zeros((m, p))
    wide[:, 0] = 1  # the relevant item: the second retriever finds it, the first knows nothing
    pool = rng.normal(size=(2, m, p))
    pool[1] += 2 * wide
    gains, cheap = wide[:, :20], pool[:, :, :20]
    best = np.zeros((m, 100))
    best[:, 0] = 1
    weak = np.concatenate([rng.normal(size=(1, m, 20)), cheap])
    strong = np.concatenate([rng.normal(size=(1, m, 20)) + 9 * gains, cheap])
    for scores, least, most in ((weak, 9, np.inf), (strong, 0, 0.8)):
        weights, deviations, ndcg = by_judgements(
            scores, pool, (gains, wide, best), np.array([0.75, 0.5])
        )
        assert weights[1] > 2 * weights[0]
        assert least < weights[1] < most
        np.testing.assert_allclose(deviations, scores.std(axis=2).mean(axis=1))
        final = scores[0] / deviations[0] + np.tensordot(weights / deviations[1:], cheap, axes=1)
        rank = (final > final[:, :1]).sum(axis=1)
        value = np.where(rank < 10, 1 / np.log2(rank + 2), 0).mean()
        # Cross-validated, it is near; where the retrievers alone are better, they decide.
        assert max(ndcg["both"], ndcg["retrievers"]) == pytest.approx(value, abs=0.03)
        assert ndcg["both"] >= ndcg["cross-encoder"] - 0.03
    # The scales are deviations of the sum, whatever its size.
    fair = np.concatenate([rng.normal(size=(1, m, 20)) + 2.5 * gains, cheap])
    weights, *_ = by_judgements(fair, pool, (gains, wide, best), np.array([6e-9, 4e-9]))
    spread = np.tensordot(weights / fair[1:].std(axis=2).mean(axis=1), cheap, axes=1).std(axis=1)
    assert np.isclose(spread.mean(), np.outer(SCALES, SHRINKAGE[1:]), rtol=1e-6).any()


def test_ndcg_is_that_of_ir_measures():
    rng = np.random.default_rng(2)
    scores, gains = rng.normal(size=(12, 30)), rng.integers(0, 4, size=(12, 30)).astype(float)
    scores[:, 25:], gains[:, 25:] = np.nan, 0
    best = -np.sort(-gains, axis=1)
    rows = [{str(i): int(g) for i, g in enumerate(row)} for row in gains.tolist()]
    items = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=1)[:, :25]
    for cutoff in (10, 100):
        name = f"nDCG@{cutoff}"
        wanted = TaskMeasures(Judgements(tuple(rows)), [name]).values(items)[name]
        padded = np.pad(best, ((0, 0), (0, 70)))
        np.testing.assert_allclose(_ndcg(scores, gains, padded, cutoff), wanted, rtol=1e-6)


def test_a_fitted_fusion_is_the_usual_first_stage(index):
    assert first_stage(index) == "bm25"  # before LSA
    queries = Queries(["cat x"])
    with pytest.raises(ck.InputError, match="fit them with  crossknn fit INDEX fusion"):
        open_retriever(index, "fused")
    found = fit_fusion(index, SCORER, asked())
    stages = [open_retriever(index, name).scores(queries) for name in found["weights"]]
    known = found["deviations"]
    parts = [
        w * known["exact"] / known[n] * s
        for (n, w), s in zip(found["weights"].items(), stages, strict=True)
    ]
    scores = open_retriever(index, "auto").scores(queries)
    np.testing.assert_allclose(scores, np.sum(parts, axis=0), rtol=1e-5)
    assert stage_names(index, AUTO) == ("lsa", "bm25")


def test_what_cannot_be_fused_is_said_in_a_sentence(index):
    for fuse in ("auto", {}, {"lsa": 0}):  # nothing is fitted yet, or nothing has a weight
        assert ck.Searcher(index, SCORER, fuse=fuse).fusion is None
    with pytest.raises(ck.InputError, match="fit them with  crossknn fit INDEX fusion"):
        ck.Searcher(index, SCORER, fuse={"lsa": 1})
    equal = ck.CallableScorer(lambda pairs: [1.0] * len(pairs), "equal")
    for scorer, texts, words in ((equal, asked(4), "fusion needs"), (SCORER, [], "no queries")):
        with pytest.raises(ck.InputError, match=words):
            fit_fusion(index, scorer, texts)
    scored = len(index.scores)
    for qrels in ({"q0": {"unknown": 1}}, {}, {f"q{i}": {"0": 0} for i in range(8)}):
        with pytest.raises(ck.InputError, match="of the 8 queries have a relevant item"):
            fit_fusion(index, SCORER, asked(8), qrels)
    assert len(index.scores) == scored
    fit_fusion(index, SCORER, asked(4))
    for fuse in ("always", 5):
        with pytest.raises(ck.InputError, match=f"fuse is {fuse!r}; give 'auto', None, or weights"):
            ck.Searcher(index, SCORER, fuse=fuse)
    for fuse in ({"dense": 1}, {"lsa": float("nan")}, {"exact": 1}, {"lsa": "much"}):
        with pytest.raises(ck.InputError, match="of the fitted fusion, bm25, lsa"):
            ck.Searcher(index, SCORER, fuse=fuse)
    other = ck.CallableScorer(noise, "another")
    assert ck.Searcher(index, other, fuse="auto").fusion is None  # it has none of its own
    with pytest.raises(ck.InputError, match="which the index lacks"):
        ck.Searcher(index, other, fuse={"lsa": 1})
    assert ck.Searcher(index, other, fuse=None).search("cat x", k=1, budget=5).n_calls == 5
