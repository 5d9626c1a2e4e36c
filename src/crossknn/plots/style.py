"""How methods look: one colour and one marker for each, wherever it is drawn.

Colours are near Okabe and Ito's as far as these go; the markers tell methods apart where
colours do not. Every colour has a partner for dark pages, which the report puts in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from crossknn.errors import SpecError
from crossknn.retrievers.late import KINDS
from crossknn.spec import Spec, parse

INK, QUIET, RULE, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"

FAMILIES: Mapping[str, tuple[str, str]] = {
    "rerank": ("#555c66", "s"),
    "axn": ("#0072b2", "o"),
    "adacur": ("#c44f00", "D"),
    "anncur": ("#c98500", "^"),
    "gp": ("#c2589a", "X"),
    "kriging": ("#882255", "P"),
    "gar": ("#009e73", "v"),
    "ladr": ("#5b9616", "<"),
    "greedy": ("#1b5e20", ">"),
    "tour": ("#2c9bd0", "p"),
    "refit": ("#4b3fa8", "h"),
    "feedback": ("#00868b", "8"),
    "fixeditem": ("#8c564b", "d"),
    "itemcur": ("#b07d62", "H"),
    "retrieve": ("#9a4db3", "*"),
    "exact": ("#333a42", "|"),
}
"""Colour and marker of each method, whatever its options."""

OTHERS = ("#0072b2", "#c44f00", "#009e73", "#c2589a", "#c98500", "#2c9bd0", "#555c66")
"""Colours of what is no method, in the order in which it comes."""

DARK: Mapping[str, str] = {
    INK: "#e6edf3",
    QUIET: "#9aa4af",
    RULE: "#343b44",
    PAPER: "#14181d",
    "#555c66": "#8b939e",
    "#0072b2": "#4ea8e6",
    "#c44f00": "#ff8a45",
    "#c98500": "#f0b93a",
    "#c2589a": "#ec9ccb",
    "#882255": "#f0608f",
    "#009e73": "#34d3a3",
    "#5b9616": "#a9d85c",
    "#1b5e20": "#6fc277",
    "#2c9bd0": "#86d3f7",
    "#4b3fa8": "#a99fff",
    "#00868b": "#4fd0d4",
    "#8c564b": "#cf9f90",
    "#b07d62": "#e2bb9f",
    "#9a4db3": "#d495ec",
    "#333a42": "#d7dde3",
}
"""What each colour becomes on a dark page."""

DASHES: Sequence[Any] = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.4, 1.2, 1.4)), (0, (10, 3)))
"""Of a method's variants, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """Of one line: `hollow` markers begin where the dashes are used up."""

    colour: str
    dash: Any = "-"
    marker: str = "o"
    hollow: bool = False

    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib for a line with markers."""
        return {
            "color": self.colour,
            "ls": self.dash,
            "marker": self.marker,
            "ms": 4.6,
            "mfc": PAPER if self.hollow else self.colour,
            "lw": 1.7,
        }


Styles: TypeAlias = Mapping[str, Style]


def family(name: str) -> str:
    """The method that a spec or a label begins with, `retrieve` for late interaction; "" if none.

    >>> family("axn(retriever=dense, rounds=5)"), family("CMC"), family("wordnet-act")
    ('axn', 'only', '')
    """
    found = re.match(r"[A-Za-z]+", name)
    word = found[0].lower() if found else ""
    word = "retrieve" if word in KINDS else word
    return word if word in FAMILIES else ""


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name: colour and marker by its method, dashes by its place among its like.

    A report asks once for all its methods and hands the same styles to every picture.
    """
    found: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for name in dict.fromkeys(names):
        like = family(name)
        place = seen.get(like, 0)
        seen[like] = place + 1
        if like:
            colour, marker = FAMILIES[like]
            later, dash = divmod(place, len(DASHES))
            found[name] = Style(
                colour=colour, marker=marker, dash=DASHES[dash], hollow=later % 2 == 1
            )
        else:
            later, colour_place = divmod(place, len(OTHERS))
            found[name] = Style(colour=OTHERS[colour_place], dash=DASHES[later % len(DASHES)])
    return found


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """Short names: the method, and the options in which it differs from others of its name.

    >>> labels_of(["rerank(retriever=dense)", "rerank(retriever=bm25)", "axn(retriever=dense)"])
    {'rerank(retriever=dense)': 'rerank dense', 'rerank(retriever=bm25)': 'rerank bm25', 'axn(retriever=dense)': 'axn'}
    """
    parsed = {name: _parsed(name) for name in names}
    found = {}
    for name, spec in parsed.items():
        if spec is None:
            found[name] = name
            continue
        like = [other for other in parsed.values() if other and other.name == spec.name]
        options = dict.fromkeys(option for other in like for option in other.options)
        differ = [o for o in options if len({str(other.options.get(o)) for other in like}) > 1]
        said = [
            str(spec.options[o]) if o == "retriever" else f"{o}={spec.options[o]}"
            for o in differ
            if o in spec.options
        ]
        found[name] = " ".join([spec.name, *said])
    return found


def _parsed(name: str) -> Spec | None:
    try:
        return parse(re.sub(r"\{\w+\}", "chosen", name))
    except SpecError:
        return None
