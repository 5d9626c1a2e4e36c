"""Figures and tables of ANNCUR (Yadav et al., EMNLP 2022)."""

from __future__ import annotations

from dataclasses import replace

from crossknn.errors import InputError
from crossknn.plots.curves import curves, curves_of
from crossknn_lab.plots import Curve, recall_against_cost
from crossknn_lab.report.exhibits import approximations, indexing, recall, scores
from crossknn_lab.report.exhibits.base import CENTRED, Exhibit
from crossknn_lab.report.exhibits.found import by_data, means, rows
from crossknn_lab.report.page import Block, draw
from crossknn_lab.report.study import Study

PAPER = "ANNCUR"


def splits(study: Study) -> list[Block]:
    """Recall against calls with the oracle's division, the one chosen on dev, and the paper's."""
    blocks: list[Block] = []
    largest = recall.most_anchors(study)
    chosen = by_data(study, "chosen-splits") if study.groups("chosen-splits") else {}
    reranked = by_data(
        study,
        "methods",
        lambda g: g.first.method.startswith("rerank") and g.first.anchors == largest[g.first.data],
    )
    for data in study.data:
        found = by_data(study, "splits").get(data.name)
        if found is None:
            continue
        paper = approximations.papers_accounting(study, data)
        panels = {}
        for k in study.k:
            lines = curves_of(rows(reranked.get(data.name, []), [k]), k)
            lines.append(recall.best_of(found, k, "anncur, best split"))
            if data.name in chosen:
                dev = curves_of(rows(chosen[data.name], [k]), k)[0]
                lines.append(replace(dev, name="anncur, split chosen on dev"))
            lines.append(Curve(name="anncur, best split, paper's accounting", **paper[str(k)]))
            panels[f"top {k}"] = lines
        title = f"{data.name}: recall at a cost"
        figure = draw(
            curves,
            panels,
            title=title,
            alt=f"{title}. {recall.ALT}",
            caption="`best split` is chosen on the test queries themselves, as in the paper; "
            "`paper's accounting` pays an anchor item again when it is retrieved, on the split of "
            "queries as stored.",
            x_label="cross-encoder calls per query",
        )
        blocks += [figure, means(found, study.k, f"{data.name}, every division.")]
    if not blocks:
        raise InputError("no matrix has anchor queries")
    return blocks


def item_baselines(study: Study) -> list[Block]:
    """ANNCUR beside what is indexed by scores of items with items."""
    if not study.groups("items"):
        raise InputError(
            "no matrix has scores of items with items (crossknn scores INDEX --item-item 500)"
        )
    blocks: list[Block] = []
    for data, found in by_data(study, "items").items():
        title = f"{data}: indexed by items and by queries"
        made = rows(found, study.k)
        blocks.append(draw(recall_against_cost, made, title=title, alt=f"{title}. {recall.ALT}"))
        blocks.append(means(found, study.k, f"{data}."))
    return blocks


