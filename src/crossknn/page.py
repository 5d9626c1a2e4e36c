"""Tables and pages: sections of paragraphs and tables, as Markdown and as one HTML file.

Texts (paragraphs, captions, list items, cells) may contain `code`, **bold** and [links](address);
everything else is shown unchanged, as is all of a `Plain` text. The HTML is made from the
Markdown; it loads nothing, and suits light and dark screens and printing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

from markdown_it import MarkdownIt

from crossknn.errors import visible
from crossknn.files import write_file

Cell: TypeAlias = str | int | float | None
"""A table cell: text, a formatted number, or nothing."""

_BAR, _LONG = 20, 100
"""Number of characters of a bar, and the maximum of a user's text."""

STYLE = files("crossknn").joinpath("page.css").read_text(encoding="utf-8")

# Markdown's marks in literal text are replaced by characters of the private use area until all
# other text has been formatted, and then by HTML entities.
_MARKS = "`*_[]!|\\"
_STAND_INS = {ord(mark): chr(0xE000 + place) for place, mark in enumerate(_MARKS)}
_ENTITIES = {0xE000 + place: f"&#{ord(mark)};" for place, mark in enumerate(_MARKS)}


class Plain(str):
    """A user's text: shown on one line, cut after 100 characters, and not read as Markdown."""

    def __new__(cls, text: str) -> Plain:
        line = " ".join(visible(re.sub("[\ue000-\ue0ff]", "\ufffd", text)).split())
        return super().__new__(cls, line if len(line) <= _LONG else f"{line[:_LONG].rstrip()}…")

    def markdown(self) -> str:
        """Return the text with Markdown's marks replaced, so that they have no effect."""
        return self.translate(_STAND_INS)


class Share(float):
    """A share (0-1), shown as a bar and in percent."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Column heads and rows, printed with aligned columns; a row of one cell is a subheading.

    On a page, `best` cells (row, column) are bold, and a `folded` table is opened by its caption.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    folded: bool = False
    best: frozenset[tuple[int, int]] = frozenset()

    def is_right(self) -> list[bool]:
        """Whether each column is aligned right, as numbers are."""
        rows = [row for row in self.rows if len(row) == len(self.head)]
        return [
            bool(rows) and all(_is_number(row[column]) for row in rows)
            for column in range(len(self.head))
        ]

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


Block: TypeAlias = str | list[str] | Table
"""A block of a section: a str is a paragraph, a list becomes bullets."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A title, blocks, and sections below it (two levels are enough)."""

    title: str
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole report; `lead` is its summary."""

    title: str
    lead: str = ""
    sections: Sequence[Section] = ()


def write_page(page: Page, folder: str | Path) -> None:
    """Write `page.md` and `index.html` into the folder, which is created if needed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown_of(page)
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    body = body.replace("<table>", '<div class="box"><table>').replace("</table>", "</table></div>")
    html = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
    write_file(folder, "page.md", text.encode())
    write_file(folder, "index.html", html.encode())


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


def slug(text: str) -> str:
    """Turn a title into a name for addresses and files.

    >>> slug("Recall against cost: k = 10")
    'recall-against-cost-k-10'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def markdown_of(page: Page) -> str:
    """Return the page as GitHub's Markdown."""
    sections: dict[str, tuple[Section, int]] = {}

    def add(section: Section, depth: int) -> None:
        name, number = slug(section.title), 2
        while name in sections:
            name, number = f"{slug(section.title)}-{number}", number + 1
        sections[name] = section, depth
        for below in section.sections:
            add(below, depth + 1)

    for section in page.sections:
        add(section, 0)
    contents = "\n".join(
        f"{'  ' * depth}- [{_text(section.title)}](#{anchor})"
        for anchor, (section, depth) in sections.items()
    )
    blocks = [f"# {_text(page.title)}", _text(page.lead), contents]
    for anchor, (section, depth) in sections.items():
        # The anchor is written out, because viewers derive different anchors from a title.
        blocks.append(f'<a id="{anchor}"></a>')
        blocks.append(f"{'#' * min(depth + 2, 6)} {_text(section.title)}")
        blocks += map(_block, section.blocks)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return _text(block)
    if isinstance(block, list):
        return "\n".join(f"- {_text(item)}" for item in block)
    if block.folded:
        head = f"<details><summary>{_text(block.caption, code=False) or 'Table'}</summary>"
        return f"{head}\n\n{_table(block)}\n\n</details>"
    return f"{_text(block.caption)}\n\n{_table(block)}".lstrip()


def _table(table: Table) -> str:
    alignment = "".join("---:|" if right else "---|" for right in table.is_right())
    lines = [f"| {' | '.join(map(_in_table, table.head))} |", f"|{alignment}"]
    for place, row in enumerate(table.rows):
        cells = [_bar(cell) if isinstance(cell, Share) else _in_table(cell) for cell in row]
        cells = [f"**{c}**" if (place, at) in table.best else c for at, c in enumerate(cells)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_number(cell: Cell) -> bool:
    """Whether a cell is a number, perhaps with an interval, or empty."""
    number = r"[-+−<±]?\d[\d.,]*( ?%)?( ?[\[(±].*)?"
    if isinstance(cell, Share):
        return False
    return not isinstance(cell, str) or cell in ("", "-") or re.fullmatch(number, cell) is not None


def _bar(share: Share) -> str:
    return f'<span class="bar" style="--share: {100 * share:.1f}%"></span> {100 * share:.1f}%'


def _in_table(cell: Cell) -> str:
    text = cell.markdown() if isinstance(cell, Plain) else format_cell(cell)
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _text(text: str, *, code: bool = True) -> str:
    """Escape everything in a text but `code`, **bold** and links."""
    pieces = re.split(r"(`[^`]+`)", text)
    for place, piece in enumerate(pieces):
        if place % 2:
            pieces[place] = piece if code else f"<code>{piece[1:-1]}</code>"
        else:
            plain = piece.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            pieces[place] = re.sub(r"(?<!\*)\*(?!\*)|(?<!\w)_|_(?!\w)", r"\\\g<0>", plain)
    return "".join(pieces).translate(_ENTITIES)
