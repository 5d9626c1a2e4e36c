"""Measure pairs of small models on held-out domains (domains.py); writes one JSON file.

    python evaluate.py --domains DIR --work DIR --out FILE NAME=MODELS [NAME=MODELS ...]

MODELS holds `cross-encoder` and `dual-encoder`, exported, and `fusion.json` (finish.py). `--work`
keeps every score, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import bootstrap
from crossknn.retrievers.specs import FUSION
from crossknn.scores.store import ScoreStore
from crossknn.search.fusion import open_fusion

BUDGET, MEASURE = 100, "nDCG@10"
RETRIEVERS = {
    "bm25": "retrieve(retriever=bm25)",
    "dual encoder": "retrieve(retriever=dense)",
    "hybrid": "retrieve(retriever=hybrid)",
}
SEARCHES = {"rerank": "rerank(retriever=dense)", "search": "auto"}
ORDER = ("bm25", "dual encoder", "hybrid", "rerank", "rerank fused", "search", "search fused")


def measured(folder: Path, models: Path, work: Path, most: int) -> dict[str, Any]:
    """Return nDCG@10 (%) of each way on `most` queries of a domain, and gains."""
    index = ck.ItemIndex.build(folder / "corpus.jsonl", encoder=str(models / "dual-encoder"))
    work.mkdir(parents=True, exist_ok=True)
    exact = ck.CrossEncoder(models / "cross-encoder")
    scorer = ck.StoredScorer(exact, ScoreStore(work / f"{folder.name}.sqlite"))
    queries = ck.read_queries(folder, split="test")
    queries = queries.take(range(len(queries))[:most])
    qrels = ck.read_qrels(folder, split="test")
    fitted = json.loads((models / "fusion.json").read_bytes())
    index.put_artifact(FUSION, {**fitted, "fingerprint": exact.fingerprint}, {})
    values: dict[str, Any] = {}
    for fuse in ("none", "auto"):
        fusion = open_fusion(index.for_scorer(exact.fingerprint), fuse, seed=0)
        methods = RETRIEVERS | SEARCHES if fuse == "none" else SEARCHES
        parsed = {name: ck.parse_method(spec) for name, spec in methods.items()}
        made = ck.compare(
            index, queries, scorer, parsed, [BUDGET], qrels=qrels, measures=[MEASURE], fusion=fusion
        )
        for outcome in made:
            name = outcome.method + (" fused" if fuse == "auto" else "")
            values[name] = np.asarray(outcome.task[MEASURE])
    found: dict[str, Any] = {"items": index.n, "queries": len(queries)}
    found |= {name: round(100 * float(np.nanmean(values[name])), 1) for name in ORDER}
    for name in ("rerank", "search fused"):
        gain = bootstrap(100 * (values[name] - values["dual encoder"]))
        found[f"{name} - dual encoder"] = [round(v, 1) for v in (gain.mean, gain.low, gain.high)]
    best = max(("bm25", "dual encoder", "hybrid", "rerank"), key=lambda name: found[name])
    gain = bootstrap(100 * (values["search fused"] - values[best]))
    found["search fused - best"] = [best, *(round(v, 1) for v in (gain.mean, gain.low, gain.high))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("domains", "work", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", help="names of domains, separated by commas")
    parser.add_argument("--queries", type=int, default=100, help="most queries of a domain")
    parser.add_argument("models", nargs="+")
    given = parser.parse_args()
    table = json.loads(given.out.read_text()) if given.out.exists() else {}
    for folder in sorted(given.domains.iterdir()):
        if given.only and folder.name not in given.only.split(","):
            continue
        for name, _, models in (each.partition("=") for each in given.models):
            if folder.name not in table.setdefault(name, {}):
                found = measured(folder, Path(models), given.work / name, given.queries)
                table[name][folder.name] = found
                given.out.write_text(json.dumps(table, indent=1) + "\n")
                print(name, folder.name, found, flush=True)


if __name__ == "__main__":
    main()
