"""The file that `align.py` writes and `align_tables.py` reads: rows of several matrices, each of
one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """Matrix -> {"about": ..., "rows": {name: values}}."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def put(path: Path, matrix: str, about: dict[str, Any], row: str, values: dict[str, Any]) -> None:
    """Add a row to what is in the file by now."""
    found = read(path)
    part = found.setdefault(matrix, {"rows": {}})
    part["about"] = about
    part["rows"][row] = values
    part["rows"] = {name: part["rows"][name] for name in sorted(part["rows"], key=place)}
    new = path.with_suffix(".part")
    new.write_text(as_text(found))
    os.replace(new, path)


def place(row: str) -> tuple[Any, ...]:
    """Where a row stands: unfitted, dense rows, items of queries, queries of items; then pools."""
    head, _, way = row.partition(", ")
    words = head.split()
    if not way:
        return (0,)
    if words[1] == "rows":
        return (1, int(words[0]), 0, way)
    pool = next((n for n, name in enumerate(("more", "pseudo"), 1) if name in words), 0)
    if words[0] == "items":
        return (3 + 2 * pool, 0, int(words[2]), way)
    return (2 + 2 * pool, int(words[0]), int(words[-1]), way)


def as_text(found: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    parts = []
    for name, part in found.items():
        lines = [f"{json.dumps(row)}: {json.dumps(values)}" for row, values in part["rows"].items()]
        about = json.dumps(part["about"])
        parts.append(f'{json.dumps(name)}: {{"about": {about}, "rows": {{\n' + ",\n".join(lines))
    return "{" + "\n}},\n".join(parts) + "\n}}}\n"
