"""What an expensive scorer finds after a search with a cheaper one, beside what everybody can do.

    python lab/benchmarks/ladder.py SET --out FILE --store DIR [--scores FILE] NAME=CHEAP ...

SET is "sample" (the package's, whose stored scores are the expensive scorer's) or a BEIR folder.
There the expensive scorer is the bundled cross-encoder, which first scores all pairs, or that of a
matrix of scores, `--scores`, with ids as in the folder. CHEAP is "bundled", the folder of a
cross-encoder, a matrix of scores, or "stored" for the sample's own. All scores are kept in `--store`. For each cheap scorer and budget, the file gets
each query's share of the expensive scorer's ten best items (`own`), whether a right item is among
20 (`right`), and nDCG@10; `table` prints means and differences (ladder_table.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.data.items import Items
from crossknn.data.queries import QuerySet
from crossknn.evaluation.rungs import SHARES
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import open_retriever
from crossknn.sample import Sample
from crossknn.scorers.plain import CallableScorer
from crossknn.scores.collect import exact_scores
from crossknn.scores.store import ScoreStore
from crossknn.search.ladder import CHEAPER_SHARE, MOST
from crossknn.types import FloatArray, IntArray, Queries

K = 20
BUDGETS, CHEAP = (5, 10, 20, 50), (50, 100, 200, 400)
ALONE = (*BUDGETS, 80, 100)
TIMES, RATIOS = (10, 20, 50), (5, 20, 100, 1000)
"""Budgets of time, in calls of the expensive scorer, and its calls' cost in calls of the cheap one."""
WAYS = {"cascade": "rerank(retriever=search)", "ladder": "auto"}


def split(total: int, ratio: int, share: float) -> tuple[int, int]:
    """Return the calls of the cheap and the expensive scorer, as `search.ladder.affordable`."""
    cheap = min(MOST, int(share * total * ratio))
    return cheap, max(1, int(total - cheap / ratio))


def found(of: Sample, items: IntArray, budget: int) -> dict[str, list[float]]:
    """Measure answers (m, 20), of which the expensive scorer scored the first `budget`."""
    best = np.argsort(-of.scores, axis=1, kind="stable")[:, :10]
    both = zip(items[:, :budget], best, strict=True)
    judgements = Judgements.from_qrels(of.qrels, of.queries, of.index.items.ids)
    task = TaskMeasures(judgements, ["nDCG@10", f"Success@{K}"]).values(items[:, :K])
    return {
        "own": [len(np.intersect1d(*pair)) / 10 for pair in both],
        "right": np.asarray(task[f"Success@{K}"]).tolist(),
        "ndcg": np.round(task["nDCG@10"], 4).tolist(),
    }


def of_matrix(file: Path, queries: QuerySet, items: Items) -> FloatArray:
    """Read the scores (m, n) of a matrix, by the ids of queries and items."""
    stored = np.load(file)
    row = {str(name): q for q, name in enumerate(stored["query_ids"])}
    column = {str(name): i for i, name in enumerate(stored["item_ids"])}
    rows, columns = [row[name] for name in queries.ids], [column[name] for name in items.ids]
    found: FloatArray = stored["scores"][np.ix_(rows, columns)].astype(np.float32)
    return found


def looked_up(scores: FloatArray, queries: QuerySet, items: Items, name: str) -> CallableScorer:
    row = {text: q for q, text in enumerate(queries.texts)}
    column = {text: i for i, text in enumerate(items.texts)}

    def of(pairs: list[tuple[str, str]]) -> FloatArray:
        return scores[[row[query] for query, _ in pairs], [column[text] for _, text in pairs]]

    return CallableScorer(of, name)


def of_folder(folder: Path, matrix: Path | None, store: Path, most: int) -> Sample:
    items = ck.read_items(folder)
    queries, qrels = ck.read_queries(folder, split="test"), ck.read_qrels(folder, split="test")
    if matrix is None:
        queries, exact = queries.take(range(len(queries))[:most]), ck.CrossEncoder()
        kept = ScoreStore(store / f"{folder.name}-exact.sqlite")
        scores = np.stack([*exact_scores(kept, exact, queries.texts, items.texts)])
    else:
        stored = np.load(matrix)
        tests = {str(name) for name in stored["query_ids"][int(stored["n_anchors"]) :]}
        rows = [n for n, name in enumerate(queries.ids) if name in tests and name in qrels][:most]
        queries = queries.take(rows)
        items = items.take(items.positions([str(name) for name in stored["item_ids"]]).tolist())
        scores = of_matrix(matrix, queries, items)
    index = ItemIndex.build(items, encoder="bundled", folder=store / f"{folder.name}.index")
    scorer = looked_up(scores, queries, items, f"exact {folder.name}")
    return Sample(index, queries, qrels, scorer, scorer, scores)


