"""Every method against an implementation written from its paper alone, query by query.

Two comparisons on stored scores, with 3, 5 and 10 rounds and three budgets:

- given the same observations, each round's batch equals the reference's, but for items whose
  values lie within 1e-4 of the cut between what is taken and what is not;
- searched from the start, the sets of scored items are equal for 98% of the queries. A swap at a
  tie sends a search another way, so that this holds where the first does and ties are rare.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from synthetic import run
from threadpoolctl import threadpool_limits

from crossknn.index.stored import StoredMatrix
from crossknn.methods import method
from crossknn.types import NO_ITEM
from references import (
    adacur,
    anncur,
    axn,
    feedback,
    fixeditem,
    gar,
    gaussian_process,
    greedy,
    itemcur,
    kriging,
    ladr,
    refit,
    rerank,
    tour,
)
from references.cur import encoder_zero
from references.loop import Rank, equal_batches, search
from references.problem import Batch, Problem

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
ROUNDS, BUDGETS = (3, 5, 10), (30, 60, 120)
CUT = 1e-4
EQUAL = 0.98
QUERIES = int(os.environ.get("CROSSKNN_REFERENCE_QUERIES", "1"))
"""Test queries of each matrix; `make campaign` takes thirty."""
PART = dict(zip(ROUNDS, reversed(BUDGETS), strict=True)) if QUERIES == 1 else {}
"""Of one query, the budget that each number of rounds is tried with; else all are."""


@dataclass(frozen=True)
class Case:
    """A spec, in which {rounds}, {batch} and {budget} stand for numbers, and its reference."""

    spec: str
    rank: Callable[..., object]
    sizes: Callable[[int, int], Sequence[int]]
    retriever: str = "dense"
    options: dict[str, object] = field(default_factory=dict)
    takes_budget: bool = False
    trends: tuple[str, ...] = ("dense",)
    queries: int = QUERIES
    rounds: tuple[int, ...] = ROUNDS
    least: int = 1
    """Batches are this large, or left out: as many scores as the mean has columns leave it to
    rounding where the columns are nearly alike."""


def two(share: float) -> Callable[[int, int], Sequence[int]]:
    """A first batch of a share of the budget, then the rest."""
    return lambda budget, rounds: (round(share * budget), budget - round(share * budget))


def in_batches(budget: int, rounds: int) -> Sequence[int]:
    size = budget // rounds
    return [min(size, budget - done) for done in range(0, budget, size)]


def seeded(budget: int, rounds: int) -> Sequence[int]:
    seeds, size = budget // 2, budget // rounds
    return [seeds, *(min(size, budget - done) for done in range(seeds, budget, size))]


def sampled(budget: int, rounds: int) -> Sequence[int]:
    retriever = round(0.2 * budget)
    return [retriever, *equal_batches(budget - retriever, rounds)]


def eight_first(budget: int, rounds: int) -> Sequence[int]:
    retriever = max(budget // rounds, 8)
    left, later = budget - retriever, rounds - 1
    return [retriever, *(left // later + (r < left % later) for r in range(later))]


def split(budget: int, rounds: int) -> Sequence[int]:
    return adacur.split_batches(budget, rounds, budget // 2)


CASES = {
    "rerank": Case("rerank(retriever=dense)", rerank.rank, lambda b, r: [b], rounds=(5,)),
    "rerank hybrid": Case(
        "rerank(retriever=hybrid(bm25, dense))",
        rerank.rank,
        lambda b, r: [b],
        "hybrid",
        rounds=(5,),
    ),
    "anncur": Case("anncur(anchors=0.5, center=none)", anncur.rank, two(0.5), "fixed", rounds=(5,)),
    "anncur centred": Case(
        "anncur(anchors=0.2, retriever=dense, center=auto, rcond=0.01)",
        anncur.rank,
        two(0.2),
        options={"center": "zero", "rcond": 0.01},
        rounds=(5,),
    ),
    "adacur": Case(
        "adacur(retriever=dense, rounds={rounds}, center=none)", adacur.rank, equal_batches
    ),
    "adacur centred": Case(
        "adacur(retriever=bm25, rounds={rounds}, center=auto, rcond=0.03)",
        adacur.rank,
        equal_batches,
        "bm25",
        {"center": "zero", "rcond": 0.03},
    ),
    "adacur split": Case(
        "adacur(retriever=dense, rounds={rounds}, split=0.5, center=none)", adacur.rank, split
    ),
    "axn raw": Case(
        "axn(vectors=dense, retriever=dense, rounds={rounds}, blend=0.0, normalize=none)",
        axn.rank,
        equal_batches,
        options={"normalize": "none"},
    ),
    "axn normalized": Case(
        "axn(vectors=dense, retriever=dense, rounds={rounds}, blend=0.0, normalize=anchors)",
        axn.rank,
        equal_batches,
        options={"normalize": "anchors"},
    ),
    "axn by the first batch": Case(
        "axn(vectors=dense, retriever=bm25, rounds={rounds}, blend=0.3, normalize=first)",
        axn.rank,
        equal_batches,
        "bm25",
        {"normalize": "first", "blend": 0.3},
    ),
    "axn blend": Case(
        "axn(vectors=dense, retriever=hybrid(bm25, dense), rounds={rounds}, blend=0.5, normalize=anchors, rcond=0.1)",
        axn.rank,
        equal_batches,
        "hybrid",
        {"normalize": "anchors", "blend": 0.5, "rcond": 0.1},
    ),
    "axn ridge": Case(
        "axn(vectors=dense, retriever=dense, rounds={rounds}, ridge=0.3)",
        axn.rank,
        equal_batches,
        options={"ridge": 0.3},
    ),
    "tour kl": Case(
        "tour(vectors=dense, retriever=dense, rounds={rounds}, loss=kl, lr=1.0, normalize=none)",
        tour.rank,
        equal_batches,
        options={"loss": "kl", "lr": 1.0},
    ),
    "tour kl normalized": Case(
        "tour(vectors=dense, retriever=dense, rounds={rounds}, loss=kl, lr=3.0, normalize=anchors)",
        tour.rank,
        equal_batches,
        options={"loss": "kl", "lr": 3.0, "normalize": "anchors"},
    ),
    "tour mse": Case(
        "tour(vectors=dense, retriever=bm25, rounds={rounds}, loss=mse, lr=0.1, normalize=none)",
        tour.rank,
        equal_batches,
        "bm25",
        {"loss": "mse", "lr": 0.1},
    ),
    "fixeditem": Case(
        "fixeditem(anchors=0.5)", fixeditem.rank, two(0.5), "fixed items", rounds=(5,)
    ),
    "itemcur": Case(
        "itemcur(anchors=0.5, center=none)", itemcur.rank, two(0.5), "fixed", rounds=(5,)
    ),
    "itemcur centred": Case(
        "itemcur(anchors=0.5, center=auto, rcond=0.03)",
        itemcur.rank,
        two(0.5),
        "fixed",
        {"center": True, "rcond": 0.03},
        rounds=(5,),
    ),
    "gar": Case(
        "gar(retriever=dense, graph=dense, neighbours=16, batch={batch})",
        gar.rank,
        in_batches,
        options={"neighbours": 16},
    ),
    "gar from bm25": Case(
        "gar(retriever=bm25, graph=dense, neighbours=8, batch={batch})",
        gar.rank,
        in_batches,
        "bm25",
        {"neighbours": 8},
    ),
    "set affinity": Case(
        "gar(retriever=dense, graph=dense, neighbours=16, batch={batch}, affinity=set, best=0.5, softmax=raw)",
        gar.rank,
        in_batches,
        options={"neighbours": 16, "affinity": "set", "best": 0.5, "softmax_of": "raw"},
        takes_budget=True,
    ),
    "set affinity scaled": Case(
        "gar(retriever=bm25, graph=dense, neighbours=16, batch={batch}, affinity=set, best=0.1)",
        gar.rank,
        in_batches,
        "bm25",
        {"neighbours": 16, "affinity": "set", "best": 0.1, "softmax_of": "standardized"},
        takes_budget=True,
    ),
    "ladr adaptive": Case(
        "ladr(retriever=dense, graph=dense, neighbours=8, seeds=0.5, depth=10, batch={batch})",
        ladr.rank,
        seeded,
        options={"neighbours": 8, "seeds": 0.5, "depth": 10},
        takes_budget=True,
    ),
    "ladr proactive": Case(
        "ladr(retriever=bm25, graph=dense, neighbours=4, seeds=0.5, mode=proactive)",
        ladr.rank,
        two(0.5),
        "bm25",
        {"neighbours": 4, "seeds": 0.5, "mode": "proactive"},
        takes_budget=True,
        rounds=(5,),
    ),
    "greedy": Case(
        "greedy(retriever=dense, graph=dense, neighbours=8, seeds=0.5, batch={batch})",
        greedy.rank,
        seeded,
        options={"neighbours": 8, "seeds": 0.5},
        takes_budget=True,
    ),
    "gp": Case(
        "gp(vectors=dense, retriever=dense, rounds={rounds}, kernel=rbf, scale=1.0, noise=0.05, mean=constant, beta=1.0, "
        "query=false)",
        gaussian_process.rank,
        equal_batches,
        options={"scale": 1.0, "noise": 0.05, "mean": "constant", "beta": 1.0},
    ),
    "gp query": Case(
        "gp(vectors=dense, retriever=dense, rounds={rounds}, scale=2.0, mean=average, beta=0.5, query=true)",
        gaussian_process.rank,
        equal_batches,
        options={"scale": 2.0, "mean": "average", "beta": 0.5, "query": True},
    ),
    "gp matern": Case(
        "gp(vectors=dense, retriever=hybrid(bm25, dense), rounds={rounds}, kernel=matern, mean=first, beta=0)",
        gaussian_process.rank,
        equal_batches,
        "hybrid",
        {"kernel": "matern", "mean": "first", "beta": 0.0},
        trends=("bm25", "dense"),
        least=4,
    ),
    "gp linear": Case(
        "gp(vectors=dense, retriever=bm25, rounds={rounds}, kernel=linear, noise=0.3, mean=first, beta=0)",
        gaussian_process.rank,
        equal_batches,
        "bm25",
        {"kernel": "linear", "noise": 0.3, "mean": "first", "beta": 0.0},
        trends=("bm25",),
    ),
    "feedback": Case(
        "feedback(vectors=dense, retriever=dense, sample=0.2, rounds={rounds}, a=1.0, b=1.0, c=0.03, normalize=none)",
        feedback.rank,
        sampled,
        options={"a": 1.0, "b": 1.0, "c": 0.03},
    ),
    "feedback of the widest pairs": Case(
        "feedback(vectors=dense, retriever=bm25, sample=0.2, rounds={rounds}, b=0.5, c=0.1, pairs=3, normalize=first)",
        feedback.rank,
        sampled,
        "bm25",
        {"b": 0.5, "c": 0.1, "pairs": 3, "normalize": "first"},
    ),
    "refit": Case(
        "refit(vectors=dense, retriever=dense, sample=0.2, rounds={rounds}, steps=20, lr=1.0, normalize=anchors)",
        refit.rank,
        sampled,
        options={"steps": 20, "lr": 1.0, "normalize": "anchors"},
    ),
    "kriging": Case(
        "kriging(vectors=dense, retriever=dense, rounds={rounds}, rank=100, share=0.7, scale=2.0, smooth=0.3, "
        "linear=0.5, noise=0.25)",
        kriging.rank,
        eight_first,
    ),
    "kriging of two retrievers": Case(
        "kriging(vectors=dense, retriever=hybrid(bm25, dense), rounds={rounds}, rank=20, share=0.5, scale=1.0, smooth=0.5, "
        "linear=0.3, noise=0.1, beta=0.5)",
        kriging.rank,
        eight_first,
        "hybrid",
        {
            "rank": 20,
            "share": 0.5,
            "scale": 1.0,
            "smooth": 0.5,
            "linear": 0.3,
            "noise": 0.1,
            "beta": 0.5,
        },
        trends=("bm25", "dense"),
    ),
    "kriging without anchors": Case(
        "kriging(vectors=dense, retriever=dense, rounds={rounds}, anchors=false, noise=0.1, beta=1)",
        kriging.rank,
        eight_first,
        options={"anchors": False, "noise": 0.1, "beta": 1.0},
    ),
}


@cache
def stored(name: str) -> StoredMatrix:
    return StoredMatrix.load(DATA / f"{name}.npz")


@cache
def neighbours(name: str) -> np.ndarray:
    """The 16 nearest other items by cosine, ties by position."""
    vectors = stored(name).item_vectors.astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :16]


@cache
def arrays(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Vectors of items and of queries, the anchors' exact scores, and the retrievers' scores."""
    data = stored(name)
    items = data.item_vectors.astype(np.float64)
    queries = data.query_vectors.astype(np.float64)
    cheap = {"dense": queries @ items.T, "bm25": data.firsts["bm25"].astype(np.float64)}
    return items, queries, data.scores[: data.n_anchors].astype(np.float64), cheap


