"""What mined training rows are worth: students distilled from them, and from reranked rows.

A student is a dual encoder whose item vectors stay as they are and whose query vectors pass through
a trained linear map (no texts, no transformer: seconds of one core). Five folds: queries train or are
tested, never both. All pairs' scores are stored, so that the teacher's true top k is known.

python lab/benchmarks/mining.py MATRIX.npz ... writes benchmarks/results/mining.json; a second run
adds only what is not there."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import torch

import crossknn as ck
from crossknn.evaluation.measures import bootstrap, paired, recall
from crossknn.index.stored import StoredMatrix
from crossknn.linalg import top_k
from crossknn.search.loop import simulate

ARMS = {
    "reranked bm25": "rerank(retriever=bm25)",
    "reranked hybrid": "rerank(retriever=hybrid)",
    "mined": "axn(retriever=hybrid, ridge=0.3)",
}
BUDGETS, TEMPERATURES, SEEDS, FOLDS = (100, 20, 50), (2.0, 1.0), (0, 1), 5
SCALE, STEPS, BATCH, RATE, PENALTY = 20.0, 100, 16, 1e-3, 3e-3
MEASURES = "nDCG@10", "R@10 of the label", "teacher's 10 in 50", "teacher's 50 in 100"


def student(queries, items, lists, scores, temperature, seed):
    """The map W, b of query vectors: softmax cross-entropy over all lists of a batch.

    queries (q, d), items (n, d), lists (q, c) with the teacher's scores. An item of another query's list
    counts as low: what the teacher scores highest is in the own list, as far as anybody knows.
    """
    torch.manual_seed(seed)
    weight, shift = (torch.eye(queries.shape[1]), torch.zeros(queries.shape[1]))
    trained = [weight.requires_grad_(), shift.requires_grad_()]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    generator, size = np.random.default_rng(seed), min(BATCH, len(queries))
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        rows = generator.choice(len(queries), size, replace=False)
        union = np.unique(lists[rows])
        wanted = torch.full((size, len(union)), -torch.inf)
        places = torch.from_numpy(np.searchsorted(union, lists[rows]))
        wanted.scatter_(1, places, torch.from_numpy(scores[rows] / temperature))
        found = mapped(queries[rows], *trained) @ torch.from_numpy(items[union]).T * SCALE
        loss = -(wanted.softmax(-1) * found.log_softmax(-1)).sum(-1).mean()
        loss = loss + PENALTY * (weight - torch.eye(len(weight))).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in trained]


def mapped(queries, weight, shift):
    return torch.nn.functional.normalize(torch.from_numpy(queries) @ weight.T + shift, dim=-1)


def measured(queries, items, trained, truth, labels):
    """Each measure's values (m,) of queries (m, d)."""
    near = top_k((mapped(queries, *trained) @ torch.from_numpy(items).T).numpy(), 100).items
    hits = near[:, :10] == labels[:, None]
    ndcg = hits @ (1 / np.log2(np.arange(10) + 2))
    ranked = ndcg, hits.any(1), recall(near[:, :50], truth[:, :10]), recall(near, truth)
    return np.array(ranked, np.float64)


def values_of(matrix, budget, temperature):
    """Values (measures, seeds, queries) of each arm, and of the dual encoder as it is."""
    n, scores = len(matrix.scores), matrix.scores
    queries, items = matrix.dense_queries, matrix.dense_items
    truth = top_k(scores, 50).items
    as_it_is = torch.eye(queries.shape[1]), torch.zeros(queries.shape[1])
    found = {"untrained": measured(queries, items, as_it_is, truth, matrix.labels)[:, None]}
    for arm, spec in ARMS.items():
        plan = ck.parse_method(spec).plan(matrix, budget, 0)
        best = simulate(plan, matrix.queries(slice(0, n)), scores).best(budget)
        values = np.full((len(MEASURES), len(SEEDS), n), np.nan)
        for s, seed in enumerate(SEEDS):
            fold = np.random.default_rng(seed).permutation(n) % FOLDS
            for f in range(FOLDS):
                train, test = fold != f, fold == f
                rows = queries[train], items, best.items[train], best.scores[train]
                trained = student(*rows, temperature, seed)
                values[:, s, test] = measured(
                    queries[test], items, trained, truth[test], matrix.labels[test]
                )
        found[arm] = values
        found[f"{arm}: teacher's 10 in the lists"] = float(recall(best.items, truth[:, :10]).mean())
    return found


def row_of(file, budget, temperature):
    matrix = StoredMatrix.load(file)
    found = values_of(matrix, budget, temperature)
    row = {"matrix": file.stem, "n": matrix.n, "queries": len(matrix.scores), "budget": budget}
    row |= {"temperature": temperature, "seeds": len(SEEDS)}
    means = {arm: v.mean(axis=1) for arm, v in found.items() if not isinstance(v, float)}
    row |= {arm: round(v, 4) for arm, v in found.items() if isinstance(v, float)}
    for m, measure in enumerate(MEASURES):
        row[measure] = {arm: round(bootstrap(v[m]).mean, 4) for arm, v in means.items()}
        for other in ("reranked bm25", "reranked hybrid"):
            gain = paired(means["mined"][m] - means[other][m])
            said = [gain.difference, gain.low, gain.high, gain.p_value]
            row[measure][f"mined - {other}"] = np.round(said, 4).tolist()
    return row


def main():
    out = Path(__file__).parents[2] / "benchmarks/results/mining.json"
    rows = json.loads(out.read_text()) if out.exists() else []
    done = {(row["matrix"], row["budget"], row["temperature"]) for row in rows}
    wanted = itertools.product(TEMPERATURES, BUDGETS, map(Path, sys.argv[1:]))
    for temperature, budget, file in wanted:
        if (file.stem, budget, temperature) not in done:
            rows.append(row_of(file, budget, temperature))
            out.write_text(json.dumps(rows, indent=1) + "\n")
            print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
