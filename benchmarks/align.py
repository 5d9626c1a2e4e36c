"""What aligning buys: recall of searches on fitted vectors against what fitting them cost
(AXN figures 1, 9, 10), on stored score matrices.

    python benchmarks/align.py wordnet-act.npz scifact.npz
    python benchmarks/align.py wordnet-act.npz --domain noun.act --data wordnet --encoder MiniLM \
        --scorer CE --work WORK      # more train queries, and pseudo-queries, scored by the CE

Of a matrix's anchor queries the last 60 (or a fifth) are dev queries, on which blend and ridge are
chosen; train queries come from the others, or from the data's other mentions. Offline calls are
what G, or the anchors' rows, cost or would have cost. Resumable: rows that are in the file are not
made again, and no pair is scored twice.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.align.aligners import aligner
from crossknn.align.bank import ScoreBank
from crossknn.align.collect import collect
from crossknn.align.cur import cur
from crossknn.align.factors import inner_products
from crossknn.align.plan import Plan, per_item, per_query
from crossknn.align.pseudo import pseudo_queries
from crossknn.align.sparse import SparseScores
from crossknn.data.labelled import read_labelled
from crossknn.data.marks import unmarked
from crossknn.evaluation.replay import replay
from crossknn.first.vectors import VectorFirst
from crossknn.indexes.base import Scale
from crossknn.indexes.storage import digest
from crossknn.indexes.stored import StoredMatrix
from crossknn.methods import methods
from crossknn.scorers import CrossEncoder, DualEncoder
from crossknn.types import FloatArray, Pairs, Queries

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
    parser.add_argument("--domain", help="of the ZESHEL folder --data: the matrix's texts")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--encoder", help="the matrix's dual encoder")
    parser.add_argument("--scorer", help="the matrix's cross-encoder")
    parser.add_argument("--work", type=Path, help="where scores are kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/align.json")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for path in options.matrices:
        world = World(StoredMatrix.load(path))
        pools = [world.own()] if options.domain is None else scored_pools(world, options)
        part = found.setdefault(path.stem, {"about": world.about(), "rows": {}})
        for name, make in world.wanted(pools, options):
            if name in part["rows"]:
                continue
            began = time.perf_counter()
            part["rows"][name] = make()
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{path.stem} {name}: {time.perf_counter() - began:.0f} s", flush=True)


class Pool:
    """Train queries: their vectors (q, d), and exact scores of pairs of them and items."""

    def __init__(self, name: str, vectors: FloatArray) -> None:
        self.name, self.vectors = name, vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def scores(self, pairs: Pairs) -> FloatArray:
        raise NotImplementedError


class StoredPool(Pool):
    """The first rows of a matrix."""

    def __init__(self, matrix: StoredMatrix, vectors: FloatArray) -> None:
        super().__init__("", vectors)
        self.matrix = matrix

    def scores(self, pairs: Pairs) -> FloatArray:
        return self.matrix.scores[pairs.query, pairs.item]


class ScoredPool(Pool):
    """Texts that the cross-encoder scores, once."""

    def __init__(
        self,
        name: str,
        texts: list[str],
        vectors: FloatArray,
        items: list[str],
        options: argparse.Namespace,
    ) -> None:
        super().__init__(name, vectors)
        self.texts, self.items = texts, items
        self.scorer = CrossEncoder(options.scorer, threads=1)
        folder = options.work / f"pairs-{options.domain}"
        self.bank = ScoreBank.open(
            len(items), items=digest(items), fingerprint=self.scorer.fingerprint, folder=folder
        )

    def scores(self, pairs: Pairs) -> FloatArray:
        collect(self.bank, self.scorer, self.texts, self.items, pairs)
        found = self.bank.scores(self.texts, pairs)
        place = np.lexsort((pairs.item, pairs.query))
        values = np.empty(len(pairs), np.float32)
        values[place] = found.score
        return values


def scored_pools(world: World, options: argparse.Namespace) -> list[Pool]:
    """The domain's mentions that are neither dev nor test queries; and pseudo-queries."""
    (corpus,) = read_labelled(options.data, domains=[options.domain])
    ids = world.matrix.query_ids
    kept_out = {ids[q] for q in (*world.dev, *world.tests)}
    others = [q for q, i in enumerate(corpus.queries.ids) if i not in kept_out]
    others = list(np.random.default_rng(SEED).permutation(others))
    real = [corpus.queries.texts[q] for q in others]
    made = pseudo_queries(corpus.items, len(real), marked=True, seed=SEED)
    encoder = DualEncoder(options.encoder)
    pools: list[Pool] = []
    for name, texts in (("more", real), ("pseudo", made)):
        vectors = encoder.encode_queries([unmarked(text) for text in texts])
        items = list(corpus.items.texts)
        pools.append(ScoredPool(name, texts, vectors, items, options))
    return pools


