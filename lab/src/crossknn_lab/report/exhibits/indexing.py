"""Exhibits of what is paid before the first query, and what it buys (AXN 3.1, B.3-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crossknn.errors import InputError
from crossknn.evaluation.measures import Estimate
from crossknn.evaluation.replay import RecallRow
from crossknn_lab.plots import Curve, Stack, curves, recall_against_indexing, stacked_bars
from crossknn_lab.report.exhibits.found import TASK
from crossknn_lab.report.exhibits.index_ways import (
    ADACUR,
    AXN,
    BY_ITEM,
    EXACT,
    OWN,
    RNR,
    Goal,
    goals,
    measured,
)
from crossknn_lab.report.exhibits.latency import MS_PER_CALL
from crossknn_lab.report.numbers import percent
from crossknn_lab.report.page import Block, TableOf, draw
from crossknn_lab.report.study import Study

LABELS = {OWN[0]: "rerank of the dual encoder", OWN[1]: "axn of the dual encoder"}
EXACT_SEARCH = {EXACT: "exact search"}


def recall(study: Study, *, ways: Sequence[str] = (RNR, AXN, ADACUR)) -> list[Block]:
    """Recall against the calls paid for the index, for both goals, on each matrix."""
    blocks: list[Block] = []
    for data, found in measured(study).items():
        for goal in goals(study):
            shown = [_row(r, goal) for way in (*ways, *OWN) for r in found if r["way"] == way]
            title = f"{data}: recall against offline calls"
            alt = f"{title}, top {goal.k} at {goal.budget} calls per query, a line for each way."
            picture = draw(recall_against_indexing, shown, alt=alt, title=title, labels=LABELS)
            blocks.append(picture)
        tried = [r for r in found if r["way"] != EXACT]
        columns = {
            f"k = {goal.k} at {goal.budget}": [r["recall"][str(goal.k)] for r in tried]
            for goal in goals(study)
        }
        blocks.append(_table(tried, columns, f"{data}: recall (%) [95%]."))
    return blocks


def task(study: Study) -> list[Block]:
    """The task's measures against the calls paid for the index, a panel for each; exact search too.

    Searches are those of the first goal.
    """
    blocks: list[Block] = []
    for data, found in measured(study).items():
        if not found[0]["task"]:
            continue
        ways = [
            way for way in (RNR, AXN, ADACUR, *OWN, EXACT) if any(r["way"] == way for r in found)
        ]
        panels = {measure: [_line(found, way, measure) for way in ways] for measure in TASK}
        title = f"{data}: the task's measures against offline calls"
        asked = f"{goals(study)[0].budget} calls per query"
        picture = draw(
            curves,
            panels,
            title=title,
            alt=f"{title}, at {asked}. A panel for each measure, a line for each way of indexing.",
            x_label="cross-encoder calls for the index",
            y_label="the measure (%)",
            labels=LABELS | EXACT_SEARCH,
            note=f"At {asked}. Lines across: nothing was paid for the index.",
        )
        columns = {measure: [r["task"][measure] for r in found] for measure in TASK}
        caption = f"{data}: the task's measures (%) [95%] at {asked}."
        blocks += [picture, _table(found, columns, caption)]
    if not blocks:
        raise InputError("no matrix with vectors of a dual encoder and anchor queries has labels")
    return blocks


def cost(study: Study) -> list[Block]:
    """Minutes of indexing: the cross-encoder's calls, and the fit."""
    blocks: list[Block] = []
    for data, found in measured(study).items():
        stacks = [
            Stack(
                group=f"{r['train']} train queries",
                name=r["what"],
                parts={
                    "scores": r["calls"] * MS_PER_CALL / 60_000,
                    "fitting": r["seconds"] / 60,
                },
            )
            for r in found
            if r["way"] in (AXN, BY_ITEM, ADACUR)
        ]
        title = f"{data}: minutes of indexing"
        note = f"Scores at {MS_PER_CALL:g} ms a call (AXN B.1), on one device; fitting: measured."
        alt = f"{title}. Stacked bars, a panel for each number of train queries."
        options = {"title": title, "note": note, "y_label": "minutes"}
        blocks += [draw(stacked_bars, stacks, alt=alt, **options), _costs(data, found)]
    return blocks


def _row(found: Mapping[str, Any], goal: Goal) -> RecallRow:
    recall, low, high = found["recall"][str(goal.k)]
    return RecallRow(
        method=found["way"],
        k=goal.k,
        budget=goal.budget,
        recall=recall,
        ci=(low, high),
        n_queries=found["queries"],
        calls=goal.budget,
        seconds=0.0,
        seed=0,
        index_calls=found["calls"],
    )


def _line(found: Sequence[Mapping[str, Any]], way: str, measure: str) -> Curve:
    mine = sorted((r for r in found if r["way"] == way), key=lambda r: int(r["calls"]))
    paid = [r["calls"] or None for r in mine]
    return Curve.through(way, paid, [Estimate(*r["task"][measure]) for r in mine])


def _table(
    found: Sequence[Mapping[str, Any]], columns: Mapping[str, Sequence[Sequence[float]]], said: str
) -> TableOf:
    """A row for each search; `columns` have its mean and the ends of its interval."""
    rows = [
        [
            r["way"],
            r["train"] or None,
            r["what"] or None,
            f"{r['calls']:,}",
            *(percent(Estimate(*values)) for values in of),
        ]
        for r, *of in zip(found, *columns.values(), strict=True)
    ]
    return TableOf(
        head=["way", "train queries", "scored", "offline calls", *columns],
        rows=rows,
        caption=f"{said} Vectors by alternating least squares; AXN in ten rounds.",
        folded=True,
    )


def _costs(data: str, found: Sequence[Mapping[str, Any]]) -> TableOf:
    rows = [
        [
            r["train"],
            r["what"],
            f"{r['calls']:,}",
            f"{r['calls'] * MS_PER_CALL / 60_000:.1f}",
            f"{r['seconds'] / 60:.2f}",
        ]
        for r in found
        if r["way"] in (AXN, BY_ITEM, ADACUR)
    ]
    return TableOf(
        head=["train queries", "scored", "calls", "minutes of calls", "minutes of fitting"],
        rows=rows,
        caption=f"{data}: what an index costs; `all items` are ANNCUR's and ADACUR's.",
        folded=True,
    )
