"""Recall of the ten best groups: a search for groups beside a search for items grouped afterwards.

    python lab/benchmarks/groups.py WORK SET --medquad FOLDER --questions FOLDER   # scores all pairs, resumable
    python lab/benchmarks/groups.py WORK                                           # prints the table
    python lab/benchmarks/groups.py benchmarks/data/python-docs.npz                # the same for stored scores, items by module

SET is medquad (answers by source page), python (members of the standard library by module) or
man (passages of about 60 words of this machine's manual pages, by page), or squad (sentences by documents of 12, of
which one answers the question: for these the share of queries whose document is found is printed, too). FOLDER is MedQuAD in BEIR's layout, and the
folder of questions (conala.jsonl.gz, nl2bash.jsonl.gz, squad_sentences.test.jsonl.gz). The bundled cross-encoder reads at most
32 tokens of a pair. A group's exact score is that of its best item.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import inspect
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import bootstrap
from crossknn.index.base import Index
from crossknn.methods import parse_method
from crossknn.methods.base import Plan
from crossknn.search.groups import Groups
from crossknn.search.loop import simulate
from crossknn.types import FloatArray, IntArray, Pairs, Queries
from crossknn_lab.stored import StoredMatrix

QUERIES, ITEMS, K, TOKENS = 20, 3_000, 10, 32
BUDGETS = (20, 50, 100, 200)
METHODS = ("rerank", "axn", "kriging(use_anchors=false)")
ROWS = list[dict[str, Any]]()
Corpus = tuple[list[str], list[dict[str, str]]]
"""Questions, and items with `text` and `group`."""


def medquad(folder: Path, rng: np.random.Generator) -> Corpus:
    """Return test questions and all answers."""
    read = lambda name: map(json.loads, (folder / name).read_text().splitlines())  # noqa: E731
    items = [
        {"id": i["_id"], "text": i["text"], "group": page(i["_id"])} for i in read("corpus.jsonl")
    ]
    right = [line.split("\t") for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]]
    questions = {q["_id"]: q["text"] for q in read("queries.jsonl")}
    asked = rng.choice(sorted({row[0] for row in right}), QUERIES, replace=False)
    return [questions[q] for q in asked], items


def page(name: str) -> str:
    """Return the page of an answer: its id without the number of the section."""
    return name.rsplit("_", 1)[0]


def python(folder: Path, rng: np.random.Generator) -> Corpus:
    """Return questions on Python and members of modules with their documentation."""
    items = dict[str, dict[str, str]]()
    for module in sorted({*sys.stdlib_module_names} - {"antigravity", "this", "idlelib"}):
        with contextlib.suppress(Exception):
            for name, member in inspect.getmembers(importlib.import_module(module)):
                text = inspect.getdoc(member) or ""
                if getattr(member, "__module__", None) == module and len(text) > 30:
                    items[text] = {"text": f"{module}.{name}: {text}"[:400], "group": module}
    return questions(folder / "conala.jsonl.gz", rng), draw([*items.values()], rng)


def man(folder: Path, rng: np.random.Generator) -> Corpus:
    """Return questions on the shell and passages of manual pages."""
    pages = sorted(p for p in Path("/usr/share/man/man1").iterdir() if p.stat().st_size > 2_000)
    items = list[dict[str, str]]()
    for path in rng.permutation(np.array(pages, object)):
        text = subprocess.run(["man", "-P", "cat", path], capture_output=True, text=True).stdout
        words = text.split()
        parts = [" ".join(words[at : at + 60]) for at in range(0, len(words), 60)]
        items += [{"text": f"{path.name.split('.')[0]}: {p}", "group": path.name} for p in parts]
        if len(items) > ITEMS:
            break
    return questions(folder / "nl2bash.jsonl.gz", rng), items[:ITEMS]


def squad(folder: Path, rng: np.random.Generator) -> Corpus:
    """Return questions, and documents of 12 sentences drawn at random, with the answers anywhere in them."""
    with gzip.open(folder / "squad_sentences.test.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    rows = list({row["text"]: row for row in rows if row["label"]}.values())
    chosen = [rows[at] for at in rng.permutation(len(rows))[:ITEMS]]
    items = [row | {"group": f"{at // 12}"} for at, row in enumerate(chosen)]
    return [chosen[at]["query"] for at in rng.permutation(len(chosen))[:QUERIES]], items


def questions(path: Path, rng: np.random.Generator) -> list[str]:
    with gzip.open(path, "rt") as file:
        known = sorted({json.loads(line)["query"] for line in file})
    return [str(text) for text in rng.choice(known, QUERIES, replace=False)]


def draw(items: list[dict[str, str]], rng: np.random.Generator) -> list[dict[str, str]]:
    return [items[at] for at in np.sort(rng.permutation(len(items))[:ITEMS])]


def collect(work: Path, name: str, folder: Path) -> None:
    """Write the corpus and the score of every pair."""
    corpus = work / f"{name}.json"
    if not corpus.exists():
        made = {"medquad": medquad, "python": python, "man": man, "squad": squad}[name](
            folder, np.random.default_rng(0)
        )
        corpus.write_text(json.dumps(made))
    queries, items = json.loads(corpus.read_text())
    texts, scorer = [item["text"] for item in items], ck.CrossEncoder(threads=1, max_length=TOKENS)
    for q, query in enumerate(queries):
        path = work / f"{name}-{q}.npy"
        if not path.exists():
            scores = np.empty(len(texts), np.float32)
            for at, some in scorer.score(
                Pairs(np.zeros(len(texts), int), np.arange(len(texts))), [query], texts
            ):
                scores[at] = some
            np.save(path, scores)
            print(name, q + 1, "of", len(queries), flush=True)


def table(work: Path) -> None:
    """Print the figures of every corpus in a folder."""
    for corpus in sorted(work.glob("*.json")):
        questions, items = json.loads(corpus.read_text())
        paths = [work / f"{corpus.stem}-{q}.npy" for q in range(len(questions))]
        queries = [text for text, path in zip(questions, paths, strict=True) if path.exists()]
        scores = np.array([np.load(path) for path in paths if path.exists()])
        records = [{"text": item["text"], "group": item["group"]} for item in items]
        small = len(records) < 10_000  # otherwise BM25 and LSA: encoding takes as long as scoring
        index = ck.ItemIndex.build(records, encoder="bundled" if small else None)
        of = index.groups("group")
        right = {item.get("query"): of[at] for at, item in enumerate(items)}
        answers = np.array([right.get(query, -1) for query in queries])
        measure(corpus.stem, index, Queries(queries), scores, of, answers)


def stored(path: Path) -> None:
    """Print the figures of a matrix of scores whose items' ids begin with the names of their groups."""
    matrix = StoredMatrix.load(path)
    _, queries, scores = matrix.rows(0, matrix.n_tests)
    of = np.unique([name.split(".")[0] for name in matrix.item_ids], return_inverse=True)[1]
    measure(path.stem, matrix, queries, scores.astype(np.float32), of, np.full(len(scores), -1))


