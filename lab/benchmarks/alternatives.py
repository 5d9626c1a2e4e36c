"""What a user would pick instead, at equal calls: approximate search and reranking, and Qdrant's
relevance feedback in its own engine. Recall of the exact neighbours, and milliseconds.

    python lab/benchmarks/alternatives.py matrices WORK MATRIX.npz...
    python lab/benchmarks/alternatives.py prepare INDEX WORDNET MEDQUAD WORK
    python lab/benchmarks/alternatives.py wide INDEX WORDNET MEDQUAD WORK
    python lab/benchmarks/alternatives.py report WORK    # benchmarks/results/alternatives.json

It needs qdrant-edge-py and qdrant-relevance-feedback beside the extra `faiss`. One thread: set
OMP_NUM_THREADS=1.

All rivals search the same queries over the same vectors, and look exact scores up in the same
array. They take turns query by query in one process; times are CPU time, without encoding the query.
`matrices` searches the first 50 test queries of stored matrices; anchor queries teach the prior, and
Qdrant's coefficients and settings.

INDEX is that of lab/benchmarks/wide.py, 112,332 real items; it is only read, and so is its
`wide.npz`, the scores of the queries that are complete by then. WORK takes copies of it.
`prepare` scores about 120 items of each of 100 other queries, which teach the prior
(`crossknn fit INDEX stored`) and Qdrant's coefficients. `wide` takes the settings of feedback that
`matrices` chose, and goes on where it was: run it again when more queries are complete.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import faiss
import numpy as np
import pandas as pd
import qdrant_edge as qdrant
from qdrant_relevance_feedback.train.naive_formula import NaiveFormula
from qdrant_relevance_feedback.train.train import split_train_val, train_formula
from wide import queries_of

import crossknn as ck
from crossknn.evaluation.measures import paired, recall
from crossknn.extend import Search
from crossknn.fitting.kriging import add_points
from crossknn.fitting.learning import VECTORS, fit_from_store
from crossknn.index import nearest
from crossknn.linalg import top_k
from crossknn.methods import Method, parse_method
from crossknn.scorers.plain import MatrixScorer
from crossknn.types import FloatArray, IntArray, Pairs, Queries
from crossknn_lab.cells import divided
from crossknn_lab.stored import StoredMatrix

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "alternatives.json"
BUDGETS, KS = (50, 100, 200, 500), (10, 100)
TESTS = 50
DEV, SEEDS, LIMIT = 50, 5, 50
"""Dev sentences, and as many questions; seeds of feedback, and scored items of a query that
Qdrant's training uses: its own defaults."""

Rival: TypeAlias = Callable[[int, int], IntArray]
"""Searches query q with so many calls; the items that it scored, or the best of them."""

# ------------------------------------------------------------------------- Qdrant, in its engine


