"""`crossknn-lab reproduce`: the papers' figures and tables, and rivals, on stored score matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.options import check_out
from crossknn.cli.output import note, progress, say

NAME = "reproduce"


def command(
    data: Annotated[Path, typer.Option("--data", help="A folder of score matrices (.npz).")],
    folder: Annotated[Path, typer.Option("--out", help="A folder for the report.")],
    preset: Annotated[
        str, typer.Option(help="'small': minutes. 'full': every grid, seed and matrix; hours.")
    ] = "small",
    workers: Annotated[
        int | None, typer.Option(help="Processes, one thread each; as many as cores by default.")
    ] = None,
) -> int:
    """Every figure and table that can be made of stored scores, in one command: a page about all.

    Writes index.html, page.md with its images, and the tables of all sweeps. Run again after an
    interruption, and nothing is searched twice. The exit code is 1 if some searches failed.
    """
    from crossknn.scorers.onnx import available_threads
    from crossknn_lab.report.presets import preset as named
    from crossknn_lab.report.reproduce import matrices_of, reproduce

    check_out(folder)
    with progress("searches", "cells") as report:
        made = reproduce(
            matrices_of(data),
            folder,
            preset=named(preset),
            workers=available_threads() if workers is None else workers,
            progress=report,
            said=note,
        )
    spent = made.study.spent
    for sentence in made.study.notes:
        note(sentence)
    for sentence, count in spent.failed.items():
        note(f"failed: {sentence}" + (f" ({count} searches)" if count > 1 else ""))
    say(
        f"{made.html}, {made.markdown}: {spent.searched} searches now, {spent.kept} kept from "
        f"before, {made.seconds:.0f} s"
    )
    return int(bool(spent.failed))
