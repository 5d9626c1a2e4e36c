"""Learning from use: what searches leave behind makes the next ones better, and nothing else does."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.logs import VECTORS, folded, learn_all
from crossknn.index.fitted import FittedVectors
from crossknn.index.item_index import ItemIndex
from crossknn.index.settings import Settings
from crossknn.index.sparse import SparseScores
from crossknn.methods import method
from crossknn.retrievers.base import ItemPriors
from crossknn.scorers import CachedScorer, CallableScorer
from crossknn.search.searcher import Searcher
from crossknn.spec import parse
from crossknn.types import Pairs

N, D = 150, 6
METHOD = "kriging(retriever=vectors, rounds=4)"


class World:
    """Items liked for their place in the dual encoder's space, and for what it does not see."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.items = rng.normal(size=(N, D)).astype(np.float32)
        self.queries = rng.normal(size=(200, D)).astype(np.float32)
        hidden = rng.normal(size=(D, D))
        self.liked = 2 * rng.normal(size=N)
        self.scores = self.queries @ (self.items + self.items @ hidden).T + self.liked
        self.records = [{"id": str(i), "text": f"item {i}"} for i in range(N)]
        self.calls = 0

    def index(self):
        return ItemIndex.build(
            self.records, vectors=self.items, query_vectors=self.vectors_of, bm25=False
        )

    def vectors_of(self, texts):
        return self.queries[[int(text.split()[1]) for text in texts]]

    def score(self, pairs):
        self.calls += len(pairs)
        return [self.scores[int(q.split()[1]), int(i.split()[1])] for q, i in pairs]

    def texts(self, start, stop):
        return [f"query {q}" for q in range(start, stop)]

    def recall(self, index, spec=METHOD, k=10):
        found = Searcher(index, CallableScorer(self.score, "true"), spec)(
            self.texts(150, 200), k=k, budget=25
        )
        truth = np.argsort(-self.scores[150:], axis=1)[:, :k]
        got = [[int(hit.id) for hit in row] for row in found]
        return np.mean([np.isin(t, g).mean() for t, g in zip(truth, got, strict=True)])


@pytest.fixture
def world():
    return World()


@pytest.fixture
def cached(world, tmp_path):
    with CachedScorer(CallableScorer(world.score, "true"), tmp_path / "scores.db") as scorer:
        yield scorer


def searched(world, cached, count, index=None):
    index = index or world.index()
    Searcher(index, cached, METHOD)(world.texts(0, count), k=5, budget=25)
    return index


def test_searches_get_better_by_what_others_left_behind(world, cached):
    index = searched(world, cached, 15)
    before, calls = world.recall(index), world.calls
    index.learn(cached, retriever="vectors")
    assert world.calls == calls
    early = world.recall(index)
    searched(world, cached, 150, index)
    learned = index.learn(cached, retriever="vectors")
    late = world.recall(index)
    assert before + 0.02 < early
    assert early + 0.02 < late
    assert (learned.queries, learned.anchors) == (150, 0)
    assert learned.pairs >= 150 * 25  # the first queries were searched again, and better


def test_what_was_learned_is_kept_with_the_index(world, cached, tmp_path):
    index = searched(world, cached, 40)
    index.save(tmp_path / "index")
    own = Settings(share=0.5, noise=0.1)
    learned = index.learn(cached, retriever="vectors", settings=own)
    expected = world.recall(index)
    loaded = ItemIndex.load(tmp_path / "index", query_vectors=world.vectors_of)
    assert loaded.learned.meta() == learned.meta()
    assert loaded.learned.settings == own
    assert world.recall(loaded) == expected
    loaded.save(tmp_path / "copy")
    copy = ItemIndex.load(tmp_path / "copy", query_vectors=world.vectors_of)
    assert world.recall(copy) == expected


def test_settings_are_those_given_then_those_learned_then_the_defaults(world, cached):
    index = searched(world, cached, 20)

    def noise(spec):
        return method(spec).plan(index, 25, 0).predictor.noise

    assert noise(METHOD) == Settings().noise
    index.learn(cached, retriever="vectors", settings=Settings(noise=0.11))
    assert noise(METHOD) == 0.11
    assert noise(METHOD[:-1] + ", noise=0.3)") == 0.3
    assert noise(METHOD[:-1] + ", anchors=false)") == Settings().noise


