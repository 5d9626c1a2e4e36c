"""Late interaction as a retriever, with a model of NumPy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late_helpers import WordStates

import crossknn as ck
from crossknn.errors import SpecError
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.retrievers.base import LateRetriever
from crossknn.retrievers.specs import open_retriever
from crossknn.types import NO_ITEM, Candidates, Queries

WORDS = "cat dog fish tree stone cloud river light".split()  # noqa: SIM905
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, size=RNG.integers(2, 6))) for _ in range(40)]
QUERIES = ["cat dog", "stone in a river", "light"]


class Listed:
    """A retriever that gives these rows, whatever is asked."""

    def __init__(self, *rows):
        self.rows = [np.array(row, np.int64) for row in rows]

    def top(self, queries, count, allowed=None):
        kept = [row if allowed is None else row[allowed[row]] for row in self.rows]
        return Candidates.from_rows([(r[:count], -np.arange(len(r[:count]))) for r in kept])

    def scores(self, queries):
        """Those of `top`, where each row has every item."""
        return -np.argsort(self.rows, axis=1).astype(np.float32)


@pytest.fixture
def model():
    return WordStates()


@pytest.fixture
def states(model):
    return model.encode_items(TEXTS)


@pytest.fixture
def index(model):
    made = ck.ItemIndex.build(TEXTS, lsa=4)
    made.add_late(model)
    return made


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_the_first_candidates_are_ranked_by_the_model_and_the_stages_order_follows(
    model, states, depth
):
    rows = [[7, 3, 9, 1, 30], [5], [2, 4, 8, 16, 32, 39, 0, 1]]
    stage = LateRetriever(Listed(*rows), model, states, depth, "cmc")
    queries = Queries(QUERIES)
    found = stage.top(queries, 6)
    for q, row in enumerate(rows):
        few = row[:depth]
        scores = model.compare(model.encode_queries([QUERIES[q]]), states, np.array([few]))[0]
        order = [few[j] for j in np.lexsort((few, -scores))] + row[depth:]
        kept = found.items[q] != NO_ITEM
        assert found.items[q][kept].tolist() == order[:6]
        assert np.isfinite(found.scores[q][kept]).all()
        assert (np.diff(found.scores[q][kept]) <= 0).all()
        assert (found.scores[q][~kept] == -np.inf).all()


@given(
    depth=st.integers(1, 50),
    count=st.integers(0, 45),
    allowed=st.sets(st.integers(0, 39), min_size=1),
    seed=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_top_is_the_top_of_the_scores_and_asks_the_stage_for_allowed_items_only(
    depth, count, allowed, seed
):
    model = WordStates()
    orders = [np.random.default_rng(seed + q).permutation(40) for q in range(3)]
    stage = LateRetriever(Listed(*orders), model, model.encode_items(TEXTS), depth, "cmc")
    queries = Queries(QUERIES)
    everything = top_k(stage.scores(queries), 40)
    found = stage.top(queries, count)
    assert np.array_equal(found.items, everything.items[:, :count])
    assert np.array_equal(found.scores, everything.scores[:, :count])
    permitted = np.isin(np.arange(40), list(allowed))
    some = stage.top(queries, count, permitted)
    assert permitted[some.items[some.items != NO_ITEM]].all()
    assert some.items.shape[1] == min(count, len(allowed))
    compared = model.compared[-1]
    assert permitted[compared[compared != NO_ITEM]].all()
    assert compared.shape[1] == min(max(depth, 0), len(allowed))


def test_queries_are_encoded_once_and_beside_the_stage(states):
    beside = threading.Event()

    class Slow(WordStates):
        def encode_queries(self, texts):
            assert beside.wait(10), "the stage has not begun while queries are encoded"
            return super().encode_queries(texts)

    class Opening(Listed):
        def top(self, queries, count, allowed=None):
            beside.set()
            return super().top(queries, count, allowed)

    model, queries = Slow(), Queries(["cat"])
    stage = LateRetriever(Opening(range(40)), model, states, 2, "mine")
    first = stage.top(queries, 3)
    assert list(queries.states) == ["mine"]
    assert np.array_equal(stage.top(queries, 3).items, first.items)
    stage.scores(queries)
    assert model.encoded == [["cat"]]
    assert len(model.compared) == 3  # never cached


def test_the_grammar(index, model):
    stage = open_retriever(index, "cmc(retriever=bm25, depth=7)")
    assert (stage.depth, type(stage.stage).__name__) == (7, "BM25")
    default = open_retriever(index, "cmc")
    assert (default.depth, type(default.stage).__name__) == (512, "BM25")
    fused = open_retriever(index, "hybrid(cmc(retriever=lsa), bm25)")
    assert [type(part).__name__ for part in fused.stages] == ["LateRetriever", "BM25"]
    index.add_late(WordStates("som"), "mine")
    nested = open_retriever(index, "mine(retriever=cmc(retriever=bm25))")
    assert (nested.name, nested.stage.name) == ("mine", "cmc")
    for text in ("cmc(retriever=bm25, depth=3)", "mine"):
        assert str(parse_method(f"retrieve(retriever={text})")) == f"retrieve(retriever={text})"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cmc(dept=3)", "retriever 'cmc' has no option 'dept': did you mean depth"),
        ("cmc(depth=0)", r"cmc\(depth=0\): depth must be 1 or more"),
        ("som", r"no retriever 'som': .*cmc.*crossknn index prepare"),
        ("lsa(depth=3)", "takes no options"),
    ],
)
def test_specs_that_are_wrong(index, spec, message):
    with pytest.raises(SpecError, match=message):
        open_retriever(index, spec)
