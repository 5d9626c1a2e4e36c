"""Tables, tests and a picture of what ladder.py measured.

python lab/benchmarks/ladder_table.py FILE [SET ...] [--picture docs/images/ladder.svg]
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from ladder import BUDGETS, CHEAP, CHEAPER_SHARE, RATIOS, SHARES, TIMES, split

from crossknn.evaluation.measures import bootstrap, holm, paired
from crossknn.types import FloatArray
from crossknn_lab.curves import Curve, curves

WAYS = ("twice", "cascade", "ladder")
NAMES = {
    "rerank": "rerank",
    "search": "search, one scorer",
    "twice": "rerank twice",
    "cascade": "cheap search, then rerank",
    "ladder": "search, both scorers",
}
CORRELATED = 0.5
MEASURES = {"own": "own top 10", "right": "right in 20", "ndcg": "nDCG@10"}


class Case:
    """A set and a cheap scorer, with the measures (m,) of each way and budget in percent."""

    def __init__(self, name: str, cheap: str, table: dict[str, Any]) -> None:
        self.name, self.cheap, self._table = name, cheap, table
        self.correlation = table[f"{cheap} 100 correlation"]

    def values(self, way: str, calls: int, budget: int, measure: str) -> FloatArray:
        name = way if calls == 0 else f"{self.cheap} {way}"
        return 100 * np.array(self._table[f"{name} {calls} {budget}"][measure])

    def mean(self, *which: Any) -> str:
        return f"{self.values(*which).mean():.1f}"


def cases(table: dict[str, Any]) -> list[Case]:
    made = []
    for name, own in table.items():
        ends = " 100 correlation"
        made += [Case(name, k.removesuffix(ends), own) for k in own if k.endswith(ends)]
    return sorted(made, key=lambda case: -case.correlation)


def rows(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def fixed(all_cases: list[Case]) -> str:
    """Calls of the expensive scorer alone, and after 100 and 200 cheap calls."""
    points = [(0, 10), (0, 20), (0, 80), (100, 10), (100, 20), (200, 50)]
    head = ["set", "cheap scorer", "correlation", "measure"]
    head += [f"{c} + {e}" if c else f"{e} alone" for c, e in points]
    body = []
    for case in all_cases:
        for measure, title in MEASURES.items():
            line = [case.name, case.cheap, f"{case.correlation:.2f}", title]
            for calls, budget in points:
                ways = WAYS if calls else ("rerank", "search")
                line.append(" / ".join(case.mean(w, calls, budget, measure) for w in ways))
            body.append(line)
    return rows(head, body)


def equal_seconds(all_cases: list[Case], measure: str) -> str:
    """All ways in the time of 20 expensive calls."""
    total, head = TIMES[1], ["set", "cheap scorer", "rerank", "search"]
    head += [f"x{ratio}: {' + '.join(map(str, split(total, ratio, CHEAPER_SHARE)))}"
             for ratio in RATIOS]  # fmt: skip
    body = []
    for case in all_cases:
        line = [case.name, case.cheap]
        line += [case.mean(way, 0, total, measure) for way in ("rerank", "search")]
        for ratio in RATIOS:
            calls = split(total, ratio, CHEAPER_SHARE)
            line.append(" / ".join(case.mean(way, *calls, measure) for way in WAYS))
        body.append(line)
    return rows(head, body)


def claims(all_cases: list[Case]) -> str:
    """Every comparison that issue asks for, corrected by Holm."""
    lines: list[str] = []
    timed: dict[bool, list[Any]] = {True: [], False: []}
    called: list[Any] = []
    for case in all_cases:
        about, own = f"{case.name}, {case.cheap}", partial(case.values, measure="own")
        right = [case.values(*at, "right") for at in (("ladder", 100, 10), ("search", 0, 80))]
        lines.append(f"right at 100 + 10 minus 80 alone: {about}: {paired(right[0] - right[1])}")
        for total, ratio, way in product(TIMES[:2], RATIOS[1:], ("rerank", "search")):
            gain = own("ladder", *split(total, ratio, CHEAPER_SHARE)) - own(way, 0, total)
            what = f"{about} ({case.correlation:.2f}): x{ratio}, {total}: ladder - {way}"
            timed[case.correlation >= CORRELATED].append((what, gain))
        for calls, budget, way in product(CHEAP, BUDGETS, ("cascade", "search")):
            gain = own("ladder", calls, budget) - own(way, calls * (way == "cascade"), budget)
            called.append((f"{about}: {calls} + {budget}: ladder - {way}", gain))
    for strong, tests in timed.items():
        if tests:
            lines += ["", f"equal seconds, correlation {'at least' if strong else 'below'} 0.5:"]
            lines += _tested(tests)
    lines += ["", "against the cascade, and the expensive scorer alone:"]
    return "\n".join([*lines, *_tested(called, worse=True)])


def _tested(tests: list[tuple[str, FloatArray]], worse: bool = False) -> list[str]:
    found = [paired(difference) for _, difference in tests]
    p_values = holm([each.p_value for each in found])
    clear = [
        np.sign(each.difference) * (p <= 0.05) for each, p in zip(found, p_values, strict=True)
    ]
    lines = [
        f"  {len(tests)} comparisons: {clear.count(1)} clearly better, {clear.count(-1)} clearly "
        f"worse, the worst {min(each.difference for each in found):+.1f}"
    ]
    for (what, _), each, p, sign in zip(tests, found, p_values, clear, strict=True):
        if sign == -1 or (sign != 1 and not worse) or (worse and each.difference < -3):
            lines.append(f"  {what}: {each}, p {p:.3f}")
    return lines


def shares(all_cases: list[Case]) -> str:
    """The ladder's own top 10 by the share of the time that the cheap scorer takes."""
    body = []
    for case in all_cases:
        for ratio in RATIOS:
            ways = [split(TIMES[1], ratio, share) for share in SHARES]
            body.append(
                [case.name, case.cheap, ratio, *(case.mean("ladder", *w, "own") for w in ways)]
            )
    return rows(["set", "cheap scorer", "ratio", *map(str, SHARES)], body)


def picture(all_cases: list[Case], file: Path, ratio: int = 20) -> None:
    """Own top 10 over time, mean over sets, where the cheap scorer is correlated."""
    strong = [case for case in all_cases if case.correlation >= CORRELATED]
    lines = []
    for way, name in NAMES.items():
        ats = [split(t, ratio, CHEAPER_SHARE) if way in WAYS else (0, t) for t in TIMES]
        found = [bootstrap(*(c.values(way, *at, "own") / 100 for c in strong)) for at in ats]
        lines.append(Curve.through(name, TIMES, found))
    labels = {"x_label": "time per query, in calls of the expensive scorer"}
    labels |= {"title": "A cheaper scorer first", "y_label": "its ten best items found"}
    curves({"": lines}, file, highlight=[*NAMES.values()], **labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("sets", nargs="*", help="only these sets")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    table = json.loads(given.file.read_text())
    all_cases = cases({name: table[name] for name in given.sets or table})
    times = [equal_seconds(all_cases, measure) for measure in ("own", "ndcg")]
    print(fixed(all_cases), *times, shares(all_cases), claims(all_cases), sep="\n")
    if given.picture:
        picture(all_cases, given.picture)


if __name__ == "__main__":
    main()
