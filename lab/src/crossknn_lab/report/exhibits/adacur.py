"""Figures and tables of ADACUR (Yadav et al., 2023)."""

from __future__ import annotations

from crossknn.errors import InputError
from crossknn.plots.style import DASHES, OTHERS
from crossknn_lab.plots import Curve, Style, curves
from crossknn_lab.report.exhibits import approximations, latency, recall
from crossknn_lab.report.exhibits.base import CENTRED, Exhibit
from crossknn_lab.report.exhibits.found import by_data, means
from crossknn_lab.report.page import Block, draw
from crossknn_lab.report.study import Study
from crossknn_lab.table import Group

PAPER = "ADACUR"

SAMPLERS = {
    "anncur, random": "anncur(center=none, anchors=1, retriever=random)",
    "adacur, five rounds from random": "adacur(center=none, retriever=random, rounds=5)",
    "adacur, five rounds from dense": "adacur(center=none, retriever=dense, rounds=5)",
    "TopK, none masked": "anncur(center=none, anchors=1, retriever=oracle_topk)",
    "TopK, best 100 masked": "anncur(center=none, anchors=1, retriever=oracle_topk(masked=100))",
    "TopK, 75% random": "anncur(center=none, anchors=1, retriever=oracle_topk(epsilon=0.75))",
    "SoftMax, none masked": "anncur(center=none, anchors=1, retriever=oracle_softmax)",
    "SoftMax, best 100 masked": "anncur(center=none, anchors=1, retriever=oracle_softmax(masked=100))",
    "SoftMax, 75% random": "anncur(center=none, anchors=1, retriever=oracle_softmax(epsilon=0.75))",
}
"""Ways to choose 200 anchor items: with `anncur(anchors=1)` nothing is reranked."""


def masked(study: Study) -> list[Block]:
    """Oracle samplers with none and with the best k masked."""
    blocks: list[Block] = []
    for data, found in by_data(study, "oracle-masked").items():
        panels = {
            f"top {k}": [
                _line(found, k, kind, hidden) for kind in ("topk", "softmax") for hidden in (0, k)
            ]
            for k in study.k
        }
        labels = {name: text for lines in panels.values() for name, text in _words(lines).items()}
        title = f"{data}: anchor items by their exact scores"
        blocks.append(
            draw(
                curves,
                panels,
                title=title,
                alt=f"{title}. {recall.ALT}",
                x_label="cross-encoder calls per query, half of them anchor items",
                labels=labels,
            )
        )
        blocks.append(means(found, study.k, f"{data}."))
    return blocks


def _line(found: list[Group], k: int, kind: str, hidden: int) -> Curve:
    mine = sorted(
        (g for g in found if kind in g.first.method and g.first.values["masked"] == hidden),
        key=lambda g: g.first.budget,
    )
    name = f"{kind} {'best k masked' if hidden else 'none masked'}"
    budgets = [group.first.budget for group in mine]
    return Curve.through(name, budgets, [group.mean(k) for group in mine])


def _words(lines: list[Curve]) -> dict[str, str]:
    return {
        line.name: line.name.replace("topk", "TopK,").replace("softmax", "SoftMax,")
        for line in lines
    }


def randomized(study: Study) -> list[Block]:
    """Oracle samplers with a share of random items."""
    heads = {"topk": ", TopK", "softmax": ", SoftMax"}
    return recall.against_setting(
        study, "oracle-random", "epsilon", "the share of random items", heads
    )


def of_random_items(study: Study) -> list[Block]:
    """A query's approximate scores from 50 and 200 random anchor items."""
    panels = [
        (f"{count} anchor items", "anncur(center=none, anchors=1)", count) for count in (50, 200)
    ]
    return approximations.scatter(study, panels, "ANNCUR's scores of one query")


def oracles(study: Study) -> list[Block]:
    """The same from 200 items by oracle samplers."""
    panels = [
        (name, SAMPLERS[name], 200)
        for name in (
            "TopK, none masked",
            "TopK, 75% random",
            "SoftMax, none masked",
            "SoftMax, 75% random",
        )
    ]
    return approximations.scatter(study, panels, "200 anchor items by their exact scores")


def adaptive(study: Study) -> list[Block]:
    """The same of ADACUR and ANNCUR."""
    panels = [
        (f"{name}, {count}", spec, count)
        for count in (50, 200)
        for name, spec in (
            ("ADACUR", "adacur(center=none, retriever=random, rounds=5)"),
            ("ANNCUR", "anncur(center=none, anchors=1)"),
        )
    ]
    return approximations.scatter(study, panels, "five rounds against one")


