"""Measure the bundled models on tests that never trained them; writes one JSON file."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from common import SEED, bm25_top, dense_top, fuse, ndcg, read_jsonl
from numpy.typing import NDArray
from onnx_folder import OnnxFolder

from crossknn.data.docstrings import collect_standard_library

CANDIDATES = 100


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
    cross: OnnxFolder,
    dual: OnnxFolder,
    exact: int,
) -> dict[str, object]:
    """nDCG@10 and how often a relevant item is first, of every ranking; `exact` queries are also
    ranked over all items."""
    start = time.time()
    sparse, _ = bm25_top(items, queries, CANDIDATES)
    dense = dense_top(dual.vectors(items), dual.vectors(queries), CANDIDATES)
    hybrid = fuse(sparse, dense, count=CANDIDATES)
    item_ids, query_ids = cross.ids(items), cross.ids(queries)
    pair_query = np.concatenate([np.full(len(row), q) for q, row in enumerate(hybrid)])
    scores = cross.scores(
        query_ids, item_ids, pair_query, np.concatenate([np.array(row) for row in hybrid])
    )
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
            everything = cross.scores(
                query_ids, item_ids, np.full(len(items), query), np.arange(len(items))
            )
            exact_values.append(
                ndcg(np.argsort(-everything, kind="stable")[:10].tolist(), relevant[query])
            )
        gain = np.array(exact_values) - values[best][chosen]
        result["exact ranking"] = {
            "queries": len(chosen),
            "cross-encoder ndcg@10": round(float(np.mean(exact_values)), 4),
            "best first stage": best,
            "best first stage ndcg@10": round(float(values[best][chosen].mean()), 4),
            "reranked ndcg@10": round(float(values["cross-encoder"][chosen].mean()), 4),
            "95% of the gain": bootstrap(gain),
        }
    print(name, json.dumps(result), f"{time.time() - start:.0f} s", flush=True)
    return result


def beir(folder: Path, sample: int) -> tuple[list[str], list[str], list[set[int]]]:
    """Texts of a BEIR folder and the queries of its test split, or a sample of them."""
    rows = list(read_jsonl(folder / "corpus.jsonl"))
    place = {row["_id"]: position for position, row in enumerate(rows)}
    texts = {row["_id"]: row["text"] for row in read_jsonl(folder / "queries.jsonl")}
    relevant: dict[str, set[int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, item, score = line.split("\t")
        if int(score) > 0:
            relevant.setdefault(query, set()).add(place[item])
    names = sorted(relevant)
    if 0 < sample < len(names):
        names = sorted(np.random.default_rng(SEED).permutation(names)[:sample].tolist())
    items = [f"{row['title']} {row['text']}".strip() for row in rows]
    return items, [texts[name] for name in names], [relevant[name] for name in names]


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
    cross, dual = (
        OnnxFolder(arguments.models / kind) for kind in ("cross-encoder", "dual-encoder")
    )
    results: dict[str, object] = {"cross-encoder": cross.settings, "dual-encoder": dual.settings}
    if "python docs" in arguments.only:
        corpus = collect_standard_library()
        place = {item.name: position for position, item in enumerate(corpus.items)}
        queries = list(corpus.queries)
        results["python docs"] = measure(
            "python docs",
            [item.item_text for item in corpus.items],
            [corpus.queries[q] for q in queries],
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
