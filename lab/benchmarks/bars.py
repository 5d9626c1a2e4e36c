"""What a search finds beside reranking with as many calls, on every set; and the picture of it.

    python lab/benchmarks/bars.py measure SET ... --sources DIR --matrices DIR --model DIR --work DIR
    python lab/benchmarks/bars.py draw                   # docs/images/bars.svg of benchmarks/results/bars.json

DIR of `--sources` holds wordnet (the layout of ZESHEL) and medquad (BEIR's), `--matrices` stored scores
(docs/how-to/score-matrices.md), `--model` a cross-encoder for marked words; `--work` keeps indexes and scores.
A fusion is fitted to other queries than those that are measured, and every query is searched alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.data.queries import QuerySet
from crossknn.evaluation.compare import Evaluation, query_batches
from crossknn.evaluation.diagnosis import search_ways
from crossknn.evaluation.measures import paired
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.methods import DEFAULT
from crossknn.retrievers.base import AllScores
from crossknn.scores.store import ScoreStore
from crossknn.types import FloatArray, Queries
from crossknn_lab.stored import StoredMatrix
from crossknn_train.reading import SPLITS, read_labelled

CALLS, K, MEASURES = 50, 20, ("R@20", "nDCG@10")
CHEAP_CALLS, EXPENSIVE_CALLS = 150, 42
"""What 50 calls' time affords if a cheap call takes a twentieth (`ladder.split(50, 20, 0.15)`)."""
CHARACTERS = 500
"""What is read of an answer of MedQuAD."""
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "bars.json"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "bars.svg"
WAYS = {"rerank": "quiet", "rerank fused": "", "search fused": "found"}
"""What is drawn of `diagnose`, and how its number is written."""


@dataclass(kw_only=True)
class Case:
    """A set: `fit` queries that the fusion is fitted to, and the `tests`; cheap scores if there are any."""

    index: ck.ItemIndex
    scorer: Any
    fit: QuerySet
    tests: QuerySet
    qrels: dict[str, dict[str, int]]
    cheap: Any = None


def senses(domain: str, whole: bool = False, lexical: bool = False) -> Callable[[Any], Case]:
    """Words marked in sentences of a domain of WordNet: their senses, among the domain's or among all."""

    def make(given: Any) -> Case:
        folder = given.sources / "wordnet"
        every = {data.name: data for part in SPLITS for data in read_labelled(folder, part)}
        asked = every[domain]
        asked = asked.take(np.random.default_rng(0).permutation(len(asked))[:400])
        names = [domain, *sorted({*every} - {domain})] if whole else [domain]
        texts = {
            i: text
            for name in names
            for i, text in zip(every[name].items.ids, every[name].items.texts, strict=True)
        }
        place = f"{domain}{'-all' * whole}{'-lexical' * lexical}.index"
        index = indexed(given.work / place, texts, lexical)
        scorer = scored(given, "senses", ck.CrossEncoder(given.model, cores=1))
        return split(index, scorer, asked.queries, asked.qrels, 100)

    return make


def medquad(queries: str, lexical: bool = False) -> Callable[[Any], Case]:
    """MedQuAD: answers to a question, or all answers on a disease with three or more."""

    def make(given: Any) -> Case:
        folder = given.sources / "medquad"
        read = lambda file: map(json.loads, (folder / file).read_text().splitlines())  # noqa: E731
        texts = {row["_id"]: row["text"][:CHARACTERS] for row in read("corpus.jsonl")}
        qrels = {q: r for s in ("dev", "test") for q, r in ck.read_qrels(folder, split=s).items()}
        asked = {row["_id"]: row["text"] for row in read("queries.jsonl") if row["_id"] in qrels}
        if queries == "diseases":
            asked, qrels = about(asked, qrels)
        chosen = sorted(asked)
        chosen = [chosen[at] for at in np.random.default_rng(0).permutation(len(chosen))[:160]]
        index = indexed(given.work / f"medquad{'-lexical' * lexical}.index", texts, lexical)
        judged = QuerySet(tuple(chosen), tuple(asked[q] for q in chosen))
        return split(index, scored(given, "medquad", ck.CrossEncoder(cores=1)), judged, qrels, 60)

    return make


