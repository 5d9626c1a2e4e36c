"""Golden values: what a test computes is what its file has. `CROSSKNN_RECORD=1` writes the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def check(file: str, found: dict[str, Any], *, close: float = 0.0) -> None:
    """Compare `found` with tests/golden/FILE case by case; floats may differ by `close`."""
    path = Path(__file__).parent / file
    found = json.loads(json.dumps(found))
    if os.environ.get("CROSSKNN_RECORD"):
        lines = ",\n".join(f"{json.dumps(name)}: {_compact(found[name])}" for name in found)
        path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    expected = json.loads(path.read_text(encoding="utf-8"))
    assert sorted(found) == sorted(expected)
    different = [name for name in expected if not same(found[name], expected[name], close)]
    if different:
        shown = [(name, found[name], expected[name]) for name in different[:5]]
        raise AssertionError(f"{len(different)} of {len(expected)} cases differ, e.g. {shown}")


def same(found: Any, expected: Any, close: float) -> bool:
    """Whether two JSON values are equal, floats up to `close` (relative above 1)."""
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(
            same(found[key], expected[key], close) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            same(f, e, close) for f, e in zip(found, expected, strict=True)
        )
    if isinstance(expected, float) and isinstance(found, float):
        return found == expected or abs(found - expected) <= close * max(1.0, abs(expected))
    return bool(found == expected)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