EXHIBITS = (
    Exhibit(
        paper=PAPER,
        label="figure 1a",
        title="the three models",
        why_not="a drawing of models; docs/training.md describes ours.",
    ),
    Exhibit(
        paper=PAPER,
        label="figure 1b",
        title="distribution of scores of the three models",
        here="The paper: the [CLS]-CE's scores are skewed, the dual encoder's and the [EMB]-CE's "
        "less so. Here: every matrix's cross-encoder and its dual encoder, each score less its "
        "query's mean, in standard deviations.",
        build=scores.histogram,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 2",
        title="CUR decomposition",
        why_not="a drawing of matrices.",
    ),
    Exhibit(
        paper=PAPER,
        label="figure 3a",
        title="recall when all retrieve and rerank the same number of items",
        here="The paper: ANNCUR beats its baselines for k of 10 and more, with 50 to 200 anchor "
        "items that are not counted. Here: the same, with all anchor queries of each matrix; "
        "encoders distilled from the cross-encoder are in docs/results.md, What aligning buys. "
        f"{CENTRED} Only figures 6, 8 and 9 are of the scores as they are.",
        build=lambda study: approximations.at_depth(study, most=True),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 3b",
        title="recall at a fixed number of calls",
        here="The paper: ANNCUR with the best of all divisions of the calls into anchor items and "
        "reranked ones wins for larger k and larger costs. Here: that division, the one chosen on "
        "dev queries beside it, and the paper's own accounting; no distilled encoders.",
        sweeps=("methods", "splits", "chosen-splits"),
        build=splits,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 4",
        title="recall by the number of anchor queries",
        here="The paper: top 100 at 500 calls, 100 to 2,000 train queries; ANNCUR gains with each. "
        "Here: the numbers that each matrix has.",
        sweeps=("methods",),
        build=recall.by_anchors,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 5",
        title="recall by domain, and the number of items",
        here="The paper: all methods find less where there are more items. Here: every matrix, "
        "which differ in more than their size.",
        sweeps=("methods",),
        build=recall.by_domain,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 6",
        title="recall over anchor queries and anchor items",
        here="The paper: the [EMB]-CE's scores are easier to approximate than the [CLS]-CE's, and "
        "recall collapses where both numbers are equal. Here: a map for each matrix, nothing cut "
        "from the pseudo-inverse, as there. Both heads on one set of items are in docs/results.md.",
        build=lambda study: scores.grid(study, "recall"),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 7",
        title="fixedITEM and itemCUR",
        here="The paper: scores of items with items serve worse than those of queries. Here: the "
        "same for matrices that hold such scores.",
        sweeps=("items",),
        build=item_baselines,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 8",
        title="error of the approximation",
        here="The paper: |M - M~| / |M| over anchor queries and items. Here: the same; of raw "
        "scores, whose mean holds most of the norm.",
        build=lambda study: scores.grid(study, "error"),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 9a",
        title="recall of oracle CUR",
        here="The paper: with U from the whole matrix the collapse is gone. Here: the same.",
        build=lambda study: scores.grid(study, "recall", oracle=True),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 9b",
        title="error of oracle CUR",
        here="The paper: so is the error's peak. Here: the same.",
        build=lambda study: scores.grid(study, "error", oracle=True),
    ),
    Exhibit(
        paper=PAPER,
        label="figures 10-24",
        title="figure 3 for five domains and three numbers of train queries",
        here="Here: every matrix with fewer anchor queries, as many retrieved and reranked; at a "
        "fixed number of calls ANNCUR stands in ADACUR's figures 9-20.",
        build=lambda study: approximations.at_depth(study, most=False),
    ),
    Exhibit(
        paper=PAPER,
        label="table 1",
        title="statistics of ZESHEL",
        here="Here: those of the matrices of this report; readers of ZESHEL are in docs/data.md.",
        build=scores.statistics,
    ),
    Exhibit(
        paper=PAPER,
        label="table 2",
        title="hours of indexing",
        here="The paper: all is spent on the scores of train queries with all items. Here: calls, "
        "and minutes at AXN's 2 ms each, beside sparse scores with a factorization; distilled "
        "encoders, and what they took, are in docs/results.md.",
        build=indexing.cost,
    ),
    Exhibit(
        paper=PAPER,
        label="table 3a",
        title="linking accuracy by head and negatives",
        elsewhere="Made by benchmarks/train_wordnet.py at a2db68d and benchmarks/evaluate_wordnet.py at a2db68d, for "
        "cross-encoders trained on wordnet: docs/results.md, Linking accuracy.",
    ),
    Exhibit(
        paper=PAPER,
        label="table 3b",
        title="rank of the score matrices",
        here="The paper: [EMB]-CE 45, [CLS]-CE 315 for 3374 x 10031. Here: every matrix; both "
        "heads trained alike are in docs/results.md, Score matrices of noun.act.",
        build=scores.ranks,
    ),
)
