"""Milliseconds of CMC and of the cross-encoder by the number of candidates (CMC, figure 4).

    python lab/benchmarks/late_speed.py DATA ENCODER OUT        # without the folder DATA: print OUT as a table

DATA is a set of long texts, ENCODER the dual encoder that retrieves and in which CMC begins: its weights do not matter
here, so that it is not trained. Queries are answered one at a time, by the bundled cross-encoder and by CMC as an ONNX
model; OUT (JSON) gets medians. The first 2,048 items are encoded; of more candidates, the others are copies.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import crossknn as ck
from crossknn.linalg import top_k
from crossknn.scorers.opening import LateInteraction
from crossknn.types import IntArray, Pairs, States
from crossknn_train.export import export_model
from crossknn_train.models.late import LateInteractionConfig, LateInteractionModel
from crossknn_train.reading import read_labelled

COMPARED, SCORED = tuple(2**power for power in range(4, 15)), (16, 64)
QUERIES, ITEMS = 12, 2048


def measured(data: Path, encoder: str) -> dict[str, float]:
    """Return milliseconds by what was done."""
    (corpus,) = read_labelled(data, "test")
    texts = corpus.sample(QUERIES, 1).queries.texts
    items = list(corpus.items.texts[:ITEMS])
    with TemporaryDirectory() as folder:
        new = LateInteractionModel.new(encoder, LateInteractionConfig(head="cmc"))
        own = new.save_pretrained(f"{folder}/cmc")
        cmc = LateInteraction(export_model(own, f"{folder}/onnx", kind="late-interaction"))
        retriever, scorer = ck.DualEncoder(encoder), ck.CrossEncoder()
        vectors, encoded = retriever.encode_items(items), cmc.encode_items(items)
        copies = -(-COMPARED[-1] // len(items))
        states = States(np.tile(encoded.values, (copies, 1)), np.arange(copies * len(items) + 1))
        took = defaultdict(list)

        def found(text: str, count: int) -> IntArray:
            best = top_k(retriever.encode_queries([text]) @ vectors.T, min(count, ITEMS)).items
            return np.hstack([best + copy * ITEMS for copy in range(-(-count // ITEMS))])

        def score(text: str, chosen: IntArray) -> None:
            for _ in scorer.score(Pairs(np.zeros_like(chosen), chosen), [text], items):
                pass

        for text in texts:
            query, best = cmc.encode_queries([text]), found(text, COMPARED[-1])
            works: dict[str, Callable[[], object]] = {
                "retriever": partial(found, text, 512),
                "query of CMC": partial(cmc.encode_queries, [text]),
                **{f"CMC {c}": partial(cmc.compare, query, states, best[:, :c]) for c in COMPARED},
                **{f"cross-encoder {c}": partial(score, text, best[0, :c]) for c in SCORED},
            }
            for name, work in works.items():
                began = time.perf_counter()
                work()
                took[name].append(1000 * (time.perf_counter() - began))
    return {name: round(float(np.median(ms)), 2) for name, ms in took.items()}


if __name__ == "__main__":
    data, encoder, out = sys.argv[1:]
    if Path(data).is_dir():
        Path(out).write_text(json.dumps(measured(Path(data), encoder), indent=1) + "\n")
    for name, value in json.loads(Path(out).read_text()).items():
        print(f"| {name} | {value:,.1f} |")
