"""Shared fixtures."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent / part) for part in ("", "faults", "golden")]

ROOT = Path(__file__).parent.parent

# What a shell starts in the background ignores interrupts, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data: `CROSSKNN_SHARED`, or `shared` beside the checkout."""
    folder = Path(os.environ.get("CROSSKNN_SHARED", ROOT.parent / "shared"))
    if not (folder / "matrices").is_dir():
        pytest.skip("the folder of shared data is absent (set CROSSKNN_SHARED)")
    return folder
