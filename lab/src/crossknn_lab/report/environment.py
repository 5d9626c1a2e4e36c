"""What a report was made on: hardware and versions."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from crossknn import __version__
from crossknn.scorers.onnx import available_threads

PACKAGES = ("numpy", "scipy", "scikit-learn", "bm25s", "ir-measures", "onnxruntime")
"""Those that figures depend on."""


def environment() -> dict[str, str]:
    """Processor, memory, system and versions, in words by what they are; without names of a host.

    >>> "python" in environment()
    True
    """
    found = {"processor": f"{_processor()}, {available_threads()} cores"}
    if memory := _memory():
        found["memory"] = memory
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["python"] = platform.python_version()
    found["crossknn"] = __version__
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def environment_text() -> str:
    """The same in one line."""
    plain = ("processor", "memory", "system")
    return ", ".join(
        value if what in plain else f"{what} {value}" for what, value in environment().items()
    )


def _processor() -> str:
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        known = ""
    found = re.search(r"^model name\s*: (.+)$", known, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return ""
    return f"{total / 2**30:.0f} GiB"
