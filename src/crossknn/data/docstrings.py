"""Documentation of Python code as search items.

Every public module, class, function and method with a docstring becomes one item: its dotted name,
its signature and its docstring. `.py` files are read with :mod:`ast` and never imported. Modules
written in C are imported and inspected, because their documentation exists nowhere else.

About one docstring in ten is held out by a hash of its first sentence, so that training and
evaluation agree (:func:`is_held_out`). That sentence becomes a query, and the item keeps the rest.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import inspect
import os
import re
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from crossknn.data.dataset import Dataset
from crossknn.data.items import items_from
from crossknn.data.queries import QuerySet
from crossknn.data.records import given_records
from crossknn.types import Progress

N_BUCKETS = 100
HELD_OUT_BUCKETS = 10
MIN_REST_WORDS = 8
MIN_QUERY_WORDS = 3
MAX_QUERY_WORDS = 60
MAX_SIGNATURE = 160

_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|approx|fig|eq|no|dr|mr|st)|\.\.|(?-i:\b[A-Z]))\.$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?][\"'`)\]]*(?=\s+[A-Z0-9(\[`\"'*:<_]|\s*$)")
_UNDERLINE = re.compile(r"^([=\-~^#*])\1{2,}$")

_SKIPPED_PARTS = frozenset(
    {"test", "tests", "testing", "conftest", "idlelib", "lib2to3", "distutils", "encodings"}
    | {"ensurepip", "turtledemo", "pydoc_data", "site-packages", "dist-packages", "lib-dynload"}
    | {"vendor", "_vendor", "externals", "extern", "_distutils"}
)
_PUBLIC_HOME = {
    "posix": "os",
    "nt": "os",
    "_elementtree": "xml.etree.ElementTree",
    "_thread": "threading",
    "_sre": "re",
    "_multiprocessing": "multiprocessing.synchronize",
    "_collections_abc": "collections.abc",
}
_SKIPPED_C_MODULES = frozenset(
    {"_tkinter", "xxlimited", "xxlimited_35", "xxsubtype", "_curses_panel"}
)


@dataclass(frozen=True, slots=True)
class DocItem:
    """One documented object; `text` is its docstring, maybe without its first sentence."""

    name: str
    signature: str
    text: str

    @property
    def item_text(self) -> str:
        """What a search sees: `name(signature)`, a line break, the text."""
        return f"{self.name}{self.signature}\n{self.text}".strip()


def first_sentence(docstring: str) -> tuple[str, str]:
    """Split a docstring into its first sentence, on one line and in the first paragraph, and the
    rest. Underlines of headings are dropped."""
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
    """A stable number in 0..99 from the words of a sentence, whatever its case and punctuation."""
    digest = hashlib.sha256(_words(sentence).encode()).digest()
    return int.from_bytes(digest[:8], "big") % N_BUCKETS


def is_held_out(sentence: str) -> bool:
    """Whether documentation with this first sentence is kept out of training (about one in ten)."""
    return sentence_bucket(sentence) < HELD_OUT_BUCKETS


def collect_standard_library(progress: Progress | None = None) -> Dataset:
    """The running interpreter's library, some 5,000 items, held-out first sentences as queries."""
    return build_corpus(standard_library_items(progress))


def standard_library_items(progress: Progress | None = None) -> list[DocItem]:
    """All documented public objects of the standard library, identical texts merged."""
    files = _python_files(Path(sysconfig.get_paths()["stdlib"]))
    readers: list[Callable[[], Iterator[DocItem]]] = [partial(_source, *file) for file in files]
    readers += [partial(_c_module, name) for name in _c_modules()]
    items: list[DocItem] = []
    for done, read in enumerate(readers, start=1):
        items.extend(read())
        if progress is not None:
            progress(done, len(readers))
    return merge_identical(items)


