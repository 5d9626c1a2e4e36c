"""Tables of the docs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of Markdown, and an empty one below; the first column may be without a name.

    >>> table(["", "calls"], [["exact", 10]])
    ['| | calls |', '|---|---|', '| exact | 10 |', '']
    """
    names = " | ".join(map(str, head)).lstrip()
    lines = [f"| {names} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def mean_percents(values: Iterable[object]) -> str:
    """The mean of each of several samples, as `41.8 / 23.0`."""
    return " / ".join(f"{100 * np.mean(value):.1f}" for value in values)