def test_scores_of_another_cross_encoder_are_never_mixed_in(world, cached, tmp_path):
    index = searched(world, cached, 20)
    clean = index.learn(cached, retriever="vectors")
    with CachedScorer(CallableScorer(lambda p: [9.0] * len(p), "other"), cached._store.path) as b:
        Searcher(index, b, "rerank(retriever=vectors)")(world.texts(0, 60), k=5, budget=25)
        again = index.learn(cached, retriever="vectors")
        np.testing.assert_array_equal(clean.covariance.factor, again.covariance.factor)
        assert again.pairs == clean.pairs
        with pytest.raises(
            InputError, match="learned from scores of the cross-encoder callable:true"
        ):
            Searcher(index, b, METHOD)("query 3", k=2, budget=10)
        anchored = world.index()
        anchored.add_anchors(CallableScorer(world.score, "true"), world.texts(0, 4))
        with pytest.raises(InputError, match="scores of two are never mixed"):
            anchored.learn(b, retriever="vectors")


def test_anchors_are_added_to_what_is_sparse_and_are_enough(world, cached):
    index = searched(world, cached, 20)
    index.add_anchors(cached, world.texts(10, 30))
    both = index.learn(cached, retriever="vectors")
    assert (both.queries, both.anchors, both.pairs) == (30, 20, 10 * 25 + 20 * N)
    alone = index.learn(retriever="vectors")
    assert (alone.queries, alone.pairs) == (20, 20 * N)
    plan = method(METHOD).plan(index, 25, 0)
    index.learned = None
    fresh = method(METHOD).plan(index, 25, 0)
    np.testing.assert_allclose(
        plan.predictor.covariance.factor, fresh.predictor.covariance.factor, rtol=1e-4, atol=1e-5
    )


def test_queries_whose_texts_were_not_kept_and_items_that_are_gone_are_left_out(world, tmp_path):
    with CachedScorer(
        CallableScorer(world.score, "true"), tmp_path / "a.db", store_queries=False
    ) as silent:
        index = searched(world, silent, 10)
        assert silent.paid(index.items.texts)[0] == []
        with pytest.raises(InputError):
            index.learn(silent, retriever="vectors")
    with CachedScorer(CallableScorer(world.score, "true"), tmp_path / "b.db") as cached:
        searched(world, cached, 10)
        queries, pairs, scores = cached.paid(index.items.texts[:70])
        assert pairs.item.max() < 70
        np.testing.assert_allclose(
            scores,
            world.score(
                [(queries[q], f"item {i}") for q, i in zip(pairs.query, pairs.item, strict=True)]
            ),
            rtol=1e-6,
        )


def test_items_of_equal_texts_have_equal_scores(tmp_path):
    scorer = CallableScorer(lambda pairs: [float(len(q)) for q, _ in pairs], "length")
    with CachedScorer(scorer, tmp_path / "s.db") as cached:
        list(cached.score(Pairs(np.array([0]), np.array([1])), ["abc"], ["x", "y"]))
        queries, pairs, scores = cached.paid(["y", "z", "y"])
    assert queries == ["abc"]
    assert pairs.item.tolist() == [0, 2]
    assert scores.tolist() == [3.0, 3.0]


def test_a_first_stage_that_was_not_learned_for_is_refused(world, cached):
    index = searched(world, cached, 20)
    index.learn(cached, retriever="vectors")
    with pytest.raises(InputError, match="learned to predict from vectors"):
        method("kriging(retriever=random)").plan(index, 25, 0)
    method("kriging(retriever=random, anchors=false)").plan(index, 25, 0)
    method("kriging(retriever=random, mean=vectors)").plan(index, 25, 0)


@pytest.mark.parametrize(
    ("count", "said"), [(0, "nothing to learn from"), (1, "say nothing about how items vary")]
)
def test_one_query_teaches_nothing(world, cached, count, said):
    index = world.index()
    if count:
        searched(world, cached, count, index)
    with pytest.raises(InputError, match=said):
        index.learn(cached, retriever="vectors")
    assert index.learned is None


