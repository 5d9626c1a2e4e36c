"""Every method against an implementation written from its paper alone, query by query.

On stored scores, with 3, 5 and 10 rounds and three budgets: given the same observations, each
round's batch equals the reference's, but for items whose values lie within 1e-4 of the cut between
what is taken and what is not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, partial
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from synthetic import run
from threadpoolctl import threadpool_limits

from crossknn.spec import Spec, parse
from crossknn.types import NO_ITEM
from crossknn_lab.rivals.item_scores import ITEM_SCORES
from crossknn_lab.stored import StoredMatrix
from references import acurank, cur, graph, kriging, reformulations, vectors
from references.problem import Batch, Problem, Rank, best_first, equal_batches

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
ROUNDS, BUDGETS = (3, 5, 10), (30, 60, 120)
CUT = 1e-4
QUERIES = int(os.environ.get("CROSSKNN_REFERENCE_QUERIES", "1"))
"""Test queries of each matrix; `make campaign` takes thirty."""
PART = dict(zip(ROUNDS, reversed(BUDGETS), strict=True)) if QUERIES == 1 else {}
"""Of one query, the budget that each number of rounds is tried with; else all are."""


SPECS = """
rerank(retriever=dense)
rerank(retriever=hybrid(bm25, dense))
anncur(anchor_share=0.5, center=none)
anncur(anchor_share=0.2, retriever=dense, center=auto, rcond=0.01)
adacur(retriever=dense, rounds=R, center=none)
adacur(retriever=bm25, rounds=R, center=auto, rcond=0.03)
adacur(retriever=dense, rounds=R, anchor_share=0.5, center=none)
axn(vectors=dense, retriever=dense, rounds=R, blend=0.0, normalize=none)
axn(vectors=dense, retriever=dense, rounds=R, blend=0.0, normalize=anchors)
axn(vectors=dense, retriever=bm25, rounds=R, blend=0.3, normalize=first)
axn(vectors=dense, retriever=hybrid(bm25, dense), rounds=R, blend=0.5, normalize=anchors, rcond=0.1)
axn(vectors=dense, retriever=dense, rounds=R, ridge=0.3)
tour(vectors=dense, retriever=dense, rounds=R, loss=kl, lr=1.0, normalize=none)
tour(vectors=dense, retriever=dense, rounds=R, loss=kl, lr=3.0, normalize=anchors)
tour(vectors=dense, retriever=bm25, rounds=R, loss=mse, lr=0.1, normalize=none)
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
kriging(vectors=dense, retriever=dense, mean=hybrid(bm25, dense), rounds=R)
kriging(vectors=dense, retriever=hybrid(bm25, dense), mean=dense, rounds=R)
kriging(vectors=dense, retriever=dense, mean=hybrid(bm25, dense), rounds=R, use_anchors=false)
kriging(vectors=dense, retriever=bm25, mean=dense, rounds=R, use_anchors=false)
""".strip().splitlines()
"""R stands for the number of rounds, B for the size of a batch."""

REFERENCES = {
    **{name: getattr(cur, name) for name in ("rerank", "anncur", "adacur", "fixeditem", "itemcur")},
    **{name: getattr(vectors, name) for name in ("axn", "tour", "feedback", "refit")},
    **{name: getattr(graph, name) for name in ("gar", "ladr", "greedy")},
    "kriging": kriging.kriging,
    "reformir": reformulations.reformir,
    "acurank": acurank.acurank,
}


class Case:
    """A spec with its numbers filled in, and what the reference of its method has to be told."""

    def __init__(self, spec: str, rounds: int, budget: int) -> None:
        self.spec = spec.replace("=R", f"={rounds}").replace("=B", f"={budget // rounds}")
        self.parsed = parse(self.spec)
        self.name, self.rounds, self.budget = self.parsed.name, rounds, budget
        options = {key: _plain(value) for key, value in self.parsed.options.items()}
        fixed = "fixed items" if self.name == "fixeditem" else "fixed"
        self.retriever = str(options.get("retriever", fixed)).partition("(")[0]
        mean = str(options["mean"]) if self.name == "kriging" else self.retriever
        own = self.name in ("kriging", "reformir")
        both = mean.startswith("hybrid")
        self.trends = ("dense", "bm25") if both else (mean if own else "dense",)
        self.options = options | {"softmax_of": options.get("softmax", "standardized")}

    def rank(self, problem: Problem) -> Rank:
        """The reference, with those of the spec's options that it has."""
        rank = REFERENCES[self.name]
        known = {"budget": self.budget, **self.options, "center": False}
        if self.options.get("center") == "auto":
            known["center"] = self.name == "itemcur" or cur.encoder_zero(problem)
        return partial(rank, **{k: v for k, v in known.items() if k in signature(rank).parameters})

    def sizes(self) -> Sequence[int]:
        """The batches, as the papers have them."""
        budget, rounds = self.budget, self.rounds
        if self.name == "rerank":
            return [budget]
        if self.name == "adacur" and "anchor_share" in self.options:
            return [*equal_batches(budget // 2, rounds), budget - budget // 2]
        if self.name == "kriging":
            first, later = max(budget // rounds, 8), rounds - 1
            left = budget - first
            return [first, *(left // later + (r < left % later) for r in range(later))]
        if self.name in ("feedback", "refit"):
            sample = round(0.2 * budget)
            return [sample, *equal_batches(budget - sample, rounds)]
        if self.name in ("anncur", "itemcur", "fixeditem") or "mode" in self.options:
            first = round(float(self.options.get("anchor_share", 0.5)) * budget)
            return [first, budget - first]
        if self.name in ("gar", "ladr", "greedy", "reformir", "acurank"):
            seeds = budget // 2 if self.name in ("ladr", "greedy") else 0
            size = budget // rounds
            return [seeds, *(min(size, budget - done) for done in range(seeds, budget, size))]
        return equal_batches(budget, rounds)


def _plain(value):
    """A spec's value as a Python value."""
    known = {"true": True, "false": False, "none": "none"}
    return known.get(str(value), str(value) if isinstance(value, Spec) else value)


@cache
def stored(name: str) -> StoredMatrix:
    return StoredMatrix.load(DATA / f"{name}.npz")


@cache
def known_of(name: str) -> dict[str, np.ndarray]:
    """What all problems of a matrix share; neighbours are by cosine, ties by position."""
    data = stored(name)
    items, queries = (a.astype(np.float64) for a in (data.dense_items, data.dense_queries))
    pairs = data.artifacts.get(ITEM_SCORES)
    unit = items / np.linalg.norm(items, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return {
        "items": items,
        "anchor_scores": data.scores[: data.n_anchors].astype(np.float64),
        "anchor_queries": queries[: data.n_anchors],
        "neighbours": np.argsort(-cosines, axis=1, kind="stable")[:, :16],
        "item_scores": pairs and pairs.arrays["scores"].astype(np.float64),
        "item_queries": pairs and pairs.arrays["items"],
    }


@cache
def graph_of_scores(name: str) -> np.ndarray:
    """L2G's graph of the anchors of a matrix."""
    return graph.graph_of_rankings(known_of(name)["anchor_scores"], 16)


@cache
def cheap_scores(name: str) -> dict[str, np.ndarray]:
    """Scores (q, n) by each retriever of all queries, the anchors first."""
    data = stored(name)
    dense = data.dense_queries.astype(np.float64) @ data.dense_items.astype(np.float64).T
    return {"dense": dense, "bm25": data.firsts["bm25"].astype(np.float64)}


def problem_of(name: str, query: int, case: Case) -> Problem:
    """What the reference may read of test query `query`: from the file's arrays alone."""
    data, cheap = stored(name), cheap_scores(name)
    row = data.n_anchors + query
    if case.retriever in cheap:
        retriever = cheap[case.retriever][row]
    elif case.retriever == "hybrid":
        orders = (np.argsort(-scores[row], kind="stable") for scores in cheap.values())
        retriever = sum(1 / (61 + np.argsort(order)) for order in orders)
    else:
        order = data.anchor_items if case.retriever == "fixed" else known_of(name)["item_queries"]
        retriever = np.full(data.scores.shape[1], -1e9)
        retriever[order] = -np.arange(len(order), dtype=np.float64)
    known = known_of(name)
    if case.options.get("graph") == "scores":
        known = known | {"neighbours": graph_of_scores(name)}
    return Problem(
        **known,
        retriever=retriever,
        query=data.dense_queries[row].astype(np.float64),
        trends=tuple(cheap[trend][row] for trend in case.trends),
        anchor_trends=tuple(cheap[trend][: data.n_anchors] for trend in case.trends),
    )


def batches_of(picks, query: int, scores: np.ndarray) -> list[Batch]:
    """What the product scored of a query, round by round."""
    there = picks.items[query] != NO_ITEM
    items, rounds = picks.items[query][there], picks.rounds[query][there]
    found = [items[rounds == r].astype(np.intp) for r in np.unique(rounds)]
    return [Batch(batch, scores[batch]) for batch in found]


def disagreement(rank: Rank, problem: Problem, batches: list[Batch]) -> float:
    """How far from the cut, at most, an item lies that one takes and the other does not.

    Values of a method's own offer and of the retriever behind it are cut apart.
    """
    worst = 0.0
    for number, batch in enumerate(batches):
        before = batches[:number]
        ranked = rank(problem, before) if before else best_first(problem.retriever, before)
        size = len(batch.items)
        taken = ranked.items[:size]
        if set(taken.tolist()) == set(batch.items.tolist()):
            continue
        cut = ranked.values[size - 1]
        values = dict(zip(ranked.items.tolist(), ranked.values.tolist(), strict=True))
        swapped = set(taken.tolist()) ^ set(batch.items.tolist())
        worst = max(worst, *(abs(values[item] - cut) for item in swapped))
    return worst


def worst_of(name: str, case: Case) -> float:
    """The largest disagreement over the queries."""
    data, worst = stored(name), 0.0
    picks = run(case.spec, data, case.budget, tests=QUERIES).picks()
    for query in range(QUERIES):
        problem = problem_of(name, query, case)
        batches = batches_of(picks, query, data.scores[data.n_anchors + query].astype(np.float64))
        assert [len(batch.items) for batch in batches] == [size for size in case.sizes() if size]
        worst = max(worst, disagreement(case.rank(problem), problem, batches))
    return worst


LEARNED: dict[tuple[int, int, int], kriging.Lesson] = {}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Small matrices: threads of the linear algebra would wait for each other. What kriging's
    reference learns from the same anchors is learned once."""
    learn = kriging.learn

    def once(problem, rank):
        key = (id(problem.anchor_scores), len(problem.anchor_trends), rank)
        if key not in LEARNED:
            LEARNED[key] = learn(problem, rank)
        return LEARNED[key]

    monkeypatch.setattr(kriging, "learn", once)
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("name", ["medquad-two", "wordnet-artifact"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_method_scores_what_its_reference_scores(name, spec):
    if spec.startswith(("fixeditem", "itemcur")) and ITEM_SCORES not in stored(name).artifacts:
        name = "medquad-two"  # the one matrix with scores of items in the query's place
    varied = "=R" in spec or "=B" in spec
    for rounds in ROUNDS if varied else (5,):
        for budget in BUDGETS:
            if not varied or budget == PART.get(rounds, budget):
                assert worst_of(name, Case(spec, rounds, budget)) <= CUT, (rounds, budget)
