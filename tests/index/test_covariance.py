"""The covariance between items against a plain transcription, and how often it is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import FormulaScorer, LengthEncoder, corpus
from synthetic import matrix, run

from crossknn.errors import InputError
from crossknn.index.base import Index, Scale
from crossknn.index.covariance import Covariance
from crossknn.index.fitted import FittedVectors
from crossknn.index.item_index import ItemIndex
from crossknn.index.memo import Memo
from crossknn.methods import method
from crossknn.retrievers.lists import CandidateLists
from crossknn.search.searcher import Searcher


def rows(q: int, n: int, stages: int, seed: int):
    """Exact scores (q, n), half explained by the cheap ones, each (q, n)."""
    rng = np.random.default_rng(seed)
    cheap = [rng.normal(size=(q, n)).astype(np.float32) for _ in range(stages)]
    scores = 2 + rng.normal(size=n) + rng.normal(size=(q, 3)) @ rng.normal(size=(3, n))
    for column in cheap:
        scores += column * rng.normal(1, 0.3, size=(q, 1))
    return scores.astype(np.float32), cheap


def transcribed(scores, cheap, rank):
    """What `Covariance.of` says it does, by the book and in double precision."""
    q, n = scores.shape
    weights, residuals = [], []
    for row in range(q):
        others = np.delete(scores.astype(np.float64), row, axis=0).mean(axis=0)
        columns = np.column_stack([np.ones(n), *(c[row] for c in cheap), others])
        own = np.linalg.lstsq(columns, scores[row].astype(np.float64), rcond=1e-9)[0]
        weights.append(own)
        residuals.append(scores[row] - columns @ own)
    _, values, directions = np.linalg.svd(np.array(residuals) / np.sqrt(q), full_matrices=False)
    factor = (values[:, None] * directions)[:rank].T
    spread = np.cov(np.array(weights)[:, 1:].T)
    return factor @ factor.T, np.mean(weights, axis=0), spread, np.array(residuals)


@settings(max_examples=30, deadline=None)
@given(
    q=st.integers(2, 12),
    n=st.integers(10, 40),
    stages=st.integers(1, 3),
    rank=st.integers(1, 15),
    seed=st.integers(0, 99),
)
def test_it_is_what_a_plain_transcription_gives(q, n, stages, rank, seed):
    scores, cheap = rows(q, n, stages, seed)
    found = Covariance.of(scores, cheap, rank)
    products, weights, spread, residuals = transcribed(scores, cheap, rank)
    f = 2 + stages
    assert found.factor.shape == (n, min(rank, found.factor.shape[1]))
    assert found.factor.dtype == np.float32
    np.testing.assert_allclose(found.factor @ found.factor.T, products, atol=2e-3)
    assert found.variance == pytest.approx(np.square(residuals).mean(), rel=1e-4)
    # Up to where zero lies, which is the first weight's and says nothing.
    np.testing.assert_allclose(np.diff(found.mean), np.diff(scores.mean(axis=0)), atol=1e-4)
    np.testing.assert_allclose(found.weights[1:], weights[1:], atol=1e-4)
    assert found.precision.shape == (f, f)
    assert not found.precision[0].any()
    assert not found.precision[:, 0].any()
    if q > f + 1:
        precise = found.precision[1:, 1:]
        np.testing.assert_allclose(precise, precise.T)
        np.testing.assert_allclose(precise @ spread, np.eye(f - 1), atol=1e-2)
    else:
        assert not found.precision.any()


def test_all_factors_together_are_the_residuals_covariance():
    scores, cheap = rows(8, 30, 1, 0)
    found = Covariance.of(scores, cheap, 100)
    *_, residuals = transcribed(scores, cheap, 100)
    assert found.factor.shape[1] <= 8
    np.testing.assert_allclose(
        found.factor @ found.factor.T, residuals.T @ residuals / 8, atol=1e-4
    )
    strength = np.square(found.factor).sum(axis=0)
    assert (np.diff(strength) <= 1e-6).all()
    assert strength.sum() / 30 == pytest.approx(found.variance, rel=1e-4)


def test_fewer_factors_are_the_first_of_them():
    scores, cheap = rows(8, 30, 2, 0)
    three, all_of = (Covariance.of(scores, cheap, rank).factor for rank in (3, 100))
    np.testing.assert_array_equal(three, all_of[:, :3])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99))
def test_the_order_of_anchors_and_of_items_does_not_matter(seed):
    scores, cheap = rows(9, 30, 2, seed)
    rng = np.random.default_rng(seed)
    anchors, items = rng.permutation(9), rng.permutation(30)
    plain = Covariance.of(scores, cheap)
    other = Covariance.of(scores[anchors][:, items], [c[anchors][:, items] for c in cheap])
    expected = (plain.factor @ plain.factor.T)[np.ix_(items, items)]
    np.testing.assert_allclose(other.factor @ other.factor.T, expected, atol=1e-4)
    np.testing.assert_allclose(other.mean, plain.mean[items], atol=1e-5)
    np.testing.assert_allclose(other.weights, plain.weights, atol=1e-6)
    np.testing.assert_allclose(other.precision, plain.precision, rtol=1e-3, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), shift=st.integers(-64, 64), power=st.integers(-8, 8))
def test_a_shift_and_scale_of_the_scores_is_that_of_all_it_says(seed, shift, power):
    scores, cheap = rows(8, 30, 1, seed)
    scores, factor = (np.round(256 * scores) / 256).astype(np.float32), 2.0**power
    plain = Covariance.of(scores, cheap)
    moved = Covariance.of(((scores + shift) * factor).astype(np.float32), cheap)
    np.testing.assert_allclose(
        moved.factor @ moved.factor.T / factor**2, plain.factor @ plain.factor.T, atol=1e-4
    )
    assert moved.variance / factor**2 == pytest.approx(plain.variance, rel=1e-4)
    # The weight of a cheap score is in scores of the cross-encoder; that of the mean is none.
    units = np.array([factor, 1.0])
    np.testing.assert_allclose(moved.weights[1:] / units, plain.weights[1:], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        moved.precision[1:, 1:] * np.outer(units, units), plain.precision[1:, 1:], rtol=1e-2
    )


def test_each_anchor_is_regressed_on_the_mean_of_the_others():
    """On a mean that holds the anchor itself, noise of its own would look explained."""
    noise = np.random.default_rng(0).normal(size=(3, 2000)).astype(np.float32)
    found = Covariance.of(noise, [np.zeros_like(noise)])
    assert found.weights[2] < 0.1
    assert found.variance == pytest.approx(1, abs=0.1)


def test_columns_that_say_the_same_share_a_weight_and_constant_ones_have_none():
    scores, (cheap,) = rows(9, 30, 1, 0)
    once, twice, beside = (
        Covariance.of(scores, columns)
        for columns in ([cheap], [cheap, cheap], [cheap, np.zeros_like(cheap)])
    )
    for other in (twice, beside):
        np.testing.assert_allclose(
            other.factor @ other.factor.T, once.factor @ once.factor.T, atol=1e-4
        )
        assert np.isfinite(other.precision).all()
    np.testing.assert_allclose(twice.weights[1:3], once.weights[1] / 2, rtol=1e-3)
    assert abs(beside.weights[2]) < 1e-9
    assert np.abs(beside.precision[2]).max() < 1e-9


@pytest.mark.parametrize("value", [0.0, 0.7, 250.0])
def test_anchors_without_residuals_leave_numbers(value):
    scores = np.full((6, 20), value, np.float32)
    for cheap in (np.zeros_like(scores), np.random.default_rng(0).normal(size=scores.shape)):
        found = Covariance.of(scores, [cheap.astype(np.float32)])
        assert found.variance < 1e-6
        for values in (found.factor, found.mean, found.weights, found.precision):
            assert np.isfinite(values).all()


@pytest.mark.parametrize("q", [0, 1])
def test_one_anchor_is_too_few(q):
    scores, cheap = rows(2, 20, 1, 0)
    with pytest.raises(InputError, match=r"one anchor query .* kriging\(anchors=false\)"):
        Covariance.of(scores[:q], [c[:q] for c in cheap])


# How often it is computed


@pytest.fixture
def made(monkeypatch):
    """The ranks of the covariances computed so far."""
    ranks: list[int] = []
    real = Covariance.of.__func__

    def of(cls, scores, cheap, rank):
        ranks.append(rank)
        return real(cls, scores, cheap, rank)

    monkeypatch.setattr(Covariance, "of", classmethod(of))
    return ranks


def test_a_memo_makes_a_value_anew_when_what_it_is_of_is_another():
    memo, calls = Memo(), []
    one, other = [1], [1]
    for of in ((one,), (one,), (other,), (one,), (one, other), (one, other)):
        assert memo.get("key", of, lambda: calls.append(0) or len(calls)) == len(calls)
    assert len(calls) == 4
    assert memo.get("another key", (one,), lambda: "made") == "made"
    assert memo.get("key", (one, other), lambda: "made") == 4


def test_it_is_computed_once_for_all_parts_of_a_matrix(made):
    data = matrix()
    for start in range(0, 6, 2):
        index, _, _ = data.rows(start, start + 2)
        method("kriging(retriever=dense)").plan(index, 10, 0)
        method("kriging(retriever=dense, share=0.5, rounds=3)").plan(index, 20, 0)
    assert made == [100]


def test_each_first_stage_and_rank_has_its_own(made):
    index, _, _ = matrix().rows(0, 2)
    specs = (
        "retriever=dense",
        "retriever=bm25",
        "retriever=hybrid(bm25, dense)",
        "retriever=dense, rank=7",
    )
    covariances = [
        method(f"kriging({spec})").plan(index, 10, 0).predictor.covariance for spec in specs * 2
    ]
    assert made == [100, 100, 100, 7]
    assert len({id(covariance) for covariance in covariances}) == 4
    assert all(a is b for a, b in zip(covariances[:4], covariances[4:], strict=True))
    assert [len(c.weights) for c in covariances[:4]] == [3, 3, 4, 3]


def test_without_anchors_none_is_computed(made):
    run(method("kriging(retriever=dense, anchors=false)"), matrix(), 10)
    run(method("kriging(retriever=dense)"), matrix(anchors=0), 10)
    assert made == []


def test_another_matrix_has_its_own(made):
    data = matrix()
    for other in (data, replace(data, scores=data.scores + 1), data):
        run(method("kriging(retriever=dense)"), other, 10)
    assert made == [100, 100]


QUERIES = ["one fish", "two", "red fish and more", "a cat in a tree", "dog dog"]


def search(index: ItemIndex, scorer: FormulaScorer) -> list[str]:
    searcher = Searcher(index, scorer, "kriging(retriever=bm25, rounds=3)")
    return [hit.id for hit in searcher("cat tree", k=5, budget=12)[0]]


def test_it_is_computed_once_for_an_index_and_anew_when_its_anchors_are_others(made):
    index = ItemIndex.build(corpus(30), encoder=LengthEncoder())
    assert isinstance(index, Index)
    search(index, FormulaScorer())
    assert made == []
    index.add_anchors(FormulaScorer(), QUERIES[:4])
    retriever = [search(index, FormulaScorer()) for _ in range(2)]
    assert retriever[0] == retriever[1]
    assert len(made) == 1
    index.add_anchors(FormulaScorer(), QUERIES)
    added = search(index, FormulaScorer())
    assert len(made) == 2
    fresh = ItemIndex.build(corpus(30), encoder=LengthEncoder())
    fresh.add_anchors(FormulaScorer(), QUERIES)
    assert search(fresh, FormulaScorer()) == added
    assert len(made) == 3
    index.add_anchors(FormulaScorer("other"), QUERIES, replace=True)
    search(index, FormulaScorer("other"))
    assert len(made) == 4


def test_an_index_from_the_disk_says_the_same(tmp_path, made):
    index = ItemIndex.build(corpus(30), encoder=LengthEncoder())
    index.add_anchors(FormulaScorer(), QUERIES)
    index.save(tmp_path / "index")
    loaded = ItemIndex.load(tmp_path / "index", encoder=LengthEncoder())
    assert search(loaded, FormulaScorer()) == search(index, FormulaScorer())
    assert len(made) == 2


def test_anchors_are_in_the_order_of_their_scores():
    data = matrix()
    index = data.rows(2, 4)[0]
    for start, stop in ((0, None), (3, 7), (15, 99)):
        seen, queries = index.anchored(start, stop)
        rows = slice(start, min(stop or 20, 20))
        assert queries.texts == data.query_ids[rows]
        np.testing.assert_array_equal(queries.vectors["dense"], data.query_vectors[rows])
        np.testing.assert_array_equal(
            seen.retriever("bm25").scores(queries), data.firsts["bm25"][rows]
        )
    index = ItemIndex.build(corpus(30), encoder=LengthEncoder())
    assert not len(index.anchored()[1])
    index.add_anchors(FormulaScorer(), QUERIES)
    assert list(index.anchored()[1].texts) == QUERIES
    assert list(index.anchored(1, 3)[1].texts) == QUERIES[1:3]


# Found wanting


def test_a_search_by_chance_does_not_depend_on_the_seeds_before_it():
    fresh, used = matrix(), matrix()
    run(method("kriging(retriever=random)"), used, 24, seed=1)
    alone, after = (run(method("kriging(retriever=random)"), d, 24, seed=5) for d in (fresh, used))
    assert after.picks().items.tolist() == alone.picks().items.tolist()


def lists(second: str) -> dict[str, list[str]]:
    return {query: ["i1", second, "i5"] for query in (*QUERIES, "cat tree")}


def test_other_lists_are_not_searched_with_the_covariance_of_those_before(made):
    index = ItemIndex.build(corpus(30), encoder=LengthEncoder())
    index.add_anchors(FormulaScorer(), QUERIES)
    searcher = Searcher(index, FormulaScorer(), "kriging(retriever=hybrid(bm25, lists), rounds=3)")
    for second in ("i3", "i20"):
        index.add_retriever("lists", CandidateLists(lists(second), index.items.ids))
        searcher("cat tree", k=5, budget=12)
    assert len(made) == 2


def test_other_vectors_of_the_same_name_are_not_searched_so(made):
    index = ItemIndex.build(corpus(30), encoder=LengthEncoder())
    index.add_anchors(FormulaScorer(), QUERIES)
    for factor in (1, 2):
        values = np.float32(factor) * index.vectors("dense")
        fitted = FittedVectors(
            values=values, method="als", base="dense", scale=Scale(1.0, 0.1), fingerprint="formula"
        )
        index.add_fitted("mf", fitted, replace=True)
        Searcher(index, FormulaScorer(), "kriging(retriever=mf, rounds=3)")("cat", k=5, budget=12)
    assert len(made) == 2
