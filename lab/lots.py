"""Sentences of the documentation, or of those that state a figure, drawn by lot, to be read by someone who does not know them.

    python lab/lots.py --seed 7              # forty sentences
    python lab/lots.py --seed 7 --figures 10 # ten sentences with figures, to be measured again

Choose the seed after the pages are written. Code, tables, headings and pictures are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LEFT_OUT = re.compile(
    r"^---\n.*?\n---\n|^```.*?^```|^ *\|.*?$|^#.*?$|!\[[^\]]*\]\([^)]*\)|<[^>]+>|^(!!!|\?\?\?).*?$",
    re.DOTALL | re.MULTILINE,
)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +", re.MULTILINE)
_END = re.compile(r"(?<=[.?!:])(?<!e\.g\.)(?<!i\.e\.)\s+(?=[A-Z`\"(])")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the Markdown of every page."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        yield str(path.relative_to(ROOT)), "\n\n".join(texts)


def sentences(markdown: str) -> Iterator[str]:
    """Yield the sentences of a page that have five words or more.

    >>> [*sentences("# Head\\n\\nIt reads [the pages](a.md) of a site. Then\\nit draws some of them.")]
    ['It reads the pages of a site.', 'Then it draws some of them.']
    """
    text = _ITEM.sub("\n\n", _LINK.sub(r"\1", _LEFT_OUT.sub("\n\n", markdown)))
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _END.split(" ".join(paragraph.split())):
            if len(sentence.split()) >= 5:
                yield sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--figures", type=int, help="Draw so many sentences that state a figure.")
    args = parser.parse_args()
    drawn = [(page, each) for page, text in pages() for each in sentences(text)]
    if args.figures:
        drawn = [
            (page, each)
            for page, each in drawn
            if re.search(r"\d[\d.,]*\s?(%|ms|s\b|times|points|to \d)", each)
        ]
    for page, each in random.Random(args.seed).sample(drawn, args.figures or args.count):
        print(f"{page}: {each}\n")


if __name__ == "__main__":
    main()
