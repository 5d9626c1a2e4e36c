"""What a run works out once and keeps beside its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from crossknn.types import IntArray


def kept(path: Path, make: Callable[[], IntArray]) -> IntArray:
    """The array in `path`, made and written if it is not there; a kill leaves no half of it."""
    if not path.exists():
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, make())
        part.replace(path)
    found: IntArray = np.load(path)
    return found
