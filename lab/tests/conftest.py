"""Fixtures; the helpers of the tests of crossknn are on the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests")]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data: `CROSSKNN_SHARED`, or `shared` beside the checkout."""
    folder = Path(os.environ.get("CROSSKNN_SHARED", ROOT.parent / "shared"))
    if not (folder / "matrices").is_dir():
        pytest.skip("the folder of shared data is absent (set CROSSKNN_SHARED)")
    return folder
