"""What leaves a search is not what it goes on writing to; no plan reads what it does not use."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from contracts.test_every_method import pytest_generate_tests  # noqa: F401
from synthetic import ALIGNED_METHODS, METHODS, aligned_matrix, matrix

from crossknn.evaluation.outcome import Replayed
from crossknn.methods import parse_method
from crossknn.search.loop import Search, simulate
from crossknn.types import Named, Observed, Ranking

PARTS = {
    "observed": lambda search: search.observed(),
    "picks": lambda search: search.picks(),
    "best": lambda search: search.best(5),
    "n_scored": lambda search: search.n_scored,
    "stopped": lambda search: search.stopped,
    "unfinished": lambda search: search.unfinished,
}


def arrays(value):
    """The arrays of what a search gives out."""
    if isinstance(value, Observed | Ranking):
        return [getattr(value, field.name) for field in fields(value)]
    return [value]


def rounds():
    """A search, stopped after each of its rounds."""
    index, queries, scores = matrix().rows(0, 3)
    plan = parse_method("axn(retriever=dense, rounds=4, normalize=none)").plan(index, 24, 0)
    search = Search(plan, queries, index.n)
    while len(pairs := search.ask()):
        search.tell(pairs, scores[pairs.query, pairs.item])
        yield search


@pytest.mark.parametrize("part", PARTS)
def test_what_is_given_out_is_a_copy(part):
    """It stays as it was, and writing to it changes no search."""
    untouched = [search.picks().items for search in rounds()]
    given, copies = [], []
    for search, picks in zip(rounds(), untouched, strict=True):
        np.testing.assert_array_equal(search.picks().items, picks)
        given += arrays(PARTS[part](search))
        copies += [array.copy() for array in arrays(PARTS[part](search))]
        for array in arrays(PARTS[part](search)):
            if array.flags.writeable:
                array[...] = 0
    assert len(untouched) == 4
    for array, copy in zip(given, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


class Touchy:
    """An index whose exact scores may be read by those who say so."""

    def __init__(self, index, readable):
        self._index, self._readable, self.touched = index, set(readable), set()

    def __getattr__(self, name):
        if name in ("anchors", "anchored"):
            self._touch({"anchored": "anchors"}.get(name, name))
        return getattr(self._index, name)

    @property
    def artifacts(self):
        kept = self._index.artifacts
        return Named(kept, lambda name: (self._touch(name), kept[name])[1])

    def scale(self, name):
        self._touch(name)
        return self._index.scale(name)

    def _touch(self, name):
        self.touched.add(name)
        assert name in self._readable, f"{name} is read"


FREE = (
    "kriging(retriever=dense, rounds=3, use_anchors=false)",
    "kriging(retriever=hybrid(bm25, dense), use_anchors=false, shortlist=30)",
    "axn(retriever=dense, rounds=3, normalize=first)",
    "axn(retriever=dense, rounds=3, ridge=0.3)",
    "tour(retriever=dense, rounds=3, normalize=none)",
    "rerank(retriever=dense)",
    "exact",
)
SPECS = METHODS + ALIGNED_METHODS + FREE


def test_a_plan_reads_the_exact_scores_that_it_says(spec):
    data = aligned_matrix() if spec in ALIGNED_METHODS else matrix()
    index, queries, scores = data.rows(0, 2)
    chosen = parse_method(spec)
    says = set(chosen.required_artifacts(index))
    # Whether there is a prior may be asked by whoever would use it.
    allowed = says | ({"kriging"} if chosen.name == "kriging" and chosen.use_anchors else set())
    touchy = Touchy(index, allowed)
    simulate(chosen.plan(touchy, 20, 0), queries, scores)
    assert says <= touchy.touched


@pytest.mark.parametrize(
    "reader",
    ["adacur(retriever=dense)", "kriging(retriever=dense)", "axn(retriever=dense, blend=0)"],
)
def test_whoever_reads_the_anchors_is_charged_with_them(reader):
    data = matrix()
    seen = Replayed(data)
    parse_method(reader).plan(seen, 20, 0)
    assert seen.calls == 20 * 80