def problem_of(name: str, query: int, case: Case) -> Problem:
    """What the reference may read of test query `query`: from the file's arrays alone."""
    data, (items, queries, exact, cheap) = stored(name), arrays(name)
    row, n = data.n_anchors + query, data.scores.shape[1]
    anchors = slice(0, data.n_anchors)

    def ahead(order: np.ndarray) -> np.ndarray:
        retriever = np.full(n, -1e9)
        retriever[order] = -np.arange(len(order), dtype=np.float64)
        return retriever

    def fused() -> np.ndarray:
        total = np.zeros(n)
        for scores in (cheap["bm25"][row], cheap["dense"][row]):
            order = np.argsort(-scores, kind="stable")
            total[order] += 1 / (60 + np.arange(1, n + 1))
        return total

    firsts = {
        "dense": lambda: cheap["dense"][row],
        "bm25": lambda: cheap["bm25"][row],
        "hybrid": fused,
        "fixed": lambda: ahead(data.anchor_items),
        "fixed items": lambda: ahead(data.item_scores.items),
    }
    pairs = data.item_scores
    return Problem(
        retriever=firsts[case.retriever](),
        items=items,
        query=queries[row],
        anchor_scores=exact,
        anchor_queries=queries[anchors],
        neighbours=neighbours(name),
        trends=tuple(cheap[trend][row] for trend in case.trends),
        anchor_trends=tuple(cheap[trend][anchors] for trend in case.trends),
        item_scores=None if pairs is None else pairs.scores.astype(np.float64),
        item_queries=None if pairs is None else pairs.items,
    )


