"""Several encoders in one index: a trend of each, and the fit chooses which one leads."""

import numpy as np
import pytest
from index_helpers import LengthEncoder

import crossknn as ck
from crossknn import CallableScorer
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.methods.kriging import Kriging, compared_vectors
from crossknn.methods.prior import Prior, trend_retrievers
from crossknn.retrievers.specs import default_vectors, first_stage, open_retriever, stage_names
from crossknn.spec import parse
from crossknn.types import Queries

N, M, D = 120, 40, 8
ORDERS = ["good", "noise"], ["noise", "good"]


class World:
    """Scores that the vectors "good" explain but for noise, and vectors "noise" that say nothing."""

    def __init__(self):
        rng = np.random.default_rng(5)
        self.items = {name: rng.normal(size=(N, D)).astype(np.float32) for name in ORDERS[0]}
        self.queries = {name: rng.normal(size=(M, D)).astype(np.float32) for name in ORDERS[0]}
        exact = self.queries["good"] @ self.items["good"].T
        self.exact = (exact + rng.normal(size=exact.shape)).astype(np.float32)
        self.scorer = CallableScorer(self.score, "true")
        self.texts = [f"query {q}" for q in range(M)]

    def score(self, pairs):
        return [self.exact[int(q.split()[1]), int(i.split()[1])] for q, i in pairs]

    def encode(self, name):
        return lambda texts: self.queries[name][[int(text.split()[1]) for text in texts]]

    def given(self, names):
        encode = {name: self.encode(name) for name in names}
        return {"vectors": {name: self.items[name] for name in names}, "query_vectors": encode}

    def index(self, names, **options):
        records = [{"id": str(i), "text": f"item {i}"} for i in range(N)]
        return ItemIndex.build(records, **self.given(names), **options)


@pytest.fixture(scope="module")
def world():
    return World()


def retrieved(index, name, query, count):
    return open_retriever(index, name).top(Queries([query]), count).items[0].tolist()


@pytest.mark.parametrize("names", ORDERS)
def test_without_a_fit_the_first_named_leads_and_each_is_a_trend(world, names, tmp_path):
    index = world.index(names, folder=tmp_path / "index")
    for of in (
        index,
        ItemIndex.load(tmp_path / "index", query_vectors=world.given(names)["query_vectors"]),
    ):
        assert (first_stage(of), default_vectors(of)) == (names[0], names[0])
        assert stage_names(of, trend_retrievers(of)) == ("bm25", *names)
        assert stage_names(of, parse("hybrid")) == ("bm25", names[0])
        plan = Kriging().plan(of, 40, 0)
        assert len(plan.predictor.columns) == 3
        queries = Queries(["query 39"])
        first = plan.retriever.top(queries, 8).items[0].tolist()
        assert first == retrieved(of, names[0], "query 39", 8)


@pytest.mark.parametrize("names", ORDERS)
def test_the_fit_weighs_them_and_chooses_the_first_batch(world, names, tmp_path):
    index = world.index(names, folder=tmp_path / "index")
    ck.collect_anchors(index, world.scorer, world.texts[:30])  # fits the prior, too
    index = ItemIndex.load(tmp_path / "index", query_vectors=world.given(names)["query_vectors"])
    view = index.for_scorer(world.scorer.fingerprint)
    prior = Prior.from_artifact(view.artifacts["kriging"])
    assert prior.retriever == f"hybrid(bm25, {', '.join(names)})"
    stages = stage_names(view, parse(prior.retriever))
    assert (stages[prior.lead], prior.space) == ("good", "good")
    assert compared_vectors(view, prior) == "good"
    means = dict(zip(stages, prior.trends[-1].mean[1:], strict=False))
    assert means["good"] > 5 * abs(means["noise"])
    plan = Kriging().plan(view, 40, 0)
    for query in world.texts[30:33]:
        first = plan.retriever.top(Queries([query]), 8).items[0].tolist()
        assert first == retrieved(index, "good", query, 8)
    named = Kriging(retriever=parse("noise")).plan(view, 40, 0)  # a named retriever stays
    first = named.retriever.top(Queries(["query 39"]), 8).items[0].tolist()
    assert first == retrieved(index, "noise", "query 39", 8)


def test_a_search_finds_as_much_whichever_is_named_first(world):
    recalls = []
    for names in ORDERS:
        index = world.index(names, bm25=False)
        ck.collect_anchors(index, world.scorer, world.texts[:30])
        found = ck.Searcher(index, world.scorer).search(world.texts[30:], k=5, budget=20)
        truth = np.argsort(-world.exact[30:], axis=1)[:, :5]
        rows = zip(truth, found, strict=True)
        recalls.append(np.mean([np.isin(t, [int(h.id) for h in row]).mean() for t, row in rows]))
    assert recalls[0] == recalls[1] > 0.9


def test_vectors_that_queries_lack_are_no_trend(world):
    given = world.given(["noise", "good"])
    del given["query_vectors"]["noise"]
    index = ItemIndex.build([f"item {i}" for i in range(N)], **given)
    assert (first_stage(index), default_vectors(index)) == ("good", "good")
    assert str(trend_retrievers(index)) == "hybrid"
    assert stage_names(index, parse("hybrid")) == ("bm25", "good")


class Characters(LengthEncoder):
    """Vectors of another model than `LengthEncoder`'s."""

    fingerprint = "characters"

    def encode_queries(self, texts):
        return np.array([[text.count("a"), text.count("e"), 1] for text in texts], np.float32)


def test_several_models_are_kept_by_name(tmp_path):
    texts, models = ["a cat", "some trees", "eaten"], {"one": LengthEncoder(), "two": Characters()}
    index = ItemIndex.build(texts, encoder=models, folder=tmp_path / "index")
    assert not list(index.folder.glob("work-*"))
    again = ItemIndex.build([*texts, "new"], encoder=models, folder=tmp_path / "index")
    loaded = ItemIndex.load(tmp_path / "index", encoder=models)
    for found in (again, loaded):
        assert [*found.vectors] == ["one", "two"]
        assert str(trend_retrievers(found)) == "hybrid(bm25, one, two)"
        for name, model in models.items():
            made = found.query_vectors(Queries(["a tea"]), name)
            np.testing.assert_array_equal(made, model.encode_queries(["a tea"]))
            np.testing.assert_array_equal(found.vectors[name], model.encode_items([*texts, "new"]))
    loaded.add([{"id": "ape", "text": "an ape"}])
    np.testing.assert_array_equal(
        loaded.vectors["two"][4], Characters().encode_queries(["an ape"])[0]
    )
    given = ItemIndex.build(texts, encoder=models, vectors={"two": np.ones((3, 3))})
    assert given.vectors["two"].all()
    assert given.model_of("two").fingerprint == "characters"
    with pytest.raises(InputError, match="cannot be named 'bm25'"):
        ItemIndex.build(texts, encoder={"bm25": LengthEncoder()})