def measure(
    name: str, index: Index, queries: Queries, scores: FloatArray, of: IntArray, answers: IntArray
) -> None:
    """Print recall of the ten best groups in percent: items grouped afterwards, groups, difference;
    and the share of queries whose group `answers` (m,) is among the ten, if it is known."""
    exact, known = best_of(scores, of), bool((answers >= 0).all())
    shared = lambda ten: f"{100 * (ten == answers[:, None]).any(1).mean():.1f}"  # noqa: E731
    print(f"{name}: {len(scores)} queries, {len(of)} items, {of.max() + 1} groups")
    if known:
        print(f"right in ten, all scored: {shared(exact)}")
    for method, budget in product(METHODS, BUDGETS):
        plan = parse_method(method).plan(index, budget, 0)
        found = [ten(plan, queries, scores, of, wanted) for wanted in (None, Groups(of, K))]
        both = [100 * (each[:, :, None] == exact[:, None]).any(1).mean(1) for each in found]
        gain = bootstrap(both[1] - both[0])
        recall = [round(float(each.mean()), 2) for each in both]
        ROWS.append(
            {"set": name, "queries": len(scores), "items": len(of), "groups": int(of.max()) + 1}
            | {"method": method, "calls": budget, "grouped afterwards": recall[0]}
            | {"search for groups": recall[1], "gain": [gain.mean, gain.low, gain.high]}
        )
        print(
            f"| {method} | {budget} | {both[0].mean():.1f} | {both[1].mean():.1f} | "
            f"{gain.mean:+.1f} ({gain.low:+.1f} to {gain.high:+.1f}) | "
            + " | ".join(shared(each) for each in found if known)
        )


def best_of(scores: FloatArray, of: IntArray) -> IntArray:
    """Return the ten best groups (m, 10) by exact score."""
    exact = np.full((len(scores), of.max() + 1), -np.inf)
    for row, own in zip(exact, scores, strict=True):
        np.maximum.at(row, of, own)
    return np.argsort(-exact, axis=1, kind="stable")[:, :K]


def ten(
    plan: Plan, queries: Queries, scores: FloatArray, of: IntArray, groups: Groups | None
) -> IntArray:
    """Return the ten groups (m, 10) that a search finds."""
    search = simulate(plan, queries, scores, groups)
    return Groups(of, K).named(Groups(of, K).best(search.best(search.budget))[0].items)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("set", nargs="?", choices=["medquad", "python", "man", "squad"])
    parser.add_argument("--medquad", type=Path)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--out", type=Path, help="Add the figures to this file of JSON lines.")
    args = parser.parse_args()
    if args.set is None:
        (stored if args.work.suffix == ".npz" else table)(args.work)
        if args.out is not None:
            with args.out.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in ROWS)
    else:
        collect(args.work, args.set, args.medquad if args.set == "medquad" else args.questions)


if __name__ == "__main__":
    main()
