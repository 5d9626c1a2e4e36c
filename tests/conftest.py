"""Shared fixtures."""

from __future__ import annotations

import os
import signal
import sys
from hashlib import blake2b
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


def pytest_addoption(parser):
    parser.addoption("--slow-share", type=float, default=0.0, help="share of the slow tests to run")
    parser.addoption("--slow-seed", default="0", help="draws that share")


def pytest_collection_modifyitems(config, items):
    """Leave slow tests out but for a share drawn by seed, unless a test is named by its id."""
    share, seed = config.getoption("--slow-share"), config.getoption("--slow-seed")
    if share >= 1 or any("::" in argument for argument in config.args):
        return

    def stays(item):
        drawn = blake2b(f"{seed} {item.nodeid}".encode(), digest_size=4).digest()
        return not item.get_closest_marker("slow") or int.from_bytes(drawn) < share * 2**32

    config.hook.pytest_deselected(items=[item for item in items if not stays(item)])
    items[:] = [item for item in items if stays(item)]
