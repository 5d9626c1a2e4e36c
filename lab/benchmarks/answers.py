"""What answers gain by searching at equal calls: tables and a picture of `bars.py`'s measurements, and verdicts.

    python lab/benchmarks/answers.py benchmarks/results/bars.json --picture docs/images/reach.svg
    python lab/benchmarks/answers.py OUT MATRIX ...

The first prints means and differences of all sets, and draws the gain over what the retriever misses. The second searches
stored matrices with judgements, with 20, 50 and 100 calls: fusion and verdict are made from the anchor queries, which no
search knows, and the verdict is checked on the test queries. OUT (JSON lines) gets a row for each matrix and number of
calls.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.evaluation.compare import BATCH, Evaluation
from crossknn.evaluation.diagnosis import search_ways
from crossknn.evaluation.measures import Comparison, bootstrap, holm, paired
from crossknn.evaluation.outcome import QueryBatch
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.evaluation.verdict import Way, verdict_of
from crossknn.fitting.fusion import _weigh
from crossknn.methods import parse_method
from crossknn.retrievers.specs import FUSION
from crossknn.search.fusion import open_fusion
from crossknn.types import Artifact, FloatArray, Pairs
from crossknn_lab.curves import OTHERS, picture
from crossknn_lab.replay import judgements_of
from crossknn_lab.stored import StoredMatrix

BUDGETS, MEASURES = (20, 50, 100), ("nDCG@10", "R@20", "R@50", "R@100")
WAYS = ("retriever", "rerank", "retriever fused", "rerank fused", "search fused")
Values = Mapping[int, Mapping[Way, Mapping[str, FloatArray]]]


def of_matrix(path: Path) -> tuple[dict[str, Any], list[Values]]:
    """Search the anchor queries and the test queries of a matrix."""
    whole = StoredMatrix.load(path)
    bare = replace(whole, n_anchors=0)
    judged = judgements_of(bare)
    if judged is None:
        raise SystemExit(f"{path} has no judgements")
    rows = judged.rows
    parts = [slice(0, whole.n_anchors), slice(whole.n_anchors, len(whole.scores))]

    def score(pairs: Pairs) -> FloatArray:
        return whole.scores[pairs.query, pairs.item]

    fit = parts[0]
    found = _weigh(bare, bare.queries(fit), score, rows[fit], None, 100) | {"fingerprint": None}
    index = replace(bare, artifacts={FUSION: Artifact(found, {})})
    halves = []
    for part in parts:
        starts = range(part.start, part.stop, BATCH)
        batches = []
        for start in starts:
            where = slice(start, min(start + BATCH, part.stop))
            known = whole.scores[where]
            batches.append(QueryBatch.scored(index, bare.queries(where), known))  # type: ignore[arg-type]
        halves.append(searched(index, batches, Judgements(rows[part])))
    about = {"set": path.stem, "items": whole.n, "fits": whole.n_anchors, "tests": whole.n_tests}
    return about, halves


def searched(index: Any, batches: list[QueryBatch], judged: Judgements) -> Values:
    """Search with and without fusion; measures by calls and way to answer."""
    task = TaskMeasures(judged, MEASURES)
    evaluation = Evaluation(batches=batches, depth=max(BUDGETS), task=task)
    fusion = open_fusion(index, "auto", 0)
    ways = search_ways(evaluation, parse_method("auto"), BUDGETS, fusion)
    return {b: {way: found.task for way, found in of.items()} for b, of in ways.items()}


def rows_of(about: Mapping[str, Any], halves: list[Values]) -> list[dict[str, Any]]:
    """A row for each number of calls, with the verdict of the queries to fit on."""
    fit, test = (
        {b: {w: v["nDCG@10"] for w, v in of.items()} for b, of in half.items()} for half in halves
    )
    verdict = verdict_of(fit, measure="nDCG@10")
    claims = [claim for claim in verdict.claims if claim.budget == verdict.budget]
    others = [paired(test[c.budget][c.way] - test[c.budget][c.than]) for c in claims]
    p_values = holm([other.p_value for other in others])
    pairs = zip(claims, others, p_values, strict=True)
    against = [c.difference.sign * replace(o, p_value=p).sign < 0 for c, o, p in pairs]
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(
        git, capture_output=True, text=True, cwd=Path(__file__).parent
    ).stdout.strip()
    rows = []
    for budget in BUDGETS:
        of = {str(way): values for way, values in halves[1][budget].items()}
        mine, gains = of["search fused"], {}
        for name in WAYS[:-1]:
            if name in of:
                found = {m: paired(mine[m] - of[name][m]) for m in MEASURES[:2]}
                gains[name] = {
                    m: [g.difference, g.low, g.high, g.p_value] for m, g in found.items()
                }
        beyond = bootstrap(1 - of["retriever"][f"R@{budget}"])
        row = {**about, "commit": commit, "date": time.strftime("%Y-%m-%d"), "calls": budget}
        row |= {"beyond": [beyond.mean, beyond.low, beyond.high]}
        row |= {"means": {w: {m: float(np.nanmean(v[m])) for m in MEASURES} for w, v in of.items()}}
        row |= {"gain": gains, "verdict": verdict.sentence, "contradicted": any(against)}
        rows.append(row)
    return rows


def gains(found: Mapping[str, Any]) -> dict[tuple[str, str], Comparison]:
    """Compare a set's fused search with reranking, without and with fusion, by measure."""
    pairs = [("rerank", "nDCG@10"), ("rerank fused", "nDCG@10"), ("rerank fused", "R@20")]
    return {
        (way, m): paired(np.subtract(found[m]["search fused"], found[m][way])) for way, m in pairs
    }