def about(asked: dict[str, str], qrels: Any) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Return queries for diseases that a question "What is (are) ... ?" names, and all answers of their pages."""
    pages: dict[str, dict[str, int]] = {}
    for items in qrels.values():
        for item in items:
            pages.setdefault(item.rpartition("_Sec")[0], {})[item] = 1
    named: dict[str, dict[str, int]] = {}
    for query, text in asked.items():
        if text.startswith("What is (are) "):
            disease = text.removeprefix("What is (are) ").strip(" ?").lower()
            for item in qrels[query]:
                named.setdefault(disease, {}).update(pages[item.rpartition("_Sec")[0]])
    many = {name: found for name, found in named.items() if len(found) >= 3}
    return {name: f"everything about {name}" for name in many}, many


def members(given: Any) -> Case:
    """The purpose of a module or class of Python (its first sentence): all its members, among all docstrings."""
    sys.path.insert(0, str(RESULTS.parents[2] / "lab" / "recipes" / "bundled"))
    from python_docs import docstrings, first_sentence

    docs, below = docstrings(), defaultdict[str, dict[str, int]](dict)
    for name in docs:
        below[name.rpartition(".")[0]][name] = 1
    purposes = {name: first_sentence(docs[name][1])[0] for name in below if name in docs}
    asked = sorted(
        n for n, of in purposes.items() if 3 <= len(of.split()) <= 60 and len(below[n]) > 2
    )
    texts = {name: f"{name}{' '.join(docs[name])}" for name in docs if name not in {*asked}}
    qrels = {name: {item: 1 for item in below[name] if item in texts} for name in asked}
    chosen = [asked[at] for at in np.random.default_rng(0).permutation(len(asked))[:160]]
    index = indexed(given.work / "members.index", texts, False)
    judged = QuerySet(tuple(chosen), tuple(purposes[name] for name in chosen))
    return split(index, scored(given, "members", ck.CrossEncoder(cores=1)), judged, qrels, 60)


def matrix(name: str, first: str = "") -> Callable[[Any], Case]:
    """Stored scores; the fusion is fitted to the anchor queries, which no search knows.

    Vectors and BM25 are those of the matrix `first`, if one is named; its scores are a cheaper scorer's.
    """

    def make(given: Any) -> Case:
        stored = StoredMatrix.load(given.matrices / f"{name}.npz")
        around = StoredMatrix.load(given.matrices / f"{first or name}.npz")
        names = tuple(map(str, stored.item_ids or range(stored.n)))
        assert around.dense_queries is not None
        assert stored.labels is not None
        assert around.item_ids == stored.item_ids
        row = {query: at for at, query in enumerate(around.query_ids)}

        def rows(of: FloatArray, texts: Sequence[str]) -> FloatArray:
            return of[[row[text] for text in texts]].astype(np.float32)

        class Bm25(AllScores):
            name = "bm25"

            def of_all(self, queries: Queries) -> FloatArray:
                return rows(around.firsts["bm25"], queries.texts)

        records = [{"id": item, "text": item} for item in names]
        how: Any = {
            "vectors": around.dense_items,
            "query_vectors": partial(rows, around.dense_queries),
        }
        index = ck.ItemIndex.build(records, bm25=False, **how)
        index.add_retriever("bm25", Bm25())
        labels = zip(stored.query_ids, stored.labels, strict=True)
        qrels = {q: {names[item]: 1} for q, item in labels if item >= 0}
        judged = QuerySet(stored.query_ids, stored.query_ids)
        made = split(index, looked_up(stored, name), judged, qrels, stored.n_anchors)
        made.cheap = looked_up(around, first) if first else None
        return made

    return make


def sample(given: Any) -> Case:
    """The package's sample, a third of its queries to fit to."""
    of = ck.sample()
    made = split(of.index, of.scorer, of.queries, of.qrels, len(of.queries) // 3)
    made.cheap = of.cheap
    return made


SETS: dict[str, tuple[str, Callable[[Any], Case]]] = {
    "noun.act of 96,523": ("96,523 word senses", senses("noun.act", whole=True)),
    "act of 96,523, BM25 and LSA": (
        "96,523 word senses, no vectors",
        senses("noun.act", whole=True, lexical=True),
    ),
    "noun.artifact of 11,986": ("11,986 senses of things", senses("noun.artifact")),
    "artifact, BM25 and LSA": (
        "11,986 senses of things, no vectors",
        senses("noun.artifact", lexical=True),
    ),
    "adj.all of 14,493": ("14,493 senses of adjectives", senses("adj.all")),
    "sample": ("11,587 senses (demo, 40 queries)", sample),
    "wordnet-act": ("6,567 senses of acts", matrix("wordnet-act")),
    "act, [EMB]": ("6,567 senses of acts, large model", matrix("wordnet-act-emb", "wordnet-act")),
    "act, [CLS]": ("6,567 senses of acts, [CLS] model", matrix("wordnet-act-cls", "wordnet-act")),
    "wordnet-artifact": ("3,000 senses of things", matrix("wordnet-artifact")),
    "answers": ("15,809 medical answers", medquad("answers")),
    "answers, BM25 and LSA": (
        "15,809 medical answers, no vectors",
        medquad("answers", lexical=True),
    ),
    "diseases": ("15,809 answers, all on a disease", medquad("diseases")),
    "members": ("members of Python's modules", members),
    "medquad": ("1,000 medical answers", matrix("medquad")),
    "python-docs": ("6,372 entries of Python's manual", matrix("python-docs")),
    "scifact": ("5,183 scientific abstracts", matrix("scifact")),
}
"""Names in the picture, and how the sets are made."""


def indexed(folder: Path, texts: dict[str, str], lexical: bool) -> ck.ItemIndex:
    if not folder.exists():
        records = [{"id": name, "text": text} for name, text in texts.items()]
        ck.ItemIndex.build(records, encoder=None if lexical else "bundled", folder=folder)
    return ck.ItemIndex.load(folder)


def scored(given: Any, name: str, scorer: Any) -> ck.StoredScorer:
    return ck.StoredScorer(scorer, ScoreStore(given.work / f"{name}.sqlite"))


def looked_up(of: StoredMatrix, name: str) -> ck.CallableScorer:
    row = {query: at for at, query in enumerate(of.query_ids)}
    column = {str(item): at for at, item in enumerate(of.item_ids or range(of.n))}

    def scores(pairs: list[tuple[str, str]]) -> FloatArray:
        return of.scores[[row[query] for query, _ in pairs], [column[item] for _, item in pairs]]

    return ck.CallableScorer(scores, name)


def split(index: ck.ItemIndex, scorer: Any, judged: QuerySet, qrels: Any, fits: int) -> Case:
    """Fit to the first `fits` queries, and measure all others."""
    fit, tests = judged.take(range(fits)), judged.take(range(fits, len(judged)))
    return Case(index=index, scorer=scorer, fit=fit, tests=tests, qrels=qrels)


def measured(case: Case) -> dict[str, Any]:
    """Return each query's measures by way to answer, with `CALLS` calls."""
    judged = case.tests.take(q for q, name in enumerate(case.tests.ids) if name in case.qrels)
    ck.fit_fusion(case.index, case.scorer, case.fit, case.qrels)
    alone = ck.Searcher(case.index, case.scorer, DEFAULT)
    judgements = Judgements.from_qrels(case.qrels, judged, case.index.items.ids)
    task = TaskMeasures(judgements, (*MEASURES, f"R@{CALLS}"))
    batches = query_batches(case.index, judged, alone.scorer)
    evaluation = Evaluation(batches=batches, depth=CALLS, task=task)
    ways = search_ways(evaluation, alone.method, [CALLS], alone.fusion)[CALLS]
    values = {str(way): found.task for way, found in ways.items()}
    missed = round(1 - float(values["retriever"][f"R@{CALLS}"].mean()), 4)
    if case.cheap is not None:
        both = ck.Searcher(case.index, [case.cheap, case.scorer], DEFAULT)
        answers = [both.search(text, K, [CHEAP_CALLS, EXPENSIVE_CALLS])[0] for text in judged.texts]
        values["two scorers"] = task.values(
            np.array([[hit.position for hit in a] for a in answers])
        )
    made = {"items": case.index.n, "queries": len(judged), "fit": len(case.fit), "missed": missed}
    return made | {m: {way: rounded(of[m]) for way, of in values.items()} for m in MEASURES}


def rounded(values: FloatArray) -> list[float]:
    return [round(float(value), 4) for value in values]


def measure(given: Any) -> None:
    given.work.mkdir(parents=True, exist_ok=True)
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, cwd=RESULTS.parent).stdout.strip()
    for name in given.sets or SETS:
        began = time.time()
        found = measured(SETS[name][1](given)) | {
            "commit": commit,
            "date": time.strftime("%Y-%m-%d"),
        }
        table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(table | {name: found}) + "\n")
        means = {
            m: {way: round(100 * np.mean(v), 1) for way, v in found[m].items()} for m in MEASURES
        }
        print(name, found["missed"], means, f"{time.time() - began:.0f} s", flush=True)
        gain = {
            m: paired(np.subtract(found[m]["search fused"], found[m]["rerank fused"]))
            for m in MEASURES
        }
        print("  search - rerank, fused:", *map(str, gain.values()), flush=True)