def test_an_index_remembers_what_was_folded_in(world, cached, tmp_path):
    index = searched(world, cached, 12)
    index.save(tmp_path / "index")
    retriever = folded(index, cached.fingerprint, cached)
    again = folded(
        ItemIndex.load(tmp_path / "index", query_vectors=world.vectors_of), cached.fingerprint, None
    )
    assert isinstance(again, SparseScores)
    assert len(retriever) == len(again) == 12 * 25
    np.testing.assert_array_equal(retriever.score, again.score)
    bank = ScoreBank.open(
        index.items.texts, fingerprint=cached.fingerprint, folder=tmp_path / "index" / "work-pairs"
    )
    assert len(bank) == 12 * 25
    assert len(folded(index, "other", None)) == 0


def test_a_damaged_cache_is_said(world, cached):
    searched(world, cached, 3)
    with sqlite3.connect(cached._store.path) as db:
        db.execute("DROP TABLE scores")
    with pytest.raises(InputError, match="not a readable score cache"):
        cached.paid(["item 1"])


def test_learning_from_all_scores_gives_axn_vectors_too(world, cached, tmp_path):
    index = searched(world, cached, 120)
    index.save(tmp_path / "index")
    spec = "axn(retriever=vectors, rounds=4, ridge=0.3)"
    before, calls = world.recall(index, spec), world.calls
    learned = learn_all(index, cached.fingerprint, cached, retriever=parse("vectors"))
    assert world.calls == calls
    assert learned.settings == Settings()
    assert index.fitted[VECTORS].cost.calls == 120 * 25
    assert before + 0.05 < world.recall(index, spec)
    loaded = ItemIndex.load(tmp_path / "index", query_vectors=world.vectors_of)
    assert loaded.learned.pairs == 120 * 25
    again = learn_all(loaded, cached.fingerprint, retriever=parse("vectors"))
    np.testing.assert_array_equal(again.covariance.factor, learned.covariance.factor)


@pytest.fixture
def other(world, tmp_path):
    """The cache of another cross-encoder, with scores of the same items."""
    scorer = CallableScorer(lambda pairs: [-x for x in world.score(pairs)], "other")
    with CachedScorer(scorer, tmp_path / "other.db") as cached:
        Searcher(world.index(), cached, "rerank(retriever=vectors)")(
            world.texts(0, 9), k=5, budget=25
        )
        yield cached


def test_a_refused_log_leaves_nothing_behind(world, cached, other, tmp_path):
    index = world.index()
    index.add_anchors(cached, world.texts(0, 5))
    index.save(tmp_path / "index")
    with pytest.raises(InputError, match="never mixed"):
        learn_all(index, other.fingerprint, other, retriever=parse("vectors"))
    assert not (tmp_path / "index" / "work-pairs").exists()
    searched(world, cached, 12)
    assert learn_all(index, cached.fingerprint, cached, retriever=parse("vectors")).queries == 12
    with pytest.raises(InputError, match="never mixed"):
        folded(index, other.fingerprint, other)


def test_anchors_of_another_cross_encoder_than_the_log_are_learned_alone(
    world, cached, other, tmp_path, caplog
):
    index = searched(world, cached, 12)
    index.save(tmp_path / "index")
    learn_all(index, cached.fingerprint, cached, retriever=parse("vectors"))
    index.add_anchors(other, world.texts(20, 25))
    with pytest.raises(InputError, match="has learned from scores of the cross-encoder"):
        Searcher(index, other, METHOD)("query 3", k=2, budget=10)
    targeted = METHOD[:-1] + ", target_recall=0.9)"
    with pytest.raises(InputError, match="holds scores of the cross-encoder"):
        Searcher(index, cached, targeted)("query 3", k=2, budget=10)
    found = learn_all(index, other.fingerprint, retriever=parse("vectors"))
    assert (found.queries, found.anchors) == (5, 5)
    assert "not learning from the pairs in the index" in caplog.text
    Searcher(index, other, METHOD)("query 3", k=2, budget=10)


