"""The command line `crossknn-lab`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from crossknn.cli.app import run as run_app
from crossknn_lab.cli import analyze, convert, replay, report, reproduce, sweep

HELP = "Sweeps, reports, the papers' figures and analyses on stored score matrices."

app = typer.Typer(
    name="crossknn-lab",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (replay, sweep, report, reproduce, analyze, convert):
    app.command(module.NAME)(module.command)


@app.callback()
def _options() -> None:
    """Sweeps, reports, the papers' figures and analyses on stored score matrices."""


def run(arguments: list[str]) -> int:
    """Run one command; the exit code."""
    return run_app(arguments, app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `crossknn-lab`; errors become one sentence on stderr and an exit code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))
