"""The section of docs/results.md on models trained on `wordnet`, from wordnet_models.json."""

from __future__ import annotations

from typing import Any

from markdown_table import table

NAMES = {
    "emb-de": "[EMB]-CE, dual-encoder negatives",
    "cls-de": "[CLS]-CE, dual-encoder negatives",
    "emb-tfidf": "[EMB]-CE, TF-IDF negatives",
    "cls-tfidf": "[CLS]-CE, TF-IDF negatives",
    "emb-random": "[EMB]-CE, random negatives",
    "cls-random": "[CLS]-CE, random negatives",
    "shared": "the small [EMB]-CE to beat (3 layers)",
    "dual encoder": "the dual encoder itself",
}


def section(found: dict[str, Any]) -> list[str]:
    return [
        "## Cross-encoders trained on wordnet",
        "",
        "Zero-shot linking of marked words to their senses; train, dev and test domains share no item.",
        "A dual encoder (120 steps of 64 mentions) mines the negatives; all cross-encoders have six",
        "layers of 384 dimensions and start from it, with 7 of the 16 nearest wrong senses per mention and",
        "10 mentions a step, without dropout, on CPUs in bfloat16 (minutes are of one core, shared with other",
        "work). Made by `lab/benchmarks/train_wordnet.py` and `lab/benchmarks/evaluate_wordnet.py`; 95% bootstrap",
        "intervals over queries.",
        "",
        *training(found["training"]),
        *accuracy(found),
        *matrices(found["matrices"]),
    ]


def training(found: dict[str, Any]) -> list[str]:
    rows = []
    for name in NAMES:
        if name not in found:
            continue
        dev = found[name]["dev"]
        steps = ", ".join(f"{100 * x['dev']['accuracy']:.1f} ({x['step']})" for x in dev)
        minutes = found[name]["seconds"] / 60
        rows.append([NAMES[name], dev[-1]["step"], f"{minutes:.0f}", steps])
    return table(["model", "steps", "minutes", "accuracy on dev while training"], rows)


def accuracy(found: dict[str, Any]) -> list[str]:
    lines = [
        "### Linking accuracy (ANNCUR, table 3a)",
        "",
        "Mentions whose sense is ranked first among the dual encoder's 64 nearest; a sense that is not",
        "among them counts as wrong. First two domains dev, the others test.",
        "",
    ]
    right = found["accuracy"].get("trained", {})
    order = ("noun.state", "noun.communication", "noun.act", "noun.artifact", "adj.all")
    domains, rows = [domain for domain in order if domain in right], []
    for name, label in NAMES.items():
        if not any(name in right[domain] for domain in domains):
            continue
        cells = [
            f"{percent(right[domain][name]['accuracy'])}, n = {right[domain][name]['n']}"
            if name in right[domain]
            else "-"
            for domain in domains
        ]
        rows.append([label, *cells])
    shares = ", ".join(
        f"{domain} {100 * right[domain]['dual encoder']['at_64']:.1f}%" for domain in domains
    )
    lines += [*table(["model", *domains], rows), f"The right sense is among the 64: {shares}.", ""]
    for kind, gains in found["against_shared"].items():
        parts = ", ".join(f"{domain} {points(gain)}" for domain, gain in gains.items())
        lines += [
            f"Our [EMB]-CE minus the small one, in points, over the {kind} dual encoder's candidates,",
            f"the same mentions: {parts}.",
            "",
        ]
    return lines


def matrices(found: dict[str, Any]) -> list[str]:
    if not found:
        return []
    lines = [
        "### Score matrices of noun.act (ANNCUR, table 3b)",
        "",
        "Rank at NumPy's tolerance of the raw scores; effective rank (exponential entropy of the singular",
        "values) and the number of singular values that hold 90% and 99% of the variance, after each",
        "query's mean is subtracted.",
        "",
    ]
    heads = [name for name in NAMES if name in found]
    kept = ("rank", "effective_rank", "components_90", "components_99")
    ranks = [
        [
            NAMES[name],
            "{} x {:,}".format(*found[name]["shape"]),
            *(found[name][key] for key in kept),
        ]
        for name in heads
    ]
    lines += table(["model", "mentions x items", "rank", "effective rank", "90%", "99%"], ranks)
    lines += [*rounding(found), "### Search with both heads", ""]
    anchors = found[heads[0]]["shape"][0] // 2
    lines += [
        f"Recall (%) of exact search among these {found[heads[0]]['shape'][1]:,} items, k = 10, by calls per query:",
        f"{anchors} mentions are anchor queries, the others test. The dual encoder is the trained one.",
        "",
    ]
    rows = {name: found[name]["recall"] for name in heads}
    budgets = sorted({row["budget"] for row in rows[heads[0]]})
    columns = [f"[{head[:3].upper()}] {budget}" for head in heads for budget in budgets]
    searches = []
    for method in dict.fromkeys(row["method"] for row in rows[heads[0]]):
        cells = []
        for head in heads:
            for budget in budgets:
                (row,) = (
                    r
                    for r in rows[head]
                    if (r["method"], r["budget"], r["k"]) == (method, budget, 10)
                )
                cells.append(percent([row["recall"], *row["ci"]]))
        searches.append([f"`{method}`", *cells])
    return [*lines, *table(["method", *columns], searches), *FIGURES]


FIGURES = [
    "Both matrices are in `benchmarks/data/`. These figures are of `crossknn-lab analyze wordnet-act-emb.npz",
    "wordnet-act-cls.npz --names '[EMB]-CE, [CLS]-CE' --k-q 25,50,100 --k-i 50,100,200,500 --out FOLDER`",
    "(ANNCUR, figures 1b, 6 and 8): recall and error of CUR over anchor queries and items, with a peak of the error",
    "where both are as many, singular values, and scores.",
    "",
    *(
        line
        for name, what in (
            ("recall", "Recall of ANNCUR"),
            ("error", "Error of ANNCUR"),
            ("singular-values", "Singular values of both heads"),
            ("histogram", "Scores of both heads"),
        )
        for line in (f"![{what}](images/heads-{name}.png)", "")
    ),
]


def rounding(found: dict[str, Any]) -> list[str]:
    """What bfloat16 changes."""
    lines = []
    for name, row in found.items():
        if "float32" in row:
            near = row["float32"]
            here, exact = near["effective_rank"]
            lines += [
                f"Scored in bfloat16; of {near['queries']} mentions also in float32, from which {NAMES[name]} is "
                f"{100 * near['rms_over_std']:.1f}% of a",
                f"standard deviation away (Spearman at least {near['spearman_least']:.4f}; effective rank of these "
                f"rows {here:.2f}, in float32 {exact:.2f}).",
                "",
            ]
    return lines


def percent(interval: list[float]) -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def points(interval: list[float]) -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
