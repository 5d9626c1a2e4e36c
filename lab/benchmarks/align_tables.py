"""The section of docs/results.md on fitted vectors, from align.json, and its picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from markdown_table import table

from crossknn.evaluation.measures import bootstrap
from crossknn.evaluation.replay import RecallRow
from crossknn_lab.plots import recall_against_indexing

GOALS = {"k=1@100": (1, 100), "k=10@100": (10, 100), "k=100@500": (100, 500)}
WAYS = {"rerank": "RNR", "blend": "AXN blend", "ridge": "AXN ridge"}
SHARE = 0.1  # of ADACUR's calls


def section(found: dict[str, Any]) -> list[str]:
    lines = [
        "## What aligning buys",
        "",
        "Recall (%) of exact search, with half the 95% interval, against the cross-encoder calls paid once",
        "for the vectors (AXN, figures 1, 9 and 10). `q x c`: c items for each of q train queries, nine",
        "tenths the dual encoder's best, the rest random; `items x c`: c train queries for each item; `rows`:",
        "every item for each train query; `more`: the domain's other mentions; `pseudo`: queries made of the",
        "items themselves. RNR is of the vectors alone; AXN begins with the dual encoder, unless another first",
        "stage is named, in ten rounds; its blend (0.2, 0.5, 0.8) or ridge (0.1, 0.3, 1) was chosen on dev",
        "queries. ADACUR has neither and stands under blend. Train, dev and test queries are apart. Seconds",
        "are of fitting, on one of two busy cores. Made by `lab/benchmarks/align.py`.",
        "",
        "`distilled`: the dual encoder trained further on the scores (AXN, A.2.1; four epochs of lists of 25",
        "items, one of 100), from the sparse scores (DE_DSTL), or from the top of dense rows by the better of",
        "two losses (DE_BASE+CE); on scifact its texts are cut to 64 tokens, as the cross-encoder's are.",
        "DE_BERT+CE is not there: it begins with an encoder that has learned no task, and there was none.",
        "",
    ]
    for name, part in found.items():
        lines += [*of_matrix(name, part), *asked(part["rows"])]
        lines += [f"![Recall against offline calls](images/align-{name}.png)", ""]
    return lines


def of_matrix(name: str, part: dict[str, Any]) -> list[str]:
    about = part["about"]
    heads = [f"{way}, k = {k} at {calls}" for k, calls in GOALS.values() for way in WAYS.values()]
    lines = [
        f"### {name}",
        "",
        f"{about['items']:,} items, {about['tests']} test queries, {about['dev']} dev queries, "
        f"{about['train']} train queries of the matrix. Of the variance of a test query's scores the dual "
        "encoder explains",
        f"{100 * about['of_encoder']:.0f}%, and the items' mean scores with the train queries "
        f"{100 * about['of_items']:.0f}%, whatever the query; beside both means,",
        f"{about['components_90']} dimensions hold 90% of the train queries' rows.",
        "",
    ]
    rows = [
        [row, f"{values['calls']:,}", seconds(values)]
        + [cell(values[goal], way) for goal in GOALS for way in WAYS]
        for row, values in part["rows"].items()
    ]
    lines += table(["vectors", "calls", "seconds", *heads], rows)
    timed = [v["seconds_per_pair"] for v in part["rows"].values() if v.get("seconds_per_pair")]
    if timed:
        rate = 1 / float(np.median(timed))
        lines += [
            f"The cross-encoder took one of two busy cores {1000 / rate:.1f} ms a pair "
            f"({rate:,.0f} pairs a second):",
            f"26,000 calls are {26000 / rate / 60:.1f} minutes.",
            "",
        ]
    return lines


def asked(rows: dict[str, Any]) -> Iterator[str]:
    """Paired differences: AXN without aligning against reranking, the best fit against ADACUR."""
    base = rows["dual encoder"]
    yield "Differences in points on the same test queries, with 95% intervals; the fit with at most"
    yield f"{100 * SHARE:.0f}% of ADACUR's calls is the factorization that was best on dev:"
    yield ""
    for goal, (k, calls) in GOALS.items():
        gains = " and ".join(
            f"{difference(base[goal][way], base[goal]['rerank'], k)} ({way})"
            for way in ("blend", "ridge")
        )
        yield f"- k = {k} at {calls} calls, the dual encoder's own vectors: AXN against RNR {gains}."
        for exact in (row for row in rows if row.endswith("adacur")):
            limit = SHARE * rows[exact]["calls"]
            cheap = [
                (rows[r][goal][way]["dev"], r, way)
                for r in rows
                for way in ("blend", "ridge")
                if is_fit(r) and 0 < rows[r]["calls"] <= limit and way in rows[r][goal]
            ]
            if not cheap:
                continue
            _, best, way = max(cheap)
            gain = difference(rows[best][goal][way], rows[exact][goal]["adacur"], k)
            share = 100 * rows[best]["calls"] / rows[exact]["calls"]
            yield (
                f"- k = {k} at {calls} calls, `{best}` ({way}; {share:.1f}% of the calls) against "
                f"`{exact}`: {gain}."
            )
    yield ""


def is_fit(row: str) -> bool:
    return (
        any(name in row for name in ("als", "mf-")) and "first" not in row and "random" not in row
    )


def difference(one: dict[str, Any], other: dict[str, Any], k: int) -> str:
    found = bootstrap((np.array(one["found"]) - np.array(other["found"])) * 100 / k)
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def pictures(found: dict[str, Any], folder: Path) -> None:
    """Recall against offline calls: rows of the most train queries of the matrix, by method.

    Labels begin with the method, so that it has the colour it has everywhere.
    """
    for name, part in found.items():
        rows = []
        most = max(int(row.split()[0]) for row in part["rows"] if row.endswith("rows, adacur"))
        goal, (k, calls) = list(GOALS.items())[-1]
        for row, values in part["rows"].items():
            how, _, method = row.rpartition(", ")
            if row == "dual encoder":
                shown = {"rerank": WAYS["rerank"], "ridge": "AXN, not fitted"}
            elif method == "adacur":
                shown = {"adacur": "ADACUR"}
            elif method in LABELS and (method == "cur" or how.startswith(f"{most} x ")):
                shown = {best_way(values[goal]): LABELS[method]}
            elif method == "als" and re.fullmatch(r"items x \d+", how):
                shown = {best_way(values[goal]): "AXN, ALS, items in turn"}
            else:
                continue
            for way, label in shown.items():
                it = values[goal][way]
                rows.append(
                    RecallRow(
                        method=label,
                        k=k,
                        budget=calls,
                        recall=it["recall"],
                        ci=tuple(it["ci"]),
                        n_queries=part["about"]["tests"],
                        calls=calls,
                        seconds=0.0,
                        seed=0,
                        index_calls=values["calls"],
                    )
                )
        recall_against_indexing(
            rows, folder / f"align-{name}.png", title=f"{name}, {most} train queries"
        )


def best_way(found: dict[str, Any]) -> str:
    """Blend or ridge, by the dev queries."""
    return max(("blend", "ridge"), key=lambda way: float(found[way]["dev"]))


LABELS = {
    "als": "AXN, ALS",
    "mf-trns": "AXN, MF_TRNS",
    "cur": "AXN, CUR",
}


def cell(found: dict[str, Any], way: str) -> str:
    way = "adacur" if way == "blend" and "adacur" in found else way
    if way not in found:
        return "-"
    low, high = found[way]["ci"]
    return f"{100 * found[way]['recall']:.1f} ± {50 * (high - low):.1f}"


def seconds(values: dict[str, Any]) -> str:
    return f"{values['fit_seconds']:.1f}" if "fit_seconds" in values else "-"


def workers_section(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Scoring workers",
        "",
        f"`crossknn fit` with the {found['model']} cross-encoder, {found['pairs']:,} pairs, {found['cores']} cores; medians",
        "of interleaved repeats. Asked: two workers on two cores keep 90% of a single one's pairs per second",
        "each. Made by `lab/benchmarks/workers.py`.",
        "",
    ]
    head = ["workers", "threads each", "pairs a second", "times one worker", "kept by each"]
    rows = [
        [
            row["workers"],
            row["threads"],
            f"{row['pairs_per_second']:.0f}",
            f"{row['times_one']:.2f}",
            f"{100 * row['times_one'] / (row['workers'] * row['threads']):.0f}%",
        ]
        for row in found["rows"]
    ]
    return lines + table(head, rows)


def als_section(found: dict[str, Any]) -> list[str]:
    entries = found["queries"] * found["per_query"]
    return [
        "## Alternating least squares",
        "",
        f"{found['queries']:,} queries, {found['items']:,} items, {entries:,} scores, d = {found['d']}, "
        f"{found['sweeps']} sweeps, {found['cores']} cores:",
        f"{found['seconds']:.1f} s (asked: 60), {found['seconds_of_one_core']:.1f} s of one core; memory "
        f"{found['memory_with_input_over_vectors']:.2f} times the vectors, they and the",
        f"scores included (asked: 4). Error on scores held out {found['error_before']:.4f} before, "
        f"{found['error_after']:.4f} after. Made by `lab/benchmarks/als.py`.",
        "",
    ]