def answers(searcher: ck.Searcher, of: Sample, budget: int) -> IntArray:
    """Search, and return the items (m, 20+) that were scored, best first, padded by -1."""
    results = searcher.search(of.queries, budget, budget)
    rows = [[hit.position for hit in hits if not hit.predicted] for hits in results]
    width = max(map(len, rows))
    return np.array([row + [-1] * (width - len(row)) for row in rows])


def completed(items: IntArray, order: IntArray) -> IntArray:
    """Let what was not scored follow in the cheap order (m, c)."""
    rows = []
    for own, cheap in zip(items, order, strict=True):
        known = own[own >= 0]
        rows.append(np.concatenate([known, cheap[~np.isin(cheap, known)]])[: max(K, len(known))])
    width = min(map(len, rows))
    return np.stack([row[:width] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("cheap", nargs="*")
    given = parser.parse_intermixed_args()
    given.store.mkdir(parents=True, exist_ok=True)
    if given.set == "sample":
        chosen = ck.sample()
    else:
        chosen = of_folder(Path(given.set), given.scores, given.store, given.queries)
    table = json.loads(given.out.read_text()) if given.out.exists() else {}
    mine = table.setdefault(Path(given.set).name, {})
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    mine |= {"commit": git.stdout.strip(), "date": time.strftime("%Y-%m-%d")}
    mine |= {"items": chosen.index.n, "queries": len(chosen.queries)}

    def keep(name: str, values: Any) -> None:
        mine[name] = values
        given.out.write_text(json.dumps(table) + "\n")

    first = open_retriever(chosen.index, "dense").top(Queries(chosen.queries.texts), MOST).items
    for (way, method), budget in product({"rerank": "rerank", "search": "auto"}.items(), ALONE):
        if (name := f"{way} 0 {budget}") not in mine:
            alone = answers(ck.Searcher(chosen.index, chosen.scorer, method), chosen, budget)
            keep(name, found(chosen, completed(alone, first), budget))
    texts = chosen.queries, chosen.index.items
    for name, _, place in (each.partition("=") for each in given.cheap):
        place = place or name
        if place.endswith(".npz"):
            cheap: Any = looked_up(of_matrix(Path(place), *texts), *texts, place)
        elif place == "stored":
            cheap = ck.sample().cheap
        else:
            store = ScoreStore(given.store / f"{Path(given.set).name}-{name}.sqlite")
            cheap = ck.StoredScorer(ck.CrossEncoder(place), store)
        _with(chosen, name, cheap, mine, keep)


def _with(chosen: Sample, name: str, cheap: Any, mine: Any, keep: Any) -> None:
    """Measure the ladders above one cheap scorer."""
    wanted = {*product(CHEAP, BUDGETS)}
    for total, ratio in product(TIMES, RATIOS):
        shares = SHARES if total == TIMES[1] else (CHEAPER_SHARE,)
        wanted |= {split(total, ratio, share) for share in shares}
    queries = Queries(chosen.queries.texts)
    for calls in sorted({calls for calls, _ in wanted}):
        retriever = ck.Searcher(chosen.index, cheap).as_retriever(calls)
        index = chosen.index.after_search(retriever)
        order = retriever.top(queries, MOST).items
        if (key := f"{name} {calls} correlation") not in mine:
            keep(key, _correlation(chosen, order, retriever, queries))
        # What everybody does: retrieve, rerank by the cheap scorer, rerank its best.
        listed = answers(ck.Searcher(chosen.index, cheap, "rerank"), chosen, calls)
        for budget in sorted(own for before, own in wanted if before == calls):
            for way, method in WAYS.items():
                if (key := f"{name} {way} {calls} {budget}") not in mine:
                    items = answers(ck.Searcher(index, chosen.scorer, method), chosen, budget)
                    keep(key, found(chosen, completed(items, order), budget))
            if (key := f"{name} twice {calls} {budget}") not in mine:
                best = listed[:, :budget]
                scores = np.take_along_axis(chosen.scores, best, 1)
                best = np.take_along_axis(best, np.argsort(-scores, 1, kind="stable"), 1)
                keep(key, found(chosen, completed(best, listed), budget))
        print(name, calls, flush=True)


def _correlation(chosen: Sample, order: IntArray, retriever: Any, queries: Queries) -> float:
    """The mean correlation of both scorers over the 100 items that the cheap search finds best."""
    own = retriever.of_all(queries)
    pool = order[:, :100]
    rows = zip(*(np.take_along_axis(s, pool, 1) for s in (own, chosen.scores)), strict=True)
    return float(np.mean([np.corrcoef(*row)[0, 1] for row in rows]))


if __name__ == "__main__":
    main()
