"""What the ways of writing a page have in common: names to jump to, and cells as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from crossknn_lab.report.page import Cell, Page, Section, TableOf

_NUMBER = re.compile(r"[-+−<±]?\d[\d.,]*( ?%| ?[\[(±].*)?")


def said(cell: Cell) -> str:
    """A cell as text.

    >>> said(12345), said(0.25), said(-0.0), said(None)
    ('12,345', '0.25', '0', '-')
    """
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:z,.6g}"


def others(found: Sequence[object]) -> str:
    """What follows the first of several that are equal.

    >>> others([1]), others([1, 2]), others([1, 2, 3])
    ('', ' and 1 other', ' and 2 others')
    """
    more = len(found) - 1
    return f" and {more} other{'s' * (more > 1)}" if more > 0 else ""


def columns_of_numbers(table: TableOf) -> frozenset[int]:
    """The columns in which every cell is a number, with an interval perhaps, or nothing."""
    columns = range(len(table.head))
    return frozenset(
        column
        for column in columns
        if table.rows and all(_is_number(row[column]) for row in table.rows)
    )


def _is_number(cell: Cell) -> bool:
    if isinstance(cell, str):
        return cell in ("", "-") or _NUMBER.fullmatch(cell) is not None
    return True


def slug(text: str) -> str:
    """A name for addresses and files.

    >>> slug("Recall against cost: k = 10")
    'recall-against-cost-k-10'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def anchors_of(page: Page) -> dict[int, str]:
    """A name for each section of a page, by its `id`, no two the same."""
    found: dict[int, str] = {}
    taken: set[str] = set()
    for section in _all(page.sections):
        name = wanted = slug(section.title)
        number = 2
        while name in taken:
            name, number = f"{wanted}-{number}", number + 1
        taken.add(name)
        found[id(section)] = name
    return found


def _all(sections: Sequence[Section]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from _all(section.sections)
