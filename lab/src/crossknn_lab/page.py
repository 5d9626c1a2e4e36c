"""Pages: sections of paragraphs and tables, as Markdown and as one HTML file.

Texts (paragraphs, captions, list items, cells) may contain `code`, **bold** and [links](address);
everything else is shown unchanged. The HTML loads nothing, and suits light and dark screens and
printing.
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

from crossknn import table
from crossknn.files import write_file
from crossknn.table import Cell, format_cell

STYLE = files("crossknn_lab").joinpath("page.css").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Table(table.Table):
    """A table; a `folded` one is opened by its caption."""

    folded: bool = False


Block: TypeAlias = str | list[str] | table.Table
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
    if isinstance(block, Table) and block.folded:
        head = f"<details><summary>{_text(block.caption, code=False) or 'Table'}</summary>"
        return f"{head}\n\n{_table(block)}\n\n</details>"
    return f"{_text(block.caption)}\n\n{_table(block)}".lstrip()


def _table(of: table.Table) -> str:
    alignment = "".join("---:|" if right else "---|" for right in of.is_right())
    lines = [f"| {' | '.join(map(_in_table, of.head))} |", f"|{alignment}"]
    for place, row in enumerate(of.rows):
        cells = list(map(_in_table, row))
        cells = [f"**{c}**" if (place, at) in of.best else c for at, c in enumerate(cells)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _in_table(cell: Cell) -> str:
    return _text(format_cell(cell)).replace("|", "\\|").replace("\n", " ")


def _text(text: str, *, code: bool = True) -> str:
    """Escape everything in a text but `code`, **bold** and links."""
    pieces = re.split(r"(`[^`]+`)", text)
    for place, piece in enumerate(pieces):
        if place % 2:
            pieces[place] = piece if code else f"<code>{piece[1:-1]}</code>"
        else:
            plain = piece.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            pieces[place] = re.sub(r"(?<!\*)\*(?!\*)|(?<!\w)_|_(?!\w)", r"\\\g<0>", plain)
    return "".join(pieces)
