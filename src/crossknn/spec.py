"""The one grammar for methods: `name` or `name(option=value, ...)`; values may be specs.

rerank(retriever=hybrid(bm25, dense))     axn(retriever=dense, rounds=10, blend=0.5)
"""

from __future__ import annotations

import re
import types
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from crossknn.errors import SpecError, nearest

_TOKEN = re.compile(r"\s*([A-Za-z_][\w.\-]*|[-+]?[\d.]+(?:[eE][-+]?\d+)?|[(),=])")


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec: a name, positional arguments and named options."""

    name: str
    args: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        inside = [str(a) for a in self.args] + [f"{k}={v}" for k, v in self.options.items()]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


Value: TypeAlias = Spec | int | float


def parse(text: str) -> Spec:
    """One spec; `SpecError` says where it breaks off.

    >>> str(parse("rerank( retriever=hybrid(bm25,dense) )"))
    'rerank(retriever=hybrid(bm25, dense))'
    """
    parser = _Parser(text)
    value = parser.value()
    parser.end()
    if not isinstance(value, Spec):
        raise SpecError(f"{text.strip()!r} is a number where the name of a method was expected")
    return value


def parse_list(text: str) -> list[Spec]:
    """Specs separated by commas, semicolons or line ends outside parentheses."""
    return [parse(part) for part in split(text)]


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


DEEPEST = 20
"""How deep specs may stand in each other."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        return match.group(1) if match else ""

    def take(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise self.error("a name or a number")
        self.position = match.end()
        return match.group(1)

    def error(self, expected: str) -> SpecError:
        rest = self.text[self.position :].strip()
        found = f"found {rest[:20]!r}" if rest else "it ends there"
        return SpecError(
            f"cannot read {self.text.strip()!r}: expected {expected} after "
            f"{self.text[: self.position].strip()!r}, but {found}"
        )

    def end(self) -> None:
        if self.text[self.position :].strip():
            raise self.error("the end")

    def value(self) -> Value:
        if self.depth > DEEPEST:
            raise SpecError(f"{self.text.strip()[:40]!r}... is nested more than {DEEPEST} deep")
        token = self.peek()
        if not token or token in "(),=":
            raise self.error("a name or a number")
        self.take()
        if not re.match(r"[A-Za-z_]", token):
            return self.number(token)
        args: list[Value] = []
        options: dict[str, Value] = {}
        if self.peek() == "(":
            self.take()
            self.depth += 1
            while self.peek() != ")":
                self.argument(args, options)
                if self.peek() not in (",", ")"):
                    raise self.error("',' or ')'")
                if self.peek() == ",":
                    self.take()
            self.take()
            self.depth -= 1
        return Spec(token, tuple(args), options)

    def argument(self, args: list[Value], options: dict[str, Value]) -> None:
        value = self.value()
        if self.peek() != "=":
            args.append(value)
            return
        if not isinstance(value, Spec) or value.args or value.options:
            raise self.error("an option's name before '='")
        self.take()
        if value.name in options:
            raise SpecError(f"{self.text.strip()!r} gives the option {value.name!r} twice")
        options[value.name] = self.value()

    def number(self, token: str) -> int | float:
        for convert in (int, float):
            try:
                return convert(token)
            except ValueError:
                continue
        raise SpecError(f"{token!r} in {self.text.strip()!r} is not a number")


T = TypeVar("T")


def build(spec: Spec, known: Mapping[str, type[T]], kind: str) -> T:
    """Make the configuration that `spec` names: a frozen dataclass among `known`."""
    if spec.name not in known:
        raise SpecError(f"unknown {kind} {spec.name!r}: {nearest(spec.name, known)}")
    target = known[spec.name]
    hints = _hints(target)  # type: ignore[arg-type]
    options = [f.name for f in fields(target) if f.init]  # type: ignore[arg-type]
    if spec.args:
        raise SpecError(
            f"{kind} {spec.name!r} takes named options only (known: {', '.join(options) or 'none'})"
        )
    values = {}
    for name, value in spec.options.items():
        if name not in options:
            hint = nearest(name, options) if options else "it has none"
            raise SpecError(f"{kind} {spec.name!r} has no option {name!r}: {hint}")
        values[name] = _convert(value, hints[name], f"{spec.name}({name}={value})")
    return target(**values)


def text_of(name: str, configuration: Any) -> str:
    """The spec that `build` makes such a dataclass of: what differs from its defaults."""
    changed = [
        f"{f.name}={str(getattr(configuration, f.name)).lower()}"
        for f in fields(configuration)
        if getattr(configuration, f.name) != f.default
    ]
    return f"{name}({', '.join(changed)})" if changed else name


def check_options(name: str, configuration: Any) -> None:
    """Bring the options of a frozen dataclass to their types; text becomes a spec where one is due.

    Raises:
        SpecError: An option is of another type.
    """
    hints = _hints(type(configuration))  # type: ignore[arg-type]
    for option in fields(configuration):
        value = getattr(configuration, option.name)
        if value is not option.default:
            where = f"{name}({option.name}={value})"
            value = _convert(_as_value(value, hints[option.name], where), hints[option.name], where)
            object.__setattr__(configuration, option.name, value)


@cache
def _hints(target: Hashable) -> dict[str, Any]:
    return get_type_hints(target)


def _as_value(value: Any, hint: Any, where: str) -> Value:
    """What the grammar has for a Python value."""
    if isinstance(value, str):
        return parse(value) if Spec in (hint, *get_args(hint)) else Spec(value)
    if value is None or isinstance(value, bool):
        return Spec(str(value).lower())
    if isinstance(value, Spec | Integral):
        return value if isinstance(value, Spec) else int(value)
    if isinstance(value, Real):
        return float(value)
    raise SpecError(f"{where}: expected {_kind(hint)}")


def _convert(value: Value, hint: Any, where: str) -> Any:
    """`value` as the annotated type `hint`; the error names the option."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        choices = get_args(hint)
        if type(None) in choices and value == Spec("none"):
            return None
        for choice in choices:
            if choice is not type(None):
                try:
                    return _convert(value, choice, where)
                except SpecError:
                    continue
        raise SpecError(f"{where}: expected {_kind(hint)}")
    if origin is Literal:
        if isinstance(value, Spec) and value.name in get_args(hint) and not value.args:
            return value.name
        raise SpecError(f"{where}: expected one of {', '.join(map(str, get_args(hint)))}")
    if hint is Spec and isinstance(value, Spec):
        return value
    if hint is bool and value in (Spec("true"), Spec("false")):
        return value == Spec("true")
    if hint is int and isinstance(value, int):
        return value
    if hint is float and isinstance(value, int | float):
        return float(value)
    if hint is str and isinstance(value, Spec) and not value.args and not value.options:
        return value.name
    raise SpecError(f"{where}: expected {_kind(hint)}")


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_kind(choice) for choice in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    return {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a name",
        Spec: "a name or a spec",
        type(None): "none",
    }.get(hint, str(hint))
