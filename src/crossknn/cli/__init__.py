"""The command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `crossknn`; errors become one sentence on stderr and an exit code."""
    from crossknn.cli.app import run

    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))
