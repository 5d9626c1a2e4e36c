"""The evidence in docs/results.md: all methods and rivals under one accounting, and what was asked.

    crossknn-lab reproduce --data MATRICES --out REPORT --preset full
    python lab/benchmarks/evidence.py --data MATRICES --report REPORT --matrix wordnet-act
    python lab/benchmarks/make_docs.py

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

from crossknn_lab.report.environment import environment_text
from crossknn_lab.report.exhibits import EXHIBITS, SWEEPS, ours
from crossknn_lab.report.exhibits.found import by_data
from crossknn_lab.report.markdown import body_of
from crossknn_lab.report.page import Block, Page, Points, Section, TableOf
from crossknn_lab.report.presets import PRESETS
from crossknn_lab.report.reproduce import WORK, matrices_of
from crossknn_lab.report.study import Study

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
    matrices, preset = matrices_of(options.data), PRESETS[options.preset]
    study = Study(matrices, options.report / WORK, preset, SWEEPS, workers=2)
    asked = [exhibit for exhibit in EXHIBITS if exhibit.paper == ours.PAPER]
    study.run(list(dict.fromkeys(name for exhibit in asked for name in exhibit.sweeps)))
    for old in (ROOT / "docs" / "images").glob(f"{NAME}-*"):
        old.unlink()
    questions, comparison = (
        [e for e in asked if (e.label == COMPARISON) == last] for last in (False, True)
    )
    title = "Methods and rivals under one accounting"
    sections = [exhibit.section(study) for exhibit in questions]
    found = {
        "questions": written([Section(title=title, blocks=made_of(study), sections=sections)]),
        "comparison": written([exhibit.section(study) for exhibit in comparison]),
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
        (ROOT / "docs" / "images" / f"{NAME}-{name}").write_bytes(image)
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


def made_of(study: Study) -> list[Block]:
    """Data, grids and hardware, and how this was made."""
    preset = study.preset
    drawn_as_tests = {
        d: len(found[0].per_query(study.k[0])[0]) for d, found in by_data(study, "rivals").items()
    }
    rows = [
        [d.name, d.file.n_items, d.file.n_anchors, d.file.n_tests, drawn_as_tests.get(d.name)]
        for d in study.data
    ]
    drawn = "each draws anew which queries are anchors and which are tests"
    return [
        "Made by `crossknn-lab reproduce --preset full` and `lab/benchmarks/evidence.py`: every search is "
        "counted in distinct cross-encoder calls and compared with exact search by the same "
        "cross-encoder. The papers' own figures and tables are made by the same command: "
        "[the checklist](papers.md).",
        TableOf(
            head=["matrix", "items", "anchor queries", "test queries by a seed", "in all"],
            rows=rows,
            caption="",
        ),
        Points(
            items=[
                f"budgets {', '.join(map(str, study.budgets))}; k {', '.join(map(str, study.k))}",
                f"seeds {', '.join(map(str, preset.seeds))}: {drawn}",
                "settings of every method are chosen on anchor queries held out as dev queries, "
                "for each budget; intervals are paired bootstraps over queries",
                environment_text(),
            ]
        ),
    ]


if __name__ == "__main__":
    main()
