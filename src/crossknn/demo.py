"""The demo's corpus: the documentation of the Python standard library.

Every public module, class, function and method with a docstring is an item: its dotted name, its
signature and its docstring. `.py` files are read with :mod:`ast` and never imported; modules
written in C are imported and inspected, because their documentation exists nowhere else.

About one docstring in ten is held out by a hash of its first sentence, so that training and
evaluation agree (:func:`is_held_out`). That sentence becomes a query, and the item keeps the rest.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ExtensionFileLoader, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from crossknn.types import Progress

SEARCHES = (
    "how do I extract a zip archive",
    "how do I copy a directory",
    "pick a random element from a list",
    "what day of the week is a date",
    "middle value of a bunch of numbers",
    "how to ask the user for a password without showing it",
    "make a directory and all missing parents",
    "how do I change the working directory",
)
"""Questions that the bundled models answer correctly at rank one. They are not typical: the models
are small and were not trained on questions; of forty they answer twelve at rank one, and about half
within the first five (`lab/recipes/bundled/questions.tsv`)."""

_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|approx|fig|eq|no|dr|mr|st)|\.\.|(?-i:\b[A-Z]))\.$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?][\"'`)\]]*(?=\s+[A-Z0-9(\[`\"'*:<_]|\s*$)")
_UNDERLINE = re.compile(r"^([=\-~^#*])\1{2,}$")
_SKIPPED = re.compile(
    r"tests?|testing|test_.*|.*_test|conftest|idlelib|lib2to3|_?distutils|encodings|ensurepip"
    r"|turtledemo|pydoc_data|_?vendor|extern(als)?|__.*|.*[-.].*"
)


class DocItem(NamedTuple):
    """One documented object; `text` is its docstring, perhaps without its first sentence."""

    name: str
    signature: str
    text: str

    @property
    def item_text(self) -> str:
        """The text that is searched: `name(signature)`, a line break, the docstring."""
        return f"{self.name}{self.signature}\n{self.text}".strip()


def first_sentence(docstring: str) -> tuple[str, str]:
    """Split a docstring into its first sentence, on one line and in the first paragraph, and the
    remaining text. Underlines of headings are dropped."""
    lines = inspect.cleandoc(docstring).splitlines()
    text = "\n".join(line for line in lines if not _UNDERLINE.match(line.strip()))
    opening, *others = re.split(r"\n\s*\n", re.sub(r"\A(\s*\n)+", "", text), maxsplit=1)
    paragraph, remainder = " ".join(opening.split()), "".join(others).strip()
    for match in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[: match.start() + 1]):
            rest = (paragraph[match.end() :].strip(), remainder)
            return paragraph[: match.end()].strip(), "\n\n".join(part for part in rest if part)
    return paragraph, remainder


def _words(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", sentence.lower()))


def sentence_bucket(sentence: str) -> int:
    """Compute a stable number in 0..99 from the words of a sentence, ignoring case and
    punctuation."""
    digest = hashlib.sha256(_words(sentence).encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100


def is_held_out(sentence: str) -> bool:
    """Whether documentation with this first sentence is held out of training (about one in ten)."""
    return sentence_bucket(sentence) < 10


def standard_library_items(progress: Progress | None = None) -> list[DocItem]:
    """Collect all documented public objects of the running interpreter's library, some 6,000."""
    files = python_files(Path(sysconfig.get_paths()["stdlib"]))
    modules = [source_items(*file) for file in files]
    modules += map(_compiled_items, sorted(sys.stdlib_module_names))
    items: list[DocItem] = []
    for done, module in enumerate(modules, start=1):
        items.extend(module)
        if progress is not None:
            progress(done, len(modules))
    return merge_identical(items)


def merge_identical(items: Sequence[DocItem]) -> list[DocItem]:
    """Keep one item per name and per docstring: the one with the fewest name parts, then the
    shortest."""
    by_name = {item.name: item for item in reversed(items)}
    by_text: dict[str, DocItem] = {}
    for item in sorted(by_name.values(), key=lambda i: (i.name.count("."), len(i.name), i.name)):
        by_text.setdefault(" ".join(item.text.split()), item)
    return sorted(by_text.values(), key=lambda item: item.name)


class Corpus(NamedTuple):
    """Texts of items and of queries by id, and judgements."""

    items: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]


