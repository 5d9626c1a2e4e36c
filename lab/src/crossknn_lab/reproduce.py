"""Everything in one command: the papers' figures, ours, their tables, and what was left out.

    reproduce([Path("scifact.npz")], "report", preset=preset("small"))

writes report/index.html, report/page.md with its images, and under report/work all that was found,
so that whoever is killed goes on from there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.table import Cell
from crossknn.types import Progress
from crossknn_lab import answers, figures, indexing, score_figures
from crossknn_lab.curves import write_report
from crossknn_lab.experiment import PAPERS, TABLES, Experiment, Preset
from crossknn_lab.page import Block, Page, Section, Table, slug
from crossknn_lab.sweep import failures
from crossknn_lab.sweep_report import environment, listed

WORK = "work"


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure or table of a paper, or several of one kind: made here, elsewhere, or why not.

    Attributes:
        paper: A key of `papers` in `papers.toml`.
        label: `figure 3a`, `table 2`, `figures 10-24`.
        here: What is shown here in its place, a sentence.
        sweeps: Names of the sweeps that it is made of.
        kind, options: The function that draws it, and its arguments.
        elsewhere, why_not: Where it is made otherwise, or why it is not, a sentence.
    """

    paper: str
    label: str
    title: str
    here: str = ""
    sweeps: tuple[str, ...] = ()
    kind: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    elsewhere: str = ""
    why_not: str = ""

    @property
    def head(self) -> str:
        """The title of its section."""
        return f"{self.label[0].upper()}{self.label[1:]}: {self.title}"

    def section(self, run: Experiment) -> Section:
        """What is shown, and the pictures and tables.

        What the matrices lack is said in its place, and noted in the experiment.
        """
        if not self.kind:
            return Section(title=self.head, blocks=[self.elsewhere or f"Not made: {self.why_not}"])
        modules = [
            module
            for module in (figures, score_figures, indexing, answers)
            if hasattr(module, self.kind)
        ]
        swept = {"sweep": self.sweeps[0]} if self.kind == "recall_lines" else {}
        try:
            made = getattr(modules[0], self.kind)(run, **swept, **self.options)
        except InputError as lacks:
            run.note(f"{self.paper}, {self.label} is left out: {lacks}")
            return Section(title=self.head, blocks=[f"Left out here: {lacks}."])
        blocks = [block for block in made if not isinstance(block, Section)]
        below = [section for section in made if isinstance(section, Section)]
        return Section(title=self.head, blocks=[self.here, *blocks], sections=below)


FIGURES = [
    PaperFigure(**figure | {"sweeps": tuple(figure.get("sweeps", ()))})
    for figure in PAPERS["figure"]
]


def matrices_of(path: str | Path) -> list[Path]:
    """The matrices of a folder, by name, or the one file. InputError if there is none."""
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"there is no folder {path}: give one with .npz files of stored scores")
    found = sorted(path.glob("*.npz"))
    if not found:
        raise InputError(
            f"{path} holds no .npz file: make one with  crossknn-lab collect-matrix INDEX --out FILE"
        )
    return found


def reproduce(
    matrices: Sequence[Path],
    folder: str | Path,
    *,
    preset: Preset,
    workers: int = 1,
    wanted: Sequence[PaperFigure] = FIGURES,
    progress: Progress | None = None,
) -> Experiment:
    """Search and analyse what the figures need and is not there yet, and write the report.

    Returns the experiment behind it.

    Args:
        wanted: All figures by default.

    Raises:
        InputError: for files that are no matrices.
    """
    began, folder = time.perf_counter(), Path(folder)
    run = Experiment(matrices, folder / WORK, preset, workers=workers)
    run.run(dict.fromkeys(name for figure in wanted for name in figure.sweeps), progress)
    sections: dict[str, list[Section]] = {}
    for figure in wanted:
        sections.setdefault(figure.paper, []).append(figure.section(run))
    write_report(_page(run, sections, time.perf_counter() - began), folder)
    return run


