"""Figures and tables of AXN (Yadav et al., ICLR 2024)."""

from __future__ import annotations

from crossknn.errors import InputError
from crossknn_lab.report.exhibits import indexing, latency, recall, scores
from crossknn_lab.report.exhibits.base import CENTRED, Exhibit
from crossknn_lab.report.exhibits.index_ways import AXN, BY_ITEM
from crossknn_lab.report.page import Block
from crossknn_lab.report.study import Study

PAPER = "AXN"


def second_encoder(study: Study) -> list[Block]:
    """Every dual encoder of a matrix as the base."""
    if not study.groups("second-encoder"):
        raise InputError(
            "no matrix has vectors of a second dual encoder (the keys item_vectors_NAME and "
            "query_vectors_NAME)"
        )
    return recall.against_cost(study, "second-encoder")


EXHIBITS = (
    Exhibit(
        paper=PAPER,
        label="figure 1",
        title="recall against the cost of indexing",
        here="The paper: factorizing sparse scores costs a small part of ADACUR's dense ones and "
        "finds as much; AXN beats reranking whatever the vectors. Here: calls in the place of "
        "hours; vectors by alternating least squares. Gradient descent, MF_IND and distilled "
        f"encoders are in docs/results.md, What aligning buys. {CENTRED}",
        build=indexing.recall,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 2",
        title="what indexing is made of",
        here="The paper: calls dominate factorizations, training dominates distillation. Here: "
        "calls at a nominal 2 ms, fitting measured; see ANNCUR's table 2 for the figures.",
        build=indexing.cost,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 3",
        title="the task's measures by way of indexing",
        here="The paper: on three of four data sets exact search is worse than reranking the "
        "dual encoder's best. Here: as figure 1, at 100 calls, for matrices with labels; see "
        "`Ours` for every method against exact search.",
        build=indexing.task,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 4",
        title="distribution of scores of cross- and dual encoder",
        here="The paper: on BEIR both lie apart, so that scores are normalised first. Here: every "
        "matrix, as they are and normalised.",
        build=scores.distributions,
    ),
    Exhibit(
        paper=PAPER,
        label="figure 5",
        title="latency of ADACUR and AXN",
        here="The paper: the overhead of five to ten rounds is small beside the calls. Here: the "
        "largest matrix, calls at a nominal 2 ms, the rest measured.",
        build=lambda study: latency.breakdown(
            study,
            {
                "ADACUR": "adacur(center=none, retriever=dense, rounds={rounds})",
                "AXN": "axn(retriever=dense, rounds={rounds}, blend=0.5, vectors=dense)",
                "AXN, ridge": "axn(retriever=dense, rounds={rounds}, ridge=0.3, vectors=dense)",
            },
        ),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 6",
        title="recall against rounds",
        here="The paper: recall rises until five to ten rounds; one round is reranking. Its blend "
        "is 0 on ZESHEL, and chosen on dev queries on BEIR: Hotpot-QA's is 0.8 for k = 1 and 0 for "
        "k = 100. Here: blend 0.5, between them, and ridge; other blends are at figure 8.",
        sweeps=("rounds",),
        build=lambda study: recall.against_rounds(
            study,
            (
                "axn(retriever=dense, rounds={rounds}, blend=0.5, vectors=dense)",
                "axn(retriever=dense, rounds={rounds}, ridge=0.3, vectors=dense)",
            ),
        ),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 7",
        title="ways to find the query's vector",
        here="The paper: AXN with blend 0.8 is best for k = 1, with 0 for k = 100; TOUR is behind "
        "for k = 100; on the task trends are mixed. Here: AXN and TOUR with the paper's settings; "
        "ReFIT, whose source gives no learning rate, with ours; and Qdrant's formula with a = b = "
        "c = 1, its values before training. Settings chosen on dev queries are under `Ours`.",
        sweeps=("query-vectors",),
        build=lambda study: [
            *recall.against_cost(study, "query-vectors"),
            *recall.task_against_cost(study, "query-vectors"),
        ],
    ),
    Exhibit(
        paper=PAPER,
        label="figure 8",
        title="recall by the weight of the parametric query vector",
        here="The paper: 0.8 for k = 1. Here: every k and budget, ten rounds.",
        sweeps=("blend",),
        build=lambda study: recall.against_setting(
            study, "blend", "blend", "the weight of the dual encoder's query vector", {"": ""}
        ),
    ),
    Exhibit(
        paper=PAPER,
        label="figure 9",
        title="transductive and inductive factorization",
        elsewhere="Made by benchmarks/align.py at a2db68d, which needs torch: docs/results.md, What aligning "
        "buys (rows mf-trns and mf-ind).",
    ),
    Exhibit(
        paper=PAPER,
        label="figure 10",
        title="which pairs to score",
        here="The paper: as many items for each train query are better than as many queries for "
        "each item, but for free vectors on large corpora. Here: both, for alternating least "
        "squares; other factorizations are in docs/results.md.",
        build=lambda study: indexing.recall(study, ways=(AXN, BY_ITEM)),
    ),
    Exhibit(
        paper=PAPER,
        label="figures 11-14",
        title="figures 1 and 3 for each domain",
        elsewhere="Every matrix has its own pictures at AXN's figures 1 and 3.",
    ),
    Exhibit(
        paper=PAPER,
        label="figures 15-16",
        title="the same with another base dual encoder",
        here="Here: reranking and AXN, blend 0.5 and ridge, with every dual encoder that a matrix "
        "has vectors of.",
        sweeps=("second-encoder",),
        build=second_encoder,
    ),
    Exhibit(
        paper=PAPER,
        label="table 1",
        title="statistics of the data",
        elsewhere="The statistics of the matrices of this report stand at ANNCUR's table 1.",
    ),
    Exhibit(
        paper=PAPER,
        label="table 2",
        title="learning rates and epochs of the factorizations",
        elsewhere="Ours are in docs/fitting.md, and are options of `crossknn fit`.",
    ),
    Exhibit(
        paper=PAPER,
        label="table 3",
        title="hours of indexing by way of choosing pairs",
        elsewhere="The tables at ANNCUR's table 2 and AXN's figure 2 have both ways.",
    ),
)
