"""Documentation of Python code as search items.

Every public module, class, function and method with a docstring becomes one item: its dotted name,
its signature and its docstring. `.py` files are read with :mod:`ast` and never imported. Modules
written in C are imported and inspected, because their documentation exists nowhere else.

About one docstring in ten is held out by a stable hash of its first sentence (:func:`is_held_out`).
For these the first sentence becomes a query, and the item keeps its name, its signature and the
rest of the text. The hash depends on nothing but the sentence, so training and evaluation agree on
the split without sharing a file.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import inspect
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossknn.data._docstring_sources import (
    DocItem,
    c_modules,
    from_c_module,
    from_source,
    python_files,
)
from crossknn.types import Progress

__all__ = [
    "DocCorpus",
    "DocItem",
    "build_corpus",
    "collect_package",
    "collect_standard_library",
    "first_sentence",
    "is_held_out",
    "merge_identical",
    "sentence_bucket",
    "standard_library_items",
]

N_BUCKETS = 100
HELD_OUT_BUCKETS = 10
MIN_REST_WORDS = 8
MIN_QUERY_WORDS = 3
MAX_QUERY_WORDS = 60

_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|approx|fig|eq|no|dr|mr|st)|\.\.|(?-i:\b[A-Z]))\.$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?][\"'`)\]]*(?=\s+[A-Z0-9(\[`\"'*:<_]|\s*$)")
_UNDERLINE = re.compile(r"^([=\-~^#*])\1{2,}$")


@dataclass(frozen=True, slots=True)
class DocCorpus:
    """n items, m queries (id -> text) and the relevant items of each query (query id -> item name
    -> 1)."""

    items: tuple[DocItem, ...]
    queries: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, int]]


def first_sentence(docstring: str) -> tuple[str, str]:
    """Split a docstring into its first sentence, on one line, and the rest.

    The first sentence ends at the first full stop, question or exclamation mark followed by white
    space and the start of a sentence, and at the end of the first paragraph at the latest.
    Underlines of headings are dropped.
    """
    lines = [
        line
        for line in inspect.cleandoc(docstring).splitlines()
        if not _UNDERLINE.match(line.strip())
    ]
    while lines and not lines[0].strip():
        lines.pop(0)
    end = next((position for position, line in enumerate(lines) if not line.strip()), len(lines))
    paragraph = " ".join(" ".join(lines[:end]).split())
    remainder = "\n".join(lines[end:]).strip()
    for match in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[: match.start() + 1]):
            tail = paragraph[match.end() :].strip()
            return paragraph[: match.end()].strip(), "\n\n".join(
                part for part in (tail, remainder) if part
            )
    return paragraph, remainder


def sentence_bucket(sentence: str) -> int:
    """A stable number in 0..99 from the words of a sentence; case, white space and punctuation do
    not matter."""
    normal = " ".join(re.findall(r"\w+", sentence.lower()))
    return int.from_bytes(hashlib.sha256(normal.encode()).digest()[:8], "big") % N_BUCKETS


def is_held_out(sentence: str) -> bool:
    """Whether documentation with this first sentence is kept out of training (about one in ten)."""
    return sentence_bucket(sentence) < HELD_OUT_BUCKETS


def collect_standard_library(progress: Progress | None = None) -> DocCorpus:
    """The standard library of the running interpreter, with its held-out first sentences as
    queries.

    `progress(done, total)` is called after each module. Takes some seconds; about 5,000 items on
    CPython 3.11.
    """
    return build_corpus(standard_library_items(progress))


def standard_library_items(progress: Progress | None = None) -> list[DocItem]:
    """All documented public objects of the standard library with their whole docstrings, identical
    texts merged."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = list(python_files(root))
    extensions = c_modules()
    total = len(files) + len(extensions)
    items: list[DocItem] = []
    for done, (module, path) in enumerate(files, start=1):
        items.extend(from_source(module, path))
        if progress is not None:
            progress(done, total)
    for done, module in enumerate(extensions, start=len(files) + 1):
        items.extend(from_c_module(module))
        if progress is not None:
            progress(done, total)
    return merge_identical(items)


def collect_package(package: str | Path) -> list[DocItem]:
    """All documented public objects of an installed package (by top-level name) or of a folder,
    identical texts merged.

    Nothing is imported. Raises ModuleNotFoundError if the package is not installed.
    """
    if isinstance(package, Path):
        files = list(python_files(package, prefix=package.name))
    else:
        spec = importlib.machinery.PathFinder.find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(
                f"package {package!r} is not installed: install it or pass its folder as a Path"
            )
        files = []
        for folder in spec.submodule_search_locations or ():
            files.extend(python_files(Path(folder), prefix=package))
        if spec.submodule_search_locations is None and spec.origin and spec.origin.endswith(".py"):
            files.append((package, Path(spec.origin)))
    return merge_identical([item for module, path in files for item in from_source(module, path)])


def merge_identical(items: Sequence[DocItem]) -> list[DocItem]:
    """Keep one item per name and per docstring: the one with the fewest name parts, then the
    shortest name, wins."""
    by_name: dict[str, DocItem] = {}
    for item in items:
        by_name.setdefault(item.name, item)
    ordered = sorted(
        by_name.values(), key=lambda item: (item.name.count("."), len(item.name), item.name)
    )
    by_text: dict[str, DocItem] = {}
    for item in ordered:
        by_text.setdefault(" ".join(item.text.split()), item)
    return sorted(by_text.values(), key=lambda item: item.name)


def build_corpus(items: Sequence[DocItem]) -> DocCorpus:
    """Turn the held-out first sentences of n items into queries.

    A held-out sentence becomes a query if every item that begins with it has at least 8 more words;
    all of them are relevant. Otherwise these items keep their whole text and there is no query.
    """
    split = {item.name: first_sentence(item.text) for item in items}
    groups: dict[str, list[DocItem]] = {}
    for item in items:
        sentence, _ = split[item.name]
        if is_held_out(sentence) and MIN_QUERY_WORDS <= len(sentence.split()) <= MAX_QUERY_WORDS:
            groups.setdefault(" ".join(re.findall(r"\w+", sentence.lower())), []).append(item)
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    shortened: set[str] = set()
    for members in groups.values():
        if any(len(split[item.name][1].split()) < MIN_REST_WORDS for item in members):
            continue
        query = f"q:{members[0].name}"
        queries[query] = split[members[0].name][0]
        qrels[query] = {item.name: 1 for item in members}
        shortened.update(qrels[query])
    kept = tuple(
        DocItem(item.name, item.signature, split[item.name][1]) if item.name in shortened else item
        for item in items
    )
    return DocCorpus(kept, queries, qrels)