def errors(study: Study) -> list[Block]:
    """Error by rank of every way to choose 200 anchor items."""
    if not all("dense" in data.vectors for data in study.data):
        raise InputError("a matrix has no vectors of a dual encoder")
    smallest = min(data.file.n_items for data in study.data)
    usable = {name: spec for name, spec in SAMPLERS.items() if "100" not in spec or smallest > 400}
    return approximations.error_by_rank(study, usable, 200, _styles())


def _styles() -> dict[str, Style]:
    """The samplers apart from the methods: a colour for each kind, dashes for its options."""
    return {
        name: Style(colour=colour, dash=dash, marker=marker)
        for kind, colour, marker in (("TopK", OTHERS[0], "o"), ("SoftMax", OTHERS[2], "s"))
        for name, dash in zip((n for n in SAMPLERS if n.startswith(kind)), DASHES, strict=False)
    }


EXHIBITS = (
    Exhibit(
        paper=PAPER,
        label="figure 1",
        title="approximate against exact scores of a query",
        here="The paper: ANNCUR errs most on the best items, less with 200 random anchor items "
        f"than with 50. Here: the first test query of each matrix. {CENTRED}",
        build=of_random_items,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 2",
        title="recall of ADACUR, ANNCUR and reranking",
        here="The paper: for each retriever X, ADACUR_X beats ANNCUR_X, which beats reranking X. "
        "Here: each matrix with all its anchor queries, five rounds; divisions of the budget are "
        "half and half, not the best on the test queries; no encoders distilled from the "
        "cross-encoder (DE_BERT+CE, DE_BASE+CE), ours are in docs/results.md, What aligning buys. "
        "The answers with intervals are under `Ours`, question 1.",
        sweeps=("methods",),
        build=lambda study: recall.against_cost(study, "methods", most=True),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 3",
        title="recall against rounds",
        here="The paper: recall rises with the rounds and stays from 10 to 20 on; one round is "
        "ANNCUR. Here: the same, from random items with half of the budget, and from the dual "
        "encoder without a division, where one round is reranking.",
        sweeps=("rounds",),
        build=lambda study: recall.against_rounds(
            study,
            (
                "adacur(center=none, retriever=random, rounds={rounds}, split=0.5)",
                "adacur(center=none, retriever=dense, rounds={rounds})",
            ),
        ),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 4",
        title="latency against rounds, and what it is made of",
        here="The paper: calls take most of the time; solving and multiplying grow with the "
        "rounds. Here: the largest matrix, calls at a nominal 2 ms, the rest measured.",
        build=lambda study: latency.breakdown(
            study, {"ADACUR": "adacur(center=none, retriever=dense, rounds={rounds})"}
        ),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 5a",
        title="oracle samplers, with and without the best k",
        here="The paper: much of the gain is the true neighbours themselves being anchor items: "
        "with the best k masked it is lost. Here: the same, half of the calls for anchor items.",
        sweeps=("oracle-masked",),
        build=masked,
    ),
    Exhibit(
        paper=PAPER,
        label="figures 5b and 5c",
        title="oracle samplers with random items among the best",
        here="The paper: diversity helps the greedy sampler most. Here: the share of random items "
        "on the axis.",
        sweeps=("oracle-random",),
        build=randomized,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 6",
        title="approximate scores with oracle anchor items",
        here="The paper: from the best items alone the scores of all others are overestimated; "
        "random ones among them mend it. Here: the first test query of each matrix.",
        build=oracles,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 7",
        title="approximation error by rank",
        here="The paper: mean absolute error, 200 anchor items; next to none on anchor items. "
        "Here: the same, with intervals over queries, of the split of queries as stored.",
        build=errors,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 8",
        title="approximate scores of ADACUR and ANNCUR",
        here="The paper: 50 adaptive anchor items serve the best items better than 200 random "
        "ones. Here: the first test query of each matrix.",
        build=adaptive,
    ),
    Exhibit(
        paper=PAPER,
        label="figures 9-20",
        title="figure 2 by domain and number of train queries, with TF-IDF",
        here="Here: every matrix with fewer anchor queries; BM25 is in TF-IDF's place; "
        "no distilled encoders, as in figure 2.",
        sweeps=("methods",),
        build=lambda study: recall.against_cost(study, "methods", most=False),
    ),
    Exhibit(
        paper=PAPER,
        label="table 1",
        title="statistics of ZESHEL",
        elsewhere="The statistics of the matrices of this report stand at ANNCUR's table 1.",
    ),
)
