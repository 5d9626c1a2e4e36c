"""The standard library's docstrings: first sentence -> the rest."""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import inspect
import re
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from importlib.machinery import ExtensionFileLoader, PathFinder
from pathlib import Path
from typing import Any

from domain import Domain, grouped, halves, words_of

SKIPPED = re.compile(
    r"tests?|testing|test_.*|.*_test|conftest|idlelib|lib2to3|_?distutils|encodings|ensurepip"
    r"|turtledemo|pydoc_data|site-packages|_?vendor|extern(als)?|__.*|.*[-.].*"
)
ABBREVIATION = re.compile(r"(\b(e\.g|i\.e|cf|vs|etc|resp|approx|fig|eq|no)|\.\.)\.$", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?][\"'`)\]]*(?=\s+[A-Z0-9(\[`\"'*:<_]|\s*$)")


def sentence_bucket(sentence: str) -> int:
    """A stable number in 0..99 from a sentence's words, as in `crossknn.demo` of before. Docstrings
    whose first sentence is below 10 never trained and never train."""
    digest = hashlib.sha256(words_of(sentence).encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100


def first_sentence(docstring: str) -> tuple[str, str]:
    """The first sentence of a docstring, within its first paragraph, and the rest."""
    opening, *others = re.split(r"\n\s*\n", inspect.cleandoc(docstring).strip(), maxsplit=1)
    paragraph, remainder = " ".join(opening.split()), "".join(others).strip()
    for match in SENTENCE_END.finditer(paragraph):
        if not ABBREVIATION.search(paragraph[: match.start() + 1]):
            rest = (paragraph[match.end() :].strip(), remainder)
            return paragraph[: match.end()].strip(), "\n\n".join(part for part in rest if part)
    return paragraph, remainder


@cache
def docstrings() -> dict[str, tuple[str, str]]:
    """(signature, docstring) of the library's public objects by name. `.py` files are parsed and
    modules written in C inspected; of equal docstrings that of the shortest name stays."""
    found: dict[str, tuple[str, str]] = {}
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and not any(SKIPPED.fullmatch(p) or p.startswith("_") for p in parts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
            _add(found, ".".join(parts), "", ast.get_docstring(tree))
            _parsed(found, ".".join(parts), tree.body)
    for name in sorted(sys.stdlib_module_names):
        home = {"posix": "os", "nt": "os"}.get(name, name.lstrip("_"))
        loader = getattr(PathFinder.find_spec(name), "loader", None)
        compiled = name in sys.builtin_module_names or isinstance(loader, ExtensionFileLoader)
        if compiled and home in sys.stdlib_module_names and not home.startswith("xx"):
            try:
                module, public = importlib.import_module(name), importlib.import_module(home)
            except ImportError:
                continue
            _inspected(found, home, module, public)
    kept: dict[str, tuple[str, str]] = {}
    texts: set[str] = set()
    for name in sorted(found, key=lambda name: (name.count("."), len(name), name)):
        if found[name][1] not in texts:
            texts.add(found[name][1])
            kept[name] = found[name]
    return dict(sorted(kept.items()))


def _add(found: dict[str, tuple[str, str]], name: str, signature: str, text: str | None) -> None:
    text = inspect.cleandoc(text or "").strip()
    if len(text.split()) >= 2 and not name.rpartition(".")[2].startswith("_"):
        found.setdefault(name, (signature, text))


def _parsed(found: dict[str, tuple[str, str]], prefix: str, body: Iterable[ast.AST]) -> None:
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.ExceptHandler)):
            _parsed(found, prefix, ast.iter_child_nodes(node))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            arguments = re.sub(r"^(self|cls)\b(, )?(/, )?", "", ast.unparse(node.args))
            _add(found, f"{prefix}.{node.name}", f"({arguments})", ast.get_docstring(node))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            _add(found, f"{prefix}.{node.name}", "", ast.get_docstring(node))
            _parsed(found, f"{prefix}.{node.name}", node.body)


def _inspected(found: dict[str, tuple[str, str]], home: str, module: Any, public: Any) -> None:
    for attribute, value in sorted(vars(module).items()):
        if getattr(public, attribute, None) is not value or attribute.startswith("_"):
            continue
        members = sorted(vars(value).items()) if isinstance(value, type) else []
        for name, part in [("", value), *members]:
            if isinstance(part, type) or inspect.isroutine(part) or inspect.isdatadescriptor(part):
                dotted = ".".join(filter(None, (home, attribute, name)))
                text, signature = inspect.cleandoc(part.__doc__ or ""), ""
                short = re.escape(dotted.rpartition(".")[2])
                if lead := re.match(rf"((\w+\.)*{short}(\(.*\))( -> [^,.\n]*)?(\n+|$))+", text):
                    signature, text = lead[3], text[lead.end() :]
                _add(found, dotted, signature, text)


def pydocs(given: argparse.Namespace) -> Domain:
    """First sentences of buckets 0 to 9 -> docstrings that begin so, which lose it. One that would
    keep fewer than eight words stays whole, without a query."""
    items = {n: (n, f"{n}{s}\n{text}") for n, (s, text) in docstrings().items()}
    pairs, groups = [], defaultdict(list)
    for name, (_, text) in docstrings().items():
        first, _ = first_sentence(text)
        if sentence_bucket(first) < 10 and 3 <= len(first.split()) <= 60:
            groups[words_of(first)].append(name)
    for group in groups.values():
        rests = {name: first_sentence(docstrings()[name][1]) for name in group}
        if all(len(rest.split()) >= 8 for _, rest in rests.values()):
            for name, (_, rest) in rests.items():
                items[name] = (name, f"{name}{docstrings()[name][0]}\n{rest}")
                pairs.append((rests[group[0]][0], name))
    queries, qrels = grouped(pairs, "doc")
    items = {name: ("", text) for name, (_, text) in items.items()}
    return Domain(items, queries, *halves(qrels, 80))
