"""A report as a value: sections of paragraphs, tables and pictures, apart from how it is written.

    page = Page(title="...", lead="...", sections=[Section(title="...", blocks=["text", figure])])
    write_html(page, "report/index.html")       # one file, nothing beside it
    write_markdown(page, "report")              # page.md and images/

Texts (paragraphs, captions, list items, cells) may hold `code`, **bold** and [links](address); all
else in them is meant as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

from crossknn.errors import InputError

Cell: TypeAlias = str | int | float | None
"""Of a table: text, a number as it should be read, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture: `image` is SVG text or the bytes of a PNG.

    `alt` says in words what can be seen, for those who cannot see it; `caption` stands below.
    """

    image: str | bytes
    alt: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class TableOf:
    """Rows under heads; columns of numbers are fitted right, `best` cells (row, column) are bold.

    `folded`: a long one, closed until the reader opens it by its caption. Raises InputError if a
    row has another length than the head.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    folded: bool = False
    best: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.head):
                raise InputError(
                    f"row {number} of the table {self.caption!r} has {len(row)} cells under "
                    f"{len(self.head)} heads"
                )


@dataclass(frozen=True, kw_only=True)
class Points:
    """A list with a bullet for each item."""

    items: Sequence[str]


Block: TypeAlias = str | Figure | TableOf | Points
"""What a section is made of; a str is a paragraph."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A title, blocks, and sections below it (two levels are enough)."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole report; `lead` is what someone reads who reads nothing else."""

    title: str
    lead: str = ""
    sections: Sequence[Section] = ()


def draw(
    plot: Callable[..., None], shown: Any, /, *, alt: str, caption: str = "", **options: Any
) -> Figure:
    """The picture that a function of `crossknn.plots` makes of what is `shown`, as SVG.

    >>> draw(recall_against_cost, rows, title="...", alt="...")         # doctest: +SKIP

    Raises MissingExtraError without matplotlib.
    """
    file = BytesIO()
    plot(shown, file, **options)
    return Figure(image=file.getvalue().decode(), alt=alt, caption=caption)