def collect_package(package: str | Path) -> list[DocItem]:
    """All documented public objects of an installed package (by top-level name) or of a folder;
    nothing is imported. Raises ModuleNotFoundError if there is none."""
    if isinstance(package, Path):
        files = list(_python_files(package, prefix=package.name))
    else:
        spec = importlib.machinery.PathFinder.find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(
                f"package {package!r} is not installed: install it or pass its folder as a Path"
            )
        folders = spec.submodule_search_locations
        files = [file for f in folders or () for file in _python_files(Path(f), prefix=package)]
        if folders is None and spec.origin and spec.origin.endswith(".py"):
            files.append((package, Path(spec.origin)))
    return merge_identical([item for module, path in files for item in _source(module, path)])


def merge_identical(items: Sequence[DocItem]) -> list[DocItem]:
    """One item per name and per docstring: that with the fewest name parts, then the shortest."""
    by_name = {item.name: item for item in reversed(items)}
    by_text: dict[str, DocItem] = {}
    for item in sorted(by_name.values(), key=lambda i: (i.name.count("."), len(i.name), i.name)):
        by_text.setdefault(" ".join(item.text.split()), item)
    return sorted(by_text.values(), key=lambda item: item.name)


def build_corpus(items: Sequence[DocItem]) -> Dataset:
    """The items with held-out first sentences as queries, to which all that begin so are relevant.

    If one of these has fewer than 8 more words, they keep their text and there is no query.
    """
    split = {item.name: first_sentence(item.text) for item in items}
    groups: dict[str, list[str]] = {}
    for name, (sentence, _) in split.items():
        if is_held_out(sentence) and MIN_QUERY_WORDS <= len(sentence.split()) <= MAX_QUERY_WORDS:
            groups.setdefault(_words(sentence), []).append(name)
    members = [
        group
        for group in groups.values()
        if all(len(split[name][1].split()) >= MIN_REST_WORDS for name in group)
    ]
    shortened = {name for group in members for name in group}
    kept = [replace(i, text=split[i.name][1]) if i.name in shortened else i for i in items]
    qrels = {f"q:{group[0]}": dict.fromkeys(group, 1) for group in members}
    return Dataset(
        name="docstrings",
        items=items_from(given_records([{"id": i.name, "text": i.item_text} for i in kept])),
        queries=QuerySet(tuple(qrels), tuple(split[group[0]][0] for group in members)),
        qrels=qrels,
    )


# Python files


def _python_files(root: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) under a folder. Private modules are skipped, except in a package
    (with `prefix`), where the private parts are left out of the name."""
    for path in sorted(_walk(root)):
        parts = list(path.relative_to(root).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        public = [part for part in parts if _is_public(part)]
        if any(map(_is_skipped, parts)) or (len(public) < len(parts) and not prefix):
            continue
        if name := ".".join(([prefix] if prefix else []) + public):
            yield name, path


def _walk(root: Path) -> Iterator[Path]:
    for folder, children, names in os.walk(root):
        children[:] = [child for child in children if not _is_skipped(child)]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _is_skipped(part: str) -> bool:
    if part in _SKIPPED_PARTS or not part.isidentifier() or part.startswith("__"):
        return True
    return part.startswith("test_") or part.endswith("_test")


def _source(module: str, path: Path) -> Iterator[DocItem]:
    """Documented public objects of one file; nothing if it is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    yield from _item(module, "", ast.get_docstring(tree))
    yield from _body(module, tree.body, in_class=False)


