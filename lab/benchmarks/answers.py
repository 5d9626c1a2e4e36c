"""What answers gain by searching, reranking and fusion at equal calls, by the data sets' own judgements.

    python lab/benchmarks/answers.py OUT --work DIR --model FOLDER SET ... [--picture FILE]

SET is a matrix of scores with judgements, whose anchor queries fit the fusion and are known to no search, or
`ZESHEL:DOMAIN`: mentions of a domain of a folder in ZESHEL's layout, over the domain's entities, or over those of all
domains (`ZESHEL:DOMAIN:all`); `--model` scores these. Fusion and verdict are made from the queries to fit on, everything
else is measured on other queries, each searched alone. OUT (JSON lines) gets a row for each set and number of calls.
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

import crossknn as ck
from crossknn.evaluation.compare import BATCH, Evaluation, query_batches
from crossknn.evaluation.diagnosis import search_ways
from crossknn.evaluation.measures import bootstrap, holm, paired
from crossknn.evaluation.outcome import QueryBatch
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.evaluation.verdict import Way, verdict_of
from crossknn.fitting.fusion import _weigh
from crossknn.retrievers.specs import FUSION
from crossknn.scores.store import ScoreStore
from crossknn.search.fusion import open_fusion
from crossknn.types import Artifact, FloatArray, Pairs
from crossknn_lab.curves import OTHERS, picture
from crossknn_lab.stored import StoredMatrix
from crossknn_train.reading import ITEM_TEMPLATE, marked_query

BUDGETS, MEASURES = (20, 50, 100), ("nDCG@10", "R@20", "R@50", "R@100")
WAYS = ("retriever", "rerank", "retriever fused", "rerank fused", "search fused")
Values = Mapping[int, Mapping[Way, Mapping[str, FloatArray]]]


def of_matrix(path: Path) -> tuple[dict[str, Any], list[Values]]:
    """Search the anchor queries and the test queries of a matrix."""
    whole = StoredMatrix.load(path)
    bare = replace(whole, n_anchors=0)
    rows = judgements(bare).rows
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


def judgements(matrix: StoredMatrix) -> Judgements:
    """The judgements of all queries of a matrix without anchors."""
    from crossknn_lab.replay import judgements_of

    found = judgements_of(matrix)
    if found is None:
        raise SystemExit("the matrix has no judgements")
    return found


def of_folder(
    name: str, work: Path, model: Path, fits: int, tests: int
) -> tuple[dict[str, Any], list[Values]]:
    """Search mentions of a domain in ZESHEL's layout."""
    folder, domain, *everything = name.split(":")
    files = [Path(folder) / "documents" / f"{domain}.json"]
    if everything:
        files += sorted({*Path(folder).glob("documents/*.json")} - {*files})
    lines = [json.loads(line) for file in files for line in file.open(encoding="utf-8")]
    records = [{"id": x["document_id"], "title": x["title"], "text": x["text"]} for x in lines]
    items = ck.read_items(records, template=ITEM_TEMPLATE)
    [file] = Path(folder).glob(f"processed/*/{domain}_mentions.jsonl")
    asked = [json.loads(line) for line in file.open(encoding="utf-8")]
    drawn = np.random.default_rng(0).permutation(len(asked))[: fits + tests]
    asked = [asked[q] for q in drawn]
    ids = tuple(str(x["mention_id"]) for x in asked)
    texts = (marked_query(x["context_left"], x["mention"], x["context_right"]) for x in asked)
    queries = ck.QuerySet(ids, tuple(texts))
    qrels = {q: {x["label_document_id"]: 1} for q, x in zip(ids, asked, strict=True)}
    label = f"{domain} of {len(items):,}"
    index = ck.ItemIndex.build(items, encoder="bundled", folder=work / f"{label}.index")
    scorer = ck.StoredScorer(ck.CrossEncoder(model, cores=1), ScoreStore(work / f"{label}.sqlite"))
    fit, test = queries.take(range(fits)), queries.take(range(fits, len(queries)))
    ck.fit_fusion(index, scorer, fit, {q: qrels[q] for q in fit.ids})
    halves = []
    for half in (fit, test):
        judged = Judgements.from_qrels(qrels, half, index.items.ids)
        halves.append(searched(index, query_batches(index, half, scorer), judged))
    return {"set": label, "items": len(items), "fits": len(fit), "tests": len(test)}, halves