def _page(run: Experiment, sections: dict[str, list[Section]], seconds: float) -> Page:
    papers = [
        Section(title=paper, blocks=[f"{PAPERS['papers'][paper]}."], sections=mine)
        for paper, mine in sections.items()
    ]
    papers.sort(key=lambda section: section.title != "Ours")
    lead = (
        f"{len(run.data)} matrices of cross-encoder scores, the preset {run.preset.name}. Every search is "
        "counted in distinct cross-encoder calls, and compared with exact search by the same "
        "cross-encoder."
    )
    return Page(
        title="The papers' figures and tables, and rivals, under one accounting",
        lead=lead,
        sections=[_made_of(run, seconds), *papers, _left_out(run)],
    )


def _made_of(run: Experiment, seconds: float) -> Section:
    """Data, hardware, versions, seeds."""
    preset, spent = run.preset, run.spent
    rows: list[list[Cell]] = [
        [data.name, f"{data.n_items:,}", data.n_anchors, data.n_tests] for data in run.data
    ]
    drawn = "each seed draws anew which queries are anchors and which are tests"
    facts = [
        f"budgets {listed(run.budgets)}; k {listed(run.k)}; seeds {listed(preset.seeds)}",
        drawn if len(preset.seeds) > 1 else "anchors and tests are as stored",
        f"the first {preset.queries} test queries" if preset.queries else "all test queries",
        f"{spent.searched} searches now, {spent.kept} kept from before; {seconds:.0f} s in all",
        *(f"{name}: {value}" for name, value in environment().items()),
    ]
    head = ["matrix", "items", "anchor queries", "test queries"]
    tables = f"The tables of every sweep, with all means and intervals, are in `{WORK}/{TABLES}`."
    blocks: list[Block] = [
        Table(head=head, rows=rows, caption="The matrices."),
        facts,
        tables,
    ]
    return Section(title="What this is made of", blocks=blocks)


def _left_out(run: Experiment) -> Section:
    """What a reader must know: notes, and what failed."""
    items = [*run.notes, *failures(run.spent.failed)] or ["Nothing was left out."]
    return Section(title="Left out, and why", blocks=[items])


def checklist() -> str:
    """The papers' claims and all figures as a page of Markdown: what a paper says, and what became
    of it."""
    columns = ("paper", "claim", "figure", "ours", "holds", "why")
    lines = [
        *("---", "search:", "  exclude: true", "---"),
        "# The papers' claims and figures",
        "",
        "The first table compares the papers' main claims with our figures. The others list the papers' figures and tables, and",
        'link to ours. "Top 10" is a method\'s recall (%) of the cross-encoder\'s ten best items, "top 100" of its hundred best.',
        "Brackets are 95% intervals. Terms are explained in the [glossary](../reference/glossary.md), sets in",
        "[Recall](recall.md). The pages linked below say when, and at which commit, a figure was made. One command",
        "[makes](../how-to/reproduce.md) the [report](report.md).",
        "",
        "## Claims",
        "",
        "| paper | claim | in the paper | here | holds | why |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(claim[name] for name in columns)} |" for claim in PAPERS["claim"]),
        "",
    ]
    for paper, title in list(PAPERS["papers"].items())[:-1]:  # what is ours is in the report
        mine = [figure for figure in FIGURES if figure.paper == paper]
        lines += [f"## {paper}", "", f"{title}.", "", "| | shows | here |", "|---|---|---|"]
        lines += [f"| {f.label} | {f.title} | {_outcome(f)} |" for f in mine]
        lines.append("")
    return "\n".join(lines)


def _outcome(figure: PaperFigure) -> str:
    """As a cell of a table within the docs: their files as links."""
    text = f"[Made](report.md#{slug(figure.head)})." if figure.kind else figure.elsewhere
    text = f"Not made: {figure.why_not}" if figure.why_not else text
    linked = re.sub(r"docs/([\w-]+/([\w-]+)\.md)", r"[\2](../\1)", text)
    return linked.replace("../evidence/", "").replace("|", "\\|")
