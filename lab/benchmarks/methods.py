"""Recall of the default method beside that of all others, on the matrices and draws of `crossknn-lab reproduce`.

    python lab/benchmarks/methods.py OUT --work DIR MATRIX ... [--picture FILE]

OUT (JSON) gets means of `auto`, with the anchor queries' scores and without, over the matrices and of each. Printed are
the rows of the table of all methods, whose other rows are those of benchmarks/results/evidence.json, and how often the
default is ahead of the best other method of a matrix (the stored report, evidence.tar.xz).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from crossknn.evaluation.measures import Estimate, bootstrap
from crossknn_lab.curves import Curve, curves
from crossknn_lab.sweep import run_sweep
from crossknn_lab.sweep_file import Sweep

BUDGETS, KS = (50, 100, 200, 500), (1, 10, 100)
METHODS = {"auto": "yes", "auto(use_anchors=false)": "no"}
"""Whether they read scores that were computed before the first query."""
OTHERS = ("adacur", "axn ridge=chosen", "gar affinity=score graph=dense", "rerank chosen")
NAMES = {"auto": "auto, with anchors", "auto(use_anchors=false)": "auto"}
NAMES |= {
    "axn ridge=chosen": "axn",
    "gar affinity=score graph=dense": "gar",
    "rerank chosen": "rerank",
}
"""What is drawn beside the default, and names in the picture."""
OURS = re.compile(r"auto|kriging|gp|exact")
REPORT = Path(__file__).parents[2] / "benchmarks/results/evidence.tar.xz"


def shown(found: Estimate) -> list[float]:
    return [round(100 * value, 1) for value in (found.mean, found.low, found.high)]


def measured(matrices: list[Path], work: Path) -> dict[str, Any]:
    """Search what was not searched before; means by method, k and calls."""
    sweep = Sweep(
        matrices=tuple(matrices),
        methods=tuple(METHODS),
        budgets=BUDGETS,
        k=KS,
        seeds=(0, 1, 2),
        redraw=True,
    )
    groups = run_sweep(sweep, work).table.groups
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(
        git, capture_output=True, text=True, cwd=Path(__file__).parent
    ).stdout.strip()
    made: dict[str, Any] = {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "means": {},
        "matrices": {},
    }
    for method in METHODS:
        for k in KS:
            for budget in BUDGETS:
                mine = [g for g in groups if g.is_called(method) and g.first.budget == budget]
                key = f"{method}, k = {k}, {budget} calls"
                made["means"][key] = shown(bootstrap(*(g.per_query(k)[1] for g in mine)))
                made["matrices"][key] = {g.first.data: shown(g.mean(k)) for g in mine}
    return made


def others() -> dict[tuple[str, int, int, bool], float]:
    """Best other method's recall by matrix, k and calls: of all, and of those without anchor queries (False)."""
    with tarfile.open(REPORT) as archive:
        file = archive.extractfile("page.md")
        assert file is not None
        page = file.read().decode()
    best: dict[tuple[str, int, int, bool], float] = {}
    for name, k, table in re.findall(
        r"([\w-]+): recall \(%\) at k = (\d+), mean over queries and seeds.*?\n\n((?:\|.*\n)+)",
        page,
    ):
        for line in table.splitlines()[2:]:
            spec, *cells = (cell.strip(" `*") for cell in line.strip("|").split(" | "))
            offline = spec.startswith(("anncur", "adacur")) or "graph=scores" in spec
            for budget, cell in zip(BUDGETS, cells, strict=True):
                if not OURS.match(spec):
                    for anchors in (True, False)[: 1 if offline else 2]:
                        key = name, int(k), budget, anchors
                        best[key] = max(best.get(key, 0.0), float(cell.split()[0]))
    return best


def draw(made: dict[str, Any], path: Path) -> None:
    """Draw recall at k = 10 over the calls, of the default and of some others."""
    means = made["means"]
    lines = {name: [means[f"{name}, k = 10, {b} calls"] for b in BUDGETS] for name in METHODS}
    for row in json.loads(REPORT.with_name("evidence.json").read_text())["means"]["10"]:
        if (name := row[0].strip("`")) in OTHERS:
            lines[name] = [[float(v) for v in re.findall(r"[\d.]+", cell)] for cell in row[2:]]
    shown = []
    for name, cells in lines.items():
        y, low, high = ([cell[at] / 100 for cell in cells] for at in range(3))
        shown.append(Curve(name=NAMES.get(name, name), x=BUDGETS, y=y, low=low, high=high))
    labels = {"x_label": "cross-encoder calls per query", "highlight": [c.name for c in shown]}
    note = "Mean over five sets of 1,000 to 6,567 items. Bands: 95% intervals."
    title = "What methods find of the cross-encoder's ten best items"
    curves({"top 10": shown}, path, title=title, note=note, **labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("matrices", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/methods"))
    parser.add_argument("--picture", type=Path)
    given = parser.parse_intermixed_args()
    made, best = measured(given.matrices, given.work), others()
    given.out.write_text(json.dumps(made, indent=1) + "\n")
    for k in KS:
        for method, offline in METHODS.items():
            cells = [made["means"][f"{method}, k = {k}, {b} calls"] for b in BUDGETS]
            print(
                f"k = {k} | `{method}` | {offline} | "
                + " | ".join("{} [{}, {}]".format(*c) for c in cells)
            )
    for method, offline in METHODS.items():
        ahead = []
        for k in KS:
            for budget in BUDGETS:
                found = made["matrices"][f"{method}, k = {k}, {budget} calls"]
                gaps = {n: v[0] - best[n, k, budget, offline == "yes"] for n, v in found.items()}
                ahead += gaps.values()
                said = f"{min(gaps.values()):+.1f} to {max(gaps.values()):+.1f}"
                print(
                    f"| {method} | {k} | {budget} | {sum(gaps.values()) / len(gaps):+.1f} | {said} |"
                )
        print(
            method,
            f"ahead or equal in {sum(x >= 0 for x in ahead)} of {len(ahead)}, at worst {min(ahead):+.1f}",
        )
    if given.picture:
        draw(made, given.picture)


if __name__ == "__main__":
    main()