def searched(index: Any, batches: list[QueryBatch], judged: Judgements) -> Values:
    """Search with and without fusion; measures by calls and way to answer."""
    task = TaskMeasures(judged, MEASURES)
    evaluation = Evaluation(batches=batches, depth=max(BUDGETS), task=task)
    fusion = open_fusion(index, "auto", 0)
    ways = search_ways(evaluation, ck.parse_method("auto"), BUDGETS, fusion)
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


def tables(rows: list[dict[str, Any]]) -> None:
    """Print means, and differences to reranking; bold what is clear after Holm's correction."""
    for row in rows:
        means = [row["means"].get(way) for way in WAYS]
        shown = " | ".join("" if m is None else f"{100 * m['nDCG@10']:.1f}" for m in means)
        found = " / ".join(
            "" if m is None else f"{100 * m['R@20']:.1f}" for m in (means[1], *means[3:])
        )
        start = f"| {row['set']} | {row['calls']} | {row['beyond'][0]:.0%}"
        print(f"{start} | {shown} | {found} |")
    cells = [
        (row, way, m) for row in rows for way in ("rerank", "rerank fused") for m in MEASURES[:2]
    ]
    clear = [p <= 0.05 for p in holm([row["gain"][way][m][3] for row, way, m in cells])]
    for row in rows:
        shown = ""
        for (at, way, m), bold in zip(cells, clear, strict=True):
            if at is row:
                difference, low, high, _ = (100 * x for x in row["gain"][way][m])
                text = f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"
                shown += f" | **{text}**" if bold else f" | {text}"
        print(f"| {row['set']} | {row['calls']}{shown} |")
    for name, row in {row["set"]: row for row in rows}.items():
        print(
            f"| {name} | {row['fits']}, {row['tests']} | {row['verdict']} | {not row['contradicted']} |"
        )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the gain over what the retriever misses."""
    note = "Search minus rerank, both from the fused retriever and by final scores; bars: 95% intervals."
    title = "The gain of searching is at most what the retriever misses"
    with picture(path, title=title, note=note, panels=2) as both:
        for panel, measure in zip(both, MEASURES[:2], strict=True):
            panel.axhline(0, color="#59636e", linewidth=0.8)
            for budget, colour, marker in zip(BUDGETS, OTHERS, "oDv", strict=False):
                of = [row for row in rows if row["calls"] == budget]
                x = [100 * row["beyond"][0] for row in of]
                y, low, high = 100 * np.transpose(
                    [row["gain"]["rerank fused"][measure][:3] for row in of]
                )
                look = {"fmt": marker, "color": colour, "ms": 4.5, "elinewidth": 0.9}
                panel.errorbar(x, y, [y - low, high - y], label=f"{budget} calls", **look)
            panel.set_title(f"points of {measure} gained")
            panel.grid(axis="y")
        both[0].legend(frameon=False, loc="upper left")
        both[1].set_xlabel("relevant items that the retriever misses (%)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--work", type=Path, default=Path("build/answers"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--fits", type=int, default=100)
    parser.add_argument("--tests", type=int, default=300)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_intermixed_args()
    given.work.mkdir(parents=True, exist_ok=True)
    for name in given.sets:
        if name.endswith(".npz"):
            about, halves = of_matrix(Path(name))
        else:
            about, halves = of_folder(name, given.work, given.model, given.fits, given.tests)
        with given.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows_of(about, halves))
    rows = [json.loads(line) for line in given.out.open()]
    tables(rows)
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
