"""Measure pairs of small models on held-out domains (domains.py); writes one JSON file.

    python evaluate.py --domains DIR --work DIR --out FILE NAME=MODELS [NAME=MODELS ...]

MODELS holds `dual-encoder` and, where the whole pair is measured, `cross-encoder`, both exported.
`--work` keeps every score, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import bootstrap
from crossknn.scores.store import ScoreStore
from crossknn.types import FloatArray

BUDGET, MEASURE = 100, "nDCG@10"
RETRIEVERS = {
    "bm25": "retrieve(retriever=bm25)",
    "dual encoder": "retrieve(retriever=dense)",
    "hybrid": "retrieve(retriever=hybrid)",
}
SEARCHES = {"rerank": "rerank(retriever=dense)", "search": "auto"}


def measured(folder: Path, models: Path, work: Path, split: str, most: int) -> dict[str, Any]:
    """Return nDCG@10 (%) of each way on `most` queries of a domain, and gains with intervals."""
    index = ck.ItemIndex.build(folder / "corpus.jsonl", encoder=str(models / "dual-encoder"))
    queries = ck.read_queries(folder, split=split)
    queries = queries.take(range(len(queries))[:most])
    qrels = ck.read_qrels(folder, split=split)
    pair = (models / "cross-encoder").exists()
    exact = ck.CrossEncoder(models / "cross-encoder" if pair else "bundled")
    work.mkdir(parents=True, exist_ok=True)
    scorer = ck.StoredScorer(exact, ScoreStore(work / f"{folder.name}.sqlite"))

    ways = RETRIEVERS | SEARCHES if pair else RETRIEVERS
    methods = {name: ck.parse_method(spec) for name, spec in ways.items()}
    made = ck.compare(index, queries, scorer, methods, [BUDGET], qrels=qrels, measures=[MEASURE])
    values = {outcome.method: np.asarray(outcome.task[MEASURE]) for outcome in made}
    return {"items": index.n, "queries": len(queries)} | _figures(values)


def _figures(values: dict[str, FloatArray]) -> dict[str, Any]:
    """Means, and gains [mean, low, high], of nDCG@10 (m,) of each way."""
    found: dict[str, Any] = {n: round(100 * float(np.nanmean(v)), 1) for n, v in values.items()}
    best = max(found.keys() - {"search"}, key=found.__getitem__)
    gains = [("rerank", "dual encoder"), ("search", "dual encoder"), ("search", best)]
    for way, other in gains:
        if way in values:
            gain = bootstrap(100 * (values[way] - values[other]))
            found[f"{way} - {other}"] = [round(v, 1) for v in (gain.mean, gain.low, gain.high)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("domains", "work", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--only", help="names of domains, separated by commas")
    parser.add_argument("--queries", type=int, default=100, help="most queries of a domain")
    parser.add_argument("models", nargs="+")
    given = parser.parse_args()
    table = json.loads(given.out.read_text()) if given.out.exists() else {}
    for folder in sorted(given.domains.iterdir()):
        asked = not given.only or folder.name in given.only.split(",")
        if not asked or not (folder / "qrels" / f"{given.split}.tsv").exists():
            continue
        for name, _, models in (each.partition("=") for each in given.models):
            if folder.name not in table.setdefault(name, {}):
                found = measured(
                    folder, Path(models), given.work / name, given.split, given.queries
                )
                table[name][folder.name] = found
                given.out.write_text(json.dumps(table, indent=1) + "\n")
                print(name, folder.name, found, flush=True)


if __name__ == "__main__":
    main()
