"""Every figure and table of the four papers, and ours: made here, made elsewhere, or why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crossknn_lab.report.exhibits import adacur, anncur, axn, cmc, ours, summary
from crossknn_lab.report.exhibits.base import Exhibit
from crossknn_lab.report.exhibits.sweeps import SWEEPS

__all__ = ["EXHIBITS", "PAPERS", "SWEEPS", "Exhibit", "checklist"]

PAPERS: Mapping[str, str] = {
    anncur.PAPER: "Yadav, Monath, Angell, Zaheer, McCallum: Efficient Nearest Neighbor Search for "
    "Cross-Encoder Models using Matrix Factorization, EMNLP 2022",
    adacur.PAPER: "Yadav, Monath, Zaheer, McCallum: Adaptive Selection of Anchor Items for "
    "CUR-based k-NN search with Cross-Encoders, 2023",
    axn.PAPER: "Yadav, Monath, Zaheer, Fergus, McCallum: Adaptive Retrieval and Scalable Indexing "
    "for k-NN Search with Cross-Encoders, ICLR 2024",
    cmc.PAPER: "Song, Jin, Zhao, McCallum, Lee: Comparing Neighbors Together Makes it Easy: "
    "Jointly Comparing Multiple Candidates for Efficient and Effective Retrieval, EMNLP 2024",
    ours.PAPER: "What the papers do not compare: all methods and rivals under one accounting",
}

EXHIBITS: Sequence[Exhibit] = (
    *summary.EXHIBITS,
    *ours.EXHIBITS,
    *anncur.EXHIBITS,
    *adacur.EXHIBITS,
    *axn.EXHIBITS,
    *cmc.EXHIBITS,
)


def checklist() -> str:
    """All exhibits as a page of Markdown: what a paper shows, and what became of it."""
    lines = [
        "# The papers' figures and tables",
        "",
        "Every one of them, and what became of it; made by `lab/benchmarks/make_docs.py` from",
        "`crossknn_lab.report.exhibits`, do not edit. `crossknn-lab reproduce` makes them",
        "([reproduce](reproduce.md)).",
        "",
    ]
    for paper, title in PAPERS.items():
        mine = [exhibit for exhibit in EXHIBITS if exhibit.paper == paper]
        lines += [f"## {paper}", "", f"{title}.", "", "| | shows | here |", "|---|---|---|"]
        lines += [f"| {e.label} | {e.title} | {_became(e)} |" for e in mine]
        lines.append("")
    return "\n".join(lines)


def _became(exhibit: Exhibit) -> str:
    if exhibit.why_not:
        return _linked(f"Not made: {exhibit.why_not}")
    return _linked(f"**Made.** {exhibit.here}" if exhibit.build else exhibit.elsewhere)


def _linked(text: str) -> str:
    """As a cell of a table within the docs: their files as links."""
    for name in (
        "results",
        "performance",
        "data",
        "training",
        "late-interaction",
        "fitting",
        "methods",
    ):
        text = text.replace(f"docs/{name}.md", f"[{name}]({name}.md)")
    return text.replace("|", "\\|")
