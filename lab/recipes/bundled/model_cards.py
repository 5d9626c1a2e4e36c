"""Write the README.md of each bundled folder from the measured figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HERE = Path(__file__).parent

RELEASED = {
    "made": """The released weights were made with earlier scripts, which are in the history of the
repository (`training/` at commit 1c46b4a4cd98). The recipe now is `lab/recipes/bundled/README.md`; no
figure above was measured on models made by it.""",
    "inside": """ After training the late term and
the states carry the score; the weights of the word-match channels ended near zero.""",
    "negatives": "(BM25 and the teacher, fused)",
    "cross-encoder": """8,000 queries once, eight a step (the first 1,600 sixteen a step), AdamW,
bfloat16 on two CPU cores in about 40 minutes""",
    "dual-encoder": """520 steps of 96 texts, AdamW, bfloat16 on two CPU
cores in about 20 minutes""",
}
RECIPE = {
    "made": "How to make it again: `lab/recipes/bundled/README.md` in the repository.",
    "inside": "",
    "negatives": "(the teacher's nearest)",
    "cross-encoder": "1,000 steps of eight queries, AdamW",
    "dual-encoder": "520 steps of 32 queries, AdamW",
}
RANKINGS = ("bm25", "dual encoder", "hybrid", "cross-encoder")


def table(results: dict) -> str:
    """Measured quality as Markdown."""
    lines = [
        "\n## Measured quality\n",
        "nDCG@10; in brackets how often a relevant item comes first.\n",
        "| test | BM25 | dual encoder | hybrid | cross-encoder | gain (95%) |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("python docs", "scifact test", "medquad test"):
        if name not in results:
            continue
        row = results[name]
        cells = [f"{row[who]['ndcg@10']:.3f} ({row[who]['first_right']:.2f})" for who in RANKINGS]
        gains = [key for key in row if key.startswith("cross-encoder minus")]
        gain = row[next(key for key in gains if not key.endswith("hybrid"))]
        cells.append("{:+.3f} ({:+.3f} to {:+.3f})".format(gain["ndcg@10"], *gain["95%"]))
        size = f"{row['queries']} queries, {row['items']:,} items"
        lines.append(f"| {name}, {size} | " + " | ".join(cells) + " |")
    lines.append((HERE / "card-note.md").read_text())
    exact = results.get("python docs", {}).get("exact ranking")
    if exact:
        lines.append(
            "Ranking all items of the Python docs exactly ({queries} queries): {exact:.3f}, "
            "against {reranked:.3f}\nreranked and {best:.3f} for the better of BM25 and the dual "
            "encoder (interval of the gain {low:+.3f} to {high:+.3f}).".format(
                queries=exact["queries"],
                exact=exact["cross-encoder ndcg@10"],
                reranked=exact["reranked ndcg@10"],
                best=exact["best retriever ndcg@10"],
                low=exact["95% of the gain"][0],
                high=exact["95% of the gain"][1],
            )
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument(
        "--recipe", action="store_true", help="these are not the released models: the recipe's own"
    )
    arguments = parser.parse_args()
    made = RECIPE if arguments.recipe else RELEASED
    shared = (HERE / "card-shared.md").read_text().replace("{made}", made["made"])
    results = json.loads(arguments.results.read_text())
    for kind in ("cross-encoder", "dual-encoder"):
        text = (HERE / f"card-{kind}.md").read_text()
        folder = arguments.models / kind
        settings = json.loads((folder / "crossknn.json").read_text())
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        card = text.format(
            name=settings["name"],
            revision=settings["revision"],
            size=size,
            training=made[kind],
            negatives=made["negatives"],
            inside=made["inside"],
        )
        (folder / "README.md").write_text(card + table(results) + shared, encoding="utf-8")


if __name__ == "__main__":
    main()
