"""Docstrings of installed third-party Python packages: first sentence -> name and the rest.

The standard library's documentation is held out: docstrings whose first sentence occurs there are
left out.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PACKAGES = """aiohttp attr bs4 click faiss fontTools fsspec httpx2 huggingface_hub hypothesis jinja2 joblib
lxml markdown_it matplotlib more_itertools mpmath narwhals networkx nltk numpy packaging pandas
patsy PIL pluggy polars pydantic pygments pyparsing requests rich scipy sentence_transformers
setuptools sklearn sortedcontainers sqlalchemy statsmodels sympy torch transformers typer
urllib3 werkzeug wrapt yaml""".split()  # noqa: SIM905
PER_PACKAGE = 400


def docstring_pairs() -> list[tuple[str, str]]:
    """Return pairs (first sentence, name and rest), at most `PER_PACKAGE` of a package."""
    known = {first for *_, first, _ in _docstrings(Path(sysconfig.get_path("stdlib")), "lib")}
    pairs: list[tuple[str, str]] = []
    for package in PACKAGES:
        folder = Path(sysconfig.get_path("purelib")) / package
        made = [
            (first, f"{name}\n{rest}")
            for name, first, rest in _docstrings(folder, package)
            if first not in known and len(rest.split()) >= 8 and 4 <= len(first.split()) <= 40
        ]
        unique = sorted({first: (first, text) for first, text in made}.values())
        random.Random(package).shuffle(unique)
        pairs += unique[:PER_PACKAGE]
    return pairs


def _docstrings(folder: Path, package: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, first sentence, rest) of the docstrings under a folder, but for its tests."""
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder)
        if {"test", "tests", "testing", "site-packages"} & set(inner.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        module = ".".join([package, *inner.with_suffix("").parts]).removesuffix(".__init__")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                parts = re.split(r"(?<=[.!?])\s+|\n\s*\n", text.strip(), maxsplit=1)
                if len(parts) == 2:
                    first, rest = " ".join(parts[0].split()), parts[1].strip()
                    yield f"{module}.{node.name}", first, rest[:400]
