"""What `reach.py` measured: benchmarks/results/reach.json, which `pictures.py` draws.

python lab/benchmarks/reach_report.py WORK

Verdicts are made from the half "fit" and checked on the half "test"; all other figures are of "test".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.evaluation.measures import Comparison, bootstrap, holm, paired
from crossknn.evaluation.verdict import RERANK, RETRIEVER, SEARCH, Verdict, Way, verdict_of
from crossknn.types import FloatArray

ROOT = Path(__file__).parents[2]
SHOWN = ("nDCG@10", "R@10", "R@20")
WAYS = {
    RETRIEVER: "retriever",
    replace(RETRIEVER, fused=True): "retriever fused",
    RERANK: "rerank",
    replace(RERANK, fused=True): "rerank fused first",
    replace(SEARCH, fused=True): "search fused",
}
"""Ways of a diagnosis, by their names in `reach.py`."""
RIVALS = {
    "retriever": "retriever",
    "rerank": "rerank",
    "rerank, fused order": "rerank fused",
    "rerank, all fused": "rerank fused first",
}
"""What fused search is held against; the last begins with the fused retriever, too."""
Ways: TypeAlias = dict[str, Mapping[str, FloatArray]]


def read(folder: Path) -> dict[int, Ways]:
    """Measures (m,) of every way at every budget; what makes no calls is at all of them."""
    cells = {}
    for file in folder.glob("*.npz"):
        way, _, budget = file.stem.rpartition(" ")
        with np.load(file) as values:
            cells[way, int(budget)] = {name: values[name] for name in values.files}
    free = {way: found for (way, budget), found in cells.items() if not budget}
    budgets = sorted({budget for _, budget in cells if budget})
    return {b: free | {w: found for (w, at), found in cells.items() if at == b} for b in budgets}


def rounded(found: Any, *names: str) -> list[float]:
    return [round(float(getattr(found, name)), 4) for name in names]


def said(found: Comparison) -> list[float]:
    return rounded(found, "difference", "low", "high", "p_value")


def row(ways: Ways, budget: int) -> dict[str, Any]:
    """Of a set at a budget."""
    first, searched = ways["retriever"], ways["search fused"]
    reach = bootstrap(1 - first[f"R@{budget}"])
    return {
        "budget": budget,
        "reach": rounded(reach, "mean", "low", "high"),
        "trust": said(paired(ways["rerank"]["nDCG@10"] - first["nDCG@10"])),
        "means": {
            way: {name: round(float(np.nanmean(found[name])), 4) for name in SHOWN}
            for way, found in ways.items()
        },
        "gain": {
            name: {
                measure: said(paired(searched[measure] - ways[way][measure])) for measure in SHOWN
            }
            for name, way in RIVALS.items()
        },
    }


def check(verdict: Verdict, test: Mapping[Way, FloatArray]) -> dict[str, Any]:
    """The verdict's claims on other queries: it is wrong if one is clear the other way round."""
    claims = [claim for claim in verdict.claims if claim.budget == verdict.budget]
    others = [paired(test[c.way] - test[c.than]) for c in claims]
    p_values = holm([other.p_value for other in others])
    others = [replace(o, p_value=p) for o, p in zip(others, p_values, strict=True)]
    both = list(zip(claims, others, strict=True))
    return {
        "sentence": verdict.sentence,
        "claims": [[str(c.way), str(c.than), said(c.difference), said(other)] for c, other in both],
        "right": all(c.difference.sign * other.sign >= 0 for c, other in both),
    }


def corrected(rows: list[dict[str, Any]]) -> None:
    """p-values by Holm's correction over all sets, budgets and rivals, for each measure."""
    for measure in SHOWN:
        cells = [found[measure] for of in rows for found in of["gain"].values()]
        for cell, p in zip(cells, holm([cell[3] for cell in cells]), strict=True):
            cell[3] = round(p, 4)


def main(work: Path) -> None:
    rows, sets = [], []
    for folder in sorted((work / "cells").iterdir()):
        if not (folder / "about.json").exists():
            continue
        about = json.loads((folder / "about.json").read_text())
        halves = {half: read(folder / half) for half in ("fit", "test")}
        values = {
            half: {
                b: {way: of[b][name]["nDCG@10"] for way, name in WAYS.items()}
                for b in halves["test"]
            }
            for half, of in halves.items()
        }
        verdict = verdict_of(values["fit"], measure="nDCG@10")
        checked = check(verdict, values["test"][verdict.budget])
        sets.append({"set": folder.name, **about, "verdict": checked})
        rows += [{"set": folder.name, **row(ways, b)} for b, ways in halves["test"].items()]
    corrected(rows)
    out = ROOT / "benchmarks/results/reach.json"
    out.write_text(json.dumps({"sets": sets, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
