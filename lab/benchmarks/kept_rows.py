"""Rows of a benchmark by stored matrix, in its file as soon as they are made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class KeptRows:
    """What is in the file already; `again` begins anew."""

    def __init__(self, path: Path, *, again: bool) -> None:
        self.path = path
        self._found: dict[str, list[dict[str, Any]]] = {}
        if path.exists() and not again:
            self._found = json.loads(path.read_text())

    def of(self, matrix: str) -> list[dict[str, Any]]:
        """The rows of a matrix."""
        return self._found.get(matrix, [])

    def add(self, matrix: str, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows, and write the file."""
        self._found.setdefault(matrix, []).extend(rows)
        self.path.write_text(json.dumps(self._found) + "\n")


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """`--again`, and `--out` with the file of results called `name`."""
    parser.add_argument("--again", action="store_true")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / f"benchmarks/results/{name}.json"
    )
