"""What earlier searches and a batch teach on 112,332 items: WordNet's senses and MedQuAD's answers.

    python lab/benchmarks/wide.py WORDNET MEDQUAD MODELS FOLDER OUT    # with OUT alone: print it as tables

MODELS is the folder of the bundled models at 8a8705d (`git archive 8a8705d src/crossknn/bundled`), which gave the exact
scores of thirty queries in benchmarks/data/wide.npz: fifteen sentences of WordNet with the word that is sought in
brackets, and fifteen of MedQuAD's questions. Earlier searches are of other sentences and questions. FOLDER takes the
index and all scores, so that a killed run goes on; OUT (JSON lines) gets rows like those of together.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from together import BUDGETS, KS, compared, tables

import crossknn as ck
from crossknn.fitting.kriging import PER_ITEM, expected_gain, prior_of
from crossknn.fitting.multitask import FEWEST_SCORES
from crossknn.fitting.together import plan_together
from crossknn.methods.kriging import Kriging
from crossknn.methods.plan import Plan
from crossknn.scores.sparse import SparseScores
from crossknn.search.loop import Search, drive, simulate
from crossknn.types import FloatArray, Pairs, Queries

EACH, SCORES = 15, Path(__file__).parents[2] / "benchmarks/data/wide.npz"
LOGS = [(queries, calls) for queries in (30, 100, 300) for calls in (8, 30, 120)]


def items_of(wordnet: Path, medquad: Path) -> list[dict[str, str]]:
    """Return all senses and answers."""
    of_wordnet = ("w", "document_id", sorted((wordnet / "documents").glob("*.json")))
    found = []
    for mark, name, paths in (of_wordnet, ("m", "_id", [medquad / "corpus.jsonl"])):
        for path in paths:
            for record in map(json.loads, path.read_text().splitlines()):
                texts = {"title": record.get("title", ""), "text": record["text"]}
                found.append({"id": f"{mark}{record[name]}", **texts})
    return found


def queries_of(wordnet: Path, medquad: Path, earlier: int) -> tuple[list[str], list[str]]:
    """Return the thirty queries with exact scores, and others in random order."""
    sentences = []
    for path in sorted((wordnet / "processed/test_worlds").glob("*.jsonl")):
        for one in map(json.loads, path.read_text().splitlines()):
            sentence = f"{one['context_left']} [{one['mention']}] {one['context_right']}"
            sentences.append(sentence.strip())
    lines = (medquad / "qrels/test.tsv").read_text().splitlines()[1:]
    test = {line.split("\t")[0] for line in lines}
    asked = map(json.loads, (medquad / "queries.jsonl").read_text().splitlines())
    pools = sentences, [one["text"] for one in asked if one["_id"] in test]
    rng = np.random.default_rng(0)
    known = [pool[p] for pool in pools for p in rng.choice(len(pool), EACH, replace=False).tolist()]
    rest = [sorted({*pool} - {*known}) for pool in pools]
    drawn = [rng.choice(pool, earlier // 2, replace=False).tolist() for pool in rest]
    return known, [text for pair in zip(*drawn, strict=True) for text in pair]


def rows_of(index: ck.ItemIndex, scorer: Any, known: list[str], log: list[str]) -> Any:
    """Search with and without what earlier searches teach, alone and together."""
    queries, texts = Queries(known), index.items.texts
    with np.load(SCORES) as file:
        exact: FloatArray = file["scores"].astype(np.float32)
    best = np.argsort(-exact, axis=1, kind="stable")

    def recall(plan: Plan) -> FloatArray:
        items = simulate(plan, queries, exact).picks().items
        pairs = list(zip(best, items, strict=True))
        return np.array([[100 * np.isin(b[:k], i).mean() for k in KS] for b, i in pairs])

    def score(pairs: Pairs) -> FloatArray:
        scores = np.full(len(pairs), np.nan, np.float32)
        for where, batch in scorer.score(pairs, log, texts):
            scores[where] = batch
        return scores

    index = index.for_scorer(scorer.fingerprint)
    alone, method = Kriging(together=False), Kriging()
    without = {b: recall(alone.plan_with(None, index, b, 0)) for b in BUDGETS[:-1]}
    for budget, found in without.items():
        together = recall(plan_together(method, index, budget, 0))
        yield {"way": "together", "queries": 30, "budget": budget, **compared(together, found)}
    for count, calls in LOGS:
        some = Queries(log[:count])
        plan = alone.plan_with(None, index, calls, 0)
        seen = drive(Search(plan, some, index.n), score).observed()
        pairs = Pairs(np.repeat(np.arange(count), seen.items.shape[1]), seen.items.ravel())
        scores = SparseScores.of(some.texts, index.n, pairs, seen.scores.ravel())
        prior = prior_of(index, scores)
        gain = expected_gain(index, scores, prior)
        used = calls >= FEWEST_SCORES and len(scores) >= PER_ITEM * index.n
        how = {"queries": count, "scores": calls, "used": bool(used and gain and gain.mean > 0)}
        for budget, found in without.items():
            taught = recall(alone.plan_with(prior, index, budget, 0))
            yield {"way": "log", **how, "budget": budget, "gain": gain, **compared(taught, found)}


def main() -> None:
    *sources, out = map(Path, sys.argv[1:])
    if sources:
        wordnet, medquad, models, folder = sources
        encoder = ck.DualEncoder(models / "dual-encoder")
        if not (folder / "crossknn-index.json").exists():
            ck.ItemIndex.build(items_of(wordnet, medquad), encoder=encoder).save(folder)
        index = ck.ItemIndex.load(folder, encoder={"dense": encoder})
        scorer = ck.StoredScorer(ck.CrossEncoder(models / "cross-encoder"), index.scores)
        with out.open("w") as file:
            for row in rows_of(index, scorer, *queries_of(wordnet, medquad, LOGS[-1][0])):
                print(json.dumps({"matrix": "wide", **row}), file=file, flush=True)
    tables([json.loads(line) for line in out.read_text().splitlines()])


if __name__ == "__main__":
    main()
