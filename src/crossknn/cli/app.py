"""The command-line application: its commands, and exit codes for errors."""

from __future__ import annotations

import errno
import logging
import sys

import typer

from crossknn import __version__
from crossknn.cli import (
    collect,
    compare,
    demo,
    estimate,
    fit,
    index,
    mcp,
    search,
    serve,
    trial,
)
from crossknn.cli.output import INTERRUPTED, Notes, let_go, note, prepare_streams
from crossknn.errors import CrossknnError

EPILOG = (
    "Exit codes: 0 done; 1 another failure; 2 wrong input; 3 the scorer failed, and what was found "
    "before is the answer; 4 the scorer failed, and there is no answer; 5 a missing extra; 6 not a "
    "usable index; 7 the address of a service cannot be had; 130 interrupted."
)

app = typer.Typer(
    name="crossknn",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(index.app, name="index")
for module in (collect, fit, search, serve, mcp, compare, estimate, demo):
    app.command(module.__name__.split(".")[-1], epilog=module.EPILOG)(module.command)
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
        return _run(arguments, commands)
    except (BrokenPipeError, SystemExit) as error:  # Typer makes the one of the other
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        return 0
    finally:
        logging.getLogger().removeHandler(notes)
        sys.stdout, sys.stderr = streams
        let_go()


def _run(arguments: list[str], commands: typer.Typer) -> int:
    """Run one command; raise `BrokenPipeError` if nobody reads the output any more."""
    try:
        code = commands(arguments, standalone_mode=False)
        sys.stdout.flush()
        if code == 130:
            return _say(INTERRUPTED, 130)
        return code if isinstance(code, int) else 0
    except CrossknnError as error:
        return _say("; ".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except KeyboardInterrupt:
        return _say(INTERRUPTED, 130)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return _say(f"no space is left to write {error.filename or 'the output'}", 1)
        if error.filename is not None:
            return _say(f"{error.filename}: {(error.strerror or 'cannot be used').lower()}", 2)
        raise
    except Exception as error:
        # Usage errors of Typer, from whichever click it bundles.
        message = getattr(error, "format_message", None)
        if message is None or not hasattr(error, "exit_code"):
            raise
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        said = message().rstrip(".").replace("\n", " ")
        return _say(said + hint, error.exit_code) if said else error.exit_code  # help was shown


def _say(message: str, code: int) -> int:
    note(f"crossknn: {message}")
    return code
