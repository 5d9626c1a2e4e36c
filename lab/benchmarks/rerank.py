"""Ordering 1,000 given documents with few calls, beside scoring all of them and beside scoring the first ones.

    python lab/benchmarks/rerank.py SET ... [--matrices DIR] [--sources DIR]

SET is things (`ck.sample()`), python-docs (entries of Python's documentation, scores of benchmarks/data), or acts
(WordNet's noun.act: scores of DIR of `--matrices`, texts of DIR/wordnet of `--sources`). No pair is scored, as all have
the scores of a real cross-encoder. Writes benchmarks/results/rerank.json; times are CPU time outside the cross-encoder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import bootstrap
from crossknn.linalg import top_k
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, IntArray, Queries
from crossknn_lab.stored import StoredMatrix
from crossknn_train.reading import read_labelled

ROOT = Path(__file__).parents[2]
N, BUDGETS, K, QUERIES = 1000, (50, 100), 10, 200
Set = tuple[ck.ItemIndex, Queries, FloatArray, list[IntArray]]
"""n items, m queries, all scores (m, n), and each query's relevant items."""


def things(given: Any) -> Set:
    sample = ck.sample()
    relevant = [sample.index.items.positions(sample.qrels[query]) for query in sample.queries.ids]
    return sample.index, Queries(sample.queries.texts), np.asarray(sample.scores), relevant


def python_docs(given: Any) -> Set:
    sys.path.insert(0, str(ROOT / "lab/recipes/bundled"))
    from python_docs import docstrings, first_sentence

    parts = {name: first_sentence(text) for name, (_, text) in docstrings().items()}
    asked = {f"q:{name}": first for name, (first, _) in parts.items()}
    texts = {name: f"{name} {rest}" for name, (_, rest) in parts.items()}
    return of_matrix(ROOT / "benchmarks/data/python-docs.npz", texts, asked)


def acts(given: Any) -> Set:
    every = read_labelled(given.sources / "wordnet", "test")
    [data] = [each for each in every if each.name == "noun.act"]
    items, queries = data.items, data.queries
    texts = dict(zip(items.ids, items.texts, strict=True))
    asked = dict(zip(queries.ids, queries.texts, strict=True))
    return of_matrix(given.matrices / "wordnet-act.npz", texts, asked)


def of_matrix(path: Path, texts: dict[str, str], asked: dict[str, str]) -> Set:
    """The items and queries of a matrix that have a text."""
    matrix = StoredMatrix.load(path)
    columns = [c for c, item in enumerate(matrix.item_ids) if item in texts]
    place = {column: position for position, column in enumerate(columns)}
    rows = [r for r, name in enumerate(matrix.query_ids) if name in asked]
    rows = [r for r in rows if matrix.labels[r] in place][-QUERIES:]
    vectors = matrix.dense_items[columns]
    items = [texts[matrix.item_ids[column]] for column in columns]
    index = ck.ItemIndex.build(items, vectors=vectors, query_vectors=lambda texts: None)
    queries = Queries(
        [asked[matrix.query_ids[r]] for r in rows], {"vectors": matrix.dense_queries[rows]}
    )
    relevant = [np.array([place[matrix.labels[row]]]) for row in rows]
    return index, queries, matrix.scores[rows][:, columns], relevant


def ndcg(ranked: IntArray, relevant: IntArray) -> float:
    """nDCG@10 of one query with relevant items of one grade."""
    discounts = 1 / np.log2(np.arange(2, K + 2))
    found = np.isin(ranked[:K], relevant)
    return float(discounts[: len(found)] @ found / discounts[: len(relevant)].sum())


def measured(
    index: ck.ItemIndex, queries: Queries, scores: FloatArray, relevant: list[IntArray], by: str
) -> Any:
    """Each way's nDCG@10, share of the ten best of the documents that it finds, and CPU milliseconds."""
    [name] = index.vectors
    texts, vectors, of_queries = (
        index.items.texts,
        index.vectors[name],
        index.query_vectors(queries, name),
    )
    lists = open_retriever(index, Spec(name if by == "dense" else by), 0).top(queries, N).items
    values: dict[str, list[tuple[float, float, float]]] = {}
    for q, row in enumerate(lists):
        items = row[row != NO_ITEM]
        exact = scores[q, items].astype(np.float32)
        best = items[top_k(exact[None], K).items[0]]
        known = {
            texts[item]: float(score) for item, score in zip(items.tolist(), exact, strict=True)
        }
        answers = {"given order": (items, 0.0)}
        for way, count in [*((f"first {budget}", budget) for budget in BUDGETS), ("all", N)]:
            answers[way] = items[:count][np.argsort(-exact[:count], kind="stable")], 0.0
        plain = [texts[item] for item in items.tolist()]
        given = [{"text": texts[item], "embedding": vectors[item]} for item in items.tolist()]
        for budget in BUDGETS:
            for way, documents, vector in (
                ("", given, of_queries[q]),
                (", texts alone", plain, None),
            ):
                scorer = lambda pairs, known=known: [known[text] for _, text in pairs]  # noqa: E731
                began = time.process_time()
                answer = ck.rerank(
                    queries.texts[q], documents, budget, scorer=scorer, query_vector=vector
                )
                took = 1000 * (time.process_time() - began)
                answers[f"ck.rerank {budget}{way}"] = (
                    items[[entry["corpus_id"] for entry in answer]],
                    took,
                )
        for way, (ranked, took) in answers.items():
            share = float(np.isin(best, ranked[:K]).mean())
            values.setdefault(way, []).append((ndcg(ranked, relevant[q]), share, took))
    found: dict[str, Any] = {"queries": len(lists)}
    for way, cells in values.items():
        ndcgs, shares, took = np.array(cells).T
        found[way] = {
            "nDCG@10": 100 * float(ndcgs.mean()),
            "top 10": 100 * float(shares.mean()),
            "CPU ms": float(np.median(took)),
        }
        if way.startswith("ck.rerank"):
            for other in ("all", f"first {way.split()[1].strip(',')}"):
                gap = bootstrap(100 * (ndcgs - np.array(values[other])[:, 0]))
                found[way][f"over {other}"] = [gap.mean, gap.low, gap.high]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sets = {"things": things, "python-docs": python_docs, "acts": acts}
    parser.add_argument("sets", nargs="*", choices=sets)
    parser.add_argument("--matrices", type=Path)
    parser.add_argument("--sources", type=Path)
    given, out = parser.parse_args(), ROOT / "benchmarks/results/rerank.json"
    made = json.loads(out.read_text())
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True)
    for name in given.sets:
        data = sets[name](given)
        stamp = {"commit": commit.strip(), "date": date.today().isoformat()}
        made[name] = stamp | {by: measured(*data, by) for by in ("bm25", "dense")}
        out.write_text(json.dumps(made, indent=1) + "\n")
    for name, by in ((name, by) for name in sets for by in ("bm25", "dense")):
        for way, cell in made[name][by].items():
            print(name, by, way, cell)


if __name__ == "__main__":
    main()
