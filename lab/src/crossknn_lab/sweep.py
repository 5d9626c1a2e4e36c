"""Sweeps: run every cell once, in several processes, and again from where a kill stopped it.

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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from crossknn.errors import CrossknnError, InputError
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.files import (
    exclusive_lock,
    make_folder,
    read_file,
    remove_parts,
    translate_os_errors,
    write_file,
)
from crossknn.types import Progress
from crossknn_lab.cells import Cell, CellResult, MatrixFile, code, search
from crossknn_lab.sweep_file import Setting, Sweep
from crossknn_lab.table import CELLS, Entry, Table, write_table

logger = logging.getLogger(__name__)

Results: TypeAlias = Mapping[str, CellResult | str]
"""By the cell's key: what it found, or why it could not be searched."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of a sweep: cells `searched` now and `kept` from before; its table.

    `failed` has for each sentence on what some cells lack how many these are. `older` of the kept
    ones were searched by other source files of methods and search.
    """

    searched: int
    kept: int
    failed: Mapping[str, int]
    older: int
    table: Table


def run_sweep(
    sweep: Sweep, folder: str | Path, *, workers: int = 1, progress: Progress | None = None
) -> Done:
    """Search all cells that are not in the folder yet, and write the sweep's table.

    A cell that cannot be searched has its reason in the table, and the rest goes on.

    Args:
        workers: With several, cells are searched in as many processes, each on one thread and with
            its own copy of a matrix; a script that asks for them must be importable.

    Raises:
        InputError: before anything is searched, where the sweep does not fit its matrices, and if
            another process is running a sweep in that folder.
        CrossknnError: if a worker dies.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; it must be 1 or more")
    if sweep.measures:
        TaskMeasures(Judgements(()), sweep.measures)  # a wrong name is said before any search
    folder, files = Path(folder), read_matrices(sweep)
    notes, first = fitting_notes(sweep, files), dev_rows(sweep, files)
    with translate_os_errors(folder, "cells"):
        folder.mkdir(parents=True, exist_ok=True)
        make_folder(folder / CELLS)
        with exclusive_lock(folder, what="cells"):
            remove_parts(folder / CELLS)
            cells = _Cells(folder / CELLS, workers, progress)
            cells.fill(first)
            chosen = best_rows(first, cells.results)
            last = table_rows(sweep, files, chosen)
            cells.fill(last)
            table = Table(
                entries=tuple(_entry(row, cells.results, row.group in chosen) for row in last),
                dev=tuple(_entry(row, cells.results, False) for row in first),
                k=sweep.k,
                grid=tuple(sweep.grid),
                notes=tuple(notes),
                baseline=sweep.baseline,
            )
            write_table(table, folder)
    rows = (*table.dev, *table.entries)
    results = cells.results.values()
    return Done(
        searched=cells.searched,
        kept=cells.kept,
        failed=Counter(f"{e.data}, {e.spec}: {e.error}" for e in rows if e.error),
        older=sum(isinstance(r, CellResult) and r.code != code() for r in results),
        table=table,
    )


def failures(failed: Mapping[str, int]) -> list[str]:
    """Sentences on what failed, and how often."""
    return [
        f"failed: {sentence}" + (f" ({count} searches)" if count > 1 else "")
        for sentence, count in failed.items()
    ]


def _entry(row: Row, results: Results, chosen: bool) -> Entry:
    result = results[row.cell.key]
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
        result=None if isinstance(result, str) else result,
    )


# ------------------------------------------------------------------------- rows and cells


@dataclass(frozen=True, kw_only=True)
class Row:
    """A setting of a method on a matrix, at a budget, by a seed; `anchors` as the sweep has them.

    A dev row's cell has fewer anchors where dev queries had to be held out of these.
    """

    matrix: MatrixFile
    setting: Setting
    anchors: int
    cell: Cell

    @property
    def group(self) -> tuple[str, str, int, int, int]:
        """What rows that differ in the setting only have in common."""
        cell = self.cell
        return self.matrix.name, self.setting.template, self.anchors, cell.budget, cell.seed


def read_matrices(sweep: Sweep) -> list[MatrixFile]:
    """The files of a sweep; `InputError` where it does not fit one of them."""
    files = [MatrixFile.read(path) for path in sweep.matrices]
    for file in files:
        if max(sweep.k) > file.n_items:
            raise InputError(
                f"k is {max(sweep.k)}, but {file.name} has {file.n_items} items: take a smaller k, "
                "or sweep the larger matrices by themselves"
            )
        if sweep.chooses and not file.n_dev:
            raise InputError(
                f"{file.name} has {file.n_anchors} anchor queries: choose holds a third of them "
                "out as dev queries, so that 2 are needed at least"
            )
        fewer = any(count < file.n_anchors for count in sweep.anchors)
        if file.fitted and (sweep.redraw or fewer or sweep.chooses):
            raise InputError(
                f"{file.name} cannot be divided: its fitted vectors ({', '.join(file.fitted)}) were "
                "fitted to all its anchor queries, which therefore cannot be fewer, drawn anew, or "
                "dev queries"
            )
        if sweep.anchors and min(sweep.anchors) > file.n_anchors:
            raise InputError(
                f"nothing is left of {file.name}: it has {file.n_anchors} anchor queries, and "
                f"anchors begin at {min(sweep.anchors)}"
            )
    return files


