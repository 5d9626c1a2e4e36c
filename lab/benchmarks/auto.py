"""The default method beside all others, in three situations: nothing known, sparse pairs, anchors.

    python lab/benchmarks/auto.py run WORK MATRIX.npz... [--seeds 0,1,2] [--only SITUATION]
    python lab/benchmarks/auto.py best WORK MATRIX.npz... [--only SITUATION]
    python lab/benchmarks/auto.py report WORK MATRIX.npz...     # benchmarks/results/auto.json

Every seed draws which queries are anchors and which are tests. `nothing`: the anchors' scores are
not known. `sparse`: of 30,000 pairs in all, those that a search of each anchor query scored; `axn` gets
vectors fitted to them. `dense`: all their scores. Rivals' settings are chosen for each matrix,
situation, budget and k on dev queries, the last third of the anchors. A cell is a file in WORK: one
method's recall, query by query, and what is there is not searched again. A rival's cells of a seed
count where that seed has all that were among the best three on dev queries with seed 0.

`best` searches for the best item alone, and only with the default and reranking: each query of a
matrix is a test once, and anchors are drawn from the others. Its cells are of the seed `all`.

Cells named `before ...` are of the kriging before averaged trends: the same cells, searched at
commit 9dc2f32.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from crossknn.evaluation.measures import bootstrap, holm, paired, recall
from crossknn.fitting.factor_model import fit_sparse
from crossknn.linalg import standardised, top_k
from crossknn.methods import parse_method
from crossknn.retrievers.specs import open_retriever, stage_names
from crossknn.scores.store import SparseScores
from crossknn.search.loop import simulate
from crossknn.spec import parse
from crossknn.types import Artifact, FloatArray, Pairs
from crossknn_lab.cells import divided
from crossknn_lab.stored import StoredMatrix

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "auto.json"
BUDGETS, KS, PAIRS = (50, 100, 200, 500), (1, 10, 100), 30_000
HALVES = (50, 100, 250)
"""Calls of the default, which is compared with the best rival at twice as many."""
SEEDS, ALL = (0, 1, 2), "all"
SITUATIONS = ("nothing", "sparse", "dense")
RIVALS = {
    "rerank": ["rerank(retriever=dense)", "rerank(retriever=hybrid)"],
    "gp": [
        *(
            f"gp(mean={mean}, query=true, beta={beta})"
            for mean in ("retriever", "constant")
            for beta in (0, 1)
        ),
    ],
    "axn": [
        *(
            f"axn(retriever=dense, rounds=10, ridge={ridge}, vectors=dense)"
            for ridge in (0.1, 0.3, 1)
        ),
        "axn(retriever=dense, rounds=10, blend=0.5, vectors=dense)",
    ],
    "gar": ["gar(retriever=dense, neighbours=16)"],
    "ladr": ["ladr(retriever=dense, neighbours=16)"],
    "greedy": ["greedy(retriever=dense, neighbours=16)"],
    "tour": ["tour(retriever=dense, rounds=10, lr=1.0, vectors=dense)"],
    "refit": ["refit(retriever=dense, retriever_share=0.1, rounds=9, lr=1.0, vectors=dense)"],
    "feedback": ["feedback(retriever=dense, retriever_share=0.1, rounds=9, c=0.1, vectors=dense)"],
}
WITH_ANCHORS = {
    "adacur": [
        f"adacur(retriever=dense, rounds={rounds}, rcond={rcond})"
        for rounds in (10, 20)
        for rcond in (0.01, 0.03, 0.1)
    ],
    "anncur": [f"anncur(retriever=dense, anchor_share=0.5, rcond={r})" for r in (0.03, 0.1)],
}
AUTO = "auto"
OTHERS = {
    "": "best rival",
    "before": "before",
    "before kriging(retriever=dense)": "before, dense first batch",
}
"""What the default is compared with: whose names begin so, and what that is called."""


def cases(path: Path, seed: int, dev: bool) -> Iterator[tuple[str, StoredMatrix, StoredMatrix]]:
    """(situation, the matrix as a search knows it, the same with its tests) of each situation."""
    drawn, _ = divided(StoredMatrix.load(path), seed=seed)
    if dev:
        drawn, _ = divided(drawn, dev=True)
    nothing = replace(drawn, n_anchors=0)
    yield "nothing", nothing, drawn
    yield "sparse", nothing, drawn
    yield "dense", drawn, drawn


def recalls(
    method: str, index: StoredMatrix, drawn: StoredMatrix, ks: Sequence[int] = KS
) -> dict[str, list[float]]:
    """Recall of each test query by budget and k, as `100 10`."""
    tests = slice(drawn.n_anchors, None)
    queries, scores, found = index.queries(tests), drawn.scores[tests], {}
    truth, all_budgets = {k: top_k(scores, k).items for k in ks}, method == AUTO and len(ks) > 1
    for budget, k in product(sorted({*BUDGETS, *HALVES}), ks):
        if budget > drawn.n // 2 or not (all_budgets or budget in BUDGETS):
            continue
        if k == KS[0] or (method == AUTO and k == KS[-1]):  # only the default minds k, a large one
            chosen = parse_method(method)
            chosen = replace(chosen, k=k) if method == AUTO else chosen
            plan = chosen.plan(index, budget, 0)
            picks = simulate(plan, queries, scores).picks().items
        found[f"{budget} {k}"] = recall(picks, truth[k]).round(4).tolist()
    return found


def sparse(index: StoredMatrix, drawn: StoredMatrix) -> StoredMatrix:
    """With what 30,000 pairs teach: kriging's prior, and vectors for `axn`."""
    from crossknn.fitting.factors import Targets, als

    each = min(PAIRS // drawn.n_anchors, drawn.n // 2)
    known, index = learned(index, drawn, drawn.n_anchors, each, "gp(mean=retriever, query=true)")
    own = index.query_vectors(drawn.queries(slice(0, drawn.n_anchors)), "dense")
    fit = als(Targets.of(known, index.vectors["dense"], own))
    return index.with_vectors("stored", fit.items, None, fit.scale)


def learned(
    index: StoredMatrix, drawn: StoredMatrix, count: int, each: int, method: str
) -> tuple[SparseScores, StoredMatrix]:
    """What searches of the first `count` anchor queries scored, `each` items of a query, and the
    index with the prior that this teaches."""
    queries, scores = drawn.queries(slice(0, count)), drawn.scores[:count]
    items = simulate(parse_method(method).plan(index, each, 0), queries, scores).picks().items
    pairs = Pairs(np.repeat(np.arange(count), each), items.ravel())
    known = SparseScores.of(list(queries.texts), drawn.n, pairs, scores[pairs.query, pairs.item])
    names = stage_names(index, parse("hybrid"))
    cheap = [standardised(open_retriever(index, name).scores(queries)) for name in names]
    prior = fit_sparse(
        known,
        [c[known.query, known.item] for c in cheap],
        index.vectors["dense"],
        index.query_vectors(queries, "dense"),
        lead=names.index("dense"),
    )
    prior = replace(prior, retriever="hybrid", queries=count, pairs=len(known), space="dense")
    return known, replace(index, artifacts={"kriging": Artifact(*prior.kept())})


def methods(situation: str) -> dict[str, list[str]]:
    """By family the settings that are tried; the default method, which has none, comes first."""
    if situation == "sparse":  # the others read no pairs: their cells are those of `nothing`
        return {AUTO: [AUTO], "axn": ["axn(retriever=dense, rounds=10, blend=0, vectors=stored)"]}
    return {AUTO: [AUTO], **RIVALS, **(WITH_ANCHORS if situation == "dense" else {})}


def run(work: Path, paths: list[Path], seeds: list[int], only: list[str]) -> None:
    """Search every cell that is not there yet."""
    for seed in seeds:
        for path in paths:
            for dev in (False, True):
                for situation, index, drawn in cases(path, seed, dev):
                    if situation in only:
                        key = f"{path.stem} {situation} {seed} {'dev' if dev else 'test'}"
                        _search(work, key, index, drawn, situation)


def _search(work: Path, of: str, index: StoredMatrix, drawn: StoredMatrix, situation: str) -> None:
    for method in (spec for specs in methods(situation).values() for spec in specs):
        key = f"{of} {method}"
        file = work / f"{hashlib.sha1(key.encode()).hexdigest()[:16]}.json"
        if file.exists() or (" dev" in of and method == AUTO):
            continue
        began = time.perf_counter()
        if situation == "sparse" and not index.artifacts:
            index = sparse(index, drawn)
        with threadpool_limits(1):
            found = recalls(method, index, drawn)
        file.write_text(json.dumps({"key": key, "recall": found}))
        print(f"{time.perf_counter() - began:6.1f} s  {key}", flush=True)


def parts(whole: StoredMatrix) -> Iterator[StoredMatrix]:
    """Each part of the queries as tests, and as many of the others as there were as anchors."""
    q, anchors = len(whole.scores), whole.n_anchors
    order = np.random.default_rng(0).permutation(q)
    for tests in np.array_split(order, -(-q // (q - anchors))):
        rows = np.append(order[~np.isin(order, tests)][:anchors], tests)
        assert whole.dense_queries is not None
        yield replace(
            whole,
            scores=whole.scores[rows],
            dense_queries=whole.dense_queries[rows],
            firsts={name: values[rows] for name, values in whole.firsts.items()},
            query_ids=tuple(whole.query_ids[row] for row in rows),
            **dict.fromkeys(("anchor_items", "labels", "qrels")),
        )


def best(work: Path, paths: list[Path], only: list[str]) -> None:
    """Search for the best item, each query once, in the cells that are not there yet."""
    for path, situation in product(paths, only):
        for method in (AUTO, *(RIVALS["rerank"] if situation == "nothing" else ())):
            key = f"{path.stem} {situation} {ALL} test {method}"
            file = work / f"{hashlib.sha1(key.encode()).hexdigest()[:16]}.json"
            if file.exists():
                continue
            found: dict[str, list[float]] = {}
            for drawn in parts(StoredMatrix.load(path)):
                index = drawn if situation == "dense" else replace(drawn, n_anchors=0)
                with threadpool_limits(1):
                    index = sparse(index, drawn) if situation == "sparse" else index
                    for at, values in recalls(method, index, drawn, KS[:1]).items():
                        found.setdefault(at, []).extend(values)
            file.write_text(json.dumps({"key": key, "recall": found}))
            print(key, flush=True)


Recalls: TypeAlias = dict[str, dict[str, FloatArray]]
"""Of a matrix, situation, seed and split: by method and `budget k` the recall of each query."""


def cells(work: Path) -> dict[str, Recalls]:
    """All cells, by `matrix situation seed split`."""
    found: dict[str, Recalls] = {}
    for file in work.glob("*.json"):
        cell = json.loads(file.read_text())
        matrix, situation, seed, split, method = cell["key"].split(" ", 4)
        values = {at: np.array(of) for at, of in cell["recall"].items()}
        found.setdefault(f"{matrix} {situation} {seed} {split}", {})[method] = values
    return found


def searched(
    known: dict[str, Recalls], matrix: str, situation: str, seed: int | str
) -> list[Recalls]:
    """The cells of test queries and of dev queries."""
    splits = ("test", "dev")
    found = [known.get(f"{matrix} {situation} {seed} {split}", {}) for split in splits]
    if situation != "sparse" and seed != ALL:
        return found
    # What reads no pairs (kriging does) finds what it finds where nothing is known.
    bare = [known.get(f"{matrix} nothing {seed} {split}", {}) for split in splits]
    rest = [{n: of for n, of in b.items() if n != AUTO and "kriging" not in n} for b in bare]
    return [{**r, **f} for r, f in zip(rest, found, strict=True)]


def leading(dev: Recalls, other: str, at: Sequence[str]) -> list[str]:
    """Those whose names begin with `other`, the best on dev queries first."""
    means = {
        name: np.mean([of[a].mean() for a in at])
        for name, of in dev.items()
        if name.startswith(other) and name.startswith("before") == other.startswith("before")
        if name != AUTO and set(at) <= set(of)
    }
    return sorted(means, key=lambda name: -means[name])


def differences(
    known: dict[str, Recalls],
    path: Path,
    situation: str,
    ours: Sequence[str],
    theirs: Sequence[str],
    other: str = "",
    seeds: Sequence[int | str] = SEEDS,
) -> FloatArray | None:
    """Recall (2, queries) of the default at `ours`, budgets and k, and at `theirs` of the rival that
    is best there on dev queries (or of those whose names begin with `other`; without dev queries, the
    best), each the mean over its cells and over the seeds that have them and the query among their
    tests; None if none has."""
    matrix, rows = path.stem, []
    whole = StoredMatrix.load(path)
    _, first = searched(known, matrix, situation, SEEDS[0])
    cells = {at for of in first.values() for at in of}
    needed = {name for at in cells for name in leading(first, "", [at])[:3]}
    pairs = []
    for seed in seeds:
        test, dev = searched(known, matrix, situation, seed)
        own, order = test.get(AUTO, {}), leading(test, other, theirs)
        if len(order) > 1 and seed != ALL:
            order = leading(dev, other, theirs)
        if not order or not set(ours) <= set(own) or not (other or needed <= set(dev)):
            continue
        sides = (own, ours), (test[order[0]], theirs)
        pairs.append([np.mean([of[at] for at in cell], axis=0) for of, cell in sides])
        drawn = np.arange(len(whole.scores))
        if isinstance(seed, int):  # as `divided` draws the tests
            drawn = np.random.default_rng(seed).permutation(drawn)[whole.n_anchors :]
        rows.append(drawn)
    if not pairs:
        return None
    _, query, count = np.unique(np.concatenate(rows), return_inverse=True, return_counts=True)
    both = np.concatenate(pairs, axis=1)
    return np.stack([np.bincount(query, side) / count for side in both])


def comparisons() -> Iterator[tuple[str, str, str, int, Sequence[int], Sequence[int]]]:
    """(what it is called, what its name begins with, situation, k, our budgets, the other's)."""
    for other, situation, k, budget in product(OTHERS, SITUATIONS, KS, BUDGETS):
        yield OTHERS[other], other, situation, k, [budget], [budget]
    for k, half in product(KS[1:], HALVES):
        yield "best rival, twice the calls", "", "dense", k, [half], [2 * half]
    for situation in SITUATIONS:
        yield "reranking", "rerank", situation, 1, BUDGETS, BUDGETS


def report(work: Path, paths: list[Path]) -> None:
    """Write `RESULTS`: of each comparison the differences of every matrix, and their mean."""
    known, rows = cells(work), list[dict[str, Any]]()
    paths = sorted(paths, key=lambda path: path.stem)
    for name, other, situation, k, ours, theirs in comparisons():
        at = [[f"{budget} {k}" for budget in side] for side in (ours, theirs)]
        seeds = (ALL,) if other == "rerank" else SEEDS
        of = {p.stem: differences(known, p, situation, *at, other, seeds) for p in paths}
        found = {m: 100 * both for m, both in of.items() if both is not None}
        if found:
            mean = bootstrap(*(both[0] - both[1] for both in found.values()))
            row = {"other": name, "situation": situation, "k": k}
            row["calls"] = ours[0] if len(ours) == 1 else f"{min(ours)} to {max(ours)}"
            row["difference"] = [round(value, 2) for value in (mean.mean, mean.low, mean.high)]
            rows.append(row | {"matrices": {m: _difference(*both) for m, both in found.items()}})
    for name in dict.fromkeys(row["other"] for row in rows):
        of = [m for row in rows if row["other"] == name for m in row["matrices"].values()]
        for m, held in zip(of, holm([m["p"] for m in of]), strict=True):
            m["holm"] = round(held, 4)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def _difference(ours: FloatArray, theirs: FloatArray) -> dict[str, float]:
    """In points, by the paired test over queries."""
    found = paired(ours - theirs)
    return {
        "auto": round(float(ours.mean()), 2),
        "other": round(float(theirs.mean()), 2),
        "difference": round(found.difference, 2),
        "low": round(found.low, 2),
        "high": round(found.high, 2),
        "p": round(found.p_value, 4),
        "queries": found.n,
    }


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    options = dict.fromkeys(("--seeds", "--only"), "")
    files = []
    while rest:
        if (word := rest.pop(0)) in options:
            options[word] = rest.pop(0)
        else:
            files.append(Path(word))
    Path(folder).mkdir(parents=True, exist_ok=True)
    if command == "best":
        best(Path(folder), files, (options["--only"] or ",".join(SITUATIONS)).split(","))
    elif command == "run":
        seeds = [int(seed) for seed in (options["--seeds"] or "0").split(",")]
        run(Path(folder), files, seeds, (options["--only"] or ",".join(SITUATIONS)).split(","))
    else:
        report(Path(folder), files)
