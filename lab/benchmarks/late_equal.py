"""CMC beside the adaptive methods at equal cross-encoder calls, and what each costs in time: on a
stored score matrix of `noun.act`, whose mentions and items CMC reads.

    python lab/benchmarks/late_equal.py benchmarks/data/wordnet-act-emb.npz --data wordnet \
        --retriever MiniLM --cmc MODEL --scorer CE

The retriever is the off-the-shelf dual encoder's; AXN searches its vectors. Milliseconds of a
query are those of its parts, each a median: encoding it, the retriever, CMC over 512 (ONNX), the
method without scoring, and calls times the milliseconds of a pair (64 pairs at once).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from crossknn.data.marks import unmarked
from crossknn.data.reading import read_labelled
from crossknn.evaluation.measures import bootstrap, exact_top, recall
from crossknn.evaluation.replay import answer
from crossknn.index.stored import StoredMatrix
from crossknn.methods import methods
from crossknn.models.export import export_model
from crossknn.retrievers.base import DenseRetriever
from crossknn.retrievers.late import LateRetriever
from crossknn.scorers import CrossEncoder, DualEncoder, open_late
from crossknn.types import Pairs, Queries

METHODS = """
rerank(retriever=dense)
rerank(retriever=cmc)
axn(retriever=dense, rounds=5, blend=0.5)
axn(retriever=cmc, rounds=5, blend=0.5)
axn(retriever=dense, rounds=5, ridge=0.3)
axn(retriever=cmc, rounds=5, ridge=0.3)
adacur(retriever=dense, rounds=5)
adacur(retriever=cmc, rounds=5)
"""
BUDGETS, KS = (16, 32, 64, 128, 256), (1, 10, 100)
DEPTH, TIMED, AT_ONCE = 512, 8, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrix", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--retriever", required=True)
    parser.add_argument("--cmc", required=True)
    parser.add_argument("--scorer", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / "benchmarks/results/late_equal.json"
    )
    options = parser.parse_args()
    stored = StoredMatrix.load(options.matrix)
    (corpus,) = read_labelled(options.data, domains=["noun.act"])
    with np.load(options.matrix) as file:
        place = {item: i for i, item in enumerate(corpus.items.ids)}
        items = [corpus.items.texts[place[str(item)]] for item in file["item_ids"]]
    text = dict(zip(corpus.queries.ids, corpus.queries.texts, strict=True))
    texts = [text[query] for query in stored.query_ids]
    encoder = DualEncoder(options.first)
    vectors = encoder.encode_items([unmarked(item) for item in items])
    asked = encoder.encode_queries([unmarked(query) for query in texts])
    with TemporaryDirectory() as folder:
        cmc = open_late(
            export_model(options.cmc, folder, "late-interaction"), threads=options.threads
        )
        states = cmc.encode_items(items)
        scorer = CrossEncoder(options.scorer, threads=options.threads)

        def stage_of(rows: slice) -> DenseRetriever:
            return DenseRetriever(vectors, lambda queries: asked[rows])

        late = LateRetriever(stage_of(slice(None)), cmc, states, DEPTH).scores(Queries(texts))
        matrix = replace(
            stored,
            item_vectors=vectors,
            query_vectors=asked,
            firsts={**stored.firsts, "cmc": late},
        )
        parts = {
            "encode": median(lambda q: encoder.encode_queries([unmarked(texts[q])])),
            "retriever": median(lambda q: stage_of(slice(q, q + 1)).top(Queries(["q"]), DEPTH)),
        }

        def compared(query: int) -> None:
            listed = stage_of(slice(query, query + 1)).top(Queries(["q"]), DEPTH).items
            cmc.compare(cmc.encode_queries([texts[query]]), states, listed)

        def scored(query: int) -> None:
            best = np.argsort(-late[query])[:AT_ONCE]
            for _ in scorer.score(Pairs(np.full(AT_ONCE, query), best), texts, items):
                pass

        parts["cmc"] = median(compared) - parts["retriever"]
        parts["pair"] = median(scored) / AT_ONCE
    rows = [row(matrix, spec, budget) for spec in methods(METHODS) for budget in BUDGETS]
    for found in rows:
        found["milliseconds"] = round(
            parts["encode"]
            + parts["retriever"]
            + parts["cmc"] * ("first=cmc" in found["method"])
            + found["overhead"]
            + found["calls"] * parts["pair"],
            1,
        )
    result = {"queries": matrix.n_tests, "parts": parts, "rows": rows, "threads": options.threads}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def median(work: Callable[[int], object]) -> float:
    """Milliseconds of `work` on one query."""
    work(0)
    took = []
    for query in range(TIMED):
        began = time.perf_counter()
        work(query)
        took.append(1000 * (time.perf_counter() - began))
    return float(np.median(took))


def row(matrix: StoredMatrix, spec: str, budget: int) -> dict[str, Any]:
    """Recall and linking accuracy of a method, and its own milliseconds for a query."""
    (method,) = methods(spec).values()
    tests = slice(matrix.n_anchors, None)
    options = {"budget": budget, "k": min(max(KS), budget), "seed": 0}
    found = answer(method, *matrix.rows(0, matrix.n_tests), **options)
    assert matrix.labels is not None
    right = found.items[:, 0] == matrix.labels[tests]
    recalls = {}
    for k in KS:
        if k <= budget:
            estimate = bootstrap(recall(found.items[:, :k], exact_top(matrix.scores[tests], k)))
            recalls[str(k)] = [estimate.mean, estimate.low, estimate.high]
    overhead = median(lambda q: answer(method, *matrix.rows(q, q + 1), **options))
    return {
        "method": spec,
        "calls": budget,
        "recall": recalls,
        "accuracy": float(right.mean()),
        "right": right.astype(int).tolist(),
        "overhead": overhead,
    }


if __name__ == "__main__":
    main()