def test_a_cache_that_is_of_no_use_is_said(world, cached, other):
    with pytest.raises(InputError, match="the cache has no score of these items"):
        learn_all(world.index(), cached.fingerprint, cached)
    index = world.index()
    index.add_anchors(CallableScorer(world.score, "true"), world.texts(0, 4))
    with pytest.raises(InputError, match="never mixed"):
        index.learn(other)


def test_an_index_built_again_of_the_same_items_has_learned_the_same(world, cached, caplog):
    index = searched(world, cached, 12)
    index.learn(cached, retriever="vectors")
    again = world.index()
    assert again.take_paid(index)
    assert again.learned is index.learned
    moved = ItemIndex.build(
        world.records, vectors=world.items + 1, query_vectors=world.vectors_of, bm25=False
    )
    moved.take_paid(index)
    assert moved.learned is None
    assert "crossknn learn INDEX" in caplog.text


def test_the_same_stages_in_other_words_are_the_same(world, cached):
    index = searched(world, cached, 20)
    learned = index.learn(cached, retriever="hybrid(vectors)")
    plan = method("kriging(retriever=hybrid)").plan(index, 25, 0)
    assert plan.predictor.covariance.mean is learned.covariance.mean


def test_anchors_that_came_later_are_not_passed_over(world, cached):
    index = world.index()
    index.add_anchors(cached, world.texts(0, 20))
    index.learn(retriever="vectors")
    index.add_anchors(cached, world.texts(20, 40))
    used = method(METHOD).plan(index, 25, 0).predictor.covariance
    index.learn(retriever="vectors")
    np.testing.assert_allclose(used.mean, index.learned.covariance.mean, rtol=1e-5, atol=1e-5)


def test_vectors_of_the_log_take_no_place_of_others(world, cached):
    index = searched(world, cached, 30)
    mine = FittedVectors(values=world.items, method="mine", base="vectors")
    index.add_fitted(VECTORS, mine)
    learn_all(index, cached.fingerprint, cached, retriever=parse("vectors"))
    assert index.fitted[VECTORS].method == "mine"
    index = searched(world, cached, 30)
    index.add_fitted("paid", mine)
    learn_all(index, cached.fingerprint, cached, retriever=parse("vectors"))
    assert index.fitted_names == ("paid",)


def test_what_cannot_be_learned_from_is_said(world, cached):
    index = searched(world, cached, 5)
    none = np.empty(0, np.int64)
    for scores, said in (
        (SparseScores.of([], N + 1, Pairs(none, none), np.empty(0)), "are of 151 items"),
        ("scores.db", "give a CachedScorer"),
    ):
        with pytest.raises(InputError, match=said):
            index.learn(scores, retriever="vectors")
    with pytest.raises(InputError, match="rank is 0"):
        index.learn(cached, retriever="vectors", rank=0)
    with pytest.raises(InputError, match="priors for 150 items"):
        index.add_retriever("views", ItemPriors(np.ones(3)))
    for values in (["a"], [[1.0]], [np.nan]):
        with pytest.raises(InputError, match="one for each item"):
            ItemPriors(values)


def test_priors_are_one_more_column_of_the_mean(world, cached):
    index = searched(world, cached, 5)
    index.add_retriever("liked", ItemPriors(world.liked))
    spec = "kriging(retriever=vectors, mean=hybrid(vectors, liked), anchors=false, rounds=4)"
    assert world.recall(index, spec) > world.recall(index, spec.replace(", liked", "")) + 0.05


def test_a_target_for_fewer_items_than_asked_for_is_refused(world, cached):
    index = world.index()
    index.add_anchors(cached, world.texts(0, 20))
    spec = METHOD[:-1] + ", target_recall=0.5, k=3)"
    with pytest.raises(InputError, match="give the method k=5, too"):
        Searcher(index, cached, spec)("query 3", k=5, budget=25)


def test_results_say_when_every_query_expected_enough(world, cached):
    index = world.index()
    index.add_anchors(cached, world.texts(0, 40))
    for option, said in ((", target_recall=0.1, k=5)", "target"), (")", "budget")):
        spec = METHOD[:-1] + option
        found = Searcher(index, cached, spec)(world.texts(150, 160), k=5, budget=40)
        assert found.stopped_by == said
        assert (found.n_scored < 400) == (said == "target")