def build_corpus(items: Sequence[DocItem]) -> Corpus:
    """Use held-out first sentences as queries; all items that begin with one are relevant to it.

    If one of these items has fewer than 8 more words, they keep their text and there is no query.
    """
    split = {item.name: first_sentence(item.text) for item in items}
    groups: dict[str, list[str]] = {}
    for name, (sentence, _) in split.items():
        if is_held_out(sentence) and 3 <= len(sentence.split()) <= 60:
            groups.setdefault(_words(sentence), []).append(name)
    corpus = Corpus({item.name: item.item_text for item in items}, {}, {})
    for group in groups.values():
        if all(len(split[name][1].split()) >= 8 for name in group):
            query = f"q:{group[0]}"
            corpus.queries[query] = split[group[0]][0]
            corpus.qrels[query] = dict.fromkeys(group, 1)
            for item in (item for item in items if item.name in group):
                corpus.items[item.name] = item._replace(text=split[item.name][1]).item_text
    return corpus


def python_files(root: Path, package: str = "") -> list[tuple[str, Path]]:
    """Return (dotted module name, file) below a folder, without tests, vendored code and private
    modules. Private modules of a `package` are included, with its name omitted."""
    found = []
    for folder, children, names in os.walk(root):
        children[:] = [child for child in children if not _SKIPPED.fullmatch(child)]
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            public = [part for part in (package, *parts) if part and not part.startswith("_")]
            is_read = public and (package or len(public) == len(parts))
            if is_read and not any(map(_SKIPPED.fullmatch, parts)):
                found.append((".".join(public), path))
    return sorted(found, key=lambda file: file[1])


def source_items(module: str, path: Path) -> Iterator[DocItem]:
    """Return documented public objects of a file; none if it is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    yield from _item(module, "", ast.get_docstring(tree))
    yield from _body(module, tree.body)


def _body(prefix: str, body: Iterable[ast.AST]) -> Iterator[DocItem]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.ExceptHandler)):
            yield from _body(prefix, ast.iter_child_nodes(node))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _item(f"{prefix}.{node.name}", _signature(node), ast.get_docstring(node))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            name = f"{prefix}.{node.name}"
            functions = (n for n in node.body if isinstance(n, ast.FunctionDef))
            start = next((function for function in functions if function.name == "__init__"), None)
            yield from _item(name, _signature(start) if start else "", ast.get_docstring(node))
            yield from _body(name, node.body)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Format names and defaults; annotations are omitted, because they are long, and rare in the
    standard library."""
    if "property" in map(ast.unparse, node.decorator_list):
        return ""
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    text = re.sub(r"^(self|cls)\b(, )?(/, )?", "", ast.unparse(node.args))
    return f"({text})"


def _item(name: str, signature: str, docstring: str | None) -> Iterator[DocItem]:
    text = inspect.cleandoc(docstring or "").strip()
    if len(text.split()) >= 2 and not name.rpartition(".")[2].startswith("_"):
        yield DocItem(name, signature, text)


def _compiled_items(name: str) -> Iterator[DocItem]:
    """Public objects of a module written in C, by the public module that has them (`_struct`)."""
    home = {"posix": "os", "nt": "os"}.get(name, name.lstrip("_"))
    loader = getattr(PathFinder.find_spec(name), "loader", None)
    is_compiled = name in sys.builtin_module_names or isinstance(loader, ExtensionFileLoader)
    if not is_compiled or home not in sys.stdlib_module_names or home.startswith("xx"):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module, public = importlib.import_module(name), importlib.import_module(home)
    except ImportError:
        return
    if home == name:
        yield from _item(home, "", module.__doc__)
    for attribute, value in sorted(vars(module).items()):
        if getattr(public, attribute, None) is not value or attribute.startswith("_"):
            continue
        if isinstance(value, type) or inspect.isroutine(value):
            yield from _inspected(f"{home}.{attribute}", value)
        for member, part in sorted(vars(value).items()) if isinstance(value, type) else ():
            if inspect.isroutine(part) or inspect.isdatadescriptor(part):
                yield from _inspected(f"{home}.{attribute}.{member}", part)


def _inspected(name: str, value: Any) -> Iterator[DocItem]:
    """C docstrings often begin with signatures, lines such as `pack(format, v1, ...) -> bytes`."""
    text, signature = inspect.cleandoc(value.__doc__ or ""), ""
    short = re.escape(name.rpartition(".")[2])
    if lead := re.match(rf"((\w+\.)*{short}(\(.*\))( -> [^,.\n]*)?(\n+|$))+", text):
        signature, text = lead[3], text[lead.end() :]
    try:
        found = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "...", str(inspect.signature(value)))
        signature = re.sub(r"^\((\$?self|\$?module|\$?type)(, /)?(, )?", "(", found)
    except Exception:  # inspect evaluates defaults, and some fail in their own ways
        pass
    yield from _item(name, signature, text)