def tables(sets: Mapping[str, Mapping[str, Any]]) -> None:
    """Print means, and differences to reranking; bold is clear after Holm's correction."""
    compared = {name: gains(found) for name, found in sets.items()}
    flat = [c for of in compared.values() for c in of.values()]
    clear = dict(zip(map(id, flat), holm([c.p_value for c in flat]), strict=True))
    for name in sorted(sets, key=lambda name: -sets[name]["missed"]):
        found = sets[name]
        means = {
            m: [f"{100 * np.mean(found[m][way]):.1f}" if way in found[m] else "" for way in WAYS]
            for m in MEASURES[:2]
        }
        cells = [", ".join((row[1], row[3], row[4])) for row in means.values()]
        for c in compared[name].values():
            text = "{:+.1f} [{:+.1f}, {:+.1f}]".format(
                *(100 * x for x in (c.difference, c.low, c.high))
            )
            cells.append(f"**{text}**" if clear[id(c)] <= 0.05 else text)
        start = f"| {name} | {found['items']:,} | {found['queries']} | {found['missed']:.0%}"
        print(start, means["nDCG@10"][0], *cells, sep=" | ", end=" |\n")


def draw(sets: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the gain over what the retriever misses."""
    note = "Search minus rerank, both from the fused retriever and by final scores, 50 calls; bars: 95% intervals."
    title = "The gain over what the retriever misses"
    x = [100 * found["missed"] for found in sets.values()]
    with picture(path, title=title, note=note, panels=2) as panels:
        for panel, measure in zip(panels, MEASURES[:2], strict=True):
            found = [gains(of)["rerank fused", measure] for of in sets.values()]
            y, low, high = 100 * np.transpose([(c.difference, c.low, c.high) for c in found])
            panel.axhline(0, color="#59636e", linewidth=0.8)
            look = {"fmt": "o", "color": OTHERS[0], "ms": 4.5, "elinewidth": 0.9}
            panel.errorbar(x, y, [y - low, high - y], **look)
            panel.set_title(f"points of {measure} gained")
            panel.grid(axis="y")
        panels[1].set_xlabel("relevant items that the retriever's first 50 miss (%)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("matrices", nargs="*", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_intermixed_args()
    for path in given.matrices:
        rows = rows_of(*of_matrix(path))
        with given.file.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        print(rows[0]["set"], rows[0]["verdict"], rows[0]["contradicted"])
    if not given.matrices:
        sets = json.loads(given.file.read_text())
        tables(sets)
        if given.picture:
            draw(sets, given.picture)


if __name__ == "__main__":
    main()
