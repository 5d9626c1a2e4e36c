"""What queries that are searched together gain, and what a prior learned from earlier searches does.

    python lab/benchmarks/together.py OUT MATRIX ...        # without a matrix: print OUT as tables

The anchors of a matrix serve as more queries or as earlier searches; nothing else is known of
them. A MATRIX may be "sample". OUT (JSON lines) gets differences to searching each query alone, in
points of own top 1, 10 and 100 with a 95% interval and a p-value, and milliseconds per query outside
scoring. A killed run is resumed by matrix.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import holm, paired
from crossknn.evaluation.outcome import QueryBatch, outcome, truth_of
from crossknn.fitting.kriging import PER_ITEM, prior_of, with_gain
from crossknn.fitting.multitask import FEWEST_SCORES, plan_together
from crossknn.methods import parse_method
from crossknn.methods.kriging import Kriging
from crossknn.retrievers.base import AllScores, Retriever
from crossknn.retrievers.specs import open_retriever
from crossknn.scores.sparse import SparseScores
from crossknn.search.loop import simulate
from crossknn.spec import Spec
from crossknn.types import Artifact, FloatArray, IntArray, Observed, Pairs, Queries
from crossknn_lab.stored import DUAL_ENCODER, StoredMatrix

KS, BUDGETS, SIZES, TESTS = (1, 10, 100), (50, 100, 200, 500), (10, 30, 100, 300), 100
LOGS = [(queries, calls) for queries in (30, 100, 300) for calls in (8, 20, 30, 120)]


class ById(StoredMatrix):
    """A matrix that finds the vectors and retrievers' scores of queries by their ids."""

    def rows_of(self, queries: Queries) -> IntArray:
        """Return the rows (m,) of queries."""
        row = {name: q for q, name in enumerate(self.query_ids)}
        return np.array([row[text] for text in queries.texts])

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        return self.spaces[name].queries[self.rows_of(queries)]

    @property
    def retrievers(self) -> dict[str, Retriever]:
        return {name: OfRows(self, scores) for name, scores in self.firsts.items()}


@dataclass(eq=False)
class OfRows(AllScores):
    """A retriever with known scores (q, n)."""

    matrix: ById
    known: FloatArray

    def of_all(self, queries: Queries) -> FloatArray:
        return self.known[self.matrix.rows_of(queries)].astype(np.float32)


@dataclass(frozen=True)
class Run:
    """Some queries of a matrix, at the positions `rows`, searched `size` together."""

    matrix: ById
    rows: IntArray
    size: int

    @property
    def parts(self) -> list[QueryBatch]:
        split = [self.rows[s : s + self.size] for s in range(0, len(self.rows), self.size)]
        texts = [[self.matrix.query_ids[row] for row in part] for part in split]
        both, of = zip(split, texts, strict=True), self.matrix
        return [QueryBatch.scored(of, Queries(t), of.scores[part]) for part, t in both]

    def recall(self, items: IntArray) -> FloatArray:
        """Recall (m, k) of scored items (m, b), in percent."""
        best = np.argsort(-self.matrix.scores[self.rows], axis=1, kind="stable")
        pairs = list(zip(best, items, strict=True))
        return np.array([[100 * np.isin(b[:k], i).mean() for k in KS] for b, i in pairs])

    def searched(self, spec: str, budget: int) -> tuple[FloatArray, float]:
        """Return the recall (m, k) of a search, and its milliseconds per query."""
        parts, method = self.parts, parse_method(spec)
        found = outcome("", method, parts, truth_of(parts, max(KS)), budget=budget, ks=KS)
        recall = np.stack([100 * found.recall[k] for k in KS], axis=1)
        return recall, round(1000 * float(found.seconds.mean()), 1)


def sparse(matrix: ById, queries: Queries, seen: Observed) -> SparseScores:
    """Convert the scores of queries with equally many scores each."""
    pairs = Pairs(np.repeat(np.arange(len(seen.items)), seen.items.shape[1]), seen.items.ravel())
    return SparseScores.of(queries.texts, matrix.n, pairs, seen.scores.ravel())


def of_file(path: Path) -> tuple[ById, int]:
    """Read a matrix; its anchors are the first queries."""
    loaded = StoredMatrix.load(path)
    given = {f.name: getattr(loaded, f.name) for f in fields(StoredMatrix) if f.init}
    return ById(**given | {"n_anchors": 0, "artifacts": {}}), loaded.n_anchors


def of_sample() -> tuple[ById, int]:
    """Make a matrix of the package's sample, of which no query is left out of the batches."""
    sample = ck.sample()
    index, queries = sample.index, Queries(sample.queries.texts)
    given: dict[str, Any] = {"scores": np.asarray(sample.scores, np.float32), "n_anchors": 0}
    given["dense_items"] = np.asarray(index.vectors[DUAL_ENCODER], np.float32)
    given["dense_queries"] = index.query_vectors(queries, DUAL_ENCODER)
    given["firsts"] = {"bm25": open_retriever(index, Spec("bm25"), 0).scores(queries)}
    return ById(**given, query_ids=tuple(queries.texts)), 0


