"""Everything in one command: the papers' exhibits, ours, their tables, and what was left out.

    reproduce([Path("scifact.npz")], "report", preset=SMALL)

writes report/index.html, report/page.md with its images, and under report/work all that was found,
so that whoever is killed goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from crossknn.errors import InputError
from crossknn.types import Progress
from crossknn_lab.report.environment import environment
from crossknn_lab.report.estimate import hours
from crossknn_lab.report.exhibits import EXHIBITS, PAPERS, SWEEPS, Exhibit
from crossknn_lab.report.html import write_html
from crossknn_lab.report.markdown import write_markdown
from crossknn_lab.report.page import Cell, Page, Points, Section, TableOf
from crossknn_lab.report.presets import SMALL, Preset
from crossknn_lab.report.study import TABLES, Study

WORK = "work"

Said: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """The page that was written, and the study behind it."""

    html: Path
    markdown: Path
    study: Study
    seconds: float


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
            f"{path} holds no .npz file: make one with  crossknn scores ... --out FILE"
        )
    return found


def reproduce(
    matrices: Sequence[Path],
    folder: str | Path,
    *,
    preset: Preset = SMALL,
    workers: int = 1,
    exhibits: Sequence[Exhibit] | None = None,
    progress: Progress | None = None,
    said: Said | None = None,
) -> Reproduced:
    """Search and analyse what the exhibits need and is not there yet, and write the report.

    `exhibits` are all by default. `said` is told, in sentences, what is about to happen and how
    long it may take. Raises InputError for files that are no matrices, MissingExtraError without
    matplotlib.
    """
    began, folder = time.perf_counter(), Path(folder)
    say = said or (lambda _: None)
    _check_plots()
    exhibits = EXHIBITS if exhibits is None else exhibits
    study = Study(matrices, folder / WORK, preset, SWEEPS, workers=workers)
    names = list(dict.fromkeys(name for exhibit in exhibits for name in exhibit.sweeps))
    left = hours(study, names)
    say(f"about {_span(left)} of searches with {workers} processes, on what is measured now")
    study.run(names, progress)
    sections = []
    for number, exhibit in enumerate(exhibits, start=1):
        say(f"{number} of {len(exhibits)}: {exhibit.name}")
        sections.append((exhibit, exhibit.section(study)))
    page = _page(study, sections, left, time.perf_counter() - began)
    html, markdown = folder / "index.html", folder / "page.md"
    write_html(page, html)
    write_markdown(page, folder)
    return Reproduced(
        html=html, markdown=markdown, study=study, seconds=time.perf_counter() - began
    )


def _page(
    study: Study, sections: Sequence[tuple[Exhibit, Section]], left: float, seconds: float
) -> Page:
    papers = []
    for paper, title in PAPERS.items():
        mine = [section for exhibit, section in sections if exhibit.paper == paper]
        if mine:
            papers.append(Section(title=paper, blocks=[f"{title}."], sections=mine))
    papers.sort(key=lambda section: section.title != "Ours")
    matrices = "1 matrix" if len(study.data) == 1 else f"{len(study.data)} matrices"
    lead = (
        f"{matrices} of cross-encoder scores, the preset {study.preset.name}. Every search is "
        "counted in distinct cross-encoder calls, and compared with exact search by the same "
        "cross-encoder."
    )
    return Page(
        title="The papers' figures and tables, and rivals, under one accounting",
        lead=lead,
        sections=[_made_of(study, left, seconds), *papers, _left_out(study)],
    )


def _made_of(study: Study, left: float, seconds: float) -> Section:
    """Data, hardware, versions, seeds."""
    preset = study.preset
    rows: list[list[Cell]] = [
        [data.name, f"{data.file.n_items:,}", data.file.n_anchors, data.file.n_tests]
        for data in study.data
    ]
    facts = [
        f"budgets {', '.join(map(str, study.budgets))}; k {', '.join(map(str, study.k))}; seeds "
        f"{', '.join(map(str, preset.seeds))}",
        "each seed draws anew which queries are anchors and which are tests"
        if preset.redraw
        else "anchors and tests are as stored",
        f"the first {preset.queries} test queries" if preset.queries else "all test queries",
        f"{study.spent.searched} searches now, {study.spent.kept} kept from before, "
        f"{study.spent.seconds:.0f} s; the whole report {seconds:.0f} s, estimated before: "
        f"{_span(left)}",
        *(f"{name}: {value}" for name, value in environment().items()),
    ]
    return Section(
        title="What this is made of",
        blocks=[
            TableOf(
                head=["matrix", "items", "anchor queries", "test queries"],
                rows=rows,
                caption="The matrices.",
            ),
            Points(items=facts),
            f"The tables of every sweep, with all means and intervals, are in `{WORK}/{TABLES}`.",
        ],
    )


def _left_out(study: Study) -> Section:
    """What a reader must know: notes, and what failed."""
    failed = [
        f"failed: {sentence}" + (f" ({count} searches)" if count > 1 else "")
        for sentence, count in study.spent.failed.items()
    ]
    if study.spent.older:
        failed.append(f"{study.spent.older} searches are of other source files of crossknn")
    items = [*study.notes, *failed] or ["Nothing was left out."]
    return Section(title="Left out, and why", blocks=[Points(items=items)])


def _span(hours: float) -> str:
    """Hours, or minutes where these are few.

    >>> _span(0.1), _span(2.04)
    ('6 minutes', '2.0 hours')
    """
    return f"{hours:.1f} hours" if hours > 1.5 else f"{max(1, round(60 * hours))} minutes"


def _check_plots() -> None:
    """Before hours of searches, not after."""
    from importlib.util import find_spec

    from crossknn.errors import MissingExtraError

    if find_spec("matplotlib") is None:
        raise MissingExtraError("reproduce", "plots")
