"""The command line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

_AGAIN = 0.2
"""Seconds between two checks whether an interrupt was lost."""


def main(arguments: Sequence[str] | None = None, module: str = "crossknn.cli.app") -> None:
    """Run `crossknn`, or the commands `app` of another module; errors become one sentence on stderr
    and an exit code."""
    interrupts, code = _interrupts(), 0
    try:
        from crossknn.cli.app import run

        commands = import_module(module).app
        code = run(list(sys.argv[1:] if arguments is None else arguments), commands)
    except BaseException:  # libraries may turn an interrupt into another error, as in imports
        if not interrupts:
            raise
        code = 1
    # Only the interpreter's shutdown is left.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    if interrupts and code not in (0, 130):
        from crossknn.cli.output import INTERRUPTED

        print(f"crossknn: {INTERRUPTED}", file=sys.stderr)
        code = 130
    exec("")  # CPython ends by the signal if it was in such a call, of a dataclass say
    sys.exit(code)


def _interrupts() -> list[int]:
    """Return a counter of Ctrl-C presses, each of which raises `KeyboardInterrupt`.

    Python loses the exception in callbacks of the interpreter, such as those of weak references,
    and where a library catches everything. It is raised again unless it is being handled.
    """
    received: list[int] = []
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return received  # a job in the background ignores it
    report = sys.unraisablehook

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        error = sys.exc_info()[1]
        while number != signal.SIGINT and error is not None:
            if isinstance(error, KeyboardInterrupt):
                return
            error = error.__context__
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, interrupt)
    lost = KeyboardInterrupt
    sys.unraisablehook = lambda what: None if issubclass(what.exc_type, lost) else report(what)
    return received
