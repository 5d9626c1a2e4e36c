"""The evidence in docs/results.md: all methods and rivals under one accounting, and what was asked.

    crossknn-lab reproduce --data MATRICES --out REPORT --preset full
    python lab/benchmarks/evidence.py --data MATRICES --report REPORT --matrix wordnet-act
    python lab/benchmarks/docs.py

The first command pays for everything; this one reads what it has found (and searches what is not
found yet), and writes `results/evidence.json`, and of the report's page the pictures of one matrix:
`docs/figures.md`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from crossknn_lab.experiment import Experiment, preset
from crossknn_lab.figures import by_data
from crossknn_lab.page import Block, Page, Points, Section, Table, body_of, on_paper
from crossknn_lab.reproduce import FIGURES, WORK, matrices_of
from crossknn_lab.sweep_report import environment_text, listed

ROOT = Path(__file__).parents[2]
NAME = "evidence"
COMPARISON = "comparison"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="matrices, as of the report")
    parser.add_argument("--report", type=Path, required=True, help="what reproduce has written")
    parser.add_argument("--preset", default="full")
    parser.add_argument("--matrix", help="whose pictures of the papers' figures are shown")
    parser.add_argument(
        "--also", type=Path, help="another report, for what is left out in the first"
    )
    options = parser.parse_args()
    matrices, chosen = matrices_of(options.data), preset(options.preset)
    study = Experiment(matrices, options.report / WORK, chosen, workers=2)
    asked = [figure for figure in FIGURES if figure.paper == "Ours"]
    study.run(list(dict.fromkeys(name for figure in asked for name in figure.sweeps)))
    for old in (ROOT / "docs" / "images").glob(f"{NAME}-*"):
        old.unlink()
    questions, comparison = (
        [e for e in asked if (e.label == COMPARISON) == last] for last in (False, True)
    )
    title = "Methods and rivals under one accounting"
    sections = [figure.section(study) for figure in questions]
    found = {
        "questions": written([Section(title=title, blocks=made_of(study), sections=sections)]),
        "comparison": written([figure.section(study) for figure in comparison]),
    }
    if options.matrix:
        others = [data.name for data in study.data if data.name != options.matrix]
        figures(options.report, options.matrix, others, options.also)
    made = ROOT / "benchmarks" / "results" / f"{NAME}.json"
    made.write_text(json.dumps(found, indent=1) + "\n")


def written(sections: Sequence[Section]) -> str:
    """Markdown of the sections; their pictures are put beside those of the docs."""
    text, images = body_of(Page(title="", lead="", sections=sections))
    for name, image in images.items():
        (ROOT / "docs" / "images" / f"{NAME}-{name}").write_text(on_paper(image))
    return text.replace("](images/", f"](images/{NAME}-")


def figures(report: Path, matrix: str, others: list[str], also: Path | None = None) -> None:
    """The papers' sections of the report's page, with the pictures of one matrix or of all."""
    page = (report / "page.md").read_text()
    papers = page[page.index("\n## ANNCUR\n") : page.index("\n## Left out, and why\n")]
    if also:
        papers = _filled(papers, (also / "page.md").read_text())
    kept, folder = [], ROOT / "docs" / "images" / "figures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for block in papers.split("\n\n"):
        picture = re.match(r"!\[(.*)\]\(images/(.*)\)", block)
        if picture and any(re.match(rf"{re.escape(other)}[:, .]", picture[1]) for other in others):
            continue
        if picture:
            made = report if (report / "images" / picture[2]).exists() else also
            shutil.copy(made / "images" / picture[2], folder / picture[2])
            block = block.replace("](images/", "](images/figures/")
        if picture or re.match(r"\s*#+ |[A-Z].*\.$", block):
            kept.append(block.strip())
    head = (
        f"# The papers' figures on {matrix}\n\nMade by `crossknn-lab reproduce --preset full` and "
        "`lab/benchmarks/evidence.py`; do not edit. The same on the other matrices, and the tables, "
        "are in the report that the command writes; what each shows, and what is not made: "
        "[the checklist](papers.md).\n"
    )
    (ROOT / "docs" / "figures.md").write_text(head + "\n" + "\n\n".join(kept) + "\n")


def _filled(papers: str, page: str) -> str:
    """Sections that were left out, taken from another report's page."""
    other = {part.partition("\n")[0]: part for part in re.split(r"\n(?=#+ )", page)}
    parts = re.split(r"\n(?=#+ )", papers)
    return "\n".join(
        other.get(part.partition("\n")[0], part) if "\nLeft out here" in part else part
        for part in parts
    )


def made_of(study: Experiment) -> list[Block]:
    """Data, grids and hardware, and how this was made."""
    drawn_as_tests = {
        d: len(found[0].per_query(study.k[0])[0]) for d, found in by_data(study, "rivals").items()
    }
    rows = [
        [d.name, d.n_items, d.n_anchors, d.n_tests, drawn_as_tests.get(d.name)] for d in study.data
    ]
    drawn = "each draws anew which queries are anchors and which are tests"
    return [
        "Made by `crossknn-lab reproduce --preset full` and `lab/benchmarks/evidence.py`: every search is "
        "counted in distinct cross-encoder calls and compared with exact search by the same "
        "cross-encoder. The papers' own figures and tables are made by the same command: "
        "[the checklist](papers.md).",
        Table(
            head=["matrix", "items", "anchor queries", "test queries by a seed", "in all"],
            rows=rows,
            caption="",
        ),
        Points(
            items=[
                f"budgets {listed(study.budgets)}; k {listed(study.k)}",
                f"seeds {listed(study.preset.seeds)}: {drawn}",
                "settings of every method are chosen on anchor queries held out as dev queries, "
                "for each budget; intervals are paired bootstraps over queries",
                environment_text(),
            ]
        ),
    ]


if __name__ == "__main__":
    main()
