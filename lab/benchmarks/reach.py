"""Searches of the tasks of `crossknn_lab.reach_tasks`, measured by the task: what each method's
answers are worth at each budget, plain and fused.

python lab/benchmarks/reach.py SOURCES WORK [TASK ...]

`WORK/models/<scorer>` are the cross-encoders that are not the bundled one. Fusion is fitted to the half
"fit"; both halves are searched. Every pair is scored once, whatever asks for it, and a cell that was
searched is not searched again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.data.dataset import Dataset
from crossknn.evaluation.replay import judge
from crossknn.search.fusion import open_fusion
from crossknn_lab.reach_tasks import TASKS, Task

MEASURES = ("nDCG@10", "R@5", "R@10", "R@20", "R@100", "nDCG@100", "Rprec", "RR@10")


def index_of(name: str, task: Task, items: Any, work: Path) -> ck.ItemIndex:
    """The task's index, made once: the bundled dual encoder's vectors and BM25, or BM25 and LSA."""
    folder = work / f"{name}.index"
    if not folder.exists():
        began = time.time()
        ck.ItemIndex.build(items, encoder=None if task.lexical else "bundled").save(folder)
        print(f"{name}: {len(items)} items indexed in {time.time() - began:.0f} s", flush=True)
    return ck.ItemIndex.load(folder)


def plans(first: str) -> dict[str, tuple[str, ...]]:
    """What is compared, by whether it is fused: `first` is the retriever without fusion."""
    return {
        "none": (f"retrieve(retriever={first})", f"rerank(retriever={first})"),
        "auto": (
            "retrieve(retriever=fused)",
            f"rerank(retriever={first})",
            "rerank(retriever=fused)",
            "axn(retriever=fused, rounds=10, ridge=0.3)",
            "gp(retriever=fused)",
        ),
    }


def cells(index: ck.ItemIndex, folder: Path, budgets: Sequence[int], data: Dataset, scorer: Any):
    """Search what was not searched yet; a file for each cell."""
    for fuse, specs in plans(usual_without_fusion(index)).items():
        fusion = open_fusion(index, fuse, 0)
        for spec, budget in [(s, b) for s in specs for b in budgets]:
            budget *= not spec.startswith("retrieve")
            file = folder / f"{spec} {fuse} {budget}.npz"
            if file.exists():
                continue
            began, options = time.time(), {"measures": MEASURES, "fusion": fusion}
            methods = ck.parse_methods(spec)
            [found] = judge(
                index, scorer, data.queries, methods, [budget], qrels=data.qrels, **options
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(file, items=found.items, **found.task)
            said = [f"{m} {100 * np.nanmean(found.task[m]):.1f}" for m in MEASURES[:4]]
            print(*file.parts[-3:], *said, f"{time.time() - began:.0f} s", flush=True)


def usual_without_fusion(index: ck.ItemIndex) -> str:
    return "dense" if "dense" in index.vectors else "bm25"


def main(sources: Path, work: Path, names: list[str]) -> None:
    for name in names or TASKS:
        task = TASKS[name]
        fit, test = task.data(sources)
        index = index_of(name, task, fit.items, work)
        bundled = task.scorer == "bundled"
        exact = ck.CrossEncoder(None if bundled else work / "models" / task.scorer, cores=1)
        scorer = ck.StoredScorer(exact, work / f"{task.scorer}.sqlite")
        if "fusion" not in index.artifacts:
            found = ck.fit_fusion(index, scorer, fit.queries, fit.qrels)
            index.save(work / f"{name}.index")
            print(name, found, flush=True)
        for half, data in (("fit", fit), ("test", test)):
            cells(index, work / "cells" / name / half, task.budgets, data, scorer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
