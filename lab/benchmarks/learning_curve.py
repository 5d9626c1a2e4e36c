"""How a cold index gets better by being searched: recall after so many searches with `kriging`.

    python lab/benchmarks/learning_curve.py --matrix wordnet-act.npz --data wordnet --domain noun.act \
        --scorer ONNX --bfloat16 --encoder MiniLM --work scratch --out results/learning_curve.json

Train queries that the matrix has no rows of are searched with the real cross-encoder, `--budget`
calls each, and what they leave in the cache is learned after so many (`--after`): the searches that
follow use it. Recall is that of the matrix's test queries. No query is scored against every item;
the matrix's anchors are used only for the row that says so. Resumable: a cache in `--work` keeps
every score; the log itself begins anew.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from domain_matrix import corpus_of, scorer_of, subset

from crossknn.evaluation.replay import replay
from crossknn.fitting.log import VECTORS, fit_from_log
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import StoredMatrix, StoredVectors
from crossknn.methods import methods
from crossknn.scorers import DualEncoder
from crossknn.scores.stored import StoredScorer
from crossknn.search.searcher import Searcher

SEED = 0
AT_ONCE = 25
METHOD = "kriging(retriever=hybrid)"
AXN = "axn(retriever=hybrid, rounds=10, ridge=0.3)"
BESIDE = (AXN, "kriging(retriever=hybrid, anchors=false)", METHOD)
KS = [1, 10, 100]


def stored(index: ItemIndex, data: StoredMatrix) -> StoredVectors:
    """The vectors that the index fitted to its log, for the queries of the matrix."""
    fitted = index.fitted[VECTORS]
    queries = fitted.map(np.asarray(data.query_vectors, np.float32))
    return StoredVectors(fitted.values, queries, fitted.scale)


def recalls(data: StoredMatrix, spec: str, budgets: list[int]) -> dict[str, list[float]]:
    """Recall in percent at `KS` by budget."""
    found = {}
    for budget in budgets:
        rows = replay(data, methods(spec), [budget], KS)
        found[str(budget)] = [round(100 * row.recall, 2) for row in rows]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--domain")
    parser.add_argument("--scorer", default="bundled")
    parser.add_argument("--encoder", default="bundled")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--budgets", default="50,100,200")
    parser.add_argument("--after", default="25,50,100,250,500,1000")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = StoredMatrix.load(options.matrix)
    budgets = [int(b) for b in options.budgets.split(",")]
    after = [int(a) for a in options.after.split(",")]

    corpus = corpus_of(options)
    index = ItemIndex.build(
        subset(corpus.items, corpus.items.positions(data.item_ids)),
        encoder=DualEncoder(options.encoder),
        seed=SEED,
    )
    rng = np.random.default_rng(SEED)
    known = set(data.query_ids)
    mentions = zip(corpus.queries.ids, corpus.queries.texts, strict=True)
    log = [text for name, text in mentions if name not in known]
    log = [log[i] for i in rng.permutation(len(log))[: after[-1]]]
    options.work.mkdir(parents=True, exist_ok=True)
    scored = StoredScorer(scorer_of(options), options.work / f"{options.matrix.stem}.db")
    cached = StoredScorer(scored, index.scores)

    rows = [
        {"searches": 0, "method": spec, "recall": recalls(data, spec, budgets)} for spec in BESIDE
    ]
    searched = 0
    for count in after:
        count = min(count, len(log))
        search = Searcher(index, cached, METHOD)
        for start in range(searched, count, AT_ONCE):
            search.search(log[start : min(start + AT_ONCE, count)], k=10, budget=options.budget)
            print(f"{start} of {count} searches", flush=True)
        searched = count
        began = time.perf_counter()
        learned = fit_from_log(index, cached.fingerprint)
        seconds = time.perf_counter() - began
        row = {
            "searches": count,
            "pairs": learned.pairs,
            "seconds": round(seconds, 1),
        }
        taught = replace(data, artifacts=index.artifacts, fitted={VECTORS: stored(index, data)})
        for spec in (METHOD, AXN):
            rows.append({**row, "method": spec, "recall": recalls(taught, spec, budgets)})
            print(rows[-1], flush=True)
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    found[options.matrix.stem] = {
        "n": data.scores.shape[1],
        "anchors": data.n_anchors,
        "tests": data.n_tests,
        "budget": options.budget,
        "rows": rows,
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
