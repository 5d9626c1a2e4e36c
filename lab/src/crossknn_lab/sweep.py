"""Run a sweep: every cell once, in several processes, and again from where a kill stopped it.

    done = run_sweep(read_sweep("sweep.toml"), "DIR", workers=2)
    table = read_table("DIR")

A cell is written when it is done, under a name made of everything that it depends on; whoever runs
the sweep again, or another one with some of the same cells, finds it there.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from crossknn.errors import CrossknnError, InputError
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.files import exclusive_lock, translate_os_errors
from crossknn.types import Progress
from crossknn_lab.jobs import in_flight
from crossknn_lab.sweep_cells import Cell, Found, code, search
from crossknn_lab.sweep_file import Sweep
from crossknn_lab.sweep_output import write_table
from crossknn_lab.sweep_plan import Row, best, dev_rows, notes, read_matrices, table_rows
from crossknn_lab.table import CELLS, Entry, Table

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of a sweep: of its `cells`, `searched` now and `kept` from before; its table.

    `failed` has for each sentence on what some cells lack how many these are. `older` of the kept
    ones were searched by other source files of methods and search.
    """

    cells: int
    searched: int
    kept: int
    failed: Mapping[str, int]
    older: int
    table: Table


def run_sweep(
    sweep: Sweep, folder: str | Path, *, workers: int = 1, progress: Progress | None = None
) -> Done:
    """Search all cells that are not in the folder yet, and write the sweep's table.

    With several `workers`, cells are searched in as many processes, each on one thread and with its
    own copy of a matrix; a script that asks for them must be importable (`if __name__ ==
    "__main__":`). A cell that cannot be searched has its reason in the table, and the rest goes on.

    Raises `InputError` before anything is searched where the sweep does not fit its matrices, and
    if another process is running a sweep in that folder; CrossknnError if a worker dies.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; it must be 1 or more")
    if sweep.measures:
        TaskMeasures(Judgements(()), sweep.measures)  # a wrong name is said before any search
    folder = Path(folder)
    files = read_matrices(sweep)
    said = notes(sweep, files)
    first = dev_rows(sweep, files)
    later = len({row.group for row in table_rows(sweep, files, {})}) if first else 0
    with translate_os_errors(folder, "cells"):
        folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder, what="cells"), translate_os_errors(folder, "cells"):
        cells = _Cells(folder / CELLS, workers, progress)
        cells.fill(first, later)
        chosen = best(first, cells.found)
        last = table_rows(sweep, files, chosen)
        cells.fill(last)
        entries = tuple(_entry(row, cells.found, row.group in chosen) for row in last)
        table = Table(
            entries=entries,
            dev=tuple(_entry(row, cells.found, False) for row in first),
            k=sweep.k,
            grid=tuple(sweep.grid),
            notes=(*said, *(_unlabelled(entries) if sweep.measures else ())),
            baseline=sweep.baseline,
        )
        write_table(table, folder)
    failed: dict[str, int] = {}
    for entry in (*table.dev, *table.entries):
        if entry.error:
            sentence = f"{entry.data}, {entry.spec}: {entry.error}"
            failed[sentence] = failed.get(sentence, 0) + 1
    return Done(
        cells=len(cells.found),
        searched=cells.searched,
        kept=cells.kept,
        failed=failed,
        older=sum(isinstance(f, Found) and f.code != code() for f in cells.found.values()),
        table=table,
    )


def _entry(row: Row, found: Mapping[str, Found | str], chosen: bool) -> Entry:
    result = found[row.cell.key]
    return Entry(
        data=row.matrix.name,
        items=row.matrix.n_items,
        method=row.setting.template,
        spec=row.setting.spec,
        values=row.setting.values,
        chosen=chosen,
        anchors=row.cell.anchors,
        budget=row.cell.budget,
        seed=row.cell.seed,
        cell=row.cell.key,
        error=result if isinstance(result, str) else "",
        found=None if isinstance(result, str) else result,
    )


def _unlabelled(entries: Sequence[Entry]) -> Iterator[str]:
    """Which test queries the task's measures say nothing of, by matrix; seeds may draw others."""
    missing: dict[str, set[int]] = {}
    tests: dict[str, int] = {}
    for entry in entries:
        if entry.found:
            m, outcome = len(entry.found.queries), entry.found.outcome
            missing.setdefault(entry.data, set()).add(outcome.unjudged if outcome.task else m)
            tests[entry.data] = m
    for data, counts in missing.items():
        if max(counts):
            span = " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))
            yield (
                f"{data}: {span} of {tests[data]} test queries have no label, and no part in the "
                "task's measures"
            )


class _Cells:
    """The cells of a folder: `found` by key, or why a cell could not be searched."""

    def __init__(self, folder: Path, workers: int, progress: Progress | None) -> None:
        self.folder, self.workers, self.progress = folder, workers, progress
        self.found: dict[str, Found | str] = {}
        self.searched = self.kept = 0
        folder.mkdir(parents=True, exist_ok=True)

    def fill(self, rows: Sequence[Row], later: int = 0) -> None:
        """Find the cells of all rows, each once; about so many more will come `later`."""
        wanted = {row.cell.key: row.cell for row in rows if row.cell.key not in self.found}
        for key in wanted:
            if (found := self._read(key)) is not None:
                self.found[key] = found
                self.kept += 1
        missing = {key: cell for key, cell in wanted.items() if key not in self.found}
        total = len(self.found) + len(missing) + later
        if self.progress:
            self.progress(len(self.found), total)
        # Together what is searched with the same arrays: a process holds one matrix at a time.
        places = {data: i for i, data in enumerate(dict.fromkeys(c.data for c in missing.values()))}
        ordered = sorted(missing.items(), key=lambda pair: places[pair[1].data])
        for (key, _), result in _searched(iter(ordered), min(self.workers, len(ordered) or 1)):
            if isinstance(result, Found):
                self._write(key, result)
            self.found[key] = result
            self.searched += 1
            if self.progress:
                self.progress(len(self.found), total)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _write(self, key: str, found: Found) -> None:
        """A kill leaves it whole or not there; what a power cut damages is searched again."""
        part = self.folder / f"{key}.part"
        part.write_text(found.as_json(), encoding="utf-8")
        os.replace(part, self._path(key))

    def _read(self, key: str) -> Found | None:
        try:
            return Found.from_json(self._path(key).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning("%s is damaged: it is searched again", self._path(key))
            return None


def _searched(
    cells: Iterator[tuple[str, Cell]], workers: int
) -> Iterator[tuple[tuple[str, Cell], Found | str]]:
    """Search cells in `workers` processes, or here if it is one; in the order in which they end."""
    if workers == 1:
        for key, cell in cells:
            yield (key, cell), search(cell)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin) as pool:
        try:
            yield from in_flight(
                cells,
                2 * workers,
                lambda named: pool.submit(search, named[1]),
                _ended,
                lambda job, named: job.result(),
            )
        except BrokenProcessPool:
            raise CrossknnError(
                "a process that searched was killed, or ran out of memory: what was searched is "
                "kept; run the same again, with fewer --workers"
            ) from None


def _ended(jobs: list[Future[Found | str]]) -> set[Future[Found | str]]:
    return wait(jobs, return_when=FIRST_COMPLETED).done


def _begin() -> None:
    """In a new process: leave interrupts to the one that writes, and end when that one has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
