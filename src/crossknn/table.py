"""Tables for a terminal: text, numbers and shares in aligned columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from crossknn.errors import visible

Cell: TypeAlias = str | int | float | None
"""A table cell: text, a formatted number, or nothing."""

_BAR, _LONG = 20, 100
"""Number of characters of a bar, and of a user's text that is shown."""


class Plain(str):
    """A user's text: shown on one line, cut after 100 characters."""

    def __new__(cls, text: str) -> Plain:
        line = " ".join(visible(text).split())
        return super().__new__(cls, line if len(line) <= _LONG else f"{line[:_LONG].rstrip()}…")


class Share(float):
    """A share (0-1), shown as a bar and in percent."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Column heads and rows, printed with aligned columns; a row of one cell is a subheading.

    `best` cells (row, column) are bold.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    best: frozenset[tuple[int, int]] = frozenset()

    def is_right(self) -> list[bool]:
        """Whether each column is aligned right, as numbers are."""
        rows = [row for row in self.rows if len(row) == len(self.head)]
        columns = range(len(self.head))
        return [bool(rows) and all(_is_number(row[c]) for row in rows) for c in columns]

    def lines(self) -> list[str]:
        """Return a line of text for the column heads and for each row."""
        cells = [[*self.head], *([format_cell(cell) for cell in row] for row in self.rows)]
        columns = zip(*(row for row in cells if len(row) == len(self.head)), strict=True)
        widths = [max(map(len, column)) for column in columns]
        sides = [">" if right else "<" for right in self.is_right()]

        def line(row: Sequence[str]) -> str:
            aligned = (f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True))
            return "  ".join(aligned).rstrip()

        return [row[0] if len(row) == 1 else line(row) for row in cells]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def format_cell(cell: Cell) -> str:
    """Format a cell as text.

    >>> format_cell(12345), format_cell(0.25), format_cell(-0.0), format_cell(None)
    ('12,345', '0.25', '0', '-')
    >>> format_cell(Share(0.333))
    '███████░░░░░░░░░░░░░  33.3%'
    """
    if isinstance(cell, Share):
        full = round(_BAR * cell)
        return f"{'█' * full}{'░' * (_BAR - full)} {100 * cell:5.1f}%"
    if cell is None or isinstance(cell, str):
        return "-" if cell is None else cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:z,.6g}"


def _is_number(cell: Cell) -> bool:
    """Whether a cell is a number, perhaps with an interval, or empty."""
    number = r"[-+−<±]?\d[\d.,]*( ?%)?( ?[\[(±].*)?"
    if isinstance(cell, Share):
        return False
    return not isinstance(cell, str) or cell in ("", "-") or re.fullmatch(number, cell) is not None
