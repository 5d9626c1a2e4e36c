"""Draw sentences from docs, help, messages and docstrings, to be read by somebody new.

    python lab/benchmarks/sentences.py --seed 7 --count 40

A reader who knows sentence-transformers, and nothing of crossknn, marks each: clear at first
reading, read twice, or a riddle. The seed is chosen after the sentences were written.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SQL = r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|PRAGMA|WHERE)\b"
SHORTEST = 5
"""Words of the shortest sentence that says anything."""


def prose(markdown: str) -> str:
    """A page without code, tables, headings and pictures."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)
    dropped = r"^( {4,}|\t|\||#|<|!\[|---)"
    return "\n".join(line for line in text.splitlines() if not re.match(dropped, line))


def sentences(text: str) -> Iterator[str]:
    """The sentences of paragraphs."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        line = " ".join(paragraph.split()).lstrip("-* ")
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", line):
            if len(sentence.split()) >= SHORTEST and not re.search(SQL, sentence):
                yield sentence


def texts_of(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings, and strings that are sentences: messages and help."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in ast.walk(module):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield node.body[0].lineno, docstring.split("\nArgs:")[0]
        inside = isinstance(node, ast.JoinedStr)
        if inside:
            parts = [p.value if isinstance(p, ast.Constant) else "..." for p in node.values]
            docstrings |= {id(part) for part in node.values}
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node.lineno, node.value if isinstance(node.value, str) else ""


def drawn_from() -> dict[str, list[tuple[str, str]]]:
    """`(where, sentence)` by kind of source."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found: dict[str, list[tuple[str, str]]] = {"docs": [], "code": []}
    for page in pages:
        name = str(page.relative_to(ROOT))
        found["docs"] += [(name, each) for each in sentences(prose(page.read_text("utf-8")))]
    for source in (*sorted((ROOT / "src").rglob("*.py")), *sorted(ROOT.glob("train/src/**/*.py"))):
        name = str(source.relative_to(ROOT))
        for line, text in texts_of(ast.parse(source.read_text("utf-8"))):
            found["code"] += [(f"{name}:{line}", each) for each in sentences(text)]
    return found


def main() -> None:
    """Print the sentences, half of them from pages and half from code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    chance, kinds = random.Random(options.seed), drawn_from()
    for number, kind in enumerate(kinds):
        count = (options.count + number) // len(kinds)
        for where, sentence in chance.sample(kinds[kind], count):
            print(f"{where}\n    {sentence}\n")


if __name__ == "__main__":
    main()
