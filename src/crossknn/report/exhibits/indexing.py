"""Exhibits of what is paid before the first query, and what it buys (AXN 3.1, B.3-4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crossknn.errors import InputError
from crossknn.evaluation.replay import RecallRow
from crossknn.plots import Bar, Stack, grouped_bars, recall_against_indexing, stacked_bars
from crossknn.report.exhibits.index_ways import (
    ADACUR,
    AXN,
    BY_ITEM,
    EXACT,
    OWN,
    RNR,
    TASK,
    Goal,
    goals,
    measured,
)
from crossknn.report.exhibits.latency import MS_PER_CALL
from crossknn.report.page import Block, TableOf, draw
from crossknn.report.study import Study


def recall(study: Study, *, ways: Sequence[str] = (RNR, AXN, ADACUR)) -> list[Block]:
    """Recall against the calls paid for the index, for both goals, on each matrix."""
    blocks: list[Block] = []
    for data, found in measured(study).items():
        for goal in goals(study):
            shown = [_row(r, goal) for r in found if r["way"] in (*ways, *OWN)]
            title = f"{data}: recall against offline calls"
            alt = f"{title}, top {goal.k} at {goal.budget} calls per query, a line for each way."
            blocks.append(draw(recall_against_indexing, shown, title=title, alt=alt))
        blocks.append(_table(study, data, found))
    return blocks


def task(study: Study) -> list[Block]:
    """The task's measure at 100 calls, a group for each way of indexing; exact search too."""
    blocks: list[Block] = []
    for data, found in measured(study).items():
        if not found[0]["task"]:
            continue
        best = {
            way: max((r for r in found if r["way"] == way), key=lambda r: r["calls"])
            for way in dict.fromkeys(r["way"] for r in found)
        }
        bars = [
            Bar(group=measure, name=way, value=value, low=low, high=high)
            for measure in TASK
            for way, r in best.items()
            for value, low, high in [r["task"][measure]]
        ]
        title = f"{data}: the task's measures at {goals(study)[0].budget} calls per query"
        options = {"title": title, "y_label": "the measure (%)"}
        blocks.append(draw(grouped_bars, bars, alt=f"{title}: bars.", **options))
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


def _table(study: Study, data: str, found: Sequence[Mapping[str, Any]]) -> TableOf:
    heads = [f"k = {goal.k} at {goal.budget}" for goal in goals(study)]
    rows = [
        [
            r["way"],
            r["train"] or None,
            r["what"] or None,
            f"{r['calls']:,}",
            *(f"{100 * r['recall'][str(goal.k)][0]:.1f}" for goal in goals(study)),
        ]
        for r in found
        if r["way"] != EXACT
    ]
    return TableOf(
        head=["way", "train queries", "scored", "offline calls", *heads],
        rows=rows,
        caption=f"{data}: recall (%). Vectors by alternating least squares; AXN in ten rounds.",
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