# ------------------------------------------------------------------------------------ the picture

LEFT, BAR, LINE, TOP = 8, 312, 46, 184
"""Where bars begin, their length at 100%, the height of a set's lines, and where the sets begin."""
STYLE = """.paper { fill: #ffffff } text { fill: #1f2328 } .found { font-weight: 600 } .quiet { fill: #59636e } .track { fill: #eaeef2 } .clear { fill: #0f766e }
.same { fill: #8cc7c0 } .plain { stroke: #59636e } .fused { stroke: #1f2328 } .two, .extra { fill: #b45309 }
path { stroke-width: 3.5; fill: none }
@media (prefers-color-scheme: dark) { .paper { fill: #14181d } text { fill: #e6edf3 } .quiet { fill: #9198a1 }
.track { fill: #2a3038 } .clear { fill: #2dd4bf } .same { fill: #1f6f68 } .plain { stroke: #9198a1 }
.fused { stroke: #ffffff } .two, .extra { fill: #f59e0b } }"""


def draw() -> None:
    """Draw a bar for each set: the share of the relevant items that are among the 20 returned."""
    table = json.loads(RESULTS.read_text())
    shown = [(SETS[name][0], *today(of)) for name, of in table.items()]
    shown.sort(key=lambda each: -each[1])
    legend = [
        ('<rect class="clear" x="8" y="55" width="24" height="12"/>', "search with crossknn"),
        (
            '<rect class="same" x="8" y="79" width="24" height="12"/>',
            "the same, not clearly more than fused reranking",
        ),
        (tick("plain", 20, 100), "reranking the first 50"),
        (tick("fused", 20, 124), "fused reranking: the first stage's scores count, too"),
        (diamond(20, 157), "two scorers, in the time of 50 calls (cheap one: 1/20)"),
    ]
    shapes = [text(LEFT, 17, "Right items among the 20 returned, in percent,", "found")]
    shapes += [text(LEFT, 39, "with 50 calls for each query", "found")]
    shapes += [text(42, 67 + 24 * at, said) + shape for at, (shape, said) in enumerate(legend)]
    shapes += [row(*of, TOP + LINE * at) for at, of in enumerate(shown)]
    end = TOP + LINE * len(shown) + 20
    date = max(of["date"] for of in table.values())
    sources = [
        "Clearly: the difference has a 95% interval above 0.",
        f"Made by lab/benchmarks/bars.py, {date}",
        "(each set's commit is in benchmarks/results/bars.json).",
    ]
    shapes += [text(LEFT, end + 20 * at, line, "quiet") for at, line in enumerate(sources)]
    height = end + 20 * len(sources) - 8
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="480" height="{height}" viewBox="0 0 480 {height}" '
        'font-family="system-ui, sans-serif" font-size="16">\n'
        "<title>Right items among the 20 returned, in percent, on every set</title>\n"
        f'<style>{STYLE}</style>\n<rect class="paper" width="480" height="{height}"/>\n'
    )
    PICTURE.write_text(start + "\n".join([*shapes, "</svg>\n"]), encoding="utf-8")


