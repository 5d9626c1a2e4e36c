"""The section of docs/results.md on aligned vectors, from align.json."""

from __future__ import annotations

from typing import Any

GOALS = {"k=1@100": "k = 1, 100 calls", "k=100@500": "k = 100, 500 calls"}


def section(found: dict[str, Any]) -> list[str]:
    lines = [
        "## What aligning buys",
        "",
        "Recall (%) of exact search with 95% intervals, against the cross-encoder calls paid once for the",
        "vectors (AXN, figures 1, 9 and 10). `q x c`: c items for each of q train queries, nine tenths the",
        "dual encoder's best, the rest random; `items x c`: c train queries for each item; `rows`: every item",
        "for each train query. First stage: the dual encoder. Blend and ridge were chosen on dev queries, apart from",
        "the train and test queries. Seconds are of fitting, on one of two busy cores. Made by `benchmarks/align.py`.",
        "",
    ]
    for name, part in found.items():
        about = part["about"]
        lines += [
            f"### {name}",
            "",
            f"{about['items']:,} items, {about['tests']} test queries, {about['dev']} dev queries, "
            f"{about['train']} train queries of the matrix.",
            "",
            "| vectors | offline calls | seconds | "
            + " | ".join(
                f"{way}, {label}" for label in GOALS.values() for way in ("RNR", "blend", "ridge")
            )
            + " |",
            "|---|---|---|" + "---|" * (3 * len(GOALS)),
        ]
        for row, values in part["rows"].items():
            cells = [row, f"{values['calls']:,}", seconds(values)]
            for goal in GOALS:
                cells += [cell(values[goal], way) for way in ("rnr", "blend", "ridge")]
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", "ADACUR stands in the column of the blend, which it has none of.", ""]
    return lines


def cell(found: dict[str, Any], way: str) -> str:
    if way == "blend" and "adacur" in found:
        way = "adacur"
    if way not in found:
        return "-"
    low, high = found[way]["ci"]
    chosen = next((f" ({found[way][o]:g})" for o in ("blend", "ridge") if o in found[way]), "")
    return f"{100 * found[way]['recall']:.1f} [{100 * low:.0f}, {100 * high:.0f}]{chosen}"


def seconds(values: dict[str, Any]) -> str:
    return f"{values['fit_seconds']:.1f}" if "fit_seconds" in values else "-"


def workers_section(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Scoring workers",
        "",
        f"`crossknn align` with the {found['model']} cross-encoder, {found['pairs']:,} pairs, {found['cores']} cores; medians",
        "of interleaved repeats. Asked: two workers on two cores keep 90% of a single one's pairs per second",
        "each. Made by `benchmarks/workers.py`.",
        "",
        "| workers | threads each | pairs a second | times one worker | kept by each |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['workers']} | {row['threads']} | {row['pairs_per_second']:.0f} | "
        f"{row['times_one']:.2f} | {100 * row['times_one'] / (row['workers'] * row['threads']):.0f}% |"
        for row in found["rows"]
    ]
    return [*lines, ""]


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
        f"{found['error_after']:.4f} after. Made by `benchmarks/als.py`.",
        "",
    ]
