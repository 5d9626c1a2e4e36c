"""Tables of docs/ that are made of benchmarks/results, written between their markers.

python lab/benchmarks/tables.py rewrites them; lab/tests/test_tables.py says which are out of date."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def agreement(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """nDCG@10 in %, and the weights by agreement."""
    names = "cross-encoder", "shipped weights", "by agreement"
    yield "nDCG@10 in %", *names, "weights: dense, bm25"
    for matrix, row in found.items():
        weights = ", ".join(f"{weight:.2f}" for weight in row["weights"])
        yield matrix, *(f"{100 * row[name]:.1f}" for name in names), weights


def answers(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Means in %."""
    ways = {
        "retriever": "alone",
        "rerank": "rerank",
        "retriever fused": "fused alone",
        "rerank fused first": "rerank, all fused",
        "search fused": "search, fused",
    }
    recalls = "R@20: rerank / rerank, all fused / search, fused"
    yield "set (items)", "calls", "beyond", *ways.values(), recalls
    sizes = {of["set"]: of["n"] for of in found["sets"]}
    for row in found["rows"]:
        means = row["means"]
        yield (
            *(f"{row['set']} ({sizes[row['set']]:,})", str(row["budget"])),
            f"{100 * row['reach'][0]:.0f}%",
            *(f"{100 * means[way]['nDCG@10']:.1f}" for way in ways),
            " / ".join(
                f"{100 * means[way]['R@20']:.1f}"
                for way in ("rerank", "rerank fused first", "search fused")
            ),
        )


