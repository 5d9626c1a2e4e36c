"""Kriging's prior, from anchors and from what searches left."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from library import METHOD, Library, N
from references.kriging import cokrige, learn
from references.problem import Problem

from crossknn.errors import InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.kriging import fit_prior
from crossknn.fitting.learning import searched_scores
from crossknn.fitting.prior import fit_cokriging, fit_dense, fit_sparse
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import standardised
from crossknn.methods import parse_method
from crossknn.methods.prior import Prior, Spread, stored_prior
from crossknn.scores.sparse import SparseScores
from crossknn.scores.stored import StoredScorer
from crossknn.search.searcher import Searcher
from crossknn.types import Artifact, BoolArray, FloatArray, Pairs, Queries


class World(NamedTuple):
    """Queries (q, n) drawn from the model: what they score, and what is behind it. Cheap scores are
    standardised; the coordinates of the queries' residuals follow their vectors `queries`."""

    exact: FloatArray
    cheap: FloatArray
    vectors: FloatArray
    queries: FloatArray
    mean: FloatArray
    covariance: FloatArray


def world(q: int = 80, n: int = 60, seed: int = 0, *, own: float = 1.0) -> World:
    """Items' means and three loadings follow their vectors, but for `own` of each item."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 12))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    mean = 1.5 * vectors @ rng.normal(size=12) + own * rng.normal(size=n)
    loadings = 1.5 * vectors @ rng.normal(size=(12, 3)) + 0.3 * own * rng.normal(size=(n, 3))
    cheap = rng.normal(size=(q, n))
    cheap = (cheap - cheap.mean(axis=1, keepdims=True)) / cheap.std(axis=1, keepdims=True)
    coordinates = rng.normal(size=(q, 3))
    queries = coordinates @ rng.normal(size=(3, 5)) + 0.3 * rng.normal(size=(q, 5))
    exact = 3 + rng.normal(size=(q, 1)) + rng.normal(1, 0.2, (q, 1)) * cheap + mean
    exact += coordinates @ loadings.T + 0.3 * rng.normal(size=(q, n))
    arrays = (a.astype(np.float32) for a in (exact, cheap, vectors, queries))
    return World(*arrays, mean, loadings @ loadings.T)


def entries(of: World, seen: BoolArray):
    """Scores where `seen` (q, n) is true, and the cheap ones of these queries."""
    query, item = np.nonzero(seen)
    texts = [f"query {row}" for row in range(len(seen))]
    scores = SparseScores.of(texts, seen.shape[1], Pairs(query, item), of.exact[query, item])
    return scores, [of.cheap[seen.any(axis=1)]]


def fit(of: World, seen: BoolArray, **options) -> Prior:
    return fit_sparse(*entries(of, seen), of.vectors, of.queries, **{"rank": 12, **options})


def products(prior: Prior) -> FloatArray:
    return prior.factor @ prior.factor.T


def alike(left: FloatArray, right: FloatArray) -> float:
    """Cosine of two arrays."""
    return float(np.sum(left * right) / np.linalg.norm(left) / np.linalg.norm(right))


def correlation(left: FloatArray, right: FloatArray) -> float:
    return alike(left - left.mean(), right - right.mean())


def some(q: int, n: int, share: float, seed: int = 0) -> BoolArray:
    return np.random.default_rng(seed).random((q, n)) < share


# From anchors


def rows(q: int, n: int, stages: int, seed: int):
    """Exact scores (q, n), half explained by the cheap ones, each (q, n), and vectors of items and
    queries, which explain some of the rest."""
    rng = np.random.default_rng(seed)
    cheap = [rng.normal(size=(q, n)).astype(np.float32) for _ in range(stages)]
    vectors, queries = 2 * rng.normal(size=(n, 3)), rng.normal(size=(q, 3))
    queries[:, 1:] *= 0.3  # mostly by one coordinate, of which few queries say enough
    scores = 2 + rng.normal(size=n) + queries @ vectors.T + 0.3 * rng.normal(size=(q, n))
    for column in cheap:
        scores += column * rng.normal(1, 0.3, size=(q, 1))
    return *(a.astype(np.float32) for a in (scores, vectors, queries)), cheap


@settings(max_examples=30, deadline=None)
@given(
    q=st.integers(6, 12),
    n=st.integers(20, 40),
    stages=st.integers(1, 3),
    rank=st.integers(1, 15),
    seed=st.integers(0, 99),
    block=st.sampled_from([1, 7, 8_192]),
)
def test_a_dense_fit_is_what_the_reference_learns(q, n, stages, rank, seed, block):
    scores, vectors, queries, cheap = rows(q, n, stages, seed)
    lead = seed % stages
    order = [lead, *(stage for stage in range(stages) if stage != lead)]  # the reference's
    exact, items, known, *trends = (
        a.astype(np.float64) for a in (scores, vectors, queries, *(cheap[o] for o in order))
    )
    problem = Problem(
        retriever=exact[0],
        items=items,
        anchor_scores=exact,
        anchor_queries=known,
        anchor_trends=tuple(trends),
    )
    lesson = learn(problem, rank)
    with mock.patch("crossknn.fitting.prior.BLOCK", block):
        found = fit_dense(scores, cheap, vectors, queries, lead=lead, rank=rank)
    assume(found.cokriging.scale < 8)  # of narrow kernels rounding decides what is far
    np.testing.assert_allclose(products(found), lesson.factors @ lesson.factors.T, atol=2e-3)
    assert (np.diff(np.square(found.factor).sum(axis=0)) <= 1e-4).all()
    assert found.variance == pytest.approx(lesson.variance, rel=1e-4)
    # Up to where zero lies, which is the first weight's and says nothing.
    np.testing.assert_allclose(np.diff(found.mean), np.diff(lesson.mean), atol=1e-4)
    columns = [0, 1 + lead, 2 + stages], [0, *(1 + o for o in order), 1 + stages, 2 + stages]
    for trend, used, (mean, precision) in zip(found.trends, columns, lesson.priors, strict=True):
        assert np.flatnonzero(trend.columns).tolist() == sorted(used)
        np.testing.assert_allclose(trend.mean[used], mean, atol=5e-3)
        np.testing.assert_allclose(trend.precision[np.ix_(used, used)], precision, rtol=0.05)


def test_a_dense_fit_reads_files_of_which_it_takes_some_rows_and_says_how_far_it_is(
    tmp_path, monkeypatch
):
    scores, vectors, queries, cheap = rows(9, 50, 2, 0)
    kept, seen = np.array([0, 2, 3, 5, 8]), []
    plain = fit_dense(scores[kept], [c[kept] for c in cheap], vectors, queries[kept], rank=4)
    for name, values in {"scores": scores, "cheap": cheap[0], "vectors": vectors}.items():
        np.save(tmp_path / f"{name}.npy", values)
    exact, one, items = (
        np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("scores", "cheap", "vectors")
    )
    monkeypatch.setattr("crossknn.fitting.prior.BLOCK", 20)
    monkeypatch.setattr("crossknn.files.SCRATCH", 0)
    how = {"rank": 4, "rows": kept, "progress": lambda done, total: seen.append((done, total))}
    mapped = fit_dense(exact, [one, cheap[1]], items, queries, **how)
    assert seen == [(50 * turn + done, 150) for turn in range(3) for done in (20, 40, 50)]
    assert isinstance(mapped.factor, np.memmap)
    for name, values in plain.kept()[1].items():
        found, most = mapped.kept()[1][name], np.abs(values).max()
        if name in ("factor", "solved"):  # a factor's sign is free
            values, found = np.abs(values), np.abs(found)
        np.testing.assert_allclose(found, values, rtol=1e-3, atol=1e-4 * most)


def both(of: World):
    """The dense and the sparse fit of 30 queries."""
    dense = fit_dense(of.exact, [of.cheap], of.vectors, of.queries, rank=12)
    return dense, fit(of, some(30, 25, 0.4))


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 99), shift=st.integers(-64, 64), power=st.integers(-8, 8))
def test_a_shift_and_scale_of_the_scores_is_that_of_all_it_says(seed, shift, power):
    of, size = world(30, 25, seed), 2.0**power
    exact = np.round(of.exact * 256) / 256
    plain, moved = (both(of._replace(exact=e)) for e in (exact, (exact + shift) * size))
    for one, other in zip(plain, moved, strict=True):
        spread = np.abs(products(one)).max()
        np.testing.assert_allclose(products(other) / size**2, products(one), atol=1e-3 * spread)
        np.testing.assert_allclose(other.mean / size, one.mean, atol=1e-3 * np.ptp(one.mean))
        assert other.variance / size**2 == pytest.approx(one.variance, rel=1e-3)
        for trend, of_moved in zip(one.trends, other.trends, strict=True):  # in scores, each weight
            np.testing.assert_allclose(of_moved.mean / size, trend.mean, rtol=1e-2, atol=1e-4)
            precision, most = of_moved.precision * size**2, np.abs(trend.precision).max()
            np.testing.assert_allclose(precision, trend.precision, rtol=2e-2, atol=1e-3 * most)


@pytest.mark.parametrize("value", [0.0, 0.7, 250.0])
def test_constant_scores_leave_numbers(value):
    of = world(30, 25)
    for found in both(of._replace(exact=np.full_like(of.exact, value))):
        assert found.variance < 1e-4
        assert all(np.isfinite(array).all() for array in found.kept()[1].values())


@pytest.mark.parametrize("q", [2, 3])
def test_few_anchors_say_little_and_queries_without_vectors_say_nothing_of_each_other(q):
    of = world(q, 25)
    fits = [
        (queries, found)
        for queries in (of.queries, None)
        for found in (
            fit_dense(of.exact, [of.cheap], of.vectors, queries, rank=12),
            fit_sparse(*entries(of, some(q, 25, 1.0)), of.vectors, queries, rank=12),
        )
    ]
    for queries, found in fits:
        assert (found.cokriging is None) == (queries is None)
        assert found.factor.shape[1] <= 12
        arrays = found.kept()[1]
        assert all(np.isfinite(array).all() for array in arrays.values())
        columns = [trend.columns.tolist() for trend in found.trends if trend.columns.sum() > 1]
        every = [True, True, True]
        assert columns == ([every] if queries is None else [[*every[:2], False, True], [True] * 4])
        for trend in found.trends[-len(columns) :]:
            used = trend.columns[1:]
            assert np.linalg.eigvalsh(trend.precision[1:, 1:][np.ix_(used, used)]).min() > 0
            assert not trend.precision[0].any()


# Cokriging


@pytest.mark.parametrize("q", [3, 20])
def test_what_cokriging_says_of_an_anchor_is_what_a_fit_without_it_says(q):
    rng = np.random.default_rng(q)
    known, F, new = 3 + rng.normal(size=(q, 4)), rng.normal(size=(30, 2)), rng.normal(size=(5, 4))
    Z = known[:, :2] + 0.2 * rng.normal(size=(q, 2))
    cokriging, others = fit_cokriging(known, Z, F.T @ F)
    reference, by_reference = cokrige(known, Z @ F.T, F)
    np.testing.assert_allclose(others, by_reference, atol=1e-6)
    if q == 20:  # of three, what is far says nothing, whatever the scale
        assert cokriging.scale == reference.scale
        np.testing.assert_allclose(cokriging(new), [reference(query) for query in new], atol=1e-5)


def test_cokriging_does_not_care_where_vectors_lie_and_how_long_they_are():
    rng = np.random.default_rng(0)
    known, Z, new = rng.normal(size=(20, 4)), rng.normal(size=(20, 3)), rng.normal(size=(5, 4))
    one, others = fit_cokriging(known, Z, np.eye(3))
    other, other_others = fit_cokriging(7 * known - 2, Z, np.eye(3))
    np.testing.assert_allclose(other_others, others, atol=1e-8)
    np.testing.assert_allclose(other(7 * new - 2), one(new), atol=1e-5)
    alike, none = fit_cokriging(np.ones((4, 2)), Z[:4], np.eye(3))  # all the same
    assert np.isfinite(none).all()
    assert np.isfinite(alike(np.ones((1, 2)))).all()
    nothing = Spread(np.zeros(2), np.eye(2)).standardised(np.zeros((1, 2)))
    assert not any(np.any(array) for array in nothing)


# From what searches left


@pytest.mark.slow
def test_an_item_that_was_never_seen_is_what_its_vector_says():
    of, seen = world(80, 60, own=0.0), some(80, 60, 0.4)
    seen[:, 50:] = False
    found = fit(of, seen)
    assert correlation(found.mean[50:], of.mean[50:]) > 0.9
    assert alike(products(found)[50:, :50], of.covariance[50:, :50]) > 0.8
    scores, cheap = entries(of, seen)
    longer, nowhere = (
        fit_sparse(scores, cheap, vectors, of.queries, rank=12)
        for vectors in ((7 * of.vectors).astype(np.float16), 0 * of.vectors)
    )
    np.testing.assert_allclose(products(longer), products(found), atol=0.05)
    assert correlation(nowhere.mean[:50], of.mean[:50]) > 0.9


def test_a_sparse_fit_is_near_the_dense_one():
    """From all scores, and from a third of them."""
    of = world(60, 60)
    dense = fit_dense(of.exact, [of.cheap], of.vectors, of.queries, rank=12)
    for sparse in (fit(of, some(60, 60, 1.0)), fit(of, some(60, 60, 0.3))):
        assert correlation(sparse.mean, dense.mean) > 0.98
        assert alike(products(sparse), products(dense)) > 0.9
        assert dense.variance < sparse.variance < np.var(of.exact)  # that of the scores themselves
        assert sparse.cokriging.scale == dense.cokriging.scale
        assert sparse.trends[0].columns.tolist() == [True, *[False] * 3]  # and a level
        for one, other in zip(sparse.trends[1:], dense.trends, strict=True):
            assert one.columns.tolist() == other.columns.tolist()
            np.testing.assert_allclose(one.mean, other.mean, rtol=0.2)
            precision, of_dense = (np.diag(t.precision)[1:][t.columns[1:]] for t in (one, other))
            assert (np.abs(np.log(precision / of_dense)) < np.log(2.5)).all()


# The prior of an index


@pytest.fixture
def library():
    return Library()


@pytest.mark.slow
def test_searches_get_better_by_what_others_left_behind_and_the_index_keeps_it(library, tmp_path):
    index = library.index()
    library.search(index, 0, 15)
    before = library.recall(index)
    calls = library.calls
    library.learn(index)
    assert library.calls == calls
    early = library.recall(index)
    library.search(index, 0, 150)
    index.save(tmp_path / "index")
    prior = library.learn(index)
    late = library.recall(index)
    assert before + 0.02 < early
    assert early + 0.02 < late
    assert (prior.queries, prior.n_anchor_queries, prior.from_searches) == (150, 0, True)
    assert prior.pairs >= 150 * 25  # the first queries were searched again, and better
    loaded = ItemIndex.load(tmp_path / "index", query_vectors=library.vectors_of)
    assert_same(stored_prior(loaded), prior)
    assert library.recall(loaded) == late


def test_a_fit_says_how_far_it_is(library):
    index, seen = library.index(), []
    collect_anchors(index, library.scorer, library.texts(0, 10))
    fit_prior(index, retriever="vectors", progress=lambda *step: seen.append(step))
    assert seen == [(N, 3 * N), (2 * N, 3 * N), (3 * N, 3 * N)]
    library.search(index, 20, 24)
    scores, seen = searched_scores(index, library.scorer.fingerprint), []
    fit_prior(index, scores, retriever="vectors", progress=lambda *step: seen.append(step))
    done, total = zip(*seen, strict=True)
    assert done == tuple(sorted(done))
    assert len(done) > 2
    assert done[-1] == total[0]


def test_ten_anchors_teach_by_themselves_and_fewer_leave_it_to_the_searches(library):
    index = library.index()
    library.search(index, 0, 20)
    library.learn(index)
    collect_anchors(index, library.scorer, library.texts(20, 29))
    prior = stored_prior(index)
    assert (prior.from_searches, prior.queries, prior.pairs) == (True, 20, 20 * 25)
    collect_anchors(index, library.scorer, library.texts(20, 30))
    prior = stored_prior(index)
    assert (prior.from_searches, prior.n_anchor_queries, prior.pairs) == (False, 10, 10 * N)
    assert library.learn(index).pairs == 10 * N
    predictor = parse_method(METHOD).plan(index, 25, 0).predictor
    mean = predictor.start(Queries(library.texts(40, 41))).basis[-1, 0]
    np.testing.assert_array_equal(mean, standardised(prior.mean))


def test_a_retriever_that_was_not_learned_for_is_refused_but_not_in_other_words(library):
    index = library.index()
    library.search(index, 0, 20)
    library.learn(index)
    with pytest.raises(InputError, match="the prior was fitted with mean=vectors, not mean=random"):
        parse_method("kriging(mean=random)").plan(index, 25, 0)
    for options in (
        "mean=random, use_anchors=false",
        "retriever=random, mean=vectors",
        "retriever=random",
        "mean=hybrid(vectors)",
        "mean=hybrid",
    ):
        plan = parse_method(f"kriging({options})").plan(index, 25, 0)
        assert plan.predictor.model.fitted == ("anchors" not in options)


def assert_same(one: Prior, other: Prior):
    """What is kept of them."""
    (meta, arrays), (other_meta, other_arrays) = one.kept(), other.kept()
    assert meta == other_meta
    assert arrays.keys() == other_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, other_arrays[name])


@pytest.mark.parametrize("with_queries", [True, False])
def test_a_prior_is_kept_as_it_is(with_queries):
    of = world(12, 25)
    queries = of.queries if with_queries else None
    prior = fit_dense(of.exact, [of.cheap, of.cheap**2], of.vectors, queries, lead=1, rank=7)
    prior = replace(prior, space="dense", retriever="x", fingerprint="y")
    meta, arrays = prior.kept()
    again = Prior.from_artifact(Artifact(json.loads(json.dumps(meta)), arrays))
    assert_same(again, prior)
    if with_queries:
        np.testing.assert_array_equal(again.cokriging(of.queries), prior.cokriging(of.queries))


def test_what_cannot_be_learned_from_is_said(library):
    index = library.index()
    with pytest.raises(InputError, match="no scores to fit to"):
        fit_prior(index, retriever="vectors")
    library.search(index, 0, 1)
    with pytest.raises(InputError, match="the scores of a single query"):
        library.learn(index)
    assert "kriging" not in index.artifacts


def test_a_search_says_when_every_query_expected_enough(library):
    index = library.index()
    collect_anchors(index, library.scorer, library.texts(0, 40))
    for options, said in ((", target_recall=0.1, k=10)", "target"), (")", "budget")):
        found = library.search(index, 150, 160, METHOD[:-1] + options)
        assert found.stopped_by == said
        assert (found.n_scored < 250) == (said == "target")
    early = METHOD[:-1] + ", target_recall=0.5, k=3)"
    assert library.search(index, 0, 1, early)[0]  # k is that of the search, 10
    searcher = Searcher(index, StoredScorer(library.scorer, index.scores), early)
    with pytest.raises(InputError, match="give the method k=150, too"):
        searcher.search(library.texts(0, 1), budget=25, min_score=0.0)
