"""What an expensive scorer finds after a search with a cheaper one, on the package's sample.

    python lab/benchmarks/ladder.py --store FILE --out FILE NAME=CHEAP [NAME=CHEAP ...]

The sample's stored scores are the expensive scorer's; CHEAP is "bundled" or the folder of a
cross-encoder, whose scores are kept in `--store`. Writes the share of the expensive scorer's own
ten best items that are found, and of queries whose right item is among the 20 returned, with
differences from reranking what the cheap search found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import bootstrap
from crossknn.search.results import Results
from crossknn.types import FloatArray

K, BUDGETS, CHEAP = 20, (5, 10, 20, 50), (50, 100, 200)
METHODS = {"rerank": "rerank", "search": "auto"}


def found(sample: ck.sample.Sample, results: Results) -> dict[str, FloatArray]:  # type: ignore[name-defined]
    """The shares (m,) of each query."""
    best = np.argsort(-sample.scores, axis=1, kind="stable")[:, :10]
    scored = [{hit.position for hit in hits if not hit.predicted} for hits in results]
    own = [len(s & set(b)) / 10 for s, b in zip(scored, best.tolist(), strict=True)]
    judged = [sample.qrels[query] for query in results.query_ids]
    right = [any(h.id in j for h in hits[:K]) for j, hits in zip(judged, results, strict=True)]
    return {"own": np.array(own), "right": np.array(right, float)}


def row(values: dict[str, FloatArray], other: dict[str, FloatArray] | None) -> dict[str, Any]:
    made: dict[str, Any] = {name: round(100 * float(v.mean()), 1) for name, v in values.items()}
    for name in values if other else ():
        gain = bootstrap(100 * (values[name] - other[name]))  # type: ignore[index]
        made[f"{name} - rerank"] = [round(v, 1) for v in (gain.mean, gain.low, gain.high)]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("cheap", nargs="+")
    given = parser.parse_args()
    sample = ck.sample()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    table: dict[str, Any] = {"commit": commit.strip(), "date": time.strftime("%Y-%m-%d")}
    cheap = dict(each.partition("=")[::2] for each in given.cheap)
    ladders = [("none", None, 0)]
    for name, place in cheap.items():
        scorer = ck.StoredScorer(ck.CrossEncoder(place), given.store)
        ladders += [(name, scorer, calls) for calls in CHEAP]
    for name, scorer, calls in ladders:
        scorers = [sample.scorer] if scorer is None else [scorer, sample.scorer]
        for budget in BUDGETS:
            budgets, before = [*([calls] if calls else []), budget], None
            for way, method in METHODS.items():
                searcher = ck.Searcher(sample.index, scorers, method)
                values = found(sample, searcher.search(sample.queries, K, budgets))
                table[f"{name} {calls} {budget} {way}"] = row(values, before)
                before = values
                print(name, calls, budget, way, row(values, None), flush=True)
        given.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
