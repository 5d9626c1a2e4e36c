"""Milliseconds of CMC and of the cross-encoder by the number of candidates (CMC, figure 4, tables 2 and 3).

    python lab/benchmarks/late_speed.py DATA ENCODER OUT        # without the folder DATA: print OUT as a table

DATA is a set of long texts, ENCODER the dual encoder that retrieves and in which CMC begins: its weights do not matter
here, so that it is not trained. Queries are answered one at a time, by the bundled cross-encoder and by CMC as an ONNX
model; OUT (JSON) gets medians. The first 2,048 items are encoded; of more candidates, the others are copies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import crossknn as ck
from crossknn.linalg import top_k
from crossknn.types import IntArray, Pairs, States
from crossknn_train.export import export_model
from crossknn_train.models.late import LateInteractionConfig, LateInteractionModel
from crossknn_train.reading import read_labelled

COMPARED, SCORED = tuple(2**power for power in range(4, 15)), (1, 4, 16, 64)
SEARCHES = ((64, 0), (16, 0), (16, 512), (64, 512))
"""Cross-encoder calls, and the number of candidates that CMC ranks before."""
QUERIES, ITEMS, SLOW, FEW = 12, 2048, 1024, 3
"""Above `SLOW` candidates, `FEW` queries are enough."""


def measured(data: Path, encoder: str) -> dict[str, float]:
    """Return milliseconds by what was done."""
    (corpus,) = read_labelled(data, "test")
    texts = corpus.sample(QUERIES, 1).queries.texts
    items = list(corpus.items.texts[:ITEMS])
    with TemporaryDirectory() as folder:
        LateInteractionModel.new(encoder, LateInteractionConfig(head="cmc")).save_pretrained(
            f"{folder}/cmc"
        )
        kind = "late-interaction"
        cmc = ck.LateInteraction(export_model(f"{folder}/cmc", f"{folder}/onnx", kind=kind))
        retriever, scorer = ck.DualEncoder(encoder), ck.CrossEncoder()
        vectors, encoded = retriever.encode_items(items), cmc.encode_items(items)
        copies = -(-COMPARED[-1] // len(items))
        states = States(np.tile(encoded.values, (copies, 1)), np.arange(copies * len(items) + 1))
        took = defaultdict(list)

        def timed(name: str, work: Callable[[], object]) -> None:
            began = time.perf_counter()
            work()
            took[name].append(1000 * (time.perf_counter() - began))

        def found(text: str, count: int) -> IntArray:
            best = top_k(retriever.encode_queries([text]) @ vectors.T, min(count, ITEMS)).items
            more = -(-count // ITEMS)
            return np.hstack([best + copy * ITEMS for copy in range(more)])[:, :count]

        def score(text: str, chosen: IntArray) -> None:
            for _ in scorer.score(Pairs(np.zeros_like(chosen), chosen), [text], items):
                pass

        def search(text: str, calls: int, depth: int) -> None:
            lists = found(text, depth or calls)
            if depth:
                order = np.argsort(-cmc.compare(cmc.encode_queries([text]), states, lists))
                lists = np.take_along_axis(lists, order, axis=1)
            score(text, lists[0, :calls])

        for place, text in enumerate(texts):
            query = cmc.encode_queries([text])
            timed("retriever", lambda text=text: found(text, 512))
            timed("query of CMC", lambda text=text: cmc.encode_queries([text]))
            for count in COMPARED:
                if count <= SLOW or place < FEW:
                    lists = found(text, count)
                    timed(f"CMC {count}", lambda q=query, of=lists: cmc.compare(q, states, of))
            for count in SCORED:
                chosen = found(text, count)[0]
                timed(f"cross-encoder {count}", lambda t=text, of=chosen: score(t, of))
            for calls, depth in SEARCHES:
                name = f"search: {calls} of CMC's {depth}" if depth else f"search: {calls}"
                timed(name, lambda t=text, c=calls, d=depth: search(t, c, d))
    return {name: round(float(np.median(ms)), 2) for name, ms in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    if options.data.is_dir():
        ms = measured(options.data, options.encoder)
        options.out.write_text(json.dumps(ms, indent=1) + "\n")
    for name, value in json.loads(options.out.read_text()).items():
        print(f"| {name} | {value:,.1f} |")


if __name__ == "__main__":
    main()
