"""The methods, and the way from a spec to one of them."""

from __future__ import annotations

from dataclasses import fields

from crossknn.errors import SpecError
from crossknn.first.late import KINDS
from crossknn.methods.adacur import Adacur
from crossknn.methods.anncur import Anncur
from crossknn.methods.axn import Axn
from crossknn.methods.base import Method
from crossknn.methods.exact import Exact
from crossknn.methods.feedback import Feedback
from crossknn.methods.fixeditem import FixedItem
from crossknn.methods.gar import Gar
from crossknn.methods.gp import Gp
from crossknn.methods.greedy import Greedy
from crossknn.methods.itemcur import ItemCur
from crossknn.methods.kriging import Kriging
from crossknn.methods.ladr import Ladr
from crossknn.methods.only import Only
from crossknn.methods.refit import Refit
from crossknn.methods.rnr import Rnr
from crossknn.methods.tour import Tour
from crossknn.spec import Spec, build, parse, parse_list, split

__all__ = ["DEFAULT", "METHODS", "Method", "in_full", "method", "methods"]

DEFAULT = "axn(first=hybrid, rounds=10, ridge=0.3)"
"""What a search does unless it is told otherwise."""

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        *(Exact, Only, Rnr, Anncur, Adacur, Axn, Tour, FixedItem, ItemCur),
        *(Gar, Ladr, Greedy, Gp, Kriging, Feedback, Refit),
    )
}


def method(spec: str | Spec | Method) -> Method:
    """The method of a spec; `SpecError` if there is none. `cmc(...)` is `only(first=cmc(...))`.

    >>> method("axn(first=de, rounds=5)").rounds
    5
    >>> method("axn(round=5)")
    Traceback (most recent call last):
    crossknn.errors.SpecError: method 'axn' has no option 'round': did you mean rounds or rcond?
    """
    if isinstance(spec, Method):
        return spec
    if not isinstance(spec, str | Spec):
        raise SpecError(f"{spec!r} is no method: give a spec such as {DEFAULT!r}")
    parsed = parse(spec) if isinstance(spec, str) else spec
    if parsed.name in KINDS:
        parsed = Spec(Only.name, options={"first": parsed})
    return build(parsed, METHODS, "method")


def in_full(spec: str) -> str:
    """A method's spec, or a template of one, with the options it leaves at their defaults.

    A table that prints it cannot be read as if a bare name were the method's best.

    >>> in_full("tour(first={stage}, rounds=10)")
    'tour(first={stage}, rounds=10, loss=kl, lr=none, vectors=auto, normalize=none)'
    """
    name, _, inside = spec.strip().partition("(")
    if name not in METHODS:
        return spec
    given = split(inside.removesuffix(")"))
    named = {option.partition("=")[0].strip() for option in given}
    left = [
        f"{option.name}={str(option.default).lower()}"
        for option in fields(METHODS[name])
        if option.name not in named
    ]
    return f"{name}({', '.join([*given, *left])})" if given or left else name


def methods(specs: str) -> dict[str, Method]:
    """The methods of a list of specs, by spec; separated by commas, semicolons or line ends."""
    found = {str(spec): method(spec) for spec in parse_list(specs)}
    if not found:
        raise SpecError(f"no method is named; known: {', '.join(METHODS)}")
    return found