def today(found: dict[str, Any]) -> tuple[float, dict[str, float], bool]:
    """Return the share missed, means in percent, and whether a search is clearly better than fused reranking."""
    values = {way: 100 * np.array(of) for way, of in found["R@20"].items()}
    clear = paired(values["search fused"] - values["rerank fused"]).low > 0
    return found["missed"], {way: of.mean() for way, of in values.items()}, clear


def row(name: str, missed: float, values: dict[str, float], clear: bool, y: int) -> str:
    """Draw a set: its name, what the first stage misses, a bar, and marks of the other ways."""
    shown = {way: values[way] for way in (*WAYS, "two scorers") if way in values}
    at = {way: LEFT + BAR * value / 100 for way, value in shown.items()}
    numbers = "".join(
        text(356 + 38 * place, y + 35, f"{value:.0f}", WAYS.get(way, "extra"), "end")
        for place, (way, value) in enumerate(shown.items())
    )
    box = f'x="{LEFT}" y="{y + 22}" height="14"'
    return "\n".join(
        [
            text(LEFT, y + 14, name)
            + text(472, y + 14, f"first 50 miss {100 * missed:.0f}%", "quiet", "end"),
            f'<rect class="track" {box} width="{BAR}"/>'
            f'<rect class="{"clear" if clear else "same"}" {box} width="{at["search fused"] - LEFT:.1f}"/>',
            tick("plain", at["rerank"], y + 20)
            + tick("fused", at["rerank fused"], y + 20)
            + numbers,
            *([diamond(at["two scorers"], y + 29)] if "two scorers" in at else []),
        ]
    )


def text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    end = ' text-anchor="end"' * (anchor == "end")
    return f'<text x="{x}" y="{y}" class="{kind}"{end}>{said}</text>'


def tick(kind: str, x: float, y: float) -> str:
    return f'<path class="{kind}" d="M{x:.1f},{y} v18"/>'


def diamond(x: float, y: float) -> str:
    return f'<polygon class="two" points="{x - 7:.1f},{y} {x:.1f},{y - 7} {x + 7:.1f},{y} {x:.1f},{y + 7}"/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["measure", "draw"])
    parser.add_argument("sets", nargs="*", choices=[[], *SETS])
    for place in ("sources", "matrices", "model", "work"):
        parser.add_argument(f"--{place}", type=Path)
    given = parser.parse_intermixed_args()
    measure(given) if given.what == "measure" else draw()


if __name__ == "__main__":
    main()