class World:
    """A matrix apart in train, dev and test queries."""

    def __init__(self, matrix: StoredMatrix) -> None:
        self.matrix = matrix
        anchors = matrix.n_anchors
        self.dev = np.arange(anchors - min(60, anchors // 5), anchors)
        self.tests = np.arange(anchors, len(matrix.scores))
        self.train = anchors - len(self.dev)
        if matrix.item_vectors is None or matrix.query_vectors is None:
            raise SystemExit("the matrix has no item_vectors and query_vectors to start from")
        self.items, self.queries = matrix.item_vectors, matrix.query_vectors

    def about(self) -> dict[str, int]:
        return {
            "items": len(self.items),
            "train": self.train,
            "dev": len(self.dev),
            "tests": len(self.tests),
        }

    def own(self) -> Pool:
        return StoredPool(self.matrix, self.queries[: self.train])

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

    def wanted(self, pools: list[Pool], options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
        """(name of a row, what makes it)."""
        given = [int(q) for q in options.train.split(",")]
        fits = [fit.strip() for fit in options.fits.split(";")]
        if options.domain is None:
            yield "dual encoder", partial(self.searched, "de", {})
            for q in sorted({min(q, self.train) for q in given}):
                yield f"{q} rows, adacur", partial(self.adacur, q)
                yield f"{q} rows, cur", partial(self.cur, q)
        for pool in pools:
            for q in sorted({min(q, len(pool)) for q in given}):
                for count in (int(c) for c in options.per_query.split(",")):
                    for fit in fits:
                        name = f"{q} {pool.name} x {count}, {fit}".replace("  ", " ")
                        yield name, partial(self.fitted, pool, q, count, fit)
            for count in (int(c) for c in options.per_item.split(",") if c):
                for fit in fits:
                    name = f"items x {count} {pool.name}, {fit}".replace(" ,", ",")
                    yield name, partial(self.fitted, pool, None, count, fit)

    def plan(self, pool: Pool, q: int | None, count: int) -> Plan:
        """Pairs of G, as `crossknn align` chooses them."""
        n = len(self.items)
        if q is None:
            return per_item(n, len(pool), count, seed=SEED)
        batch = Queries([str(i) for i in range(q)], {"de": pool.vectors[:q]})
        stage = VectorFirst(self.items, lambda part: part.vectors["de"])
        return per_query(stage, batch, count, n=n, random=count // 10, seed=SEED)

    def fitted(self, pool: Pool, q: int | None, count: int, fit: str) -> dict[str, Any]:
        """Vectors fitted to G of q train queries (None: of items in turn)."""
        plan = self.plan(pool, q, count)
        pairs, chance = plan.pairs, plan.chance
        queries = pool.vectors[: q or len(pool)]
        texts = [str(i) for i in range(len(queries))]
        g = SparseScores.of(texts, len(self.items), pairs, pool.scores(pairs))
        inner = inner_products(queries, self.items, chance.query, chance.item)
        scale = Scale.match(pool.scores(chance), inner)
        made = aligner(fit).fit(g, self.items, queries, scale, SEED)
        cost = {
            "calls": len(g),
            "fit_seconds": round(made.seconds, 2),
            "held_out": made.held_out,
            "initial": made.initial,
            "untouched": made.untouched,
        }
        return self.searched("fitted", cost, made)

    def cur(self, q: int) -> dict[str, Any]:
        part = self.part(q, self.tests)
        made = cur(part.scores[:q], center=part.scale.alpha, queries=self.queries[:q], seed=SEED)
        cost = {"calls": q * len(self.items), "fit_seconds": round(made.seconds, 2)}
        return self.searched("fitted", cost | {"rank": made.items.shape[1]}, made)

    def adacur(self, q: int) -> dict[str, Any]:
        """No vectors, and nothing to choose."""
        row: dict[str, Any] = {"calls": q * len(self.items)}
        for budget, k in GOALS:
            spec = f"adacur(first=de, rounds={ROUNDS // 2})"
            row[goal(budget, k)] = {"adacur": recall(self.part(q, self.tests), spec, budget, k)}
        return row

    def searched(self, name: str, cost: dict[str, Any], made: Any = None) -> Any:
        """RNR, AXN with the blend and with the ridge that were best on dev, for each goal."""

        def with_vectors(part: StoredMatrix) -> StoredMatrix:
            if made is None:
                return part
            queries = made.map(part.query_vectors)
            return part.with_vectors(name, np.asarray(made.items, np.float32), queries, made.scale)

        dev = with_vectors(self.part(self.train, self.dev))
        tests = with_vectors(self.part(self.train, self.tests))
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
