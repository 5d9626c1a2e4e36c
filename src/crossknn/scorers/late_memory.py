"""How much memory there is, and how much of it a comparison takes."""

from __future__ import annotations

import os
from pathlib import Path

_FLOAT = 4


def bytes_of_candidate(kind: str, d: int, t_query: int, t_item: int) -> int:
    """About what one candidate takes while it is compared, with states of d dimensions.

    CMC reads its list in parts of 256 rows, so that nothing here grows with the list.
    """
    t = t_query + t_item
    floats = {
        "cmc": 12 * d + 2 * 2048,
        "poly": 4 * d + 2 * t_query,
        "som": t_item * (2 * d + 2 * t_query),
        "deformer": t * (14 * d + 24 * t),
        "mixencoder": 20 * d + 36 * t_query,
    }
    return _FLOAT * floats[kind]


def available_memory() -> int | None:
    """Bytes that this process can still get, of the machine and of its group; None if unknown."""
    found = [room for room in (_of_machine(), _of_group()) if room is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_group() -> int | None:
    """What a container's limit (control groups, version 2 or 1) leaves."""
    root = Path("/sys/fs/cgroup")
    for limit, used, details in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            left = int((root / limit).read_text()) - int((root / used).read_text())
            kept = dict(line.split() for line in (root / details).read_text().splitlines())
            # Cached files are given back when memory is asked for.
            return left + int(kept.get("inactive_file", 0))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return None
