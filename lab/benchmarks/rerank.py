"""Reranking 1,000 given documents with few calls, beside scoring all of them and beside the first ones.

python lab/benchmarks/rerank.py OUT.json [--queries 200] [--acts MATRIX.npz SOURCES]

Sets: WordNet's nouns for things people make (`ck.sample()`); the documentation of Python's standard library, whose
scores are `benchmarks/data/python-docs.npz`; and WordNet's `noun.act`, of a stored matrix and the folder of sources.
All have every score of a real cross-encoder, so no pair is scored here; seconds are CPU time outside the
cross-encoder, and that of the bundled one's pairs from a probe.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.data.dataset import Dataset
from crossknn.demo import build_corpus, standard_library_items
from crossknn.evaluation.measures import bootstrap
from crossknn.extend import Pairs, open_retriever
from crossknn.linalg import top_k
from crossknn.types import NO_ITEM, FloatArray, IntArray, Queries
from crossknn_lab.reach_tasks import senses
from crossknn_lab.stored import StoredMatrix

DATA = Path(__file__).resolve().parents[2] / "benchmarks/data/python-docs.npz"
N, BUDGETS, K = 1000, (50, 100), 10


@dataclass(frozen=True, eq=False)
class Set:
    """Queries (m,), n items, all scores (m, n), and relevant items (m, positions)."""

    name: str
    index: ck.ItemIndex
    queries: Queries
    scores: FloatArray
    relevant: list[IntArray]


def things(count: int) -> Set:
    sample = ck.sample()
    texts, ids = sample.queries.texts[:count], sample.queries.ids[:count]
    relevant = [sample.index.items.positions(sample.qrels[query]) for query in ids]
    return Set("things", sample.index, Queries(texts), sample.scores[:count], relevant)


def of_matrix(name: str, data: Dataset, file: Path, count: int, encoder: Any) -> Set:
    """The items and test queries that data and matrix share; no anchor is used, so all are tests."""
    matrix = StoredMatrix.load(file)
    assert matrix.item_ids
    assert matrix.labels is not None
    assert matrix.dense_items is not None
    assert matrix.dense_queries is not None
    columns = [c for c, item in enumerate(matrix.item_ids) if item in data.items]
    items = data.items.take(data.items.positions(matrix.item_ids[c] for c in columns).tolist())
    text_of = dict(zip(data.queries.ids, data.queries.texts, strict=True))
    place = dict(zip(columns, range(len(columns)), strict=True))
    every = range(len(matrix.scores))
    rows = [r for r in every if matrix.query_ids[r] in text_of and matrix.labels[r] in place]
    rows = rows[-count:]
    queries = Queries(
        tuple(text_of[matrix.query_ids[row]] for row in rows), {"dense": matrix.dense_queries[rows]}
    )
    vectors = {"dense": matrix.dense_items[columns]}
    index = ck.ItemIndex.build(items, vectors=vectors, encoder=encoder)
    relevant = [np.array([place[matrix.labels[row]]]) for row in rows]
    return Set(name, index, queries, matrix.scores[rows][:, columns], relevant)


def ndcg(ranked: IntArray, relevant: IntArray) -> float:
    """nDCG@10 of one query with relevant items of one grade (Jarvelin and Kekalainen 2002)."""
    discounts = 1 / np.log2(np.arange(2, K + 2))
    found = np.isin(ranked[:K], relevant)
    return float(discounts[: len(found)] @ found / discounts[: len(relevant)].sum())


def measure(data: Set, retrieved_by: str) -> dict[str, Any]:
    """Of each way: nDCG@10, the share of the 10 best of the documents that it found, CPU seconds."""
    index, texts = data.index, data.index.items.texts
    lists = open_retriever(index, retrieved_by).top(data.queries, N).items
    vectors, of_queries = index.vectors["dense"], index.query_vectors(data.queries, "dense")
    values: dict[str, list[tuple[float, float, float]]] = {}
    for q, row in enumerate(lists):
        items = row[row != NO_ITEM]
        exact = data.scores[q, items].astype(np.float32)
        best = items[top_k(exact[None], K).items[0]]
        known = {texts[item]: score for item, score in zip(items.tolist(), exact, strict=True)}
        given: list[Any] = [
            {"text": texts[item], "embedding": vectors[item]} for item in items.tolist()
        ]

        def record(
            way: str, ranked: IntArray, seconds: float, q: int = q, best: IntArray = best
        ) -> None:
            share = float(np.isin(best, ranked[:K]).mean())
            values.setdefault(way, []).append((ndcg(ranked, data.relevant[q]), share, seconds))

        record("given order", items, 0)
        for way, count in [*((f"first {budget}", budget) for budget in BUDGETS), ("all", N)]:
            record(way, items[:count][np.argsort(-exact[:count], kind="stable")], 0)
        for budget in BUDGETS:
            for way, documents, vector in (
                ("", given, of_queries[q]),
                (", no query vector", given, None),
                (", texts alone", [entry["text"] for entry in given], None),
            ):
                began = time.process_time()
                answer = ck.rerank(
                    data.queries.texts[q],
                    documents,
                    budget,
                    scorer=lambda pairs, known=known: [known[text] for _, text in pairs],
                    query_vector=vector,
                )
                seconds = time.process_time() - began
                ranked = items[[entry["corpus_id"] for entry in answer]]
                record(f"ck.rerank {budget}{way}", ranked, seconds)
    length = float((lists != NO_ITEM).sum(axis=1).mean())
    found: dict[str, Any] = {"queries": len(lists), "documents": length}
    for way, rows in values.items():
        ndcgs, shares, seconds = np.array(rows).T
        cell = {"nDCG@10": 100 * ndcgs.mean(), "top 10": 100 * shares.mean()}
        cell["CPU ms"] = 1000 * float(np.median(seconds))
        if way.startswith("ck.rerank"):
            for other in ("all", f"first {way.split()[1].strip(',')}"):
                gap = bootstrap(100 * (ndcgs - np.array(values[other])[:, 0]))
                cell[f"over {other}"] = [gap.mean, gap.low, gap.high]
        found[way] = cell
        print(data.name, retrieved_by, way, cell, flush=True)
    return found


def ms_per_pair(data: Set, count: int = 64) -> float:
    """CPU milliseconds of a pair of the set with the bundled cross-encoder, one thread."""
    scorer, texts = ck.CrossEncoder(cores=1), list(data.index.items.texts[:count])
    pairs = Pairs(np.zeros(len(texts), np.int64), np.arange(len(texts)))
    began = time.process_time()
    list(scorer.score(pairs, data.queries.texts[:1], texts))
    return 1000 * (time.process_time() - began) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--acts", nargs=2, type=Path)
    given = parser.parse_args()
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    encoder = ck.DualEncoder()  # of as many dimensions; queries and items have their vectors
    docs = lambda: build_corpus(standard_library_items())  # noqa: E731
    sets = {
        "things": lambda: things(given.queries),
        "python-docs": lambda: of_matrix("python-docs", docs(), DATA, given.queries, encoder),
    }
    if given.acts:
        matrix, sources = given.acts
        acts = senses("noun.act")
        sets["acts"] = lambda: of_matrix("acts", acts(sources), matrix, given.queries, encoder)
    for name, make in sets.items():
        if name in found:
            continue
        data = make()
        found[data.name] = {name: measure(data, name) for name in ("bm25", "dense")}
        found[data.name]["CPU ms of a pair"] = ms_per_pair(data)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
