"""The search methods, and parsing of their specifications; installed packages may add methods."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from crossknn.errors import SpecError, nearest
from crossknn.methods.adacur import ADACUR
from crossknn.methods.axn import AXN
from crossknn.methods.base import Method
from crossknn.methods.cur import ANNCUR
from crossknn.methods.kriging import Kriging
from crossknn.methods.rerank import Exact, Rerank, Retrieve
from crossknn.methods.tour import TOUR
from crossknn.retrievers.base import KINDS
from crossknn.spec import Spec, build, parse, split

__all__ = ["DEFAULT", "METHODS", "Method", "parse_method", "parse_methods"]

DEFAULT = "auto"
"""The default method: `kriging`, which uses every fit that is stored in the index."""

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Exact, Retrieve, Rerank, ANNCUR, ADACUR, AXN, TOUR, Kriging)
}


PLUGINS = "crossknn.methods"
"""The entry point group in which installed packages register their own methods."""


def parse_method(spec: str | Spec | Method) -> Method:
    """Parse a method from its name and options; a `Method` object is returned unchanged.

    `auto` is `kriging`, and `cmc(...)` is `retrieve(retriever=cmc(...))`.

    >>> parse_method("axn(retriever=dense, rounds=5)").rounds
    5
    >>> parse_method("axn(round=5)")
    Traceback (most recent call last):
    crossknn.errors.SpecError: method 'axn' has no option 'round': did you mean rounds or rcond?
    """
    if isinstance(spec, Method):
        return spec
    if not isinstance(spec, str | Spec):
        raise SpecError(f"{spec!r} is not a method: give a spec such as {DEFAULT!r}")
    parsed = parse(spec) if isinstance(spec, str) else spec
    if parsed.name == DEFAULT:
        parsed = replace(parsed, name=Kriging.name)
    if parsed.name in KINDS:
        parsed = Spec(Retrieve.name, options={"retriever": parsed})
    return build(parsed, {parsed.name: method_named(parsed.name)}, "method")


def method_named(name: str) -> type[Method]:
    """The class of a method: one of `METHODS`, or one from an installed package."""
    if name in METHODS:
        return METHODS[name]
    plugins = _plugins()
    if name not in plugins:
        raise SpecError(f"unknown method {name!r}: {nearest(name, [DEFAULT, *METHODS, *plugins])}")
    point = plugins[name]
    try:
        loaded = point.load()
    except Exception as error:  # whatever the package's own code raises
        raise SpecError(
            f"method {name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Method) and loaded.name == name):
        raise SpecError(
            f"method {name!r}: {point.value} must be a subclass of crossknn.extend.Method whose "
            f"name is {name!r}"
        )
    return loaded


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Entry points by name, read only for unknown method names; nothing is imported yet."""
    return {point.name: point for point in entry_points(group=PLUGINS)}


def parse_methods(specs: str) -> dict[str, Method]:
    """Parse methods separated by commas, semicolons or line ends: `{spec: method}`."""
    methods = {str(spec): parse_method(spec) for spec in map(parse, split(specs))}
    if not methods:
        raise SpecError(f"no method is given; known: {', '.join(METHODS)}")
    return methods
