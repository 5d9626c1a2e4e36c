"""Every rival against an implementation written from its paper alone, query by query."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from references.agreement import MATRICES, Case, assert_agrees, in_order, known_of, stored
from references.problem import Problem, equal_batches
from rival_references import acurank, graph, reformulations, vectors

from crossknn_lab.rivals.item_scores import ITEM_SCORES

SPECS = """
fixeditem(anchor_share=0.5)
itemcur(anchor_share=0.5, center=none)
itemcur(anchor_share=0.5, center=auto, rcond=0.03)
gar(retriever=dense, graph=dense, neighbours=16, batch=B)
gar(retriever=bm25, graph=dense, neighbours=8, batch=B)
gar(retriever=dense, graph=dense, neighbours=16, batch=B, affinity=set, set_share=0.5, softmax=raw)
gar(retriever=bm25, graph=dense, neighbours=16, batch=B, affinity=set, set_share=0.1)
ladr(retriever=dense, graph=dense, neighbours=8, retriever_share=0.5, depth=10, batch=B)
ladr(retriever=bm25, graph=dense, neighbours=4, retriever_share=0.5, mode=proactive)
greedy(retriever=dense, graph=dense, neighbours=8, retriever_share=0.5, batch=B)
gar(retriever=dense, graph=scores, neighbours=16, batch=B)
ladr(retriever=bm25, graph=scores, neighbours=8, retriever_share=0.5, depth=10, batch=B)
greedy(retriever=dense, graph=scores, neighbours=8, retriever_share=0.5, batch=B)
feedback(vectors=dense, retriever=dense, retriever_share=0.2, rounds=R, a=1.0, b=1.0, c=0.03, normalize=none)
feedback(vectors=dense, retriever=bm25, retriever_share=0.2, rounds=R, b=0.5, c=0.1, pairs=3, normalize=first)
refit(vectors=dense, retriever=dense, retriever_share=0.2, rounds=R, steps=20, lr=1.0, normalize=anchors)
acurank(retriever=dense, batch=B)
acurank(retriever=hybrid(bm25, dense), shortlist=40, batch=B)
reformir(vectors=dense, retriever=dense, reformulations=4, feedback=5, blend=0.3, batch=B)
reformir(vectors=dense, retriever=hybrid(bm25, dense), reformulations=3, feedback=3, blend=0.6, depth=40, batch=B)
""".strip().splitlines()


class RivalCase(Case):
    """A spec of a rival, and what its reference has to be told."""

    references = {
        **{name: getattr(vectors, name) for name in ("feedback", "refit", "fixeditem", "itemcur")},
        **{name: getattr(graph, name) for name in ("gar", "ladr", "greedy")},
        "reformir": reformulations.reformir,
        "acurank": acurank.acurank,
    }

    def __init__(self, spec: str, rounds: int, budget: int) -> None:
        super().__init__(spec, rounds, budget)
        self.options["softmax_of"] = self.options.get("softmax", "standardized")
        if self.name == "reformir":
            self.trends = ("dense", "bm25") if self.retriever == "hybrid" else (self.retriever,)

    def center(self, problem: Problem) -> bool | float:
        return self.options.get("center") == "auto"

    def sizes(self) -> Sequence[int]:
        budget, rounds = self.budget, self.rounds
        if self.name in ("feedback", "refit"):
            sample = round(0.2 * budget)
            return [sample, *equal_batches(budget - sample, rounds)]
        if self.name in ("itemcur", "fixeditem") or "mode" in self.options:
            return [budget // 2, budget - budget // 2]
        seeds = budget // 2 if self.name in ("ladr", "greedy") else 0
        size = budget // rounds
        return [seeds, *(min(size, budget - done) for done in range(seeds, budget, size))]

    def problem(self, name: str, query: int) -> Problem:
        """Neighbours are by cosine, ties by position, or L2G's by the anchors' scores."""
        problem, pairs = super().problem(name, query), stored(name).artifacts.get(ITEM_SCORES)
        more = {"neighbours": neighbours(name, str(self.options.get("graph")))}
        if pairs is not None:
            more["item_scores"] = pairs.arrays["scores"].astype(np.float64)
            more["item_queries"] = pairs.arrays["items"]
            if self.name == "fixeditem":
                more["retriever"] = in_order(pairs.arrays["items"], len(problem.retriever))
        return Problem(**{**vars(problem), **more})


@cache
def neighbours(name: str, of: str) -> np.ndarray:
    if of == "scores":
        return graph.graph_of_rankings(known_of(name)["anchor_scores"], 16)
    items = known_of(name)["items"]
    unit = items / np.linalg.norm(items, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :16]


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("spec", SPECS)
def test_a_rival_scores_what_its_reference_scores(name, spec):
    if spec.startswith(("fixeditem", "itemcur")):
        name = "medquad-two"  # the one matrix with scores of items in the query's place
    assert_agrees(name, spec, RivalCase)
