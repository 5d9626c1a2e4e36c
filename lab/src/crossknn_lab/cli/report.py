"""`crossknn-lab report`: a page about a sweep that has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.options import check_out, check_plots
from crossknn.cli.output import err, say
from crossknn.errors import InputError

NAME = "report"


def command(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a sweep (crossknn-lab sweep --out).")
    ],
    to: Annotated[Path, typer.Option("--out", help="A folder for index.html, page.md, images/.")],
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """A page about a sweep: pictures, tables, paired differences, costs, the task's measures.

    One HTML file that needs nothing beside it, and the same in Markdown. Nothing is searched.
    """
    from crossknn_lab.table import read_table

    check_out(to)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}: give one that  crossknn-lab sweep  has written"
        )
    table = read_table(folder)
    check_plots("report")
    from crossknn_lab.report import write_html, write_markdown
    from crossknn_lab.report.sweeps import sweep_page

    with err.status("writing the report"):
        page = sweep_page(table, title or f"Sweep: {folder.absolute().name}")
        write_html(page, to / "index.html")
        write_markdown(page, to)
    say(f"{to / 'index.html'}, {to / 'page.md'}")
