"""Docstrings of installed third-party Python packages: first sentence -> name and the rest, or ->
the function's code.

The standard library's documentation is held out: docstrings whose first sentence occurs there are
left out.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import NamedTuple

from questions import question

PACKAGES = """aiohttp attr bs4 click faiss fontTools fsspec httpx2 huggingface_hub hypothesis jinja2 joblib
lxml markdown_it matplotlib more_itertools mpmath narwhals networkx nltk numpy packaging pandas
patsy PIL pluggy polars pydantic pygments pyparsing requests rich scipy sentence_transformers
setuptools sklearn sortedcontainers sqlalchemy statsmodels sympy torch transformers typer
urllib3 werkzeug wrapt yaml""".split()  # noqa: SIM905
PER_PACKAGE = 400
CALLED = {
    "np": "numpy", "numpy": "numpy", "pd": "pandas", "df": "pandas", "pandas": "pandas",
    "dataframe": "pandas", "plt": "matplotlib", "matplotlib": "matplotlib",
    "beautifulsoup": "bs4", "soup": "bs4", "requests": "requests", "sqlalchemy": "sqlalchemy",
    "lxml": "lxml", "nltk": "nltk",
}  # fmt: skip
"""Words of a question or a snippet, and the package that they mean."""


def docstring_pairs() -> list[tuple[str, str]]:
    """Return pairs (first sentence, name and rest), at most `PER_PACKAGE` of a package."""
    return _pairs(lambda about: about.rest and f"{about.name}\n{about.rest}")


def code_pairs() -> list[tuple[str, str]]:
    """Return pairs (first sentence, code without docstring), at most `PER_PACKAGE` of a package."""
    return _pairs(lambda about: about.code)


def question_pairs() -> list[tuple[str, str]]:
    """Return pairs (first sentence rewritten as a question, name and whole docstring)."""
    generator = random.Random(0)
    pairs = [(question(first, generator), first, text) for first, text in docstring_pairs()]
    return [(asked, _whole(first, text)) for asked, first, text in pairs if asked is not None]


def called_pairs(questions: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs of a question and the docstring of a function that its answer calls, for
    snippets with numpy, pandas and other `CALLED` packages."""
    documented: dict[tuple[str, str], str] = {}
    for package in sorted({*CALLED.values()}):
        folder = Path(sysconfig.get_path("purelib")) / package
        for about in sorted(_documented(folder, package), key=lambda about: len(about.name)):
            if len(about.rest.split()) >= 8:
                key = package, about.name.rpartition(".")[2]
                documented.setdefault(key, f"{about.name}\n{about.first}\n{about.rest}")
    pairs = []
    for asked, snippet in questions:
        words = re.findall(r"\w+", f"{asked} {snippet}".lower())
        packages = sorted({CALLED[word] for word in words if word in CALLED})
        names = re.findall(r"\.(\w+)\(", snippet)
        found = [documented.get((package, name)) for package in packages for name in names]
        pairs += [(asked, text) for text in found[:1] if text is not None]
    return pairs


def _whole(first: str, text: str) -> str:
    name, _, rest = text.partition("\n")
    return f"{name}\n{first}\n{rest}"


class _About(NamedTuple):
    """A documented function or class; `rest` is the docstring without its first sentence."""

    name: str
    first: str
    rest: str
    code: str


def _pairs(text_of: Callable[[_About], str]) -> list[tuple[str, str]]:
    known = {about.first for about in _documented(Path(sysconfig.get_path("stdlib")), "lib")}
    pairs: list[tuple[str, str]] = []
    for package in PACKAGES:
        folder = Path(sysconfig.get_path("purelib")) / package
        made = [
            (about.first, text_of(about))
            for about in _documented(folder, package)
            if about.first not in known and 4 <= len(about.first.split()) <= 40
        ]
        long = {first: (first, text) for first, text in made if len(text.split()) >= 8}
        unique = sorted(long.values())
        random.Random(package).shuffle(unique)
        pairs += unique[:PER_PACKAGE]
    return pairs


def _documented(folder: Path, package: str) -> Iterator[_About]:
    """Yield the documented functions and classes under a folder, but for its tests."""
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
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                text = (ast.get_docstring(node) or "").strip()
                first, *rest = re.split(r"(?<=[.!?])\s+|\n\s*\n", text, maxsplit=1)
                node.body = node.body[1:]
                is_code = isinstance(node, ast.FunctionDef) and len(node.body) > 1
                code = ast.unparse(node)[:800] if is_code else ""
                sentence, remainder = " ".join(first.split()), "".join(rest).strip()[:400]
                yield _About(f"{module}.{node.name}", sentence, remainder, code)


def versions() -> str:
    """Return the packages read and their versions, for the model card."""
    of = packages_distributions()
    names = sorted({of[package][0] for package in PACKAGES if package in of})
    return ", ".join(f"{name} {version(name)}" for name in names)


if __name__ == "__main__":
    pairs = docstring_pairs()
    print(len(pairs), "pairs;", versions(), file=sys.stderr)
