"""What searching is worth by the task's own measures, where a retriever's reach is short and where not.

python lab/benchmarks/reach.py SOURCES WORK [TASK or MATRIX.npz ...]

It searches the tasks of `crossknn_lab.reach_tasks`, or stored matrices; `WORK/models/<scorer>` are the
cross-encoders that are not the bundled one. Fusion is fitted to the half "fit" (a matrix's anchor
queries), and both halves are searched. Every pair is scored once, whatever asks for it, and a cell that
was searched is not searched again: a run that was stopped goes on. `reach_report.py` reads WORK.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.data.dataset import Dataset
from crossknn.evaluation.replay import BATCH, Part, outcome, parts_on_demand
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.extend import Pairs
from crossknn.fitting.fusion import weigh
from crossknn.methods import DEFAULT
from crossknn.retrievers.specs import FUSION, first_stage
from crossknn.search.fusion import open_fusion
from crossknn.types import Artifact, FloatArray
from crossknn_lab.reach_tasks import TASKS, Task
from crossknn_lab.stored import StoredMatrix

MEASURES = (*("nDCG@10", "R@5", "R@10", "R@20", "R@50", "R@100"), *("nDCG@100", "Rprec", "RR@10"))
WAYS = {
    "retriever": ("retrieve(retriever={first})", False),
    "rerank": ("rerank(retriever={first})", False),
    "retriever fused": ("retrieve(retriever=fused)", True),
    "rerank fused": ("rerank(retriever={first})", True),
    "rerank fused first": ("rerank(retriever=fused)", True),
    "search fused": (DEFAULT, True),
}
"""What is compared: a method, and whether answers are ordered by final scores. `first` is the retriever
without fusion, `fused` the weighted sum."""


def search(
    index: Any, folder: Path, budgets: Sequence[int], parts: Sequence[Part], judged: Judgements
) -> None:
    """Search what was not searched yet; a file for each cell."""
    task = TaskMeasures(judged, MEASURES)
    for way, (spec, fused) in WAYS.items():
        method = ck.parse_method(spec.format(first=first_stage(index)))
        fusion = open_fusion(index, "auto", seed=0) if fused else None
        for budget in budgets if method.calls else (0,):
            file = folder / f"{way} {budget}.npz"
            if not file.exists():
                began = time.time()
                found = outcome(way, method, parts, None, budget=budget, task=task, fusion=fusion)
                folder.mkdir(parents=True, exist_ok=True)
                np.savez_compressed(file, **found.task)
                said = [f"{m} {100 * np.nanmean(found.task[m]):.1f}" for m in MEASURES[:4]]
                print(*file.parts[-3:], *said, f"{time.time() - began:.0f} s", flush=True)


def run_task(name: str, task: Task, sources: Path, work: Path) -> None:
    halves = dict(zip(("fit", "test"), task.data(sources), strict=True))
    index = index_of(name, task, halves["fit"], work)
    own = None if task.scorer == "bundled" else work / "models" / task.scorer
    exact = ck.CrossEncoder(own, cores=1)
    scorer = ck.StoredScorer(exact, work / f"{task.scorer}.sqlite")
    if FUSION not in index.artifacts:
        ck.fit_fusion(index, scorer, halves["fit"].queries, halves["fit"].qrels)
        index.save(work / f"{name}.index")
    for half, data in halves.items():
        parts = parts_on_demand(index, scorer, data.queries)
        judged = Judgements.from_qrels(data.qrels, data.queries.ids, index.items.ids)
        search(index, work / "cells" / name / half, task.budgets, parts, judged)
    about = {"n": index.n, "tests": len(halves["test"]), "fits": len(halves["fit"])}
    _write(work / "cells" / name / "about.json", about | {"fusion": index.artifacts[FUSION].meta})


def index_of(name: str, task: Task, data: Dataset, work: Path) -> ck.ItemIndex:
    """The task's index, made once: the bundled dual encoder's vectors and BM25, or BM25 and LSA."""
    folder = work / f"{name}.index"
    if not folder.exists():
        began = time.time()
        ck.ItemIndex.build(data.items, encoder=None if task.lexical else "bundled").save(folder)
        print(
            f"{name}: {len(data.items)} items, indexed in {time.time() - began:.0f} s", flush=True
        )
    return ck.ItemIndex.load(folder)


def run_matrix(file: Path, work: Path) -> None:
    """A stored matrix: its anchors are the half that is fitted to, and known to no search."""
    matrix = StoredMatrix.load(file)
    fits, known = matrix.n_anchors, matrix.scores
    bare = replace(matrix, n_anchors=0)
    rows = Judgements.from_matrix(bare).rows

    def score(pairs: Pairs) -> FloatArray:
        return known[pairs.query, pairs.item]

    found = weigh(bare, matrix.queries(slice(0, fits)), score, rows[:fits])
    index = replace(bare, artifacts={FUSION: Artifact(found | {"fingerprint": None}, {})})
    for half, start, stop in (("fit", 0, fits), ("test", fits, len(known))):
        starts = range(start, stop, BATCH)
        batches = [slice(first, min(first + BATCH, stop)) for first in starts]
        parts = [Part.known(index, matrix.queries(at), known[at]) for at in batches]
        judged = Judgements(rows[start:stop])
        search(index, work / "cells" / file.stem / half, (20, 50, 100), parts, judged)
    about = {"n": matrix.n, "tests": matrix.n_tests, "fits": fits, "fusion": found}
    _write(work / "cells" / file.stem / "about.json", about)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sources, work, *names = sys.argv[1:]
    for name in names or TASKS:
        if name.endswith(".npz"):
            run_matrix(Path(name), Path(work))
        else:
            run_task(name, TASKS[name], Path(sources), Path(work))
