"""What vectors fitted to a cross-encoder's scores find (AXN, figures 1, 9 and 10).

    python lab/benchmarks/align.py OUT MATRIX ...       # without a matrix: print OUT as tables

Of the anchors two thirds are train queries, the others dev queries, drawn anew by each seed with the test queries. A way
is fitted to the scores of some pairs: of train queries with all items, of each train query with the dual encoder's best
items and some random ones, or of each item with some train queries. Every method has the settings that find the most
for the dev queries: AXN its blend or ridge, ANNCUR and ADACUR their cutoff of singular values (and whether they center),
and ADACUR its rounds. OUT (JSON lines) gets the recall of every test query; a killed run goes on by matrix and seed.
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

from crossknn.evaluation.measures import paired
from crossknn.evaluation.outcome import outcome, truth_of
from crossknn.methods import parse_method
from crossknn_lab.cells import dev_queries, divided
from crossknn_lab.cur import cur
from crossknn_lab.indexing import fit_pairs
from crossknn_lab.replay import known_part
from crossknn_lab.stored import StoredMatrix

SEEDS, TESTS, DEVS, GOALS = (0, 1, 2), 100, 20, ((100, 1), (100, 10), (500, 100))
BASE = "dual encoder"
WAYS = {
    **{f"{per} per query, {spec}": ("query", per, spec) for per, spec in (
        *((100, "als"), (100, "als(bias=0)"), (100, "mf-trns"), (100, "mf-ind")),
        *((500, "als"), (500, "mf-trns")),
    )},
    **{f"5 per item, {spec}": ("item", 5, spec) for spec in ("als", "mf-trns", "mf-ind")},
}  # fmt: skip
CUTS = [
    f"{center}rcond={cut}" for center in ("", "center=none, ") for cut in (1e-6, 0.01, 0.03, 0.1)
]
ROWS = {
    "ANNCUR": [f"anncur(anchor_share=0.5, retriever=dense, {cut})" for cut in CUTS],
    "ADACUR": [f"adacur(retriever=dense, rounds={r}, {cut})" for r in (5, 10) for cut in CUTS],
}


def on_vectors(name: str) -> dict[str, list[str]]:
    """Return the methods that search vectors, each with the settings to choose from."""
    axn = "axn(retriever=dense, rounds=10, vectors=" + name
    return {
        "RNR": [f"rerank(retriever={name})"],
        "AXN, blend": [f"{axn}, blend={blend})" for blend in (0.0, 0.2, 0.5, 0.8)],
        "AXN, ridge": [f"{axn}, ridge={ridge})" for ridge in (0.1, 0.3, 1)],
    }


def searched(matrix: StoredMatrix, of: slice, spec: str, budget: int, k: int) -> Any:
    """Return the recall (m,) of the queries after the train queries, from `of.start` to `of.stop`."""
    parts = [known_part(*matrix.rows(of.start, of.stop))]
    found = outcome(spec, parse_method(spec), parts, truth_of(parts, k), budget=budget, ks=[k])
    return found.recall[k]


def rows_of(path: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Search with every way, its settings chosen on dev queries."""
    matrix = divided(StoredMatrix.load(path), seed=seed)[0]
    held = dev_queries(matrix.n_anchors)
    matrix = replace(matrix, n_anchors=matrix.n_anchors - held)
    dev, tests = slice(0, min(held, DEVS)), slice(held, min(held + TESTS, matrix.n_tests))
    every = matrix.n_anchors * matrix.n

    def best(
        of: StoredMatrix, methods: dict[str, list[str]], **about: Any
    ) -> Iterator[dict[str, Any]]:
        for method, specs in methods.items():
            for budget, k in GOALS:
                if k > matrix.n // 2 or budget > matrix.n // 2:
                    continue
                on_dev = [
                    searched(of, dev, s, budget, k).mean() if len(specs) > 1 else 0 for s in specs
                ]
                spec = specs[int(np.argmax(on_dev))]
                found = 100 * searched(of, tests, spec, budget, k)
                goal = {"method": method, "spec": spec, "budget": budget, "k": k}
                yield about | goal | {"recall": found.round(1).tolist()}

    about = {"set": path.stem, "seed": seed, "train": matrix.n_anchors}
    yield from best(matrix, on_vectors("dense"), **about, way=BASE, calls=0, seconds=0.0)
    yield from best(matrix, ROWS, **about, way="rows", calls=every, seconds=0.0)
    assert matrix.anchors is not None
    assert matrix.dense_queries is not None
    for way, how in {"rows, cur": None, **WAYS}.items():
        if how is None:
            rows, vectors = matrix.anchors, matrix.dense_queries[: matrix.n_anchors]
            began, calls = time.perf_counter(), every
            fit = cur(rows.scores, center=rows.center, queries=vectors, seed=seed)
            seconds = time.perf_counter() - began
        else:
            fit, calls, seconds = fit_pairs(matrix, *how, seed)
        assert fit.map is not None
        queries = fit.map(matrix.dense_queries)
        of = matrix.with_vectors("fitted", fit.items.astype(np.float32), queries, fit.scale)
        yield from best(
            of, on_vectors("fitted"), **about, way=way, calls=calls, seconds=round(seconds, 1)
        )


