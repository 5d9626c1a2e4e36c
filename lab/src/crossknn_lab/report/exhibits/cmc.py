"""Figures and tables of CMC (Song et al., EMNLP 2024)."""

from __future__ import annotations

from crossknn_lab.report.exhibits.base import Exhibit

PAPER = "CMC"
LATE = "Made by benchmarks/late.py at a2db68d, on wordnet: docs/results.md, CMC and its rivals"


def _elsewhere(label: str, title: str, where: str) -> Exhibit:
    return Exhibit(paper=PAPER, label=label, title=title, elsewhere=where)


def _not_made(label: str, title: str, why: str) -> Exhibit:
    return Exhibit(paper=PAPER, label=label, title=title, why_not=why)


EXHIBITS = (
    _not_made("figures 1-3", "architectures and pipelines", "drawings of models."),
    _elsewhere(
        "figure 4",
        "time by the number of candidates",
        "Made by benchmarks/late_speed.py at a2db68d: docs/performance.md, beside milliseconds of whole "
        "searches in docs/results.md, CMC beside the adaptive methods.",
    ),
    _elsewhere("table 1", "recall as an intermediate reranker", f"{LATE}, R@k."),
    _elsewhere(
        "table 2",
        "the cross-encoder's accuracy over fewer candidates",
        f"{LATE}, Accuracy of the cross-encoder over fewer, better candidates.",
    ),
    _elsewhere(
        "table 3",
        "as the final reranker, on four data sets",
        f"{LATE}, As the final reranker; on other data sets: readers of AIDA, MS MARCO and DSTC7 "
        "are in docs/data.md, training on them needs a GPU.",
    ),
    _elsewhere("table 4", "where the encoder begins", f"{LATE}, the column `begun off the shelf`."),
    _not_made(
        "tables 5-6",
        "statistics of the data",
        "statistics of data sets that are not used here; those used are in docs/results.md.",
    ),
    _elsewhere(
        "table 7",
        "hyperparameters",
        "Ours, and where they differ, are in docs/late-interaction.md.",
    ),
    _elsewhere("table 8", "recall by the number of candidates", f"{LATE}, R@k over 64 to 512."),
    _not_made(
        "table 9",
        "entity linking to Wikipedia",
        "it needs Wikipedia's 5.9 million entities encoded, which takes a GPU; `read_dataset` "
        "reads AIDA, MSNBC and WNED-CWEB for who has one.",
    ),
    _elsewhere("table 10", "reranking by world", f"{LATE}, a table for each domain."),
    _elsewhere("table 11", "over BM25's candidates", f"{LATE}, the column of BM25's candidates."),
    _elsewhere(
        "table 12", "what its parts bring", f"{LATE}, What CMC's parts bring, once trained there."
    ),
    _elsewhere(
        "table 13",
        "normalised accuracy",
        f"{LATE}, the column `normalised`.",
    ),
)
