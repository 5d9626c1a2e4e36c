"""`crossknn-lab sweep`: methods x settings x budgets x seeds on stored score matrices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.options import AsJson, check_out
from crossknn.cli.output import note, print_json, progress, say

NAME = "sweep"


def command(
    file: Annotated[Path, typer.Argument(help="What to try (.toml; see the docs, sweeps).")],
    folder: Annotated[Path, typer.Option("--out", help="A folder for the table and the cells.")],
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each; as many as cores by default.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Search with many methods, settings, budgets and seeds: one tidy table of recall and calls.

    Run again after an interruption, or with more in the file, and no cell is searched twice. The
    exit code is 1 if some could not be searched; the table says why.
    """
    from crossknn.scorers.onnx import available_threads
    from crossknn_lab.sweep import run_sweep
    from crossknn_lab.sweep_file import read_sweep

    check_out(folder)
    sweep = read_sweep(file)
    began = time.perf_counter()
    with progress("sweep", "cells") as report:
        done = run_sweep(
            sweep,
            folder,
            workers=available_threads() if workers is None else workers,
            progress=report,
        )
    failed = sum(done.failed.values())
    summary = {
        "table": str(folder / "table.csv"),
        "rows": len(done.table.entries) * len(sweep.k),
        "cells": done.cells,
        "searched": done.searched,
        "kept": done.kept,
        "failed": failed,
        "older": done.older,
        "notes": list(done.table.notes),
        "seconds": round(time.perf_counter() - began, 2),
    }
    if json:
        print_json(summary | {"errors": dict(done.failed)})
        return int(failed > 0)
    for sentence in done.table.notes:
        note(sentence)
    for sentence, count in done.failed.items():
        times = f" ({count} searches)" if count > 1 else ""
        note(f"failed: {sentence}{times}")
    if done.older:
        note(
            f"{done.older} cells were searched by other source files of crossknn: remove "
            f"{folder / 'cells'} to search them again"
        )
    say(
        f"{summary['table']}: {summary['rows']} rows; {done.searched} searched now, {done.kept} "
        f"kept from before, {failed} failed, {summary['seconds']} s"
    )
    return int(failed > 0)
