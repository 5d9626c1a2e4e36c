"""What a run works out once and keeps beside its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crossknn.types import IntArray

logger = logging.getLogger(__name__)


def kept(path: Path, key: str, make: Callable[[], IntArray]) -> IntArray:
    """The array in `path`; made and written if there is none, or one made for another `key`.

    The key says what the array depends on; it stands behind the array in the file. A kill leaves
    no half of a file.
    """
    if path.exists():
        with path.open("rb") as file:
            found: IntArray = np.load(file)
            if not file.peek() or str(np.load(file)) == key:
                return found
        logger.info("%s is for other data or settings: it is made again", path)
    found, part = make(), path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            np.save(file, found)
            np.save(file, np.array(key))
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return found
