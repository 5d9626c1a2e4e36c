"""A page as one HTML file: nothing beside it or from the network, light and dark, printable."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import count
from pathlib import Path

from crossknn.files import write_file
from crossknn.plots.style import DARK, INK, PAPER, QUIET, RULE
from crossknn_lab.report.page import Block, Cell, Figure, Page, Points, Section, TableOf
from crossknn_lab.report.text import anchors_of, columns_of_numbers, said

_INTERVAL = re.compile(r"[-+]?\d[\d.]* \[[-+]?[\d.]+, [-+]?[\d.]+\]")
"""A mean and its interval, which stand on one line."""

_STYLE = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
* { box-sizing: border-box; }
body { margin: 0; background: PAPER; color: INK; font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.4rem; margin: 3rem 0 .6rem; padding-top: .8rem; border-top: 1px solid RULE; }
h3 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p, li { max-width: 46rem; }
p { margin: .6rem 0; }
.lead { font-size: 1.08rem; }
a { color: var(--link); }
code { font: .88em ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
nav { margin: 1.6rem 0; padding: .8rem 1.2rem; border: 1px solid RULE; border-radius: 6px; }
nav ul { margin: .2rem 0; padding-left: 1.1rem; }
nav > ul { padding-left: .2rem; list-style: none; columns: 20rem; column-gap: 2rem; }
nav > ul > li { break-inside: avoid; }
nav li li { font-size: .92rem; }
figure { margin: 1.6rem 0; }
figcaption, .caption { color: QUIET; font-size: .92rem; max-width: 52rem; margin: .5rem 0; }
.box + .caption, .box + .box { margin-top: 1.6rem; }
.box { overflow-x: auto; }
.box > svg, .box > img { display: block; max-width: 100%; height: auto; }
.box > img { background: white; border-radius: 4px; }
svg text { font-family: "DejaVu Sans", Verdana, Geneva, sans-serif; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; border-bottom: 1.5px solid QUIET; }
td { border-bottom: 1px solid RULE; }
td:first-child { min-width: 9rem; }
.n { text-align: right; white-space: nowrap; }
.i { white-space: nowrap; }
details > summary { cursor: pointer; color: QUIET; font-size: .92rem; margin: 1rem 0 .4rem; }
@media (max-width: 700px) { .box > svg { max-width: none; width: 42rem; } }
@media print {
  :root { color-scheme: light; LIGHT }
  body { font-size: 11px; }
  main { max-width: none; padding: 0; }
  nav ul { columns: 2; }
  figure, tr { break-inside: avoid; }
  h2, h3, .caption { break-after: avoid; }
  details::details-content { content-visibility: visible; }
  .box { overflow: visible; }
  .box > svg { width: auto; max-width: 100%; }
}
"""


def write_html(page: Page, path: str | Path) -> None:
    """Write the page as one file; the folder it goes into is made. A kill leaves the old one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, html_of(page).encode())


def html_of(page: Page) -> str:
    """The page as HTML."""
    anchors = anchors_of(page)
    numbers = count(1)
    body = [
        f"<h1>{_text(page.title)}</h1>",
        f'<p class="lead">{_text(page.lead)}</p>' if page.lead else "",
        f'<nav aria-label="Contents">{_contents(page.sections, anchors)}</nav>',
        *(part for section in page.sections for part in _section(section, 2, anchors, numbers)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>{_style()}</style>\n</head>\n"
        f"<body>\n<main>\n{chr(10).join(filter(None, body))}\n</main>\n</body>\n</html>\n"
    )


def _style() -> str:
    """The style sheet: each colour of the pictures is a variable, of a light and a dark value."""
    light = "".join(f"{_variable(colour)}: {colour}; " for colour in DARK)
    dark = "".join(f"{_variable(colour)}: {other}; " for colour, other in DARK.items())
    made = _STYLE.replace("LIGHT", light + "--link: #0a58a8;")
    made = made.replace("DARK", dark + "--link: #7db8f0;")
    for name, colour in (("INK", INK), ("PAPER", PAPER), ("QUIET", QUIET), ("RULE", RULE)):
        made = made.replace(name, f"var({_variable(colour)})")
    return made


def _variable(colour: str) -> str:
    return f"--c{colour[1:]}"


def _contents(sections: Sequence[Section], anchors: Mapping[int, str]) -> str:
    lines = [
        f'<li><a href="#{anchors[id(section)]}">{_text(section.title)}</a>'
        + (_contents(section.sections, anchors) if section.sections else "")
        + "</li>"
        for section in sections
    ]
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _section(
    section: Section, level: int, anchors: Mapping[int, str], numbers: Iterator[int]
) -> Iterator[str]:
    yield f'<h{level} id="{anchors[id(section)]}">{_text(section.title)}</h{level}>'
    for block in section.blocks:
        yield _block(block, numbers)
    for below in section.sections:
        yield from _section(below, min(level + 1, 6), anchors, numbers)


def _block(block: Block, numbers: Iterator[int]) -> str:
    if isinstance(block, str):
        return f"<p>{_text(block)}</p>"
    if isinstance(block, Points):
        return f"<ul>{''.join(f'<li>{_text(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Figure):
        caption = f"<figcaption>{_text(block.caption)}</figcaption>" if block.caption else ""
        return f'<figure><div class="box">{_image(block, next(numbers))}</div>{caption}</figure>'
    table = f'<div class="box">{_table(block)}</div>'
    if block.folded:
        return f"<details><summary>{_text(block.caption or 'Table')}</summary>{table}</details>"
    caption = f'<p class="caption">{_text(block.caption)}</p>' if block.caption else ""
    return caption + table


def _image(figure: Figure, number: int) -> str:
    alt = escape(figure.alt)
    if isinstance(figure.image, bytes):
        data = base64.b64encode(figure.image).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{alt}">'
    svg = figure.image[figure.image.index("<svg") :]
    for name in ("metadata", "title"):
        svg = re.sub(rf"<{name}>.*?</{name}>", "", svg, flags=re.DOTALL)
    # Several pictures in one document must not share names, nor take each other's clip paths.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", svg)
    for colour in DARK:
        svg = svg.replace(colour, f"var({_variable(colour)})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)


def _table(table: TableOf) -> str:
    right = columns_of_numbers(table)
    head = "".join(
        f'<th scope="col"{_right(right, n)}>{_text(name)}</th>' for n, name in enumerate(table.head)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_right(right, column)}>{_cell(cell, (number, column) in table.best)}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>\n"
        for number, row in enumerate(table.rows)
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"


def _right(right: frozenset[int], column: int) -> str:
    return ' class="n"' if column in right else ""


def _cell(cell: Cell, best: bool) -> str:
    made = _text(said(cell))
    return f"<b>{made}</b>" if best else made


def _text(text: str) -> str:
    """`code`, **bold** and [links](address) of a text as HTML; all else as it stands."""
    parts = re.split(r"`([^`]+)`", text)
    for place, part in enumerate(parts):
        made = escape(part)
        if place % 2:
            parts[place] = f"<code>{made}</code>"
            continue
        if not _INTERVAL.fullmatch(text):
            made = _INTERVAL.sub(r'<span class="i">\g<0></span>', made)
        made = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", made)
        parts[place] = re.sub(
            r"\[([^\]]+)\]\(((?:https?:|#|\.{0,2}/|[\w.-]+(?:[/#?]|\.\w+\b))[^)\s]*)\)",
            r'<a href="\2">\1</a>',
            made,
        )
    return "".join(parts)
