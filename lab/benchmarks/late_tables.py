"""The sections of docs/results.md and docs/performance.md on CMC and its rivals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markdown_table import table

from crossknn.evaluation.measures import bootstrap
from crossknn_lab.plots import Curve, curves, styles_of

KINDS = {
    "cmc": "CMC",
    "poly": "Poly-encoder",
    "som": "Sum-of-max",
    "mixencoder": "MixEncoder",
    "deformer": "Deformer",
}
CHANGES = {
    "cmc": "CMC",
    "cmc-reference": "the reference's skip (half of each)",
    "cmc-no-skip": "without the extra skip",
    "cmc-no-kl": "without KL",
    "cmc-kl-turned": "KL(retriever \\|\\| model), as the reference",
    "cmc-fixed": "fixed negatives",
    "cmc-uniform": "uniform sampling, as the reference",
}
AT = (1, 4, 8, 16, 32, 64)
FULL = "512"


def section(found: dict[str, Any]) -> list[str]:
    domains = {name: part for name, part in found.items() if name != "training"}
    lines = [
        "## CMC and its rivals",
        "",
        "Late-interaction models over the candidates of an off-the-shelf dual encoder (all-MiniLM-L6-v2),",
        "the retriever. All learn alike: lists of 64 candidates, half of them the retriever's best and half",
        "drawn by its scores from 1,024, batches of 8 queries, the learning rate (1e-4 or 3e-4) that was",
        "best on dev for the first seed, the better of two checkpoints on dev. No GPU: the item tower stays as",
        "it was, the query tower and the head learn. Means and standard deviations over seeds, in percent.",
        "Made by `lab/benchmarks/train_late.py` and `lab/benchmarks/late.py`. Rows are the paper's CMC but for what",
        "their names say ([the paper and its code](late-interaction.md#the-paper-and-its-authors-code)).",
        "",
        "On the `wordnet` domains they begin with the dual encoder that was trained on the same train domains",
        "(`own` in the tables, by itself); on medquad with the retriever's encoder, which saw none of it.",
        "There all read 128 tokens of an item. The paper's third start, weights without a task (vanilla BERT,",
        "table 4), is not on the machine these figures come from.",
        "",
        *asked(domains),
        *missing(domains),
        *projection(found["training"]),
        *training(found["training"]),
    ]
    for name, part in domains.items():
        lines += [
            f"### {name}",
            "",
            *recalls(part),
            *reranking(part),
            *final(part),
            *ablation(part),
        ]
    return lines


def asked(domains: dict[str, Any]) -> list[str]:
    """The two questions of issue and paper, answered by the figures below."""
    above, lines = [], []
    for name, part in domains.items():
        seeds = part["models"]["cmc"].values()
        means = np.mean([seed["recall"][FULL] for seed in seeds], axis=0)
        above.append(bool((means > np.array(part["stages"]["retriever"])).all()))
        base = np.array(part["cross-encoder"]["64"]["right"])
        right = np.array([seed["cross-encoder"]["16"]["right"] for seed in seeds])
        apart = bootstrap((right - base).mean(0) * 100)
        lines.append(
            f"- {name}: the cross-encoder over CMC's 16 is right for {percent(right)}%, over the retriever's "
            f"64 for {percent(base)}% ({apart.mean:+.1f} [{apart.low:+.1f}, {apart.high:+.1f}])."
        )
    count = f"{sum(above)} of {len(above)}"
    return [
        f"CMC over 512 is above the retriever at every k on {count} sets. For a quarter of the calls:",
        "",
        *lines,
        "",
    ]


def missing(domains: dict[str, Any]) -> list[str]:
    """Rivals without a row."""
    gone = [
        f"{label} ({', '.join(without)})"
        for kind, label in KINDS.items()
        if (without := [name for name, part in domains.items() if kind not in part["models"]])
    ]
    if not gone:
        return []
    return [
        f"Not trained: {', '.join(gone)}.",
        "Both read the states of all tokens; the Deformer runs its upper layers for each pair, which takes",
        "eight seconds a step on one core, more than an hour a run.",
        "",
    ]


def projection(found: dict[str, Any]) -> list[str]:
    """A note on runs of Sum-of-max that say nothing of options: they are from before it kept states
    as they are."""
    runs = [run for models in found.values() for name, run in models.items() if name[:4] == "som-"]
    if all("options" in run for run in runs):
        return []
    return [
        "The Sum-of-max of these tables projects tokens to 128 dimensions (`projected = true`), the default when",
        "they were made; now it compares the states of the encoder themselves.",
        "",
    ]


def training(found: dict[str, Any]) -> list[str]:
    """What each model was trained with, and its dev measure."""
    rows = []
    for name, models in found.items():
        kinds = dict.fromkeys(folder.rsplit("-", 1)[0] for folder in models)
        for kind in kinds:
            seeds = [models[folder] for folder in models if folder.rsplit("-", 1)[0] == kind]
            first = seeds[0]
            mrr = spread(seed["mrr"] for seed in seeds)
            pace = min(seed["seconds_a_step"] for seed in seeds)
            rate = f"{first['rate']:g}"
            rows.append([name, kind, len(seeds), first["steps"], rate, mrr, f"{pace:.2f}"])
    head = ["trained on", "model", "seeds", "steps", "learning rate", "MRR on dev"]
    return table([*head, "seconds a step"], rows)


def recalls(part: dict[str, Any]) -> list[str]:
    """R@k of the retriever, of every model over its 512, and of CMC by depth (tables 1 and 8)."""
    shown = {"retriever": "first"}
    if has_own(part):
        shown["own dual encoder over 512"] = "own over first"
        shown["own dual encoder over all items"] = "own"
    rows = [
        [label, "", *(f"{100 * value:.1f}" for value in part["stages"][stage])]
        for label, stage in shown.items()
    ]
    for name, label in KINDS.items():
        depths = list(part["models"]["cmc"]["0"]["recall"]) if name == "cmc" else [FULL]
        for depth in depths:
            seeds = part["models"].get(name, {})
            if seeds:
                values = [seed["recall"][depth] for seed in seeds.values()]
                cells = [spread(column) for column in zip(*values, strict=True)]
                rows.append([f"{label} over {depth}", len(seeds), *cells])
    return [
        f"{part['queries']} queries; R@k over the retriever's candidates (CMC, tables 1 and 8).",
        "",
        *table(["", "seeds", *(f"R@{k}" for k in AT)], rows),
    ]


def reranking(part: dict[str, Any]) -> list[str]:
    """Accuracy of the cross-encoder over candidates (tables 2 and 13)."""
    plain = part["cross-encoder"]
    base = np.array(plain["64"]["right"])
    rows = [compared(f"retriever's {kept}", kept, [values], base) for kept, values in plain.items()]
    for name, label in KINDS.items():
        seeds = part["models"].get(name, {})
        for kept in ("16", "64"):
            if seeds:
                values = [seed["cross-encoder"][kept] for seed in seeds.values()]
                of = f"{label}'s {kept} of {part['depth']}"
                rows.append(compared(of, kept, values, base))
    return [
        "Accuracy of the cross-encoder over fewer, better candidates (CMC, tables 2 and 13); differences to",
        "the retriever's 64 with 95% intervals, over queries and seeds.",
        "",
        *table(["candidates", "cross-encoder calls", "accuracy", "difference", "normalised"], rows),
    ]


def compared(label: str, kept: str, values: list[dict[str, Any]], base: np.ndarray) -> list[str]:
    """Cells of a row: the accuracy, and its difference to queries `base` (m,) that are right."""
    right = np.array([value["right"] for value in values])
    apart = bootstrap((right - base).mean(0) * 100)
    difference = f"{apart.mean:+.1f} [{apart.low:+.1f}, {apart.high:+.1f}]"
    return [
        *(label, kept, spread(right.mean(1)), difference),
        spread(value["normalized"] for value in values),
    ]


def final(part: dict[str, Any]) -> list[str]:
    """As the final reranker, from each start, and over BM25's candidates (tables 3, 4, 11)."""
    lines = [
        "As the final reranker: accuracy over 64 candidates, a missing right item counted as wrong",
        "(CMC, table 3); the same begun with the off-the-shelf encoder (table 4); normalised accuracy over",
        "BM25's 64 (table 11); bytes an index keeps of an item.",
        "",
    ]
    stages, bm25 = part["stages"], part["bm25"]
    exact, first = part["cross-encoder"]["64"]["right"], percent(stages["retriever"][0])
    rows: list[list[str]] = [
        ["cross-encoder", percent(exact), "-", percent(bm25["cross-encoder"]), "-"],
        ["retriever", first, "-", f"{percent(bm25['first'])} (BM25)", "768"],
    ]
    if has_own(part):
        own = percent(stages["own over 64"][0])
        rows.append(["own dual encoder", own, "-", percent(bm25["own"]), "768"])
    for name, label in KINDS.items():
        seeds, out = (part["models"].get(n, {}) for n in (name, f"{name}-out"))
        if seeds:
            kept = next(iter(seeds.values()))["bytes_per_item"]
            cells = [over(begun, lambda s: s["recall"]["64"][0]) for begun in (seeds, out)]
            rows.append([label, *cells, over(seeds, lambda s: s["bm25"]), f"{kept:,.0f}"])
    head = ["", "accuracy", "begun off the shelf", "over BM25's, normalised", "bytes per item"]
    return lines + table(head, rows)


