"""What kriging learns from by offline calls: dense anchor queries, sparse exact scores, nothing.

    python lab/benchmarks/kriging_offline.py scifact.npz wordnet-act.npz ...

Sparse scores are those of each anchor query with some items: the retriever's best (top), those
that a search by kriging without anchors scored (log), or random ones. Writes
benchmarks/results/kriging_offline.json; what is there already is kept, unless `--again`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kept_rows import KeptRows, add_options
from threadpoolctl import threadpool_limits

from crossknn.evaluation.replay import outcome, parts_of, truth_of
from crossknn.index.base import Index
from crossknn.index.stored import StoredMatrix
from crossknn.methods.kriging import Kriging, Prior, fit_dense
from crossknn.methods.kriging.factor_model import fit_sparse
from crossknn.retrievers.specs import open_retriever
from crossknn.scores.views import SparseScores
from crossknn.search.loop import simulate
from crossknn.spec import Spec
from crossknn.types import FloatArray, IntArray, Pairs

KS = (1, 10, 100)
BUDGETS = (100, 200)
ENTRIES = (100, 200, 50, 25)
ANCHORS = (10, 25, 50)
KINDS = ("log", "top", "random")
FIRST = Spec("dense")


@dataclass(frozen=True, kw_only=True)
class Given(Kriging):
    """Kriging with a prior that was fitted elsewhere, or none."""

    known: Prior | None = None

    def prior(self, index: Index, seed: int) -> Prior | None:
        return self.known


def cheap_of(matrix: StoredMatrix) -> FloatArray:
    """First-stage scores of the anchor queries: (q, n)."""
    seen, queries = matrix.rows(0, 1)[0].anchored()
    return open_retriever(seen, FIRST, 0).scores(queries)


def chosen(matrix: StoredMatrix, kind: str, b: int) -> IntArray:
    """The b items of each anchor query whose exact scores are known: (q, b)."""
    seen, queries = matrix.rows(0, 1)[0].anchored()
    exact = matrix.scores[: matrix.n_anchors]
    if kind == "random":
        rng = np.random.default_rng(0)
        return np.stack([rng.permutation(seen.n)[:b] for _ in exact])
    if kind == "top":
        return open_retriever(seen, FIRST, 0).top(queries, b).items
    plan = Given(retriever=FIRST, anchors=False).plan(seen, b, 0)
    return simulate(plan, queries, exact).observed().items


def entries(matrix: StoredMatrix, items: IntArray) -> tuple[SparseScores, list[FloatArray]]:
    """The exact scores of the anchor queries with their `items` (q, b), and the cheap ones."""
    pairs = Pairs(np.repeat(np.arange(len(items)), items.shape[1]), items.ravel())
    exact = matrix.scores[pairs.query, pairs.item]
    texts = matrix.query_ids[: matrix.n_anchors]
    sparse = SparseScores.of(texts, matrix.scores.shape[1], pairs, exact)
    return sparse, [cheap_of(matrix)[sparse.query, sparse.item]]


def priors(matrix: StoredMatrix) -> Iterator[tuple[str, int, Any]]:
    """(name, offline calls, how the prior is fitted) of every row."""
    exact, (q, n) = matrix.scores, (matrix.n_anchors, matrix.scores.shape[1])

    def dense(count: int) -> Prior:
        return fit_dense(exact[:count], [cheap_of(matrix)[:count]])

    def sparse(kind: str, b: int) -> Prior:
        known, cheap = entries(matrix, chosen(matrix, kind, b))
        assert matrix.item_vectors is not None
        return fit_sparse(known, cheap, matrix.item_vectors)

    yield "nothing", 0, lambda: None
    for count in (*(a for a in ANCHORS if a < q), q):
        yield f"dense {count}", count * n, lambda count=count: dense(count)
    for kind in KINDS:
        for b in ENTRIES:
            yield f"{kind} {b}", q * b, lambda kind=kind, b=b: sparse(kind, b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    parser.add_argument("--only", nargs="+", default=[], help="rows that begin so, as 'log' does")
    add_options(parser, "kriging_offline")
    options = parser.parse_args()
    kept = KeptRows(options.out, again=options.again)
    for path in options.matrices:
        matrix = StoredMatrix.load(path)
        known = {row["name"] for row in kept.of(path.stem)}
        parts = parts_of(matrix, matrix.n_tests)
        truth = truth_of(parts, max(KS))
        for name, calls, make in priors(matrix):
            if name in known or not name.startswith(tuple(options.only) or ""):
                continue
            with threadpool_limits(1):
                began = time.process_time()
                covariance = make()
                seconds = time.process_time() - began
                one = Given(retriever=FIRST, anchors=covariance is not None, known=covariance)
                made = [outcome(name, one, parts, truth, budget=b, ks=KS) for b in BUDGETS]
            recall = {
                str(budget): {k: values.tolist() for k, values in each.recall.items()}
                for budget, each in zip(BUDGETS, made, strict=True)
            }
            row = {"name": name, "offline": calls, "seconds": seconds, "recall": recall}
            kept.add(path.stem, [row])
            print(path.stem, name, f"{seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