def fitting_notes(sweep: Sweep, files: Sequence[MatrixFile]) -> list[str]:
    """What of a sweep is otherwise than its file says, for want of data."""
    notes = []
    for file in files:
        if beyond := [count for count in sweep.anchors if count > file.n_anchors]:
            notes.append(
                f"{file.name} has {file.n_anchors} anchor queries: anchors = "
                f"{', '.join(map(str, beyond))} left out"
            )
        if sweep.chooses:
            held = file.n_dev if sweep.queries is None else min(sweep.queries, file.n_dev)
            notes.append(f"{file.name}: settings are chosen on {held} of its anchor queries")
    return notes


def table_rows(
    sweep: Sweep, files: Sequence[MatrixFile], chosen: Mapping[object, Row]
) -> list[Row]:
    """The table's rows in its order; of several settings, the one of the `chosen` dev row."""
    rows = list(_rows(sweep, files, sweep.settings(), dev=False))
    if not chosen:
        return rows
    place = {row.group: i for i, row in enumerate(_rows(sweep, files, sweep.one_each(), dev=False))}
    kept = [
        row
        for row in rows
        if row.group not in chosen or chosen[row.group].setting.spec == row.setting.spec
    ]
    return sorted(kept, key=lambda row: place[row.group])


def dev_rows(sweep: Sweep, files: Sequence[MatrixFile]) -> list[Row]:
    """A row of each setting that is to be chosen from."""
    if not sweep.choose:
        return []
    counts = Counter(setting.template for setting in sweep.settings())
    several = [setting for setting in sweep.settings() if counts[setting.template] > 1]
    return list(_rows(sweep, files, several, dev=True))


def best_rows(rows: Sequence[Row], results: Results) -> dict[object, Row]:
    """Of each method at a budget, the setting with the highest recall, mean over k and queries.

    Of equals the first; the first, too, where none could be searched.
    """
    best: dict[object, tuple[float, Row]] = {}
    for row in rows:
        result = results[row.cell.key]
        recall = -1.0
        if isinstance(result, CellResult):
            found = result.outcome.recall.values()
            recall = sum(float(values.mean()) for values in found) / len(found)
        if row.group not in best or recall > best[row.group][0]:
            best[row.group] = recall, row
    return {group: row for group, (_, row) in best.items()}


def _rows(
    sweep: Sweep, files: Sequence[MatrixFile], settings: Sequence[Setting], *, dev: bool
) -> Iterator[Row]:
    for file in files:
        limit = file.n_dev if dev else file.n_tests
        known = file.n_anchors - (file.n_dev if dev else 0)
        wanted = [a for a in sweep.anchors or (file.n_anchors,) if a <= file.n_anchors]
        combinations = (
            (setting, anchors, budget, seed)
            for setting in settings
            for anchors in wanted
            for budget in sweep.budgets_of(setting)
            for seed in sweep.seeds
        )
        for chosen, anchors, budget, seed in combinations:
            cell = Cell(
                path=file.path,
                digest=file.digest,
                method=chosen.method,
                budget=budget,
                seed=seed,
                anchors=min(anchors, known),
                queries=limit if sweep.queries is None else min(sweep.queries, limit),
                k=sweep.k,
                measures=() if dev else sweep.measures,
                draw=sweep.redraw,
                dev=dev,
            )
            yield Row(matrix=file, setting=chosen, anchors=anchors, cell=cell)


class _Cells:
    """The cells of a folder, and what became of them by key."""

    def __init__(self, folder: Path, workers: int, progress: Progress | None) -> None:
        self.folder, self.workers, self.progress = folder, workers, progress
        self.results: dict[str, CellResult | str] = {}
        self.searched = self.kept = 0

    def fill(self, rows: Sequence[Row]) -> None:
        """Find the cells of all rows, each once."""
        wanted = {row.cell.key: row.cell for row in rows if row.cell.key not in self.results}
        for key in wanted:
            if (result := self._read(key)) is not None:
                self.results[key] = result
                self.kept += 1
        missing = {key: cell for key, cell in wanted.items() if key not in self.results}
        total = len(self.results) + len(missing)
        self._report(total)
        # Together what is searched with the same arrays: a process holds one matrix at a time.
        places = {data: i for i, data in enumerate(dict.fromkeys(c.data for c in missing.values()))}
        ordered = sorted(missing.items(), key=lambda pair: places[pair[1].data])
        for key, found in _searched(dict(ordered), min(self.workers, len(ordered) or 1)):
            if isinstance(found, CellResult):
                # A kill leaves it whole or not there; what a power cut damages is searched again.
                write_file(self.folder, f"{key}.json", found.as_json().encode())
            self.results[key] = found
            self.searched += 1
            self._report(total)

    def _report(self, total: int) -> None:
        if self.progress:
            self.progress(len(self.results), total)

    def _read(self, key: str) -> CellResult | None:
        path = self.folder / f"{key}.json"
        try:
            return CellResult.from_json(read_file(self.folder, path.name).decode())
        except FileNotFoundError:
            return None
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning("%s is damaged: it is searched again", path)
            return None


def _searched(cells: Mapping[str, Cell], workers: int) -> Iterator[tuple[str, CellResult | str]]:
    """Search cells in `workers` processes, or here if it is one; in the order in which they end."""
    if workers == 1:
        yield from ((key, search(cell)) for key, cell in cells.items())
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin_worker) as pool:
        keys = {pool.submit(search, cell): key for key, cell in cells.items()}
        try:
            yield from ((keys[job], job.result()) for job in as_completed(keys))
        except BrokenProcessPool:
            raise CrossknnError(
                "a process that searched was killed, or ran out of memory: what was searched is "
                "kept; run the same again, with fewer --workers"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """In a new process: leave interrupts to the one that writes, and end when that one has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