def ablation(part: dict[str, Any]) -> list[str]:
    """Normalised accuracy over 64 candidates (table 12)."""
    if "cmc-no-skip" not in part["models"]:
        return []
    rows = [
        [label, len(seeds), *(over(seeds, lambda s, by=by: s[by]) for by in ("normalized", "bm25"))]
        for name, label in CHANGES.items()
        if (seeds := part["models"].get(name, {}))
    ]
    return [
        "What CMC's parts bring: normalised accuracy over the retriever's 64 and BM25's (CMC, table 12).",
        "",
        *table(["", "seeds", "retriever", "BM25"], rows),
    ]


def has_own(part: dict[str, Any]) -> bool:
    """Whether the models begin with another encoder than the retriever's."""
    return bool(part["stages"]["own"] != part["stages"]["retriever"])


def over(seeds: dict[str, Any], value: Callable[[dict[str, Any]], float]) -> str:
    return spread(value(seed) for seed in seeds.values()) if seeds else "-"


def percent(right: Any) -> str:
    return f"{100 * np.mean(right):.1f}"


def spread(values: Any) -> str:
    """Mean and standard deviation in percent."""
    found = 100 * np.array(list(values))
    return f"{found.mean():.1f}" + (f" ± {found.std(ddof=1):.1f}" if len(found) > 1 else "")