def reference(case: Case, problem: Problem, budget: int) -> Rank:
    options = dict(case.options)
    if options.get("center") == "zero":
        options["center"] = encoder_zero(problem)
    if case.takes_budget:
        options["budget"] = budget
    return partial(case.rank, **options)


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
        ranked = rank(problem, batches[:number])
        size = len(batch.items)
        taken = ranked.items[:size]
        if set(taken.tolist()) == set(batch.items.tolist()):
            continue
        cut = ranked.values[size - 1]
        values = dict(zip(ranked.items.tolist(), ranked.values.tolist(), strict=True))
        swapped = set(taken.tolist()) ^ set(batch.items.tolist())
        worst = max(worst, *(abs(values[item] - cut) for item in swapped))
    return worst


def compare(name: str, case: Case, rounds: int, budget: int) -> tuple[float, float]:
    """The largest disagreement over the queries, and the share with equal sets at the end."""
    data = stored(name)
    spec = case.spec.format(rounds=rounds, batch=budget // rounds)
    picks = run(method(spec), data, budget, tests=case.queries).picks()
    sizes = [size for size in case.sizes(budget, rounds) if size]
    worst, equal = 0.0, 0
    for query in range(case.queries):
        problem = problem_of(name, query, case)
        scores = data.scores[data.n_anchors + query].astype(np.float64)
        rank = reference(case, problem, budget)
        batches = batches_of(picks, query, scores)
        assert [len(batch.items) for batch in batches] == list(sizes)
        worst = max(worst, disagreement(rank, problem, batches))
        alone = search(rank, problem, scores, sizes)
        ours = {item for batch in batches for item in batch.items.tolist()}
        equal += ours == {item for batch in alone for item in batch.items.tolist()}
    return worst, equal / case.queries


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Small matrices: threads of the linear algebra would wait for each other. What kriging's
    reference learns from the same anchors is learned once."""
    learn, known = kriging.learn, {}

    def once(problem, rank):
        key = (id(problem.anchor_scores), len(problem.anchor_trends), rank)
        if key not in known:
            known[key] = learn(problem, rank)
        return known[key]

    monkeypatch.setattr(kriging, "learn", once)
    with threadpool_limits(1):
        yield


@pytest.mark.parametrize("name", ["medquad-two", "wordnet-artifact"])
@pytest.mark.parametrize("case", CASES)
def test_a_method_scores_what_its_reference_scores(name, case):
    if case in ("fixeditem", "itemcur", "itemcur centred") and stored(name).item_scores is None:
        name = "medquad-two"  # the one matrix with scores of items in the query's place
    found = {
        (rounds, budget): compare(name, CASES[case], rounds, budget)
        for rounds in CASES[case].rounds
        for budget in BUDGETS
        if budget // rounds >= CASES[case].least
        and (len(CASES[case].rounds) == 1 or budget == PART.get(rounds, budget))
    }
    far = {key: worst for key, (worst, _) in found.items() if worst > CUT}
    assert not far
    searches = len(found) * CASES[case].queries
    unequal = searches - sum(equal for _, equal in found.values()) * CASES[case].queries
    assert unequal <= max(1, (1 - EQUAL) * searches)
