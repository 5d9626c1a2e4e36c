"""Searches of the tasks of `crossknn_lab.reach_tasks`: what each method returns, at each budget.

python lab/benchmarks/reach.py index|run SOURCES WORK [TASK ...]

`WORK/models` holds the cross-encoders. Every pair is scored once, whatever asks for it, and what was
searched is not searched again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import crossknn as ck
from crossknn_lab.reach_tasks import TASKS, Task


def index_of(name: str, task: Task, sources: Path, work: Path) -> ck.ItemIndex:
    folder = work / f"{name}.index"
    if not folder.exists():
        items = task.data(sources)[0].items
        encoder = None if task.lexical else "bundled"
        began = time.time()
        ck.ItemIndex.build(items, encoder=encoder).save(folder)
        print(f"{name}: {len(items)} items indexed in {time.time() - began:.0f} s", flush=True)
    return ck.ItemIndex.load(folder)


def main(stage: str, sources: Path, work: Path, names: list[str]) -> None:
    for name in names or TASKS:
        index_of(name, TASKS[name], sources, work)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