def tables(rows: list[dict[str, Any]]) -> None:
    """Print for each matrix the mean recall of every way, and what is compared."""
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]
        cells: dict[tuple[str, str, int, int], list[float]] = {}
        for row in mine:
            key = row["way"], row["method"], row["budget"], row["k"]
            cells.setdefault(key, []).extend(row["recall"])
        goals = list(dict.fromkeys((row["budget"], row["k"]) for row in mine))
        heads = [f"k = {k} at {budget}" for budget, k in goals]
        seeds = len({row["seed"] for row in mine})
        print(
            f"\n## {name}\n\n{mine[0]['train']} train queries; seeds: {seeds}; RNR / AXN, blend / AXN, ridge.\n"
        )
        print(f"| vectors | calls | seconds | {' | '.join(heads)} |\n{'|---' * (3 + len(heads))}|")
        for way, group in dict.fromkeys(
            (r["way"], r["method"] in ROWS and r["method"]) for r in mine
        ):
            of = [row for row in mine if row["way"] == way]
            methods = [group] if group else [*on_vectors("")]
            shown = [
                " / ".join(f"{np.mean(cells[way, method, *goal]):.1f}" for method in methods)
                for goal in goals
            ]
            seconds = f"{np.mean([row['seconds'] for row in of]):.1f}" if not group else ""
            label = f"{way}, {group}" if group else way
            print(f"| {label} | {of[0]['calls']:,} | {seconds} | {' | '.join(shown)} |")
        print(f"\n| compared | {' | '.join(heads)} |\n{'|---' * (1 + len(heads))}|")
        for (way, method), (other, than) in (
            *((((BASE, m), (BASE, "RNR"))) for m in ("AXN, blend", "AXN, ridge")),
            *((((w, "AXN, ridge"), ("rows", "ADACUR"))) for w in ("500 per query, als", "5 per item, als")),
            (("rows, cur", "AXN, ridge"), ("rows", "ADACUR")),
            (("rows", "ADACUR"), ("rows", "ANNCUR")),
            *((((f"100 per query, {w}", "AXN, ridge"), ("100 per query, mf-ind", "AXN, ridge"))) for w in ("als", "mf-trns")),
        ):  # fmt: skip
            shown = []
            for goal in goals:
                pair = (np.array(cells[w, m, *goal]) for w, m in ((way, method), (other, than)))
                test = paired(np.subtract(*pair))
                shown.append(f"{test.difference:+.1f} [{test.low:+.1f}, {test.high:+.1f}]")
            print(f"| {method}, {way} against {than}, {other} | {' | '.join(shown)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("matrix", type=Path, nargs="*")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    options = parser.parse_args()
    done = options.out.read_text().splitlines() if options.out.exists() else []
    if not options.matrix:
        tables([json.loads(line) for line in done])
    for seed in options.seeds:
        for path in options.matrix:
            kept = [json.loads(line) for line in done]
            if any((row["set"], row["seed"]) == (path.stem, seed) for row in kept):
                continue
            done += map(json.dumps, rows_of(path, seed))
            options.out.write_text("\n".join(done) + "\n")


if __name__ == "__main__":
    main()