def compared(found: FloatArray, alone: FloatArray) -> dict[str, Any]:
    """Compare recall (m, k) with that of queries searched alone."""
    rows: dict[str, Any] = {"n": len(alone), "alone": alone.mean(axis=0).round(1).tolist()}
    for k, difference in zip(KS, (found - alone).T, strict=True):
        test = paired(difference)
        values = round(test.difference, 1), round(test.low, 1), round(test.high, 1)
        rows[f"top {k}"] = [*values, round(test.p_value, 4)]
    return rows


def together(matrix: ById, first: int) -> Iterator[dict[str, Any]]:
    """Search batches of the queries after the anchors, or of 300 among all."""
    for size in SIZES:
        start = first if size <= TESTS else 0
        left = min(len(matrix.scores) - start, max(size, TESTS))
        if size > TESTS and left < size:
            continue
        at_once = min(size, left)
        run = Run(matrix, np.arange(start, start + left // at_once * at_once), at_once)
        for budget in BUDGETS if size == TESTS else BUDGETS[:-1]:
            alone, took = run.searched("auto(together=false)", budget)
            found, longer = run.searched("auto", budget)
            how = {"queries": size, "budget": budget}
            yield {"way": "together", **how, **compared(found, alone), "ms": [took, longer]}


def learned(matrix: ById, first: int) -> Iterator[dict[str, Any]]:
    """Search with what earlier searches of some anchors teach, alone and together."""
    if not first:
        return
    run = Run(matrix, np.arange(first, min(first + TESTS, len(matrix.scores))), TESTS)
    queries = Queries([matrix.query_ids[row] for row in run.rows])
    method, exact = Kriging(together=False), matrix.scores[run.rows]
    for count, calls in ((q, c) for q, c in LOGS if q <= first or q == 100):
        log = Queries(matrix.query_ids[: min(count, first)])
        plan = method.plan_with(None, matrix, calls, 0)
        scores = sparse(matrix, log, simulate(plan, log, matrix.scores[: len(log)]).observed())
        prior = with_gain(matrix, scores, prior_of(matrix, scores))
        gain, enough = prior.gain, len(scores) >= PER_ITEM * matrix.n
        used = calls >= FEWEST_SCORES and enough and gain is not None and gain.mean > 0
        taught = replace(matrix, artifacts={"kriging": Artifact(*prior.kept())})
        how = {"queries": count, "scores": calls, "used": bool(used), "gain": gain}
        for budget in BUDGETS[:-1]:
            plans = [method.plan_with(each, matrix, budget, 0) for each in (prior, None)]
            plans.append(plan_together(Kriging(), taught, budget, 0))
            of = [run.recall(simulate(plan, queries, exact).picks().items) for plan in plans]
            for way, found in (("log", of[0]), ("both", of[2])):
                yield how | {"way": way, "budget": budget, **compared(found, of[1])}


def tables(rows: list[dict[str, Any]]) -> None:
    """Print, for each way, number of queries and budget, the means of all matrices, the range of
    their means, and how many are clearly better or worse (Holm, over all comparisons of a way)."""
    tops = [f"top {k}" for k in KS]
    for way in dict.fromkeys(row["way"] for row in rows):
        of_way = [row for row in rows if row["way"] == way]
        places = [(row, top) for row in of_way for top in tops]
        adjusted = holm([row[top][3] for row, top in places])
        clear = {(id(row), top): p < 0.05 for (row, top), p in zip(places, adjusted, strict=True)}
        names = [name for name in ("queries", "scores", "used", "budget") if name in of_way[0]]
        print(f"\n{way}\n| {' | '.join([*names, 'sets', *tops])} | ms apart, together |")
        print("|---" * (len(names) + len(tops) + 2) + "|")
        cells = dict.fromkeys(tuple(row[name] for name in names) for row in of_way)
        for cell in sorted(cells):
            some = [row for row in of_way if cell == tuple(row[name] for name in names)]
            line = [*map(str, cell), str(len(some))]
            for top in tops:
                means = [row[top][0] for row in some]
                marked = [row[top][0] > 0 for row in some if clear[id(row), top]]
                counts = f"{sum(marked)}, {len(marked) - sum(marked)}"
                line.append(
                    f"{np.mean(means):+.1f} ({min(means):+.1f} to {max(means):+.1f}; {counts})"
                )
            took = [row["ms"] for row in some if "ms" in row]
            line.append(", ".join(f"{x:.0f}" for x in np.mean(took, axis=0)) if took else "")
            print(f"| {' | '.join(line)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("matrix", type=Path, nargs="*")
    options = parser.parse_args()
    done = options.out.read_text().splitlines() if options.out.exists() else []
    if not options.matrix:
        tables([json.loads(line) for line in done])
    for path in options.matrix:
        if any(json.loads(line)["matrix"] == path.stem for line in done):
            continue
        matrix, first = of_sample() if path.name == "sample" else of_file(path)
        for row in (*together(matrix, first), *learned(matrix, first)):
            done.append(json.dumps({"matrix": path.stem, **row}))
        options.out.write_text("\n".join(done) + "\n")


if __name__ == "__main__":
    main()
