"""What aligning buys: recall of searches on fitted vectors against what fitting them cost
(AXN figures 1, 9, 10), on stored score matrices.

    python benchmarks/align.py MATRIX.npz ... [--train 100,240] [--out results/align.json]

Of a matrix's anchor queries the last 60 (or a fifth) are dev queries, on which blend and ridge are
chosen; train queries come from the others. G is read off the matrix, so that nothing is scored;
offline calls are what G, or the anchors' rows, would have cost. Resumable: rows that are in the
file are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.align.aligners import aligner
from crossknn.align.cur import cur
from crossknn.align.factors import inner_products
from crossknn.align.plan import per_item, per_query
from crossknn.align.sparse import SparseScores
from crossknn.evaluation.replay import replay
from crossknn.first.vectors import VectorFirst
from crossknn.indexes.base import Scale
from crossknn.indexes.stored import StoredMatrix
from crossknn.methods import methods
from crossknn.types import Pairs, Queries

ROUNDS = 10
BLENDS, RIDGES = (0.0, 0.2, 0.5, 0.8), (0.1, 0.3, 1.0)
GOALS = ((100, 1), (500, 100))  # (calls, k), as in the paper
FITS = ("als", "mf-trns", "mf-ind", "mf-ind(skip=false)")
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    parser.add_argument("--train", default="100,500,2000", help="train queries, as far as there")
    parser.add_argument("--per-query", default="25,100,1000")
    parser.add_argument("--per-item", default="2,5,10")
    parser.add_argument("--fits", default=";".join(FITS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/align.json")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for path in options.matrices:
        world = World(StoredMatrix.load(path))
        rows = found.setdefault(path.stem, {"about": world.about(), "rows": {}})["rows"]
        for name, make in world.wanted(options):
            if name in rows:
                continue
            began = time.perf_counter()
            rows[name] = make()
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{path.stem} {name}: {time.perf_counter() - began:.0f} s", flush=True)


class World:
    """A matrix apart in train, dev and test queries."""

    def __init__(self, matrix: StoredMatrix) -> None:
        self.matrix = matrix
        anchors = matrix.n_anchors
        self.dev = np.arange(anchors - min(60, anchors // 5), anchors)
        self.tests = np.arange(anchors, len(matrix.scores))
        self.pool = anchors - len(self.dev)
        if matrix.item_vectors is None or matrix.query_vectors is None:
            raise SystemExit("the matrix has no item_vectors and query_vectors to start from")
        self.items, self.queries = matrix.item_vectors, matrix.query_vectors

    def about(self) -> dict[str, int]:
        return {
            "items": len(self.items),
            "pool": self.pool,
            "dev": len(self.dev),
            "tests": len(self.tests),
        }

    def part(self, train: int, rows: np.ndarray) -> StoredMatrix:
        """The first `train` rows as anchors, and `rows` as tests."""
        chosen = np.concatenate([np.arange(train), rows])
        return replace(
            self.matrix,
            scores=self.matrix.scores[chosen],
            n_anchors=train,
            query_vectors=self.queries[chosen],
            firsts={name: scores[chosen] for name, scores in self.matrix.firsts.items()},
            query_ids=tuple(self.matrix.query_ids[q] for q in chosen),
            labels=None,
        )

    def wanted(self, options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
        """(name of a row, what makes it)."""
        given = [int(q) for q in options.train.split(",")]
        trains = sorted({min(q, self.pool) for q in given})
        yield "dual encoder", lambda: self.searched("de", {}, trains[-1])
        for q in trains:
            yield f"{q} rows, adacur", lambda q=q: self.adacur(q)
            yield f"{q} rows, cur", lambda q=q: self.cur(q)
        fits = [fit.strip() for fit in options.fits.split(";")]
        counts = [int(c) for c in options.per_query.split(",")]
        for q in trains:
            for count in counts:
                for fit in fits:
                    yield f"{q} x {count}, {fit}", lambda q=q, c=count, f=fit: self.fitted(q, c, f)
        for count in (int(c) for c in options.per_item.split(",")):
            for fit in fits:
                yield f"items x {count}, {fit}", lambda c=count, f=fit: self.fitted(None, c, f)

    def plan(self, q: int | None, count: int) -> tuple[Pairs, Pairs]:
        """Pairs of G, and those of them that are random: as `crossknn align` chooses them."""
        n = len(self.items)
        if q is None:
            pairs = per_item(n, self.pool, count, seed=SEED)
            return pairs, pairs
        batch = Queries([str(i) for i in range(q)], {"de": self.queries[:q]})
        stage = VectorFirst(self.items, lambda part: part.vectors["de"])
        random = count // 10
        pairs = per_query(stage, batch, count, n=n, random=random, seed=SEED)
        return pairs, pairs.take(np.flatnonzero(np.arange(len(pairs)) % count >= count - random))

    def fitted(self, q: int | None, count: int, fit: str) -> dict[str, Any]:
        """Vectors fitted to G of q train queries (None: of items in turn)."""
        pairs, chance = self.plan(q, count)
        train = self.pool if q is None else q
        texts = [str(i) for i in range(train)]
        scores = self.matrix.scores
        g = SparseScores.of(texts, len(self.items), pairs, scores[pairs.query, pairs.item])
        known, queries = scores[chance.query, chance.item], self.queries[:train]
        inner = inner_products(queries, self.items, chance.query, chance.item)
        made = aligner(fit).fit(g, self.items, queries, Scale.match(known, inner), SEED)
        cost = {
            "calls": len(g),
            "fit_seconds": round(made.seconds, 2),
            "held_out": made.held_out,
            "initial": made.initial,
            "untouched": made.untouched,
        }
        return self.searched("fitted", cost, train, made)

    def cur(self, q: int) -> dict[str, Any]:
        part = self.part(q, self.tests)
        made = cur(part.scores[:q], center=part.scale.alpha, queries=self.queries[:q], seed=SEED)
        cost = {"calls": q * len(self.items), "fit_seconds": round(made.seconds, 2)}
        return self.searched("fitted", cost | {"rank": made.items.shape[1]}, q, made)

    def adacur(self, q: int) -> dict[str, Any]:
        """No vectors, and nothing to choose."""
        row: dict[str, Any] = {"calls": q * len(self.items)}
        for budget, k in GOALS:
            spec = f"adacur(first=de, rounds={ROUNDS // 2})"
            row[goal(budget, k)] = {"adacur": recall(self.part(q, self.tests), spec, budget, k)}
        return row

    def searched(self, name: str, cost: dict[str, Any], train: int, made: Any = None) -> Any:
        """RNR, AXN with the blend and with the ridge that were best on dev, for each goal."""

        def with_vectors(part: StoredMatrix) -> StoredMatrix:
            if made is None:
                return part
            queries = made.map(part.query_vectors)
            return part.with_vectors(name, np.asarray(made.items, np.float32), queries, made.scale)

        dev = with_vectors(self.part(train, self.dev))
        tests = with_vectors(self.part(train, self.tests))
        row = {"calls": 0, **cost}
        for budget, k in GOALS:
            found = {"rnr": recall(tests, f"rnr(first={name})", budget, k)}
            for option, values in (("blend", BLENDS), ("ridge", RIDGES)):
                spec = f"axn(first=de, rounds={ROUNDS}, vectors={name}, {option}={{}})"
                best = max(values, key=lambda v: recall(dev, spec.format(v), budget, k)["recall"])
                found[option] = recall(tests, spec.format(best), budget, k) | {option: best}
            row[goal(budget, k)] = found
        return row


def goal(budget: int, k: int) -> str:
    return f"k={k}@{budget}"


def recall(matrix: StoredMatrix, spec: str, budget: int, k: int) -> dict[str, Any]:
    (row,) = replay(matrix, methods(spec), [budget], [k], seed=SEED)
    return {"recall": row.recall, "ci": list(row.ci)}


if __name__ == "__main__":
    main()
