"""The command-line application: its commands, and exit codes for errors."""

from __future__ import annotations

import errno
import logging
import sys

import typer

from crossknn import __version__
from crossknn.cli import collect, compare, fit, index, mcp, search, serve, trial
from crossknn.cli.output import INTERRUPTED, Notes, let_go, note, prepare_streams
from crossknn.errors import CrossknnError

EPILOG = (
    "Exit codes: 0 done; 1 another failure; 2 wrong input; 3 the scorer failed, and the answer is "
    "what was found before; 4 the scorer failed, and there is no answer; 5 an extra is not "
    "installed; 6 the index cannot be used; 7 a service's address is not free; 130 interrupted."
)

app = typer.Typer(
    name="crossknn",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(index.app, name="index")
for module in (collect, fit, search, serve, mcp, compare):
    app.command(module.__name__.split(".")[-1], epilog=module.EPILOG)(module.command)
app.command("demo", epilog=trial.DEMO)(trial.demo)
app.command("try", epilog=trial.EPILOG)(trial.command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"crossknn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """k-nearest-neighbour search directly with a cross-encoder, under a budget of calls."""


def run(arguments: list[str], commands: typer.Typer = app) -> int:
    """Run one command, of `crossknn` or of another set of `commands`, and return the exit code."""
    notes = Notes(logging.WARNING)
    logging.getLogger().addHandler(notes)
    prepare_streams()
    streams = sys.stdout, sys.stderr
    try:
        code, message = _run(arguments, commands)
        if message:
            note(f"crossknn: {message}")
        return code
    except (BrokenPipeError, SystemExit) as error:  # Typer turns the one into the other
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        return 0  # nobody reads the output any more
    finally:
        logging.getLogger().removeHandler(notes)
        sys.stdout, sys.stderr = streams
        let_go()


def _run(arguments: list[str], commands: typer.Typer) -> tuple[int, str]:
    """Run one command; return its exit code, and a message if it failed."""
    try:
        code = commands(arguments, standalone_mode=False)
        sys.stdout.flush()
        return (130, INTERRUPTED) if code == 130 else (code if isinstance(code, int) else 0, "")
    except CrossknnError as error:
        return error.exit_code, "; ".join([str(error), *getattr(error, "__notes__", ())])
    except KeyboardInterrupt:
        return 130, INTERRUPTED
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return 1, f"no space is left to write {error.filename or 'the output'}"
        if error.filename is not None:
            return 2, f"{error.filename}: {(error.strerror or 'cannot be used').lower()}"
        raise
    except Exception as error:
        # Usage errors of Typer, from whichever click it bundles.
        message = getattr(error, "format_message", None)
        if message is None or not hasattr(error, "exit_code"):
            raise
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        text = message().rstrip(".").replace("\n", " ")
        return error.exit_code, f"{text}{hint}" if text else ""  # if empty, help was shown
