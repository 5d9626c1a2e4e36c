"""A page as Markdown (GitHub's), its pictures beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from crossknn.files import write_file
from crossknn.plots.style import PAPER
from crossknn_lab.report.page import Block, Cell, Figure, Page, Points, Section, TableOf
from crossknn_lab.report.text import anchors_of, columns_of_numbers, said


def write_markdown(page: Page, folder: str | Path) -> None:
    """Write `page.md` and `images/` into the folder, which is made if it is not there."""
    folder = Path(folder)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    text, images = markdown_of(page)
    for name, image in images.items():
        write_file(folder / "images" / name, image)
    write_file(folder / "page.md", text.encode())


def markdown_of(page: Page) -> tuple[str, dict[str, bytes]]:
    """The page as Markdown, and its pictures by their names in `images/`."""
    anchors = anchors_of(page)
    parts = [f"# {_text(page.title)}"]
    if page.lead:
        parts.append(_text(page.lead))
    parts.append(
        "\n".join(
            f"{'  ' * depth}- [{_text(section.title)}](#{anchors[id(section)]})"
            for section, depth in _deep(page.sections, 0)
        )
    )
    body, images = body_of(page)
    return "\n\n".join([*parts, body]) + "\n", images


def body_of(page: Page) -> tuple[str, dict[str, bytes]]:
    """The page's sections alone, to stand in another page, and their pictures."""
    anchors, images, parts = anchors_of(page), dict[str, bytes](), []
    for section, depth in _deep(page.sections, 0):
        # The name to jump to is written out: others make other ones of a title.
        parts.append(f'<a id="{anchors[id(section)]}"></a>')
        parts.append(f"{'#' * min(depth + 2, 6)} {_text(section.title)}")
        parts += [_block(block, anchors[id(section)], images) for block in section.blocks]
    return "\n\n".join(part for part in parts if part), images


def _deep(sections: Sequence[Section], depth: int) -> Iterator[tuple[Section, int]]:
    for section in sections:
        yield section, depth
        yield from _deep(section.sections, depth + 1)


def _block(block: Block, section: str, images: dict[str, bytes]) -> str:
    if isinstance(block, str):
        return _text(block)
    if isinstance(block, Points):
        return "\n".join(f"- {_text(item)}" for item in block.items)
    if isinstance(block, Figure):
        name = _put(block, section, images)
        alt = block.alt.replace("[", "(").replace("]", ")").replace("\n", " ")
        return f"![{alt}](images/{name})" + (f"\n\n{_text(block.caption)}" if block.caption else "")
    caption = _text(block.caption)
    if block.folded:
        head = f"<details><summary>{_text(block.caption, code=False) or 'Table'}</summary>"
        return f"{head}\n\n{_table(block)}\n\n</details>"
    return f"{caption}\n\n{_table(block)}" if caption else _table(block)


def _put(figure: Figure, section: str, images: dict[str, bytes]) -> str:
    """Keep a picture under a name made of its section, on paper: a viewer's own may be black."""
    number = sum(name.startswith(f"{section}-") for name in images) + 1
    if isinstance(figure.image, bytes):
        name = f"{section}-{number}.png"
        images[name] = figure.image
    else:
        name = f"{section}-{number}.svg"
        paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        images[name] = re.sub(r"(<svg\b[^>]*>)", rf"\1{paper}", figure.image, count=1).encode()
    return name


def _table(table: TableOf) -> str:
    right = columns_of_numbers(table)
    marks = "".join("---:|" if column in right else "---|" for column in range(len(table.head)))
    lines = [f"| {' | '.join(_in_table(name) for name in table.head)} |", f"|{marks}"]
    for number, row in enumerate(table.rows):
        cells = [
            _bold(cell) if (number, column) in table.best else _in_table(said(cell))
            for column, cell in enumerate(row)
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _bold(cell: Cell) -> str:
    return f"**{_in_table(said(cell))}**"


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
    return "".join(parts)
