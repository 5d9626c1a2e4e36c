"""Compare a method's batches with those of an implementation written from its paper alone.

Given the same observations, each batch equals the reference's, but for items whose values lie
within `CUT` of the cut between what is taken and what is not.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from inspect import signature
from pathlib import Path

import numpy as np
from golden.cases import matrix
from synthetic import run

from crossknn.spec import Spec, parse
from crossknn.types import NO_ITEM
from crossknn_lab.stored import StoredMatrix
from references import cur, kriging, vectors
from references.problem import Batch, Problem, Rank, best_first, equal_batches

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
MATRICES = "medquad-two", "wordnet-artifact"
ROUNDS, BUDGETS = (3, 5, 10), (30, 60, 120)
CUT = 1e-4
QUERIES = int(os.environ.get("CROSSKNN_REFERENCE_QUERIES", "1"))
"""Test queries of each matrix; `make campaign` takes thirty, and all items and anchors."""
PART = dict(zip(ROUNDS, reversed(BUDGETS), strict=True)) if QUERIES == 1 else {}
"""Of one query, the budget that each number of rounds is tried with; else all are."""

REFERENCES: Mapping[str, Rank] = {
    **{name: getattr(cur, name) for name in ("rerank", "anncur", "adacur")},
    "axn": vectors.axn,
    "tour": vectors.tour,
    "kriging": kriging.kriging,
}


class Case:
    """A spec with its numbers filled in, and what the reference of its method has to be told. In a
    spec R stands for the number of rounds, B for the size of a batch."""

    references = REFERENCES

    def __init__(self, spec: str, rounds: int, budget: int) -> None:
        self.spec = spec.replace("=R", f"={rounds}").replace("=B", f"={budget // rounds}")
        self.parsed = parse(self.spec)
        self.name, self.rounds, self.budget = self.parsed.name, rounds, budget
        self.options = {key: _plain(value) for key, value in self.parsed.options.items()}
        self.retriever = str(self.options.get("retriever", "fixed")).partition("(")[0]
        mean = str(self.options.get("mean", "dense"))
        self.trends = ("dense", "bm25") if mean.startswith("hybrid") else (mean,)

    def center(self, problem: Problem) -> bool | float:
        """What CUR subtracts from scores."""
        return self.options.get("center") == "auto" and cur.encoder_zero(problem)

    def rank(self, problem: Problem) -> Rank:
        """The reference, with those of the spec's options that it has."""
        rank = self.references[self.name]
        known = {"budget": self.budget, **self.options, "center": self.center(problem)}
        return partial(rank, **{k: v for k, v in known.items() if k in signature(rank).parameters})

    def sizes(self) -> Sequence[int]:
        """The batches, as the papers have them."""
        budget, rounds = self.budget, self.rounds
        if self.name == "rerank":
            return [budget]
        if self.name == "anncur":
            first = round(float(self.options["anchor_share"]) * budget)
            return [first, budget - first]
        if "anchor_share" in self.options:
            return [*equal_batches(budget // 2, rounds), budget - budget // 2]
        if self.name == "kriging":
            first, later = max(budget // rounds, 8), rounds - 1
            left = budget - first
            return [first, *(left // later + (r < left % later) for r in range(later))]
        return equal_batches(budget, rounds)

    def problem(self, name: str, query: int) -> Problem:
        """What the reference may read of test query `query`: from the file's arrays alone."""
        data, cheap = stored(name), cheap_scores(name)
        row = data.n_anchors + query
        if self.retriever in cheap:
            retriever = cheap[self.retriever][row]
        elif self.retriever == "hybrid":
            orders = (np.argsort(-scores[row], kind="stable") for scores in cheap.values())
            retriever = sum(1 / (61 + np.argsort(order)) for order in orders)
        else:
            retriever = in_order(data.anchor_items, data.scores.shape[1])
        return Problem(
            **known_of(name),
            retriever=retriever,
            query=data.dense_queries[row].astype(np.float64),
            trends=tuple(cheap[trend][row] for trend in self.trends),
            anchor_trends=tuple(cheap[trend][: data.n_anchors] for trend in self.trends),
        )


def _plain(value):
    """A spec's value as a Python value."""
    known = {"true": True, "false": False, "none": "none"}
    return known.get(str(value), str(value) if isinstance(value, Spec) else value)


@cache
def stored(name: str) -> StoredMatrix:
    return matrix(name.split("-")[0]) if QUERIES == 1 else StoredMatrix.load(DATA / f"{name}.npz")


@cache
def known_of(name: str) -> dict[str, np.ndarray]:
    """What all problems of a matrix share."""
    data = stored(name)
    items, queries = (a.astype(np.float64) for a in (data.dense_items, data.dense_queries))
    return {
        "items": items,
        "anchor_scores": data.scores[: data.n_anchors].astype(np.float64),
        "anchor_queries": queries[: data.n_anchors],
    }


@cache
def cheap_scores(name: str) -> dict[str, np.ndarray]:
    """Scores (q, n) by each retriever of all queries, the anchors first."""
    data = stored(name)
    dense = data.dense_queries.astype(np.float64) @ data.dense_items.astype(np.float64).T
    return {"dense": dense, "bm25": data.firsts["bm25"].astype(np.float64)}


def in_order(items: np.ndarray, n: int) -> np.ndarray:
    """Scores (n,) by which these items come first, in this order."""
    scores = np.full(n, -1e9)
    scores[items] = -np.arange(len(items), dtype=np.float64)
    return scores


def batches_of(picks, query: int, scores: np.ndarray) -> list[Batch]:
    """What the product scored of a query, round by round."""
    there = picks.items[query] != NO_ITEM
    items, rounds = picks.items[query][there], picks.rounds[query][there]
    batches = [items[rounds == r].astype(np.intp) for r in np.unique(rounds)]
    return [Batch(batch, scores[batch]) for batch in batches]


def disagreement(rank: Rank, problem: Problem, batches: list[Batch]) -> float:
    """How far from the cut, at most, an item lies that one takes and the other does not. Values of a
    method's own offer and of the retriever behind it are cut apart."""
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
        problem = case.problem(name, query)
        batches = batches_of(picks, query, data.scores[data.n_anchors + query].astype(np.float64))
        assert [len(batch.items) for batch in batches] == [size for size in case.sizes() if size]
        worst = max(worst, disagreement(case.rank(problem), problem, batches))
    return worst


def assert_agrees(name: str, spec: str, kind: type[Case] = Case) -> None:
    """With 3, 5 and 10 rounds and three budgets."""
    varied = "=R" in spec or "=B" in spec
    for rounds in ROUNDS if varied else (5,):
        for budget in BUDGETS:
            if not varied or budget == PART.get(rounds, budget):
                assert worst_of(name, kind(spec, rounds, budget)) <= CUT, (rounds, budget)
