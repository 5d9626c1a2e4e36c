"""A report: sections of paragraphs, tables and pictures, as Markdown and as one HTML file.

    page = Page(title="...", lead="...", sections=[Section(title="...", blocks=["text", figure])])
    write_page(page, "report")                  # page.md with images/, and index.html with all

Texts (paragraphs, captions, list items, cells) may contain `code`, **bold** and [links](address);
everything else is shown unchanged, and `literal` escapes text from other sources. The HTML is made
from the Markdown; it loads nothing, and suits light and dark screens and printing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

from markdown_it import MarkdownIt

from crossknn.errors import visible
from crossknn.files import make_folder, write_file

Cell: TypeAlias = str | int | float | None
"""A table cell: text, a formatted number, or nothing."""

INK, QUIET, RULE, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"

OTHERS = ("#1476ba", "#b23b06", "#009e73", "#c75a9b", "#c98500", "#4f5764")
"""Colours of bars, and of lines that are not methods, in order."""

STYLE = files("crossknn").joinpath("page.css").read_text(encoding="utf-8")

DARK = dict(
    zip(*(re.findall(r"--c\w+: (#\w+);", part) for part in STYLE.split("@media")[:2]), strict=True)
)
"""Maps each colour of a picture to its colour on a dark screen."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture: its `svg`, a description in words (`alt`), and a caption."""

    svg: str
    alt: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with column heads; columns of numbers are aligned right, `best` cells (row, column)
    are bold.

    A `folded` one is closed until the reader opens it by its caption.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    folded: bool = False
    best: frozenset[tuple[int, int]] = frozenset()


Block: TypeAlias = str | list[str] | Figure | Table
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


def bars(groups: Mapping[str, Sequence[tuple[str, float]]]) -> Figure:
    """Draw shares (0-1) as bars under the title of their group; the second bar of a group is
    coloured."""
    width, parts, y = 475, list[str](), 0
    for title, rows in groups.items():
        y += 26
        parts.append(f'<text x="0" y="{y}" font-weight="bold">{escape(title)}</text>')
        for place, (name, share) in enumerate(rows):
            y += 24
            fill = OTHERS[0] if place == 1 else QUIET
            length = share * (width - 245)
            parts.append(
                f'<text x="0" y="{y}">{escape(name)}</text>'
                f'<rect x="175" y="{y - 13}" width="{width - 245}" height="16" fill="{RULE}"/>'
                f'<rect x="175" y="{y - 13}" width="{length:.1f}" height="16" fill="{fill}"/>'
                f'<text x="{width}" y="{y}" text-anchor="end">{100 * share:.1f}%</text>'
            )
        y += 12
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" '
        f'fill="{INK}" font-family="system-ui, sans-serif" font-size="14">{"".join(parts)}</svg>'
    )
    said = (f"{name} {100 * share:.1f}%" for rows in groups.values() for name, share in rows)
    return Figure(svg=svg, alt=", ".join(said))


def write_page(page: Page, folder: str | Path) -> None:
    """Write `page.md`, `images/` and `index.html` into the folder, which is made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    make_folder(folder / "images")
    text, images = markdown_of(page)
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'  # a viewer's ground may be black
    for name, svg in images.items():
        made = re.sub(r"(<svg\b[^>]*>)", rf"\1{paper}", svg, count=1)
        write_file(folder, f"images/{name}", made.encode())
    write_file(folder, "page.md", text.encode())
    write_file(folder, "index.html", _html(page.title, text, images).encode())


def format_cell(cell: Cell) -> str:
    """A cell as text.

    >>> format_cell(12345), format_cell(0.25), format_cell(-0.0), format_cell(None)
    ('12,345', '0.25', '0', '-')
    """
    if cell is None or isinstance(cell, str):
        return "-" if cell is None else cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:z,.6g}"


_MARKS = "`*_[]!|\\"
_STAND_INS = {ord(mark): chr(0xE000 + place) for place, mark in enumerate(_MARKS)}
_ENTITIES = {0xE000 + place: f"&#{ord(mark)};" for place, mark in enumerate(_MARKS)}


def literal(text: str, most: int = 0) -> str:
    """A text of a user or an item for a page, on one line, of at most so many characters: none of
    its characters is a mark of Markdown."""
    line = " ".join(visible(re.sub("[\ue000-\ue0ff]", "\ufffd", text)).split())
    if most and len(line) > most:
        line = f"{line[:most].rstrip()}…"
    return line.translate(_STAND_INS)


def slug(text: str) -> str:
    """A name for addresses and files.

    >>> slug("Recall against cost: k = 10")
    'recall-against-cost-k-10'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


