"""Specifications of methods: `axn(retriever=hybrid(bm25, dense), rounds=10, blend=0.5)`.

The grammar is Python's for calls, but names may hold `-` and `.`.
"""

from __future__ import annotations

import ast
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from crossknn.errors import SpecError, nearest

T = TypeVar("T")

_HYPHEN = "\u203f"  # stands for a hyphen in a name, so that Python reads no subtraction


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed specification: a name, positional arguments and named options."""

    name: str
    args: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        inside = [str(a) for a in self.args] + [f"{k}={v}" for k, v in self.options.items()]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


Value: TypeAlias = Spec | int | float


@lru_cache(maxsize=256)
def parse(text: str) -> Spec:
    """Parse a specification; `SpecError` names the place of a syntax error.

    >>> str(parse("rerank( retriever=hybrid(bm25,dense) )"))
    'rerank(retriever=hybrid(bm25, dense))'
    """
    shown = repr(text.strip() if len(text) < 200 else f"{text[:200]}...")
    try:
        marked = re.sub(r"(?<=\w)-(?=[A-Za-z_])", _HYPHEN, text.strip())
        value = _value(ast.parse(marked, mode="eval").body, marked)
    except SyntaxError as error:
        place = marked.encode()[max(error.offset or 1, 1) - 1 :][:40].decode(errors="replace")
        reason = f"{error.msg} at {place!r}".replace(_HYPHEN, "-")
        raise SpecError(f"cannot read {shown}: {reason}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"cannot read {shown}: {error or 'it is nested too deep'}") from None
    if not isinstance(value, Spec):
        raise SpecError(f"{shown} is a number where the name of a method was expected")
    return value


def split(text: str) -> list[str]:
    """Split at commas, semicolons and line ends that are outside parentheses.

    >>> split("rerank(retriever=hybrid(bm25, dense)), exact")
    ['rerank(retriever=hybrid(bm25, dense))', 'exact']
    """
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth <= 0 and character in ",;\n":
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _value(node: ast.expr, text: str) -> Value:
    """Return the specification or number that a node of the syntax tree stands for."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Constant(value=bool() | None as word):
            return Spec(str(word).lower())
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name() | ast.Attribute():
            return Spec(_name(node))
        case ast.Call(func=ast.Name() | ast.Attribute() as name, args=args, keywords=keywords):
            options: dict[str, Value] = {}
            for keyword in keywords:
                if keyword.arg is None or keyword.arg in options:
                    raise SpecError(f"it gives the option {keyword.arg!r} twice")
                options[keyword.arg.replace(_HYPHEN, "-")] = _value(keyword.value, text)
            return Spec(_name(name), tuple(_value(arg, text) for arg in args), options)
    source = (ast.get_source_segment(text, node) or text)[:40].replace(_HYPHEN, "-")
    raise SpecError(f"expected a name or a number, found {source!r}")


def _name(node: ast.expr) -> str:
    return ast.unparse(node).replace(_HYPHEN, "-")


def build(spec: Spec, kinds: Mapping[str, type[T]], kind: str) -> T:
    """Make the configuration that `spec` names, a frozen dataclass from `kinds`."""
    if spec.name not in kinds:
        raise SpecError(f"unknown {kind} {spec.name!r}: {nearest(spec.name, kinds)}")
    target = kinds[spec.name]
    options = [f.name for f in fields(target) if f.init]  # type: ignore[arg-type]
    if spec.args:
        raise SpecError(
            f"{kind} {spec.name!r} takes named options only (known: {', '.join(options) or 'none'})"
        )
    for name in spec.options:
        if name not in options:
            hint = nearest(name, options) if options else "it has none"
            raise SpecError(f"{kind} {spec.name!r} has no option {name!r}: {hint}")
    made = target(**spec.options)
    check_options(spec.name, made)
    return made


def text_of(name: str, configuration: Any, *, full: bool = False) -> str:
    """Return the specification of a configuration, with default options only if `full`."""
    options = [
        f"{f.name}={str(getattr(configuration, f.name)).lower()}"
        for f in fields(configuration)
        if full or getattr(configuration, f.name) != f.default
    ]
    return f"{name}({', '.join(options)})" if options else name


def option(default: T, *, least: float, most: float = math.inf) -> T:
    """Declare an option whose value must lie between two bounds.

    Args:
        default: The default value.
        least, most: The bounds.
    """
    bounded: T = field(default=default, metadata={"least": least, "most": most})
    return bounded


def check_options(name: str, configuration: Any) -> None:
    """Convert the options of a frozen dataclass to their types, in place."""
    hints = _hints(type(configuration))  # type: ignore[arg-type]
    for each in fields(configuration):
        if (value := getattr(configuration, each.name)) is each.default:
            continue
        where = f"{name}({each.name}={value})"
        value = _convert(value, hints[each.name], where)
        object.__setattr__(configuration, each.name, value)
        if value is None or "least" not in each.metadata:
            continue
        least, most = each.metadata["least"], each.metadata["most"]
        if not least <= value <= most:
            bounds = f"lie between {least} and {most}" if most < math.inf else f"be {least} or more"
            raise SpecError(f"{where}: {each.name} must {bounds}")


_hints = cache(get_type_hints)
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a name",
    Spec: "a name or a spec",
    type(None): "none",
}
_NUMBERS = {int: Integral, float: Real}


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Convert a value to the annotated type `hint`; errors name the option."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    bare = isinstance(value, Spec) and not value.args and not value.options
    word = value.name if bare else value
    for kind in sorted(kinds, key=lambda kind: kind is not type(None)):  # `none` first
        if kind is type(None) and (word is None or word == "none"):
            return None
        if kind is bool and (isinstance(word, bool) or word in ("true", "false")):
            return word in (True, "true")
        if kind is Spec and isinstance(value, str | Spec):
            return parse(value) if isinstance(value, str) else value
        if isinstance(word, str) and (kind is str or word in get_args(kind)):
            return word
        if isinstance(value, _NUMBERS.get(kind, ())) and not isinstance(value, bool):
            return kind(value)
        if kind not in _KINDS and isinstance(kind, type) and isinstance(value, kind):
            return value
    expected = [
        f"one of {', '.join(map(str, get_args(kind)))}"
        if get_origin(kind) is Literal
        else _KINDS.get(kind, str(kind))
        for kind in kinds
    ]
    raise SpecError(f"{where}: expected {' or '.join(expected)}")
