"""What of the nearest items an approximate index finds, by its kind, and in which time.

    python lab/benchmarks/codes.py INDEX WORDNET MEDQUAD

INDEX is that of lab/benchmarks/wide.py: 112,332 real items, thirty queries. The candidates of each
kind are rescored by their vectors: four for each item asked and fifty more by four-bit codes, two
and fifty by the others. One thread: set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import faiss
import numpy as np
from wide import queries_of

import crossknn as ck
from crossknn.types import Queries

IP = faiss.METRIC_INNER_PRODUCT
EIGHT = faiss.ScalarQuantizer.QT_8bit


def lists(count: int):
    return faiss.SearchParametersIVF(nprobe=count)


def kinds(d: int):
    """Name, an empty index, its surplus of candidates, and the settings of its searches."""
    four = faiss.IndexIVFPQFastScan(faiss.IndexFlatIP(d), d, 1340, d // 2, 4, IP)
    yield "four bits, 1,340 lists", four, 4, {p: lists(p) for p in (64, 128, 256, 512)}
    eight = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(d), d, 335, EIGHT, IP)
    yield "eight bits, 335 lists", eight, 2, {p: lists(p) for p in (16, 32, 64)}
    graph = faiss.IndexHNSWSQ(d, EIGHT, 32, IP)
    graph.hnsw.efConstruction = 80
    steps = {e: faiss.SearchParametersHNSW(efSearch=e) for e in (128, 256, 512)}
    yield "graph, eight bits", graph, 2, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("index", "wordnet", "medquad"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    index = ck.ItemIndex.load(options.index)
    items = np.asarray(index.vectors["dense"], np.float32)
    asked = index.query_vectors(Queries(queries_of(options.wordnet, options.medquad)), "dense")
    truth = np.argsort(-(asked @ items.T), axis=1)[:, :100]
    for name, made, surplus, settings in kinds(items.shape[1]):
        began = time.perf_counter()
        made.train(items[::2])
        made.add(items)
        print(f"{name}: built in {time.perf_counter() - began:.1f} s")
        for value, parameters in settings.items():
            for count in (10, 100):
                shares, began = [], time.perf_counter()
                for q, vector in enumerate(asked):
                    found = made.search(vector[None], surplus * count + 50, params=parameters)[1][0]
                    found = found[found >= 0]
                    best = found[np.argsort(-(items[found] @ vector))[:count]]
                    shares.append(np.isin(truth[q, :count], best).mean())
                spent = 1000 * (time.perf_counter() - began) / len(asked)
                print(f"  {value}: {100 * np.mean(shares):.1f}% of {count} in {spent:.2f} ms")


if __name__ == "__main__":
    main()
