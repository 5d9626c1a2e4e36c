"""How far a long script is."""

from __future__ import annotations

import sys
import time

from crossknn.types import Progress


def line(name: str, every: float = 30.0) -> Progress:
    """A line on stderr now and then (in seconds), and at the end."""
    began = said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > every or done == total:
            said = time.monotonic()
            print(f"{name}: {done} of {total}, {said - began:.0f} s", file=sys.stderr, flush=True)

    return report
