"""What an index of many items will cost, beside what it then does cost."""

from __future__ import annotations

import time

import numpy as np
import pytest

from crossknn.cli.estimate import number
from crossknn.errors import InputError
from crossknn.evaluation import costs
from crossknn.evaluation.costs import estimate, nearest, seconds
from crossknn.index.item_index import ItemIndex
from crossknn.index.nearest import FaissStore, build_lists
from crossknn.methods.kriging import Kriging
from crossknn.retrievers.dense import ArrayStore
from crossknn.sample import sample
from crossknn.search.loop import simulate
from crossknn.types import Queries

FACTOR = 4
"""How far an estimate of seconds may be off, on a machine that others use too; sizes: 1.3."""


class Encoder:
    """Vectors of a few dimensions in no time; it counts what it encodes."""

    dimensions = 8
    fingerprint = None

    def encode_items(self, texts, progress=None):
        time.sleep(0.0001 * len(texts))
        return np.ones((len(texts), 8), np.float32)

    encode_queries = encode_items


@pytest.fixture
def small(monkeypatch):
    """Probes that are over at once."""
    for name, value in {"TEXTS": 60, "SMALL": 20, "ENCODED": 4, "ROWS": 1_000}.items():
        monkeypatch.setattr(costs, name, value)
    monkeypatch.setattr(costs, "seconds", lambda work, least=0.0: seconds(work, 0.0))


TEXTS = [f"how to {verb} the {noun}" for verb in ("zip", "sort", "read") for noun in "abcdefghij"]


def test_costs_grow_by_their_laws_and_scoring_is_what_the_budget_says(small, monkeypatch):
    monkeypatch.setattr(costs, "nearest", lambda n, rows: (0.001, None))
    some, more = (
        estimate(n, TEXTS, Encoder(), 50.0, budget=30, dimensions=16) for n in (10**6, 10**7)
    )
    assert some["encoding"].memory == some["encoding"].disk == 10**6 * 16 * 4
    assert more["encoding"].disk == 10 * some["encoding"].disk
    assert more["encoding"].seconds > 10**7 * 0.0001
    assert some["query: scoring"].calls == 30
    assert some["query: scoring"].seconds == pytest.approx(0.6)
    assert estimate(20, TEXTS, Encoder(), 50.0)["query: scoring"].calls == 20
    assert "the same for all n" in more["query: rounds"].basis


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "10x", "1e9", "99999B"])
def test_what_is_no_number_of_items_is_said(text):
    with pytest.raises(InputError, match="must be a number such as 3000, 20k or 100M"):
        number(text)


@pytest.mark.slow
@pytest.mark.slow
def test_estimates_for_20000_items_are_near_what_is_measured(tmp_path):
    n, encoder, rng = 20_000, Encoder(), np.random.default_rng(5)
    texts = [*sample().index.items.texts]
    texts = [f"{text} {copy}" for copy in ("a", "b") for text in texts][:n]
    found = estimate(n, texts[::10], encoder, 100.0, budget=60, dimensions=32)
    vectors = rng.standard_normal((n, 32), np.float32)
    measured = {"encoding": seconds(lambda: encoder.encode_items(texts), 0.0)}
    began = time.perf_counter()
    index = ItemIndex.build(texts, vectors=vectors, query_vectors=lambda q: vectors[: len(q)])
    measured["texts and words"] = time.perf_counter() - began
    queries, scores = Queries(texts[-1:]), rng.standard_normal((1, n), np.float32)
    measured["query: words"] = seconds(lambda: index.retrievers["bm25"].top(queries, 100))
    plan = Kriging().plan(index, 60, 0)
    measured["query: rounds"] = seconds(lambda: simulate(plan, queries, scores))
    for what, took in measured.items():
        assert found[what].seconds / took < FACTOR, what
        assert took / found[what].seconds < FACTOR, what
    index.save(tmp_path / "index")
    size = sum(file.stat().st_size for file in (tmp_path / "index").rglob("*") if file.is_file())
    estimated = found["encoding"].disk + found["texts and words"].disk
    assert estimated == pytest.approx(size, rel=0.3)


@pytest.mark.slow
def test_estimates_of_approximate_search_are_near_what_is_measured(monkeypatch):
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(costs, "LARGE", 0)
    n, d = 100_000, 64
    rows = np.random.default_rng(0).standard_normal((n, d), np.float32)
    near, lists = nearest(n, rows[: costs.ROWS])
    began = time.perf_counter()
    built = build_lists(rows)
    took = time.perf_counter() - began
    assert 1 / FACTOR < lists.seconds / took < FACTOR
    assert lists.disk == pytest.approx(len(faiss.serialize_index(built)), rel=0.3)
    store = FaissStore(rows, built)
    assert 1 / FACTOR < near / seconds(lambda: store.top(rows[:1], costs.POOL)) < FACTOR
    monkeypatch.setattr(costs, "LARGE", n + 1)
    exact, none = nearest(n, rows[: costs.ROWS])
    assert none is None
    measured = seconds(lambda: ArrayStore(rows).top(rows[:1], costs.POOL))
    assert 1 / FACTOR < exact / measured < FACTOR