def _body(prefix: str, body: Sequence[ast.stmt], in_class: bool) -> Iterator[DocItem]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            handlers = node.handlers if isinstance(node, ast.Try) else ()
            for branch in (node.body, node.orelse, *(handler.body for handler in handlers)):
                yield from _body(prefix, branch, in_class)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_public(node.name):
            signature = _signature(node, in_class)
            yield from _item(f"{prefix}.{node.name}", signature, ast.get_docstring(node))
        elif isinstance(node, ast.ClassDef) and _is_public(node.name):
            name = f"{prefix}.{node.name}"
            functions = (n for n in node.body if isinstance(n, ast.FunctionDef))
            start = next((function for function in functions if function.name == "__init__"), None)
            signature = _signature(start, True) if start else ""
            yield from _item(name, signature, ast.get_docstring(node))
            yield from _body(name, node.body, in_class=True)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> str:
    """Names and defaults; annotations are left out: long, and rare in the standard library."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in (*named, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    decorators = {getattr(decorator, "id", "") for decorator in node.decorator_list}
    if "property" in decorators:
        return ""
    text = ast.unparse(arguments)
    if in_class and "staticmethod" not in decorators:
        text = re.sub(r"^(self|cls)\b(, )?(/, )?", "", text)
    return _shorten(f"({text})")


def _shorten(signature: str) -> str:
    signature = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "...", signature)
    return signature if len(signature) <= MAX_SIGNATURE else signature[: MAX_SIGNATURE - 4] + "...)"


def _item(name: str, signature: str, docstring: str | None) -> Iterator[DocItem]:
    text = inspect.cleandoc(docstring).strip() if docstring else ""
    if len(text.split()) >= 2:
        yield DocItem(name, signature, text)


# Modules written in C


def _c_modules() -> Iterator[str]:
    """Modules of the standard library without Python source: built in, or an extension."""
    for name in sorted(sys.stdlib_module_names - _SKIPPED_C_MODULES):
        if name.startswith(("_test", "_xx")):
            continue
        spec = importlib.machinery.PathFinder.find_spec(name)
        is_extension = isinstance(spec and spec.loader, importlib.machinery.ExtensionFileLoader)
        if is_extension or name in sys.builtin_module_names:
            yield name


def _c_module(name: str) -> Iterator[DocItem]:
    """Public objects, under the name of the public module that re-exports them (`_struct`)."""
    home = _PUBLIC_HOME.get(name, name.lstrip("_"))
    if home.split(".")[0] not in sys.stdlib_module_names:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module, public = importlib.import_module(name), importlib.import_module(home)
    except ImportError:
        return
    if home == name:
        yield from _item(home, "", module.__doc__)
    for attribute, value in sorted(vars(module).items()):
        if _is_public(attribute) and getattr(public, attribute, None) is value:
            yield from _object(f"{home}.{attribute}", value)


def _object(name: str, value: object) -> Iterator[DocItem]:
    if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        yield from _c_item(name, value)
    elif isinstance(value, type):
        is_ours = value.__module__ in ("builtins", name.rpartition(".")[0])
        if is_ours or not any(isinstance(m, types.FunctionType) for m in vars(value).values()):
            yield from _c_item(name, value)
            for attribute, member in sorted(vars(value).items()):
                if _is_public(attribute) and not isinstance(member, (type, types.FunctionType)):
                    yield from _c_item(f"{name}.{attribute}", member)


def _c_item(name: str, value: object) -> Iterator[DocItem]:
    """C docstrings often begin with signatures, lines such as `pack(format, v1, ...) -> bytes`."""
    docstring = getattr(value, "__doc__", None)
    signature = ""
    if not isinstance(value, property | types.GetSetDescriptorType | types.MemberDescriptorType):
        try:
            found = str(inspect.signature(cast(Any, value)))
            signature = re.sub(r"^\((\$?self|\$?module|\$?type)(, /)?(, )?", "(", found)
        except Exception:  # inspect evaluates defaults, and some fail in their own ways
            signature = ""
    if not isinstance(docstring, str):
        return
    lines = inspect.cleandoc(docstring).splitlines()
    short = re.escape(name.rpartition(".")[2])
    while lines and re.match(rf"^(\w+\.)*{short}\(.*", lines[0]):
        inline = re.match(
            r"^[^()]*(\(.*?\))\s*(?:(->[^.:]*?))?(?:\s*(?:--|:|\.)\s+(\S.*))?$", lines[0]
        )
        if inline is None:
            break
        signature = signature or _shorten(inline[1])
        lines[:1] = [inline[3]] if inline[3] else []
        if inline[3]:
            break
    yield from _item(name, _shorten(signature), "\n".join(lines))