def equal_section(found: dict[str, Any]) -> list[str]:
    """CMC beside the adaptive methods (from late_equal.json)."""
    parts = found["parts"]
    lines = [
        "## CMC beside the adaptive methods",
        "",
        f"`noun.act`, {found['queries']} mentions, scores of the [EMB]-CE trained here: recall (%) of exact search",
        "at the same number of cross-encoder calls, linking accuracy, and milliseconds of a query on",
        f"{found['threads']} cores. `dense` is the off-the-shelf dual encoder, `cmc` compares its first 512; AXN searches the",
        f"vectors of `dense`. A pair takes {parts['pair']:.2f} ms, CMC {parts['cmc']:.1f} ms a query, the retriever "
        f"{parts['encode'] + parts['retriever']:.1f} ms. ADACUR",
        "reads 100 anchor queries. Made by `lab/benchmarks/late_equal.py`.",
        "",
    ]
    rows = []
    for row in sorted(found["rows"], key=lambda row: row["calls"]):
        cells = [
            f"{100 * row['recall'][k][0]:.1f}" if k in row["recall"] else "-"
            for k in ("1", "10", "100")
        ]
        took, right = f"{row['milliseconds']:.0f}", f"{100 * row['accuracy']:.1f}"
        rows.append([row["method"], row["calls"], took, *cells, right])
    return lines + table(["method", "calls", "ms", "k = 1", "k = 10", "k = 100", "accuracy"], rows)


def speed_section(found: dict[str, Any]) -> list[str]:
    """Milliseconds by candidates and of pipelines (from late_speed.json)."""
    took, work = found["milliseconds"], found["gigaflops"]
    base = took["64 of the retriever"]
    lines = [
        "## CMC and the cross-encoder by the number of candidates",
        "",
        f"medquad's long texts ({found['tokens_per_pair']:.0f} tokens a pair), one query at a time, {found['threads']} cores; medians "
        f"of {found['queries']} queries in",
        f"one run. CMC (two layers, 384 dimensions, float32) and the cross-encoder ({found['scorer']}) both",
        "run as ONNX; billions of operations are counted, not measured (CMC, figure 4). Items beyond the first",
        "2,048 are copies, which take as long. Made by `lab/benchmarks/late_speed.py`.",
        "",
    ]
    rows = []
    for count in sorted({int(name.split()[1]) for name in work}):
        cells = [
            f"{values[f'{who} {count}']:,.1f}" if f"{who} {count}" in values else "-"
            for who in ("cmc", "cross-encoder")
            for values in (took, work)
        ]
        rows.append([f"{count:,}", *cells])
    head = ["CMC, ms", "CMC, billions", "cross-encoder, ms", "cross-encoder, billions"]
    times = took["cross-encoder 64"] / (took["query of cmc"] + took["cmc 64"])
    lines += [
        *table(["candidates", *head], rows),
        f"As the final reranker over 64 candidates CMC, its query included, is {times:.0f} times as fast as the",
        "cross-encoder, and keeps one vector of 768 bytes per item.",
        "",
        f"The retriever takes {took['retriever']:.1f} ms, CMC's query {took['query of cmc']:.1f} ms. Whole searches (CMC, tables 2 and 3):",
        "",
    ]
    whole = [
        [f"cross-encoder over {name}", f"{ms:.0f}", f"{100 * ms / base:.0f}%"]
        for name, ms in took.items()
        if " of " in name and name != "query of cmc"
    ]
    lines += table(["search", "ms", "of the retriever's 64"], whole)
    return [*lines, "![Milliseconds against candidates](images/late-speed.png)", ""]


def speed_picture(found: dict[str, Any], path: Path) -> None:
    labels = {"cmc": "CMC, all candidates together", "cross-encoder": "cross-encoder"}
    lines = []
    for who in labels:
        points = sorted(
            (int(name.split()[1]), ms)
            for name, ms in found["milliseconds"].items()
            if name.startswith(f"{who} ")
        )
        x, y = zip(*points, strict=True)
        lines.append(Curve(name=who, x=x, y=y))
    curves(
        {"": lines},
        path,
        title="medquad, one query at a time",
        x_label="candidates",
        y_label=f"milliseconds a query ({found['threads']} cores)",
        log_y=True,
        percent=False,
        labels=labels,
        styles={"cross-encoder": styles_of(["rerank"])["rerank"]},
    )
