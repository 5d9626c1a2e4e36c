"""Where documentation is found: Python files by `ast`, modules written in C by inspection."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import inspect
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

MAX_SIGNATURE = 160

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
    """One documented object; `text` is its docstring, without the first sentence where that became
    a query."""

    name: str
    signature: str
    text: str

    @property
    def item_text(self) -> str:
        """What a search sees: `name(signature)`, a line break, the text."""
        return f"{self.name}{self.signature}\n{self.text}".strip()


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def python_files(root: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) of the modules under a folder, in a stable order.

    Private modules are skipped, except in a package (with `prefix`): packages often keep public
    objects in `_implementation.py`, and the private parts are left out of the name.
    """
    for path in sorted(_walk(root)):
        parts = list(path.relative_to(root).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if any(_is_skipped(part) for part in parts):
            continue
        public = [part for part in parts if _is_public(part)]
        if len(public) < len(parts) and not prefix:
            continue
        name = ".".join(([prefix] if prefix else []) + public)
        if name:
            yield name, path


def _walk(root: Path) -> Iterator[Path]:
    """Python files under a folder, without entering folders that are skipped (site-packages)."""
    for folder, children, names in os.walk(root):
        children[:] = [child for child in children if not _is_skipped(child)]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _is_skipped(part: str) -> bool:
    if part in _SKIPPED_PARTS or not part.isidentifier() or part.startswith("__"):
        return True
    return part.startswith("test_") or part.endswith("_test")


def from_source(module: str, path: Path) -> Iterator[DocItem]:
    """Documented public objects of one file; nothing if it is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    yield from _item(module, "", ast.get_docstring(tree))
    yield from _from_body(module, tree.body, in_class=False)


def _from_body(prefix: str, body: Sequence[ast.stmt], in_class: bool) -> Iterator[DocItem]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            branches = [node.body, node.orelse]
            if isinstance(node, ast.Try):
                branches.extend(handler.body for handler in node.handlers)
            for branch in branches:
                yield from _from_body(prefix, branch, in_class)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_public(node.name):
            yield from _item(
                f"{prefix}.{node.name}", _signature(node, in_class), ast.get_docstring(node)
            )
        elif isinstance(node, ast.ClassDef) and _is_public(node.name):
            name = f"{prefix}.{node.name}"
            start = next(
                (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"),
                None,
            )
            yield from _item(
                name, _signature(start, True) if start else "", ast.get_docstring(node)
            )
            yield from _from_body(name, node.body, in_class=True)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> str:
    """Argument names and defaults; annotations are left out, since they are long and rare in the
    standard library."""
    arguments = node.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            extra.annotation = None
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


def c_modules() -> list[str]:
    """Modules of the standard library without Python source: built in, or an extension."""
    found = []
    for name in sorted(sys.stdlib_module_names):
        if name in _SKIPPED_C_MODULES or name.startswith(("_test", "_xx")):
            continue
        if name in sys.builtin_module_names:
            found.append(name)
            continue
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None and isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
            found.append(name)
    return found


def from_c_module(name: str) -> Iterator[DocItem]:
    """Public objects of a C module, under the name of the public module that re-exports them
    (`_struct` -> `struct`)."""
    home = _PUBLIC_HOME.get(name, name.lstrip("_"))
    if home.split(".")[0] not in sys.stdlib_module_names:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(name)
            public = module if home == name else importlib.import_module(home)
    except ImportError:
        return
    if home == name:
        yield from _item(home, "", module.__doc__)
    for attribute, value in sorted(vars(module).items()):
        if _is_public(attribute) and getattr(public, attribute, None) is value:
            yield from _from_object(f"{home}.{attribute}", value)


def _from_object(name: str, value: object) -> Iterator[DocItem]:
    if isinstance(value, type):
        if value.__module__ not in ("builtins", name.rpartition(".")[0]) and not _has_c_code(value):
            return
        yield from _c_item(name, value)
        for attribute, member in sorted(vars(value).items()):
            if _is_public(attribute) and not isinstance(member, (type, types.FunctionType)):
                yield from _c_item(f"{name}.{attribute}", member)
    elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        yield from _c_item(name, value)


def _has_c_code(value: type) -> bool:
    return not any(isinstance(member, types.FunctionType) for member in vars(value).values())


def _c_item(name: str, value: object) -> Iterator[DocItem]:
    """C docstrings often begin with lines such as `pack(format, v1, ...) -> bytes`: these are the
    signature."""
    docstring = getattr(value, "__doc__", None)
    if isinstance(value, property | types.GetSetDescriptorType | types.MemberDescriptorType):
        signature = ""
    else:
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
        opening = lines.pop(0)
        inline = re.match(
            r"^[^()]*(\(.*?\))\s*(?:(->[^.:]*?))?(?:\s*(?:--|:|\.)\s+(\S.*))?$", opening
        )
        if inline is None:
            lines.insert(0, opening)
            break
        signature = signature or _shorten(inline.group(1))
        if inline.group(3):
            lines.insert(0, inline.group(3))
            break
    yield from _item(name, _shorten(signature), "\n".join(lines))
