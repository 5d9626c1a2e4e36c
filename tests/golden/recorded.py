"""Golden values: what a test computes is what its file has. `CROSSKNN_RECORD=1` writes the files.

Only a commit that says which values change, and why, may record them anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

RECORDING = bool(os.environ.get("CROSSKNN_RECORD"))


def recorded(file: str) -> dict[str, Any]:
    """The cases of tests/golden/FILE."""
    path = Path(__file__).parent / file
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def check(
    file: str,
    found: Mapping[str, Any],
    *,
    close: float = 0.0,
    floor: float | None = 1.0,
    whole: bool = True,
) -> None:
    """Compare `found` with the cases of a file, all of them if `whole`.

    Floats may differ by `close` times what is recorded, times `floor` where that is larger; without
    a floor, times the largest number beside it.
    """
    found = {name: plain(value) for name, value in found.items()}
    expected = recorded(file)
    if RECORDING:
        expected = found if whole else expected | found
        compact = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)
        lines = ",\n".join(f"{json.dumps(name)}: {compact(expected[name])}" for name in expected)
        (Path(__file__).parent / file).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    if whole:
        assert sorted(found) == sorted(expected)
    different = [name for name in found if not same(found[name], expected[name], close, floor)]
    shown = [(name, found[name], expected[name]) for name in different[:5]]
    assert not different, f"{len(different)} of {len(found)} cases differ, e.g. {shown}"


def same(found: Any, expected: Any, close: float, floor: float | None = 1.0) -> bool:
    """Whether two JSON values are equal, floats up to `close` (see `check`)."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key], close, floor) for key in expected
        )
    if isinstance(expected, list):
        floor = _largest(expected) if floor is None else floor
        return len(found) == len(expected) and all(
            same(f, e, close, floor) for f, e in zip(found, expected, strict=True)
        )
    if isinstance(expected, float) and isinstance(found, float):
        return found == expected or abs(found - expected) <= close * max(floor or 0, abs(expected))
    return bool(found == expected)


def plain(value: Any) -> Any:
    """As JSON; NaN is null."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else float(f"{value:.9g}")
    return int(value) if isinstance(value, np.integer) else value


def _largest(values: list[Any]) -> float:
    numbers = [_largest(v) if isinstance(v, list) else abs(v or 0.0) for v in values]
    return max((n for n in numbers if np.isfinite(n)), default=0.0)