class Engine:
    """Vectors (n, d) in a shard of Qdrant's engine, with its default graph, searched on one thread."""

    def __init__(self, vectors: FloatArray, folder: Path) -> None:
        config = qdrant.EdgeConfig(
            vectors=qdrant.EdgeVectorParams(vectors.shape[1], qdrant.Distance.Dot),
            hnsw_config=qdrant.HnswIndexConfig(16, 100, 10_000, max_indexing_threads=1),
            max_search_threads=1,
        )
        if folder.exists():
            self.shard = qdrant.EdgeShard.load(str(folder), config)
            return
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        shard = qdrant.EdgeShard.create(str(part), config)
        for start in range(0, len(vectors), 5_000):
            rows = enumerate(vectors[start : start + 5_000].tolist(), start)
            points = [qdrant.Point(i, row, {}) for i, row in rows]
            shard.update(qdrant.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.close()
        part.rename(folder)
        self.shard = qdrant.EdgeShard.load(str(folder), config)

    def top(self, query: Any, count: int) -> IntArray:
        """The first items of a query."""
        asked = qdrant.QueryRequest(
            count,
            query=query,
            params=qdrant.SearchParams(hnsw_ef=max(256, 2 * count)),
            with_payload=False,
            with_vector=False,
        )
        return np.array([point.id for point in self.shard.query(asked)])


@dataclass(frozen=True)
class Feedback:
    """Score `first` items (a share of the calls if below 1), feed the best and the worst `fed` to
    the formula, and spend the rest on its best, in `rounds` rounds."""

    first: float = SEEDS
    rounds: int = 1
    fed: int = SEEDS

    def search(
        self,
        engine: Engine,
        items: FloatArray,
        vectors: FloatArray,
        scores: FloatArray,
        abc: tuple[float, float, float],
        q: int,
        budget: int,
    ) -> IntArray:
        """The items scored for query q, (budget,)."""
        target, strategy = vectors[q].tolist(), qdrant.NaiveFeedbackStrategy(*abc)
        first = int(self.first if self.first >= 1 else max(SEEDS, self.first * budget))
        seen = engine.top(qdrant.Query.Nearest(target), first)
        ends = np.linspace(first, budget, self.rounds + 1).astype(int)[1:]
        for end in ends.tolist():
            order = seen[np.argsort(-scores[q, seen], kind="stable")]
            best = order[: (self.fed + 1) // 2]
            worst = order[len(best) :][-(self.fed // 2) :]
            chosen = np.concatenate([best, worst])
            known = zip(items[chosen].tolist(), scores[q, chosen].tolist(), strict=True)
            given = [qdrant.FeedbackItem(vector, score) for vector, score in known]
            query = qdrant.FeedbackNaiveQuery(target, given, strategy)
            found = engine.top(qdrant.Query.FeedbackNaive(query), end)
            seen = np.concatenate([seen, found[~np.isin(found, seen)][: end - len(seen)]])
        return seen


def coefficients(
    items: FloatArray, vectors: FloatArray, scored: Callable[[int, IntArray], FloatArray]
) -> tuple[float, float, float]:
    """a, b and c as Qdrant's own package trains them: of each dev query the first 50 items are
    scored, the pair of the widest gap among the first five gives confidence and delta."""
    rows = list[dict[str, float]]()
    for q, vector in enumerate(vectors):
        products = items @ vector
        found = np.argsort(-products, kind="stable")[:LIMIT]
        exact = scored(q, found)
        high, low = exact[:SEEDS].argmax(), exact[:SEEDS].argmin()
        if (gap := exact[high] - exact[low]) <= 0:
            continue
        delta = items[found] @ (items[found[high]] - items[found[low]])
        rows += [
            {"score": products[i], "confidence": gap, "delta": d, "target_score": s - exact[high]}
            for i, d, s in list(zip(found, delta, exact, strict=True))[SEEDS:]
        ]
    tensors = split_train_val(pd.DataFrame(rows), LIMIT - SEEDS)
    with redirect_stdout(StringIO()):
        formula = train_formula(NaiveFormula(), *tensors, lr=0.005, epochs=1000, patience=200)
    a, b, c = formula.params.tolist()
    return a, b, c


# ------------------------------------------------------------------- searching in turn, measuring


def by_faiss(
    index: Any, vectors: FloatArray, settings: Callable[[int], Any], q: int, budget: int
) -> IntArray:
    """The items that a faiss index ranks first; all of them are scored."""
    found: IntArray = index.search(vectors[q : q + 1], budget, params=settings(budget))[1][0]
    return found[found >= 0]


def by_loop(index: StoredMatrix, method: str, k: int, q: int, budget: int) -> IntArray:
    """What a method of ours scores of a stored matrix."""
    chosen = parse_method(method)
    chosen = replace(chosen, k=k) if hasattr(chosen, "k") else chosen
    queries, row = index.queries(slice(q, q + 1)), index.scores[q]
    search = Search(chosen.plan(index, budget, 0), queries, index.n)
    while len(pairs := search.ask()):
        search.tell(pairs, row[pairs.item])
    return search.picks().items[0]


def turns(rivals: dict[str, Rival], q: int, row: FloatArray) -> list[dict[str, Any]]:
    """Each rival searches query q at each budget, in turn: recall, and CPU milliseconds."""
    truth = {k: top_k(row[None], k).items for k in KS}
    rows = []
    for budget in BUDGETS:
        for name, search in rivals.items():
            began = time.process_time()
            items = search(q, budget)
            ms = round(1000 * (time.process_time() - began), 3)
            assert len(set(items.tolist())) == len(items) <= budget, name
            shares = {f"recall {k}": float(recall(items[None], truth[k])[0]) for k in KS}
            rows.append({"query": q, "method": name, "budget": budget, "ms": ms} | shares)
    return rows


def ranks(items: FloatArray, vector: FloatArray, row: FloatArray) -> dict[str, list[int]]:
    """Where the true neighbours stand in the order of inner products: so many calls, and one more,
    reach them by reranking."""
    order = np.argsort(np.argsort(-(items @ vector), kind="stable"), kind="stable")
    return {str(k): np.sort(order[top_k(row[None], k).items[0]]).tolist() for k in KS}


# ------------------------------------------------------------------------------ stored matrices

TRIED = [Feedback(*of) for of in product((SEEDS, 0.1, 0.5), (1, 5), (5,))]
TRIED += [Feedback(0.1, 1, 10), Feedback(0.5, 1, 10)]
"""Settings of feedback. More than ten items take it seconds: it adds all pairs up, item by item."""


def feedbacks(
    engine: Engine,
    items: FloatArray,
    vectors: FloatArray,
    scores: FloatArray,
    trained: tuple[float, float, float],
    tuned: dict[str, list[float]],
) -> dict[str, Rival]:
    """Qdrant's relevance feedback: untrained, trained, and with the settings of each budget."""
    known = engine, items, vectors, scores

    def best(q: int, budget: int) -> IntArray:
        first, *rest = tuned[str(budget)]
        return Feedback(first, *map(int, rest)).search(*known, trained, q, budget)

    return {
        "Qdrant feedback, a = b = c = 1": partial(Feedback().search, *known, (1.0, 1.0, 1.0)),
        "Qdrant feedback, trained": partial(Feedback().search, *known, trained),
        "Qdrant feedback, trained, settings chosen": best,
    }


def matrix(path: Path, work: Path) -> None:
    """Search the test queries of a stored matrix; a file in `work` for each."""
    stored, _ = divided(StoredMatrix.load(path))
    vectors, scores, start = stored.dense_queries, stored.scores, stored.n_anchors
    assert vectors is not None
    assert stored.dense_items is not None
    items = np.ascontiguousarray(stored.dense_items)
    engine = Engine(items, work / f"{path.stem}.shard")
    trained, tuned = settings(work / f"{path.stem}.json", engine, items, vectors, scores, start)
    flat, bare = faiss.IndexFlatIP(items.shape[1]), replace(stored, n_anchors=0)
    flat.add(items)
    rivals: dict[str, Rival] = {
        "faiss (all vectors), rerank": partial(by_faiss, flat, vectors, lambda budget: None),
        **feedbacks(engine, items, vectors, scores, trained, tuned),
        "Qdrant's formula as `feedback`": partial(by_loop, bare, "feedback(retriever=dense)", 10),
        "axn": partial(by_loop, bare, "axn", 10),
        "auto": partial(by_loop, bare, "auto", 10),
        "auto, anchors": partial(by_loop, stored, "auto", 10),
        "auto, anchors, k=100": partial(by_loop, stored, "auto", 100),
    }
    for search in rivals.values():  # to warm up
        search(start, BUDGETS[0])
    for q in range(start, min(start + TESTS, len(scores))):
        if not (out := work / f"{path.stem}-{q:03}.json").exists():
            rows = turns(rivals, q, scores[q])
            near = ranks(items, vectors[q], scores[q])
            out.write_text(json.dumps({"n": stored.n, "rows": rows, "ranks": near}))


def settings(
    file: Path, engine: Engine, items: FloatArray, vectors: FloatArray, scores: FloatArray, dev: int
) -> tuple[tuple[float, float, float], dict[str, list[float]]]:
    """What feedback learns of the first `dev` queries: a, b, c, and for each budget the settings
    whose recall was best. Kept in the file."""
    if not file.exists():
        trained = coefficients(items, vectors[:dev], lambda q, found: scores[q, found])
        tuned, truth = {}, {k: top_k(scores[:dev], k).items for k in KS}
        for budget in BUDGETS:
            means = []
            for one in TRIED:
                search = partial(one.search, engine, items, vectors, scores, trained)
                shares = [
                    recall(found, truth[k][[q]])[0]
                    for q in range(0, dev, max(1, dev // 20))
                    for found in [search(q, budget)[None]]
                    for k in KS
                ]
                means.append(np.mean(shares))
            one = TRIED[int(np.argmax(means))]
            tuned[str(budget)] = [one.first, one.rounds, one.fed]
        file.write_text(json.dumps({"trained": trained, "tuned": tuned}))
    known = json.loads(file.read_text())
    print(file.stem, known, flush=True)
    return known["trained"], known["tuned"]


# ------------------------------------------------------------------- 112,332 real items, in texts

WIDE = {
    "axn": ("plain", "axn", False),
    "axn, fitted vectors": ("fitted", "axn", False),
    "auto": ("plain", "auto", False),
    "auto, prior": ("fitted", "auto", True),
    "Qdrant's formula as `feedback`": ("plain", "feedback(retriever=dense)", False),
}
"""Which index, which method, and whether it searches otherwise for a large k."""


def dev_queries(wordnet: Path, medquad: Path) -> list[str]:
    """Other queries than those that are scored with all items."""
    tests = set(queries_of(wordnet, medquad))
    return [q for q in queries_of(wordnet, medquad, seed=1, each=DEV) if q not in tests]


def prepare(folder: Path, wordnet: Path, medquad: Path, work: Path) -> None:
    """Copies of the index without its scores: `plain`, and `fitted` to searches of dev queries; the
    vectors in faiss' graph and in Qdrant's engine. What is there is kept."""
    work.mkdir(exist_ok=True)
    plain, fitted = work / "plain", work / "fitted"
    dev = dev_queries(wordnet, medquad)
    if not plain.exists():
        shutil.copytree(folder, plain, ignore=shutil.ignore_patterns("scores.db*"))
    index = ck.ItemIndex.load(plain)
    _said("lists", lambda: index.add_nearest("dense"))
    scorer = ck.StoredScorer(ck.CrossEncoder("bundled", threads=1), index.scores)
    for method, budget in (("rerank(retriever=dense)", LIMIT), ("auto", 100)):
        searcher = ck.Searcher(index, scorer, method, fuse=None)
        for query in dev:
            searcher.search(query, 10, budget)
        print(method, len(index.scores), "pairs", flush=True)
    if not fitted.exists():
        index.scores.close()
        shutil.copytree(plain, work / "fitting", dirs_exist_ok=True)
        known = ck.ItemIndex.load(work / "fitting")
        _said("fit", lambda: fit_from_store(known, scorer))
        _said("lists of points", lambda: add_points(known))
        _said("lists of fitted vectors", lambda: known.add_nearest(VECTORS))
        known.scores.close()
        (work / "fitting").rename(fitted)


def _said(what: str, act: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    made = act()
    print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)
    return made


def settings_of(work: Path) -> dict[str, list[float]]:
    """For each budget the settings of feedback that most matrices chose."""
    found = [json.loads(path.read_text()).get("tuned") for path in sorted(work.glob("*.json"))]
    votes = {str(b): [json.dumps(tuned[str(b)]) for tuned in found if tuned] for b in BUDGETS}
    return {b: json.loads(max(of, key=of.count)) for b, of in votes.items()}


def wide(folder: Path, wordnet: Path, medquad: Path, work: Path) -> None:
    """Search each query whose scores with all items are complete; a file in `work` for each."""
    texts, dev = queries_of(wordnet, medquad), dev_queries(wordnet, medquad)
    plain, scorer = ck.ItemIndex.load(work / "plain"), ck.CrossEncoder("bundled", threads=1)
    vectors = plain.query_vectors(Queries([*texts, *dev]), "dense")
    items = np.asarray(plain.vectors["dense"], np.float32)
    of_dev = plain.scores.rows(scorer.fingerprint, dev, plain.items.texts)
    trained = coefficients(items, vectors[len(texts) :], lambda q, found: of_dev[q, found])
    engine, tuned = Engine(items, work / "wide.shard"), settings_of(work)
    print("a, b, c:", trained, "settings:", tuned, flush=True)
    with np.load(folder / "wide.npz") as kept:
        done, scores = np.flatnonzero(kept["done"]), kept["scores"].astype(np.float32)
    given = dict(zip(texts, vectors[: len(texts)], strict=True))
    indexes = {
        (name, exact): ck.ItemIndex.load(
            work / name,
            exact=exact,
            query_vectors={"dense": lambda asked: np.stack([given[text] for text in asked])},
        )
        for name in ("plain", "fitted")
        for exact in (False, True)
    }
    near, graph = indexes["plain", False].store("dense"), graph_of(items, work / "hnsw.faiss")
    rivals: dict[str, Rival] = {
        "faiss (lists of --nearest), rerank": lambda q, b: near.top(vectors[[q]], b).items[0],
        "faiss (graph), rerank": partial(
            by_faiss,
            graph,
            vectors,
            lambda b: faiss.SearchParametersHNSW(efSearch=max(256, 2 * b)),
        ),
        **feedbacks(engine, items, vectors, scores, trained, tuned),
    }
    full: dict[str, Rival] = {}
    for name, (at, method, minds) in WIDE.items():
        for k in KS if minds else KS[-1:]:
            called = f"{name}, k={k}" if minds and k > KS[0] else name
            known = parse_method(method), texts, scores, scorer.fingerprint, k
            rivals[called] = partial(by_searcher, indexes[at, False], *known)
            full[f"{called}, full"] = partial(by_searcher, indexes[at, True], *known)
            full[f"{called}, all lists"] = partial(by_all_lists, indexes[at, False], *known)
    for q in done.tolist():
        if (out := work / f"wide-{q:03}.json").exists():
            continue
        for search in rivals.values():
            search(q, BUDGETS[0])
        rows = turns(rivals | full, q, scores[q])
        found = {"n": plain.n, "feedback": [trained, tuned], "rows": rows}
        found["ms of a call"] = cost_of_call(scorer, texts[q], plain.items.texts)
        found["ranks"] = ranks(items, vectors[q], scores[q])
        out.write_text(json.dumps(found))
        print("query", q, {r["method"]: r["recall 10"] for r in rows if r["budget"] == 100})


def graph_of(items: FloatArray, file: Path) -> Any:
    """faiss' graph of all vectors, built once."""
    if not file.exists():
        made = faiss.IndexHNSWFlat(items.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        made.hnsw.efConstruction = 80
        _said("faiss' graph", lambda: made.add(items))
        faiss.write_index(made, str(file))
    return faiss.read_index(str(file))


def by_searcher(
    index: ck.ItemIndex,
    method: Method,
    texts: list[str],
    scores: FloatArray,
    fingerprint: str,
    k: int,
    q: int,
    budget: int,
) -> IntArray:
    """The best that a `Searcher` returns; of an index opened with `exact` all items are predicted,
    and all vectors multiplied, or else a pool that the approximate index fills."""
    scorer = MatrixScorer(scores[q : q + 1])
    scorer.fingerprint = fingerprint  # whose scores these are
    if index.exact and isinstance(method, ck.Kriging):
        method = replace(method, shortlist=index.n)
    found = ck.Searcher(index, scorer, method, fuse=None).search(texts[q], min(k, budget), budget)
    assert found.n_scored == budget
    return index.items.positions([hit.id for hit in found[0]])


def by_all_lists(*given: Any) -> IntArray:
    """`by_searcher`, where each search reads all lists of the approximate index."""
    with patch.object(nearest, "PROBES", sys.maxsize):
        return by_searcher(*given)


def cost_of_call(scorer: ck.CrossEncoder, text: str, items: Any, count: int = 128) -> float:
    """CPU milliseconds of a pair of this query and random items."""
    chosen = np.random.default_rng(0).choice(len(items), count, replace=False)
    pairs = Pairs(np.zeros(count, np.int64), chosen)
    began = time.process_time()
    for _ in scorer.score(pairs, [text], items):
        pass
    return 1000 * (time.process_time() - began) / count


# ----------------------------------------------------------------------------------------- report


def report(work: Path) -> None:
    """Write `RESULTS`, which lab/benchmarks/tables.py makes tables of."""
    stems = sorted({path.stem.rpartition("-")[0] for path in work.glob("*-[0-9][0-9][0-9].json")})
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for stem in stems:
        files = [json.loads(path.read_text()) for path in sorted(work.glob(f"{stem}-???.json"))]
        kept = results[stem] = {"n": files[0]["n"], "queries": len(files)}
        if costs := [file["ms of a call"] for file in files if "ms of a call" in file]:
            kept["ms of a call"] = round(float(np.median(costs)), 2)
        kept |= {"rows": compared(files), "loss": lost(files)}
        print(stem, len(files), "queries")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def compared(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each method at each budget beside the first, reranking: recall and paired difference, the
    calls with which reranking finds as much, and the milliseconds of a call at which it is level."""
    of = {(r["query"], r["method"], r["budget"]): r for file in files for r in file["rows"]}
    queries = list(dict.fromkeys(q for q, *_ in of))
    names = [r["method"] for r in files[0]["rows"] if r["budget"] == BUDGETS[0]]
    names = [name for name in names if not name.endswith(("full", "all lists", "k=100"))]
    found = []
    for budget, name in product(BUDGETS, names):
        row: dict[str, Any] = {"budget": budget, "method": name}
        for k in KS:
            named = _minding(of, queries[0], name, k, budget)
            sides = [
                np.array([of[q, one, budget][f"recall {k}"] for q in queries])
                for one in (named, names[0])
            ]
            gap = paired(100 * (sides[0] - sides[1]))
            ms, base = (
                float(np.median([of[q, one, budget]["ms"] for q in queries]))
                for one in (named, names[0])
            )
            # Every query has k true neighbours, so that recall over all queries counts ranks.
            places = np.sort(np.concatenate([file["ranks"][str(k)] for file in files]))
            share = float(sides[0].mean())
            same = int(places[max(0, round(share * len(places)) - 1)]) + 1
            row[f"k={k}"] = {
                "recall": round(100 * share, 2),
                "difference": [round(v, 2) for v in (gap.difference, gap.low, gap.high)],
                "ms": round(ms, 2),
                "reranking needs": same,
                "level at ms": round((ms - base) / (same - budget), 4) if same > budget else None,
            }
        found.append(row)
    return found


def lost(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a pool and an approximate index lose against all items, in points of recall: as they are,
    and where all lists are read."""
    of = {(r["query"], r["method"], r["budget"]): r for file in files for r in file["rows"]}
    queries = list(dict.fromkeys(q for q, *_ in of))
    names = dict.fromkeys(name.removesuffix(", full") for _, name, _ in of if "full" in name)
    found = []
    for name, budget in product((n for n in names if "k=" not in n), BUDGETS):
        row: dict[str, Any] = {"method": name, "budget": budget}
        for k in KS:
            named = _minding(of, queries[0], name, k, budget)
            full, *others = (
                [of[q, one, budget] for q in queries]
                for one in (f"{named}, full", named, f"{named}, all lists")
            )
            whole = 100 * np.array([r[f"recall {k}"] for r in full])
            losses = [
                paired(whole - 100 * np.array([r[f"recall {k}"] for r in rows])) for rows in others
            ]
            row[f"k={k}"] = {
                "full": round(float(whole.mean()), 2),
                "ms": [
                    round(float(np.median([r["ms"] for r in rows])), 1) for rows in (full, *others)
                ],
                "lost": [[round(v, 2) for v in (x.difference, x.low, x.high)] for x in losses],
            }
        found.append(row)
    return found


def _minding(of: dict[Any, Any], query: int, name: str, k: int, budget: int) -> str:
    """The search for this k, where a method makes another one for it."""
    return f"{name}, k={k}" if (query, f"{name}, k={k}", budget) in of else name


if __name__ == "__main__":
    command, *given = sys.argv[1:]
    folders = [*map(Path, given)]
    if command == "matrices":
        folders[0].mkdir(exist_ok=True)
        for file in folders[1:]:
            matrix(file, folders[0])
    else:
        {"prepare": prepare, "wide": wide, "report": report}[command](*folders)