# ------------------------------------------------------------------------------ Markdown


def markdown_of(page: Page) -> tuple[str, dict[str, str]]:
    """The page as Markdown (GitHub's), and its pictures (SVG) by their names in `images/`."""
    sections = _walk(page.sections)
    contents = "\n".join(
        f"{'  ' * depth}- [{_text(section.title)}](#{anchor})"
        for anchor, (section, depth) in sections.items()
    )
    parts, images = [f"# {_text(page.title)}", _text(page.lead), contents], dict[str, str]()
    for anchor, (section, depth) in sections.items():
        # The anchor is written out, because every viewer makes another one of a title.
        parts.append(f'<a id="{anchor}"></a>')
        parts.append(f"{'#' * min(depth + 2, 6)} {_text(section.title)}")
        parts += [_block(block, anchor, images) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n", images


def _walk(sections: Sequence[Section]) -> dict[str, tuple[Section, int]]:
    """Sections and those below them with their depth, by names for links, no two the same."""
    found: dict[str, tuple[Section, int]] = {}

    def add(section: Section, depth: int) -> None:
        name, number = slug(section.title), 2
        while name in found:
            name, number = f"{slug(section.title)}-{number}", number + 1
        found[name] = section, depth
        for below in section.sections:
            add(below, depth + 1)

    for section in sections:
        add(section, 0)
    return found


def _block(block: Block, section: str, images: dict[str, str]) -> str:
    if isinstance(block, str):
        return _text(block)
    if isinstance(block, list):
        return "\n".join(f"- {_text(item)}" for item in block)
    if isinstance(block, Figure):
        name = f"{section}-{sum(known.startswith(f'{section}-') for known in images) + 1}.svg"
        images[name] = block.svg
        alt = block.alt.replace("[", "(").replace("]", ")").replace("\n", " ")
        return f"![{alt}](images/{name})" + (f"\n\n{_text(block.caption)}" if block.caption else "")
    if block.folded:
        head = f"<details><summary>{_text(block.caption, code=False) or 'Table'}</summary>"
        return f"{head}\n\n{_table(block)}\n\n</details>"
    return f"{_text(block.caption)}\n\n{_table(block)}".lstrip()


def _table(table: Table) -> str:
    right = [all(_is_number(row[c]) for row in table.rows) for c in range(len(table.head))]
    marks = "".join("---:|" if table.rows and number else "---|" for number in right)
    lines = [f"| {' | '.join(map(_in_table, table.head))} |", f"|{marks}"]
    for number, row in enumerate(table.rows):
        cells = [_in_table(format_cell(cell)) for cell in row]
        cells = [f"**{c}**" if (number, at) in table.best else c for at, c in enumerate(cells)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_number(cell: Cell) -> bool:
    """A number, with an interval perhaps, or nothing."""
    number = r"[-+−<±]?\d[\d.,]*( ?%| ?[\[(±].*)?"
    return not isinstance(cell, str) or cell in ("", "-") or re.fullmatch(number, cell) is not None


def _in_table(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _text(text: str, *, code: bool = True) -> str:
    """A text as Markdown: what is no `code`, **bold** or link stands as it is."""
    parts = re.split(r"(`[^`]+`)", text)
    for place, part in enumerate(parts):
        if place % 2:
            parts[place] = part if code else f"<code>{part[1:-1]}</code>"
        else:
            made = part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            parts[place] = re.sub(r"(?<!\*)\*(?!\*)|(?<!\w)_|_(?!\w)", r"\\\g<0>", made)
    return "".join(parts).translate(_ENTITIES)


# ---------------------------------------------------------------------------------- HTML


def _html(title: str, markdown: str, images: dict[str, str]) -> str:
    """One HTML file of a page in Markdown and its pictures."""
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    body = body.replace("<table>", '<div class="box"><table>').replace("</table>", "</table></div>")
    numbers = {name: number for number, name in enumerate(images)}

    def inline(found: re.Match[str]) -> str:
        return _inline_svg(images[found[1]], found[2], numbers[found[1]])

    body = re.sub(r'<img src="images/([^"]+)" alt="([^"]*)" />', inline, body)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _inline_svg(svg: str, alt: str, number: int) -> str:
    svg = svg[svg.index("<svg") :]
    for name in ("metadata", "title"):
        svg = re.sub(rf"<{name}>.*?</{name}>", "", svg, flags=re.DOTALL)
    # Several pictures in one document must not share names, nor take each other's clip paths.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", svg)
    for colour in DARK:
        svg = svg.replace(colour, f"var({_variable(colour)})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)


def _variable(colour: str) -> str:
    return f"--c{colour[1:]}"
