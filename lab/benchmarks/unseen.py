"""The default on a matrix that no setting was chosen on: short descriptions of Debian's packages.

    python lab/benchmarks/unseen.py build PACKAGES WORK   # `Packages` of a Debian release, unpacked
    python lab/benchmarks/auto.py run WORK/cells WORK/debian.npz --seeds 0
    python lab/benchmarks/unseen.py report WORK           # benchmarks/results/unseen.json

64 descriptions ask for the most similar of 4,000 others, by the bundled cross-encoder; 32 of them are
anchors, the others tests. Descriptions that begin alike count once.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
from auto import AUTO, BUDGETS, KS, SITUATIONS, cells, differences, searched

import crossknn as ck
from crossknn.evaluation.measures import paired
from crossknn.scores.collect import exact_scores
from crossknn.types import Queries

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "unseen.json"
SECTIONS = """admin comm database devel editors education electronics fonts games gnome graphics
hamradio interpreters kde mail math misc net news science sound tex text utils video web x11"""
DRAWN, QUERIES, ITEMS = 140, 64, 4000


def build(packages: Path, work: Path) -> None:
    """The matrix WORK/debian.npz; scores are kept in an index, and a killed building goes on."""
    found, sections = {}, set(SECTIONS.split())
    for block in packages.read_text().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.+)$", block, re.MULTILINE))
        text = fields.get("Description", "")
        stem = text.split(" (")[0].split(" - ")[0].lower()
        if fields.get("Section") in sections and len(text) > 15:
            found.setdefault(stem, (fields["Package"], text))
    rows = [*found.values()]
    order = np.random.default_rng(0).permutation(len(rows))[: DRAWN + ITEMS]
    drawn = [rows[p] for p in order]
    folder, queries = work / "index", Queries([text for _, text in drawn[:QUERIES]])
    if not folder.exists():
        items = [{"id": name, "text": text} for name, text in drawn[DRAWN:]]
        ck.ItemIndex.build(items, encoder="bundled").save(folder)
    index, scorer = ck.ItemIndex.load(folder), ck.CrossEncoder("bundled", threads=1)
    np.savez_compressed(
        work / "debian.npz",
        scores=exact_scores(index.scores, scorer, queries.texts, index.items.texts),
        n_anchors=QUERIES // 2,
        item_vectors=np.asarray(index.vectors["dense"]),
        query_vectors=index.query_vectors(queries, "dense"),
        first_bm25=index.retrievers["bm25"].scores(queries),
        query_ids=np.array([name for name, _ in drawn[:QUERIES]]),
    )


def report(work: Path) -> None:
    """The default beside the rival that is best on dev queries, and beside reranking's better
    setting on the tests themselves."""
    known, path, rows = cells(work / "cells"), work / "debian.npz", []
    for situation in SITUATIONS:
        test, _ = searched(known, path.stem, situation, 0)
        for k in KS:
            for budget in BUDGETS:
                at = f"{budget} {k}"
                sides = differences(known, path, situation, [at], [at], seeds=(0,))
                assert sides is not None
                reranked = [of[at] for name, of in test.items() if name.startswith("rerank")]
                better = max(reranked, key=np.mean)
                row = {"situation": situation, "k": k, "calls": budget}
                row["auto"] = round(100 * float(sides[0].mean()), 1)
                for name, gap in (
                    ("rival", sides[0] - sides[1]),
                    ("rerank", test[AUTO][at] - better),
                ):
                    gain = paired(100 * gap)
                    row[name] = [round(v, 1) for v in (gain.difference, gain.low, gain.high)]
                rows.append(row)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    command, *given = sys.argv[1:]
    {"build": build, "report": report}[command](*map(Path, given))
