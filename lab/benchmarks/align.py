"""What aligning buys: recall of searches on fitted vectors against what fitting them cost
(AXN figures 1, 9, 10), on stored score matrices.

    python lab/benchmarks/align.py wordnet-act.npz scifact.npz
    python lab/benchmarks/align.py wordnet-act.npz --pools more,pseudo --data wordnet \
        --domain noun.act --encoder MiniLM --scorer CE --work WORK    # scored by the cross-encoder
    python lab/benchmarks/align.py wordnet-act.npz --distill 25,100 --data wordnet ...

Of a matrix's anchor queries the last 40 (or a fifth) are dev queries, on which blend and ridge are
chosen; the others are train queries. Offline calls are what G, or the anchors' rows, cost or would
have cost. Resumable: rows that are in the file are not made again, and no pair is scored twice.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from align_file import put, read
from align_world import FITTED, GOALS, SEED, Pool, ScoredPool, StoredPool, Texts, World, pools

from crossknn.data.marks import unmarked
from crossknn.fitting.cur import cur
from crossknn.fitting.factors import Targets, inner_products
from crossknn.fitting.fit import fit_method
from crossknn.fitting.pairs import PairPlan, per_item, per_query
from crossknn.index.base import Scale
from crossknn.index.stored import StoredMatrix, StoredVectors
from crossknn.retrievers.base import DenseRetriever
from crossknn.scorers import DualEncoder
from crossknn.scores.views import SparseScores
from crossknn.types import Queries

ROUNDS = 10
BLENDS, RIDGES = (0.2, 0.5, 0.8), (0.1, 0.3, 1.0)
FITS = ("als", "als(bias=0)", "mf-trns", "mf-ind", "mf-ind(skip=false)")
RANDOM_START = "mf-trns from random"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    parser.add_argument("--pools", default="own", help="own, more, pseudo: of train queries")
    parser.add_argument("--train", default="100,500,2000", help="train queries, as far as there")
    parser.add_argument("--per-query", default="25,100,500,1000")
    parser.add_argument("--per-item", default="2,5,10")
    parser.add_argument("--fits", default=";".join(FITS))
    parser.add_argument("--distill", default="", help="items a query that dual encoders learn from")
    parser.add_argument("--epochs", type=int, default=4, help="of distillation")
    parser.add_argument("--data", type=Path, help="the data set that the matrix is of")
    parser.add_argument("--domain", help="of a ZESHEL folder")
    parser.add_argument("--encoder", default="bundled", help="the matrix's dual encoder")
    parser.add_argument("--scorer", default="bundled", help="the matrix's cross-encoder")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, help="where scores and models are kept")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / "benchmarks/results/align.json"
    )
    options = parser.parse_args()
    if options.data is not None and len(options.matrices) > 1:
        parser.error("--data is of one matrix: give one")
    for path in options.matrices:
        rows = Rows(World(StoredMatrix.load(path)), options)
        about = rows.world.about()
        for name, make in rows.wanted():
            if name in read(options.out).get(path.stem, {"rows": {}})["rows"]:
                continue
            began = time.perf_counter()
            put(options.out, path.stem, about, name, make())
            print(f"{path.stem} {name}: {time.perf_counter() - began:.0f} s", flush=True)


class Rows:
    """The rows of a matrix's table: each says what its vectors cost, and what searches find."""

    def __init__(self, world: World, options: argparse.Namespace) -> None:
        self.world, self.options = world, options
        self.texts = None if options.data is None else Texts(world, options)

    def wanted(self) -> Iterator[tuple[str, Any]]:
        """(name of a row, what makes it)."""
        world, options = self.world, self.options
        given, listed, turns = (
            [int(count) for count in text.split(",") if count]
            for text in (options.train, options.per_query, options.per_item)
        )
        fits = [fit.strip() for fit in options.fits.split(";") if fit.strip()]
        for pool in pools(world, options, self.texts):
            trains = sorted({min(q, len(pool)) for q in given})
            if isinstance(pool, StoredPool):
                yield "dual encoder", partial(self.searched, {"calls": 0}, None)
                for q in trains:
                    yield f"{q} rows, adacur", partial(self.adacur, q)
                    yield f"{q} rows, cur", partial(self.cur, q)
            for q in trains:
                for count in listed:
                    for fit in fits:
                        name = f"{q} {pool.name} x {count}, {fit}".replace("  ", " ")
                        yield name, partial(self.fitted, pool, q, count, fit)
            for count in turns:
                for fit in fits:
                    name = f"items x {count} {pool.name}, {fit}".replace(" ,", ",")
                    yield name, partial(self.fitted, pool, None, count, fit)
            if isinstance(pool, StoredPool) and trains[-1] == len(pool) and 100 in listed:
                most, count = trains[-1], 100
                make = partial(self.fitted, pool, most, count)
                yield f"{most} x {count}, {RANDOM_START}", partial(make, RANDOM_START)
                if "bm25" in world.matrix.firsts:
                    yield f"{most} x {count}, als, bm25 first", partial(make, "als", first="bm25")
            for count in (int(count) for count in options.distill.split(",") if count):
                most = trains[-1]
                name = f"{most} {pool.name} x {count}, distilled".replace("  ", " ")
                yield name, partial(self.distilled, pool, most, count, False)
                if isinstance(pool, StoredPool):
                    name = f"{most} rows, distilled from the top {count}"
                    yield name, partial(self.distilled, pool, most, count, True)

    def plan(self, pool: Pool, q: int | None, count: int) -> PairPlan:
        """Pairs of G, as `crossknn fit` chooses them."""
        n = len(self.world.items)
        if q is None:
            return per_item(n, len(pool), count, seed=SEED)
        batch = Queries([str(i) for i in range(q)], {"dense": pool.vectors[:q]})
        stage = DenseRetriever(self.world.items, lambda part: part.vectors["dense"])
        return per_query(stage, batch, count, n=n, random=count // 10, seed=SEED)

    def fitted(
        self, pool: Pool, q: int | None, count: int, fit: str, first: str = "dense"
    ) -> dict[str, Any]:
        """Vectors fitted to G of q train queries (None: of items in turn)."""
        world = self.world
        plan = self.plan(pool, q, count)
        queries = pool.vectors[: q or len(pool)]
        g = SparseScores.of(
            [str(i) for i in range(len(queries))],
            len(world.items),
            plan.pairs,
            pool.scores(plan.pairs),
        )
        inner = inner_products(queries, world.items, plan.random.query, plan.random.item)
        scale = Scale.match(pool.scores(plan.random), inner)
        start, spec = (world.items, queries), fit
        if fit == RANDOM_START:
            start, spec = (random_unit(world.items, 1), random_unit(queries, 2)), "mf-trns"
        way = fit_method(spec)
        targets = Targets.of(g, *start, scale=scale, held_out=way.held_out, seed=SEED)
        made = way.factorize(targets, SEED)
        cost = {
            "calls": len(g),
            "fit_seconds": round(made.seconds, 2),
            "held_out": made.held_out,
            "initial": made.initial,
            "untouched": made.untouched,
        }
        if isinstance(pool, ScoredPool):
            cost["seconds_per_pair"] = round(pool.bank.seconds_per_pair, 6)
        mapped = None
        if fit != RANDOM_START and made.map is not None:
            mapped = made.map(world.queries)
        return self.searched(cost, StoredVectors(made.items, mapped, made.scale), first)

    def cur(self, q: int) -> dict[str, Any]:
        world = self.world
        part = world.part(world.tests, None, q)
        assert part.scale is not None
        center = part.scale.alpha
        made = cur(part.scores[:q], center=center, queries=world.queries[:q], seed=SEED)
        assert made.map is not None
        cost = {
            "calls": q * len(world.items),
            "fit_seconds": round(made.seconds, 2),
            "rank": made.items.shape[1],
        }
        mapped = made.map(world.queries)
        return self.searched(cost, StoredVectors(made.items, mapped, made.scale))

    def distilled(self, pool: Pool, q: int, count: int, dense: bool) -> dict[str, Any]:
        """DE_DSTL: by the sparse G; DE_BASE+CE: by the best `count` of dense rows, either loss."""
        from crossknn.fitting.distill import best_of_rows, distill, paper_settings

        texts, options, n = self.texts, self.options, len(self.world.items)
        if texts is None or pool.texts is None:
            raise SystemExit("--distill needs --data, --encoder and --work")
        queries = [unmarked(text) for text in pool.texts[:q]]
        calls = q * n
        if dense:
            g = best_of_rows(queries, self.world.matrix.scores[:q], count)
        else:
            plan = self.plan(pool, q, count)
            g = SparseScores.of(queries, n, plan.pairs, pool.scores(plan.pairs))
            calls = len(g)
        items = [unmarked(text) for text in texts.items.texts]
        made = distill(
            g,
            items,
            options.encoder,
            options.work / f"{'dense' if dense else 'sparse'}-{pool.name}-{q}-{count}",
            losses=("match", "pair") if dense else ("match",),
            calls=calls,
            settings=replace(paper_settings(count), epochs=options.epochs, seed=SEED),
        )
        encoder = DualEncoder(made.folder)
        vectors = encoder.encode_items(items)
        mapped = encoder.encode_queries([unmarked(text) for text in texts.queries])
        known = self.world.matrix.scores[: self.world.train]
        chance = np.random.default_rng(SEED).integers(0, n, size=(2, 10_000))
        chance[0] %= min(q, self.world.train)
        inner = inner_products(mapped, vectors, chance[0], chance[1])
        scale = Scale.match(known[chance[0], chance[1]], inner)
        cost = {
            "calls": calls,
            "fit_seconds": round(made.seconds, 2),
            "loss": made.loss,
            "epochs": options.epochs,
        }
        return self.searched(cost, StoredVectors(vectors, mapped, scale))

    def adacur(self, q: int) -> dict[str, Any]:
        """No vectors, and nothing to choose."""
        row: dict[str, Any] = {"calls": q * len(self.world.items)}
        spec = f"adacur(retriever=dense, rounds={ROUNDS // 2})"
        for budget, k in GOALS:
            row[goal(budget, k)] = {"adacur": self.world.found(spec, budget, k, train=q)}
        return row

    def searched(
        self, cost: dict[str, Any], space: StoredVectors | None, first: str = "dense"
    ) -> dict[str, Any]:
        """RNR, AXN with the blend and with the ridge that were best on dev, for each goal."""
        vectors = "dense" if space is None else FITTED
        world, row = self.world, dict(cost)
        directed = space is None or space.queries is not None
        for budget, k in GOALS:
            found: dict[str, Any] = {}
            if directed and first == "dense":
                found["rerank"] = world.found(f"rerank(retriever={vectors})", budget, k, space)
            for option, values in (("blend", BLENDS), ("ridge", RIDGES)) if directed else UNLED:
                spec = f"axn(retriever={first}, rounds={ROUNDS}, vectors={vectors}, {option}={{}})"
                best, on_dev = world.chosen(spec, values, budget, k, space)
                found[option] = world.found(spec.format(best), budget, k, space)
                found[option] |= {option: best, "dev": on_dev}
            row[goal(budget, k)] = found
        return row


UNLED = (("blend", (0.0,)),)
"""Where no vector of a query is known before its scores are."""


def random_unit(like: np.ndarray, seed: int) -> np.ndarray:
    values = np.random.default_rng([SEED, seed]).standard_normal(like.shape, dtype=np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def goal(budget: int, k: int) -> str:
    return f"k={k}@{budget}"


if __name__ == "__main__":
    main()
