"""Measure the bundled models on tests that never trained them; writes one JSON file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np
from numpy.typing import NDArray

from crossknn.data.docstrings import collect_standard_library
from crossknn.data.reading import read_labelled
from crossknn.scorers.onnx import OnnxCrossEncoder, OnnxDualEncoder
from crossknn.types import Pairs

SEED = 13
CANDIDATES = 100


def bm25_top(items: Sequence[str], queries: Sequence[str], count: int) -> NDArray[np.int64]:
    """bm25s with its defaults (lucene, English stop words): positions, (m, count)."""
    retriever = bm25s.BM25()
    retriever.index(
        bm25s.tokenize(list(items), stopwords="en", show_progress=False), show_progress=False
    )
    tokens = bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)
    ids, _ = retriever.retrieve(tokens, k=min(count, len(items)), show_progress=False)
    return np.asarray(ids, dtype=np.int64)


def dense_top(
    items: NDArray[np.float32], queries: NDArray[np.float32], count: int
) -> NDArray[np.int64]:
    """Positions of the largest inner products, best first: (n, d), (m, d) -> (m, count)."""
    return np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :count]


def fuse(*rankings: NDArray[np.int64], count: int, k: int = 60) -> list[list[int]]:
    """Reciprocal rank fusion of rankings (m, c) each: the best `count` positions per query."""
    fused = []
    for rows in zip(*rankings, strict=True):
        scores: dict[int, float] = {}
        for row in rows:
            for rank, item in enumerate(row.tolist(), start=1):
                scores[item] = scores.get(item, 0.0) + 1 / (k + rank)
        fused.append(sorted(scores, key=lambda item: (-scores[item], item))[:count])
    return fused


def ndcg(ranked: Sequence[object], relevant: set, k: int = 10) -> float:
    """Binary nDCG@k of one ranking."""
    gain = sum(1 / np.log2(rank + 2) for rank, item in enumerate(ranked[:k]) if item in relevant)
    ideal = sum(1 / np.log2(rank + 2) for rank in range(min(k, len(relevant))))
    return float(gain / ideal) if ideal else 0.0


def scores_of(
    cross: OnnxCrossEncoder,
    queries: list[str],
    items: list[str],
    query: NDArray[np.int64],
    item: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Scores of p pairs given by positions: (p,)."""
    out = np.zeros(len(query), dtype=np.float32)
    for positions, scores in cross.score(Pairs(query, item), queries, items):
        out[positions] = scores
    return out


def bootstrap(differences: NDArray[np.float64], draws: int = 10_000) -> list[float]:
    """95% interval of the mean of paired differences."""
    generator = np.random.default_rng(SEED)
    means = differences[generator.integers(0, len(differences), (draws, len(differences)))].mean(
        axis=1
    )
    return [round(float(value), 4) for value in np.quantile(means, [0.025, 0.975])]