def gains(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Fused search minus the others in points."""
    rivals = [*found["rows"][0]["gain"]]
    yield "set", "calls", *(f"nDCG@10: - {name}" for name in rivals), f"R@20: - {rivals[-1]}"
    for row in found["rows"]:
        cells = [row["gain"][name]["nDCG@10"] for name in rivals]
        cells.append(row["gain"][rivals[-1]]["R@20"])
        yield row["set"], str(row["budget"]), *map(_clear, cells)


def verdicts(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """The sentence from one half of the queries, and whether the other half contradicts it."""
    yield "set", "queries: fit, test", "the verdict, from the first half", "the second half"
    for of in found["sets"]:
        agrees = "agrees" if of["verdict"]["right"] else "contradicts it"
        yield of["set"], f"{of['fits']}, {of['tests']}", of["verdict"]["sentence"], agrees


def _clear(gain: Sequence[float]) -> str:
    mean, low, high = (100 * end for end in gain[:3])
    text = f"{mean:+z.1f} [{low:+z.1f}, {high:+z.1f}]"
    return f"**{text}**" if gain[3] <= 0.05 and (low > 0 or high < 0) else text


def changes(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Fused search by today's default minus that by the default before, in points."""
    measures = [*found[0]["change"]]
    yield "set", "queries", "calls", *measures
    for row in found:
        cells = (_clear(row["change"][measure]) for measure in measures)
        yield row["set"], str(row["queries"]), str(row["calls"]), *cells


def beside(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """The default's recall, minus others', in points: means of the matrices."""
    yield (
        *("against", "situation", "k", "calls", "matrices", "`auto`", "the other", "difference"),
        *("least of a matrix", "clearly ahead, behind"),
    )
    for row in (row for row in found if row["other"] != TWICE):
        of = [*row["matrices"].values()]
        ours, theirs = (sum(m[name] for m in of) / len(of) for name in ("auto", "other"))
        clear = [m["difference"] for m in of if m["holm"] < 0.05]
        yield (
            *(row["other"], row["situation"], str(row["k"]), str(row["calls"]), str(len(of))),
            *(f"{ours:.1f}", f"{theirs:.1f}", _interval(row["difference"])),
            f"{min(m['difference'] for m in of):+z.1f}",
            f"{sum(d > 0 for d in clear)}, {sum(d < 0 for d in clear)}",
        )


TWICE = "best rival, twice the calls"


def halves(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """The default beside the best rival at twice the calls, and the share of calls that hit."""
    yield (
        "k",
        "calls",
        "matrix",
        "`auto`",
        "best rival, twice the calls",
        "difference",
        "hits",
        "needed",
    )
    for row in (row for row in found if row["other"] == TWICE):
        for matrix, m in row["matrices"].items():
            hits = (f"{m[name] * row['k'] / row['calls']:.1f}%" for name in ("auto", "other"))
            interval = _interval([m["difference"], m["low"], m["high"]])
            yield (
                *(str(row["k"]), str(row["calls"]), matrix),
                *(f"{m['auto']:.1f}", f"{m['other']:.1f}", interval, *hits),
            )


def errors(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """What is missed at k = 10 with anchors, beside half of what the best rival misses, and the
    share of calls that hit."""
    head = "`auto` misses", "best rival misses", "share of it", "above half by"
    yield "calls", "matrix", *head, "hits", "needed for half"
    at = {"other": "best rival", "situation": "dense", "k": 10}
    for row in (row for row in found if row["calls"] in (200, 500) and at.items() <= row.items()):
        for matrix, m in row["matrices"].items():
            ours, theirs = 100 - m["auto"], 100 - m["other"]
            over, hit = ours - theirs / 2, 10 / row["calls"]
            yield (
                *(str(row["calls"]), matrix, f"{ours:.2f}", f"{theirs:.2f}"),
                *(f"{ours / theirs:.2f}" if theirs else "-", f"{over:.2f}" if over > 0 else "-"),
                *(f"{(100 - missed) * hit:.3f}%" for missed in (ours, theirs / 2)),
            )


def before(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """The default beside the kriging of before: CPU time and memory."""
    yield "items", "anchors", "method", "before, ms", "now, ms", "times (each pair)", "MB"
    for row in found["before"]:
        old, now = row["cpu_ms"]
        each = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
        memory = " to ".join(f"{size:.0f}" for size in row["memory_mb"])
        yield (
            *(f"{row['n']:,}", str(row["anchors"]), f"`{row['method']}`", f"{old:.0f}"),
            *(f"{now:.0f}", f"{row['ratio']:.2f} ({each})", memory),
        )


def promises(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Mean recall, its standard error, and calls."""
    promised = sorted({row["promise"] for row in found})
    yield "k", "matrix", "anchors", *(f"promised {100 * p:.0f}%" for p in promised)
    cells: dict[tuple[str, ...], list[str]] = {}
    for row in found:
        figures = f"{100 * row['recall']:.1f} ± {100 * row['error']:.1f} ({row['calls']:.0f})"
        of = str(row["k"]), row["matrix"], str(row["anchors"])
        cells.setdefault(of, []).append(figures if row["kept"] else f"{figures}, missed")
    for of, row in cells.items():
        yield *of, *row


def bundled(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """nDCG@10 of the bundled models, way by way; `questions` have another measure."""
    ways = "bm25", "dual encoder", "rerank", "rerank fused", "search fused"
    yield "test", "items", "queries", *ways, "search fused over dual encoder"
    for test, of in found.items():
        if test == "questions":
            continue
        values = (f"{100 * of[way]['nDCG@10']:.1f}" for way in ways)
        gain = [100 * value for value in of["search fused - dual encoder"]]
        yield test, f"{of['items']:,}", str(of["tests"]), *values, _interval(gain)


def learned(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Gain in recall after so many searches."""
    gains = {(row["searches"], row["k"]): row["gain"] for row in found["rows"]}
    neighbours = sorted({k for _, k in gains})
    yield "searches", *(f"k = {k}" for k in neighbours)
    for searches in sorted({count for count, _ in gains}):
        yield str(searches), *(_interval(gains[searches, k]) for k in neighbours)


def unseen(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Recall of the default, and its gain over reranking, by calls."""
    calls = sorted({row["calls"] for row in found})
    yield "situation", "k", *(f"{count} calls" for count in calls)
    for situation, k in dict.fromkeys((row["situation"], row["k"]) for row in found):
        rows = [row for row in found if (row["situation"], row["k"]) == (situation, k)]
        yield situation, str(k), *(f"{row['auto']:.1f}, {_interval(row['rerank'])}" for row in rows)


def scale(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Milliseconds outside scoring, by the number of items."""
    sizes = sorted({row["n"] for row in found})
    cells = {(row["method"], row["n"]): row for row in found}
    yield "method", *(f"{n:,} items: ms (95%), first, MB" for n in sizes)
    for method in dict.fromkeys(row["method"] for row in found):
        rows = [cells.get((method, n)) for n in sizes]
        yield (
            method,
            *(
                f"{r['ms']:.1f} ({r['p95_ms']:.1f}), {r['first_ms']:,.0f}, {r['memory_mb']:.0f}"
                if r
                else "-"
                for r in rows
            ),
        )


def pool(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Recall that a pool and approximate search lose, in points: the mean over matrices and the
    worst of them."""
    cells = [*found["rows"][0]["cells"]]
    yield "method", "queries of a matrix", *cells
    for method in dict.fromkeys(row["method"] for row in found["rows"]):
        of = [row for row in found["rows"] if row["method"] == method]
        counts = sorted({row["queries"] for row in of})
        losses = {cell: [row["cells"][cell]["loss"] for row in of] for cell in cells}
        yield (
            method,
            " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
            *(f"{-sum(lost) / len(lost):+z.1f} ({-max(lost):+z.1f})" for lost in losses.values()),
        )


def alternatives(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Recall in % at k = 10 and 100, and milliseconds outside scoring."""
    budgets = list(dict.fromkeys(row["budget"] for row in found["wide"]["rows"]))
    yield "items", "method", *(f"{budget} calls: k=10 / k=100, ms" for budget in budgets)
    for name, data in found.items():
        rows = {(row["method"], row["budget"]): row for row in data["rows"]}
        for method in dict.fromkeys(method for method, _ in rows):
            cells = []
            for budget in budgets:
                one, many = (rows[method, budget][f"k={k}"] for k in (10, 100))
                ms = dict.fromkeys(f"{cell['ms']:.3g}" for cell in (one, many))
                cells.append(f"{one['recall']:.1f} / {many['recall']:.1f}, {' / '.join(ms)}")
            yield f"{name} ({data['n']:,})", method, *cells


def gained(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """In points against faiss and reranking, with the calls reranking needs for the same recall,
    and the milliseconds of a call from which on it takes longer so."""
    at = (50, 10), (100, 10), (100, 100), (500, 100)
    yield "items", "method", *(f"{budget} calls, k={k}" for budget, k in at)
    for name, data in found.items():
        rows = {(row["method"], row["budget"]): row for row in data["rows"]}
        for method in [*dict.fromkeys(method for method, _ in rows)][1:]:
            cells = []
            for budget, k in at:
                cell = rows[method, budget][f"k={k}"]
                level = cell["level at ms"]
                more = "" if level is None else f", {max(level, 0):.2g} ms"
                needs = f"{cell['reranking needs']:,}{more}"
                cells.append(f"{_interval(cell['difference'])}; {needs}")
            yield f"{name} ({data['n']:,})", method, *cells


def shares(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """True neighbours found by a call, and by a millisecond, without scoring and with it."""
    data, budgets = found["wide"], (100, 500)
    parts = "a call", "a ms outside scoring", "a second, scoring included"
    yield "method", *(f"{b} calls, k={k}: {', '.join(parts)}" for b in budgets for k in (10, 100))
    rows = {(row["method"], row["budget"]): row for row in data["rows"]}
    for method in dict.fromkeys(method for method, _ in rows):
        cells = []
        for budget, k in ((b, k) for b in budgets for k in (10, 100)):
            cell = rows[method, budget][f"k={k}"]
            hits, ms = cell["recall"] / 100 * k, cell["ms"]
            whole = 1000 * hits / (ms + budget * data["ms of a call"])
            cells.append(f"{hits / budget:.3f}, {hits / ms:.2f}, {whole:.1f}")
        yield method, *cells


def lost(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Recall that a pool and approximate search lose of the real items, in points."""
    parts = "all items", "pool and 256 lists", "pool and all lists"
    yield "method", "calls", *(f"k={k}: {part}" for k in (10, 100) for part in parts)
    for row in found["wide"]["loss"]:
        if row["method"] not in ("axn", "auto", "auto, prior"):
            continue
        cells = []
        for k in (10, 100):
            cell = row[f"k={k}"]
            cells.append(f"{cell['full']:.1f} in {cell['ms'][0]:,.0f} ms")
            for (mean, low, high), ms in zip(cell["lost"], cell["ms"][1:], strict=True):
                cells.append(f"{_interval((-mean, -high, -low))} in {ms:,.0f} ms")
        yield row["method"], str(row["budget"]), *cells


def loads(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Latencies, pairs a second beside the scorer alone, and how late answers with a deadline are."""
    yield (
        *(
            "method",
            "clients",
            "minutes",
            "searches",
            "p50, p99 s",
            "pairs a second",
            "scorer alone",
            "share",
        ),
        *("share of CPU time", "deadline 500 ms: answered, refused", "late at p99, ms", "load"),
    )
    for row in found["load"]:
        p50, p99 = row["p50, p99 ms"]
        answered, refused = row["with a deadline: answered, refused"]
        yield (
            *(row["method"], str(row["clients"]), f"{row['seconds'] / 60:g}", str(row["searches"])),
            *(f"{p50 / 1000:.1f}, {p99 / 1000:.1f}", f"{row['pairs a second']:.0f}"),
            *(
                f"{row['scorer alone']:.0f}",
                f"{row['share']:.0%}",
                f"{row['share of CPU time']:.0%}",
            ),
            *(f"{answered}, {refused}", f"{row['late at p99, ms']:.0f}"),
            f"{row['load of the machine']:.1f}",
        )


def rounds(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Recall by rounds, in points, and the difference from the first row."""
    ks = [key for key in found["rows"][0] if key.startswith("k=")]
    yield "rounds", *(f"recall, {k}" for k in ks), *(f"difference, {k}" for k in ks)
    for row in found["rows"]:
        less = [row.get(f"{k}, difference") for k in ks]
        yield (
            str(row["rounds"]),
            *(f"{row[k]:.1f}" for k in ks),
            *("" if gain is None else _interval(gain) for gain in less),
        )


def holds(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Resident memory after searches, and what kills lost."""
    curve = found["memory"]["MB"]
    yield "searches so far", *(f"{int(at):,}" for at in [*curve][3::4])
    yield "resident memory, MB", *(f"{curve[at]:.0f}" for at in [*curve][3::4])


def _interval(gain: Sequence[float]) -> str:
    mean, low, high = gain
    return f"{mean:+z.1f} [{low:+z.1f}, {high:+z.1f}]"


def matrices(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """What the evidence is made of, and how."""
    head, _, *rows = found["matrices"]
    yield from (head, *rows, (f"made by {found['made']}", "", "", ""))


def means(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Recall (%) at k = 10, and at k = 100 with 100 calls: means over all matrices."""
    head, _, *rows = found["means"]["10"]
    large = found["means"]["100"]
    column = large[0].index("100 calls")
    at_100 = {row[0]: row[column] for row in large[2:]}
    yield (*head, "k = 100, 100 calls")
    for row in rows:
        yield (*row, at_100.get(row[0], ""))


def sizes(found: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Milliseconds of a search without its scoring, and recall in %, by the number of items."""
    yield "items", *(f"{row['n']:,}" for row in found)
    for name in found[0]["ms"]:
        yield f"{name}: ms", *(f"{row['ms'][name]:.0f}" for row in found)
    for at, k in enumerate((10, 100)):
        for name in found[0]["recall"]:
            cells = (f"{100 * row['recall'][name][at]:.0f}" for row in found)
            yield f"{name}: recall at {k}", *cells


TABLES: Sequence[tuple[str, Callable[..., Iterator[Sequence[str]]]]] = (
    ("agreement.json", agreement),
    *(("reach.json", made) for made in (answers, gains, verdicts)),
    ("reach_change.json", changes),
    ("scale.json", scale),
    ("pool.json", pool),
    *(("alternatives.json", made) for made in (alternatives, gained, shares, lost)),
    *(("load.json", made) for made in (loads, holds)),
    ("rounds.json", rounds),
    *(("auto.json", made) for made in (beside, halves, errors)),
    ("overhead.json", before),
    ("sizes.json", sizes),
    ("unseen.json", unseen),
    ("promise.json", promises),
    ("learning.json", learned),
    ("bundled_models.json", bundled),
    *(("evidence.json", made) for made in (matrices, means)),
)
"""Results that a table is made of, and what makes its rows. The table stands on one page, between
two comments of that function's name."""


def markdown(cells: Iterable[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    head, *rows = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *rows])


def pages() -> dict[Path, str]:
    """The pages as they should be, with the tables of today's results."""
    made = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    for result, rows_of in TABLES:
        table = markdown(rows_of(json.loads((ROOT / "benchmarks/results" / result).read_text())))
        marker = f"<!-- {rows_of.__name__} -->"
        on = [path for path, text in made.items() if marker in text]
        if len(on) != 1 or made[on[0]].count(marker) != 2:
            raise SystemExit(f"one page must have {marker} before and after a table, not {on}")
        between = f"{marker}\n\n{table}\n\n{marker}"
        made[on[0]] = re.sub(f"(?s){marker}.*{marker}", lambda _, new=between: new, made[on[0]])
    return made


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
