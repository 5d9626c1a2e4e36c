"""The tables of docs/errors.md, made by the tests that run what stands in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

DOC = Path(__file__).parents[1] / "docs" / "errors.md"


def check_table(
    begin: str,
    end: str,
    rows: list[str],
    head: Sequence[str] = ("input", "exit code", "sentence"),
) -> None:
    """Compare the rows between two marks with these, or write them (CROSSKNN_WRITE_DOCS=1)."""
    made = "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])
    text = DOC.read_text(encoding="utf-8")
    before, after = text.split(begin)[0], text.split(end)[1]
    new = f"{before}{begin}\n{made}\n{end}{after}"
    if os.environ.get("CROSSKNN_WRITE_DOCS"):
        DOC.write_text(new, encoding="utf-8")
    else:
        assert text == new, "docs/errors.md is out of date: see the top of this file"