def measure(
    name: str,
    items: list[str],
    queries: list[str],
    relevant: list[set[int]],
    cross: OnnxCrossEncoder,
    dual: OnnxDualEncoder,
    exact: int,
) -> dict[str, object]:
    """nDCG@10 and how often a relevant item is first, of every ranking; `exact` queries are also
    ranked over all items."""
    start = time.time()
    sparse = bm25_top(items, queries, CANDIDATES)
    dense = dense_top(dual.encode_items(items), dual.encode_queries(queries), CANDIDATES)
    hybrid = fuse(sparse, dense, count=CANDIDATES)
    pair_query = np.concatenate([np.full(len(row), q) for q, row in enumerate(hybrid)])
    scores = scores_of(cross, queries, items, pair_query, np.concatenate(hybrid))
    reranked, place = [], 0
    for row in hybrid:
        order = np.argsort(-scores[place : place + len(row)], kind="stable")
        reranked.append([row[o] for o in order])
        place += len(row)
    rankings = {
        "bm25": sparse.tolist(),
        "dual encoder": dense.tolist(),
        "hybrid": hybrid,
        "cross-encoder": reranked,
    }
    values = {
        who: np.array([ndcg(r, s) for r, s in zip(rows, relevant, strict=True)])
        for who, rows in rankings.items()
    }
    result: dict[str, object] = {
        "items": len(items),
        "queries": len(queries),
        "score_spread": round(float(scores.std()), 2),
    }
    for who, rows in rankings.items():
        first = np.mean([row[0] in right for row, right in zip(rows, relevant, strict=True)])
        result[who] = {
            "ndcg@10": round(float(values[who].mean()), 4),
            "first_right": round(float(first), 4),
        }
    found = [
        len(right & set(row)) / len(right) for row, right in zip(hybrid, relevant, strict=True)
    ]
    result["hybrid recall@100"] = round(float(np.mean(found)), 4)
    best = max(("bm25", "dual encoder"), key=lambda who: values[who].mean())
    for other in dict.fromkeys([best, "hybrid"]):
        gain = values["cross-encoder"] - values[other]
        result[f"cross-encoder minus {other}"] = {
            "ndcg@10": round(float(gain.mean()), 4),
            "95%": bootstrap(gain),
        }
    if exact:
        chosen = np.random.default_rng(SEED).permutation(len(queries))[:exact]
        exact_values = []
        for query in chosen:
            everything = scores_of(
                cross, queries, items, np.full(len(items), query), np.arange(len(items))
            )
            exact_values.append(
                ndcg(np.argsort(-everything, kind="stable")[:10].tolist(), relevant[query])
            )
        gain = np.array(exact_values) - values[best][chosen]
        result["exact ranking"] = {
            "queries": len(chosen),
            "cross-encoder ndcg@10": round(float(np.mean(exact_values)), 4),
            "best retriever": best,
            "best retriever ndcg@10": round(float(values[best][chosen].mean()), 4),
            "reranked ndcg@10": round(float(values["cross-encoder"][chosen].mean()), 4),
            "95% of the gain": bootstrap(gain),
        }
    print(name, json.dumps(result), f"{time.time() - start:.0f} s", flush=True)
    return result


def beir(folder: Path, sample: int) -> tuple[list[str], list[str], list[set[int]]]:
    """Texts of a BEIR folder and the queries of its test split, or a sample of them."""
    (part,) = read_labelled(folder, "test")
    place = {name: position for position, name in enumerate(part.queries.ids)}
    names = sorted(place)
    if 0 < sample < len(names):
        names = sorted(np.random.default_rng(SEED).permutation(names)[:sample].tolist())
    rows = [place[name] for name in names]
    return (
        list(part.items.texts),
        [part.queries.texts[row] for row in rows],
        [set(part.positives[row].tolist()) for row in rows],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", type=Path, required=True, help="folder with cross-encoder/ and dual-encoder/"
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--exact", type=int, default=40, help="queries of the Python docs to rank over all items"
    )
    parser.add_argument("--sample", type=int, default=200, help="medquad test queries")
    parser.add_argument(
        "--only", nargs="*", default=["python docs", "scifact test", "medquad test"]
    )
    arguments = parser.parse_args()
    folders = {kind: arguments.models / kind for kind in ("cross-encoder", "dual-encoder")}
    cross = OnnxCrossEncoder(folders["cross-encoder"])
    dual = OnnxDualEncoder(folders["dual-encoder"])
    results: dict[str, object] = {
        kind: json.loads((folder / "crossknn.json").read_text()) for kind, folder in folders.items()
    }
    if "python docs" in arguments.only:
        corpus = collect_standard_library()
        place = {item: position for position, item in enumerate(corpus.items.ids)}
        queries = corpus.queries.ids
        results["python docs"] = measure(
            "python docs",
            list(corpus.items.texts),
            list(corpus.queries.texts),
            [{place[name] for name in corpus.qrels[q]} for q in queries],
            cross,
            dual,
            arguments.exact,
        )
    for name, sample in (("scifact", 0), ("medquad", arguments.sample)):
        if f"{name} test" in arguments.only:
            results[f"{name} test"] = measure(
                name, *beir(arguments.data / name, sample), cross, dual, 0
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
