"""Measures, intervals, paired tests, the rows of `replay` and of `compare`, the analyses: values."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
from recorded import check
from synthetic import aligned_matrix, matrix

from crossknn.data.items import read_items
from crossknn.data.queries import QuerySet
from crossknn.evaluation import measures
from crossknn.evaluation.compare import compare
from crossknn.evaluation.outcome import Replayed, outcome, truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures, measure_names
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import top_k
from crossknn.methods import parse_method, parse_methods
from crossknn.search.loop import simulate
from crossknn.spec import parse
from crossknn_lab.analysis import (
    approximate,
    approximation_error,
    cur_error,
    recall_by_split,
    retrieved,
)
from crossknn_lab.replay import judgements_of, parts_of, replay
from crossknn_lab.rivals.oracles import WithOracles

CLOSE = 2e-6
NAMES = (
    "accuracy, accuracy_normalised, nDCG@10, nDCG@3, R@5, R@100, RR@10, P@2, AP, Success@1, Rprec"
)
SPECS = {  # our names: those of the specs may change
    "exact": "exact",
    "only dense": "retrieve(retriever=dense)",
    "rerank dense": "rerank(retriever=dense)",
    "rerank hybrid": "rerank(retriever=hybrid(bm25, dense))",
    "anncur": "anncur(anchor_share=0.5, rcond=1e-6)",
    "adacur": "adacur(retriever=dense, rounds=4, rcond=1e-6)",
    "axn": "axn(retriever=hybrid(bm25, dense), rounds=5, blend=0.5)",
    "axn ridge": "axn(retriever=dense, rounds=5, ridge=0.3)",
    "tour": "tour(retriever=dense, loss=kl, lr=0.1, rounds=3)",
    "gar": "gar(retriever=dense, neighbours=4, batch=5)",
    "itemcur": "itemcur(anchor_share=0.5)",
    "kriging": "kriging(retriever=dense, rounds=3)",
    "best items": "adacur(retriever=oracle_topk(masked=3, epsilon=0.3), rounds=1, anchor_share=0.5, rcond=1e-6)",
    "drawn items": "adacur(retriever=oracle_softmax, rounds=2, anchor_share=0.5, rcond=1e-6)",
}
ALIGNED = {
    "rerank mf": "rerank(retriever=mf)",
    "axn mf": "axn(retriever=mf, rounds=3, vectors=mf, blend=0.5)",
    "tour mf": "tour(retriever=hybrid, rounds=3, vectors=mf, normalize=auto, lr=0.1)",
    "kriging mf": "kriging(retriever=hybrid, rounds=3)",
}


def as_row(row) -> dict:
    return {key: value for key, value in row.items() if key not in ("method", "seconds")}


def interval(found) -> dict[str, float]:
    return {"mean": found.mean, "low": found.low, "high": found.high}


def test_measures():
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=(7, 30)), 1)
    ranked = np.argsort(rng.normal(size=(7, 30)), axis=1)[:, :12]
    ranked[3, 5:] = -1
    truth = top_k(scores, 6).items
    a, b = rng.random(23), rng.random(23) + 0.2
    gaps = np.where(rng.random(23) < 0.2, np.nan, b)
    grades = np.random.default_rng(1).integers(-2, 3, (7, 12))
    qrels = {
        f"q{q}": {f"i{i}": int(g) for i, g in enumerate(row) if g >= 0}
        for q, row in enumerate(grades)
        if q != 2
    } | {"q5": {"gone": 1}}
    judged = Judgements.from_qrels(qrels, [f"q{q}" for q in range(7)], [f"i{i}" for i in range(30)])
    labels = Judgements.from_labels(np.array([3, -1, 5, 0, 29, 7, 7]))
    found = {
        "exact": truth,
        "recall": measures.recall(ranked[:, :6], truth),
        "bootstrap": interval(measures.bootstrap(a)),
        "bootstrap seed": interval(measures.bootstrap(a, seed=3, resamples=300)),
        "bootstrap sets": interval(measures.bootstrap(a, b[:7])),
        "paired": asdict(measures.paired(a - b)),
        "paired seed": asdict(measures.paired(a - b, seed=5)),
        "paired gaps": asdict(measures.paired(gaps - a)),
        "compare sets": asdict(measures.paired(a - b, (b - a)[:9] / 3)),
        "signs": [measures.paired(a + d - b).sign for d in (-0.5, 0.2, 1)],
        "notes": judged.notes(),
    }
    for name, judgements in (("qrels", judged), ("labels", labels)):
        task = TaskMeasures(judgements, measure_names(NAMES))
        values = task.values(ranked, ranked[:, ::-1])
        found[f"depth {name}"] = task.depth
        found[f"values {name}"] = {k: np.nan_to_num(v, nan=-1) for k, v in values.items()}
        part = task.values(ranked[2:5], start=2)
        found[f"part {name}"] = {k: np.nan_to_num(v, nan=-1) for k, v in part.items()}
    check("evaluation_measures.json", found, close=CLOSE)


def test_replay():
    data = matrix(tests=70, noise=1.0)
    gold = top_k(data.scores, 3).items[np.arange(90), np.arange(90) % 3]
    data = replace(data, labels=np.where(np.arange(90) % 7 == 0, -1, gold))
    task = TaskMeasures(judgements_of(data), ["nDCG@10", "R@100", "RR@10"])
    found = {}
    for name, spec in SPECS.items():
        rows = replay(data, parse_methods(spec), [10, 20], [1, 10], seed=1, task=task)
        found[name] = [as_row(row) for row in rows]
    plain = replay(data, parse_methods(SPECS["axn"]), [15], [1, 5, 40], queries=9)
    found["plain"] = [as_row(row) for row in plain]
    for name, spec in ALIGNED.items():
        rows = replay(aligned_matrix(), parse_methods(spec), [20], [5])
        found[name] = [as_row(row) for row in rows]
    check("evaluation_replay.json", found, close=CLOSE)


def value(query: str, item: str) -> float:
    q, i = int(query.split()[-1]), int(item.split()[-1])
    shared = len(set(query.split()) & set(item.split()))
    return shared + np.sin(1.0 + q * i % 17) + 0.01 * ((q + 3) * i % 29)


def test_compare():
    topics = ("archives", "threads", "files", "strings", "queues")
    items = read_items([f"part on {topics[i % 5]} and {topics[i // 5 % 5]} {i}" for i in range(60)])
    texts = [f"about {topics[i % 5]} {topics[(i + 2) % 5]} {i}" for i in range(9)]
    queries = QuerySet(tuple(f"q{i}" for i in range(9)), tuple(texts))
    scores = np.array([[value(q, t) for t in items.texts] for q in texts], np.float32)
    index = ItemIndex.build(items)
    qrels = {f"q{i}": {str(j): 1 + j % 2 for j in range(i, 40, 9)} for i in range(8)}
    specs = "rerank(retriever=bm25), retrieve(retriever=bm25), rerank(retriever=random), exact"
    options = {"qrels": qrels, "measures": ["nDCG@10", "R@100", "RR@10"], "seed": 2}
    best, *table = compare(index, queries, scores, parse_methods(specs), [5, 15], [1, 5], **options)
    rows = {f"{n}": [as_row(row) for row in outcome.rows()] for n, outcome in enumerate(table)}
    check("evaluation_compare.json", {"exact": [*map(as_row, best.rows())], **rows}, close=CLOSE)


def test_analyses():
    data = matrix(noise=0.6)
    (part,) = parts = parts_of(data)
    index, queries, scores = part.index, part.queries, part.exact
    truth = truth_of(parts, 10)
    found: dict[str, object] = {}
    for name in ("anncur", "adacur", "axn ridge", "rerank dense"):
        chosen = parse_method(SPECS[name])
        approx, scored = approximate(chosen, index, queries, scores, budget=16, seed=0)
        errors = approximation_error(scores, approx, bands=(5, 20))
        found[name] = {
            "scored": scored,
            "errors": {band: np.round(e, 4) for band, e in errors.items()},
            "norm": round(cur_error(scores, approx), 5),
        }
    whole, options = (
        parse_method("anncur(anchor_share=1, rcond=1e-6)"),
        {"budget": 20, "ks": [1, 10]},
    )
    split = recall_by_split(whole, parts, truth, shares=(0.3, 0.6), **options)
    made = {
        share: outcome(
            "", parse_method(f"anncur(anchor_share={share}, rcond=1e-6)"), parts, truth, **options
        )
        for share in (0.3, 0.6)
    }
    distinct = {k: {share: of.recall[k] for share, of in made.items()} for k in (1, 10)}
    found |= {"distinct": distinct, "paper": split}
    found["retrieved"] = retrieved(whole, parts, calls=12, depth=8)
    seen = Replayed(WithOracles(index, scores))
    search = simulate(parse_method(SPECS["adacur"]).plan(seen, 12, 0), queries, scores)
    items = search.observed().items
    found["answer"] = [search.best(4).items, items, np.count_nonzero(items >= 0)]
    oracle = seen.offered(parse("oracle_softmax(masked=2, epsilon=0.25)"), 3)
    found["oracle"] = oracle.top(queries, 8).items
    check("evaluation_analyses.json", found, close=1e-3)
