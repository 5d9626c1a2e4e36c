"""Collect texts, prune the vocabulary, embed with the teacher and mine hard negatives. Every stage
is skipped if its file exists."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from common import Log, bm25_top, dense_top, embed, fuse, teacher_folder, write_jsonl
from sources import Task, beir_task, docs_tasks, wordnet_task
from tokenizers import Tokenizer
from transformers import BertModel
from vocabulary import inverse_document_frequency, prune, pruned_tokenizer

VOCABULARY = 18_000
LENGTHS = {"scifact": 200, "medquad": 64}
SAME = 0.92  # teacher cosine to a positive from which a candidate counts as a false negative


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with scifact/, medquad/ and wordnet/"
    )
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    log = Log(work / "prepare.jsonl")
    tasks = load_tasks(work, arguments.data, log)
    teacher = teacher_folder()
    tokenizer = Tokenizer.from_file(str(teacher / "tokenizer.json"))
    if not (work / "idf.npy").exists():
        texts = [text for task in tasks for text in [*task.items, *task.queries]]
        pieces, ids = prune(tokenizer, texts, VOCABULARY)
        small = pruned_tokenizer(teacher / "tokenizer.json", pieces)
        small.save(str(work / "tokenizer.json"))
        np.save(work / "kept_ids.npy", ids)
        items = [
            text
            for task in tasks
            if task.name not in ("docs-later", "docs-dev")
            for text in task.items
        ]
        np.save(work / "idf.npy", inverse_document_frequency(small, items, len(pieces)))
        log(stage="vocabulary", pieces=len(pieces))
    torch.set_num_threads(1)
    model = BertModel.from_pretrained(teacher).eval()
    for task in tasks:
        mine(task, work, model, tokenizer, log)
    log(stage="done")


def load_tasks(work: Path, data: Path, log: Log) -> list[Task]:
    path = work / "tasks.json"
    if not path.exists():
        tasks = [
            *docs_tasks(),
            beir_task("scifact", data / "scifact", {"train": False}, dev_share=0.2),
            beir_task("medquad", data / "medquad", {"train": False, "dev": True}),
            wordnet_task(data / "wordnet", per_domain=160),
        ]
        rows = []
        for task in tasks:
            row = asdict(task)
            row["relevant"] = [sorted(positions) for positions in task.relevant]
            rows.append(row)
        path.write_text(json.dumps(rows), encoding="utf-8")
    tasks = [Task(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    for task in tasks:
        task.relevant = [set(positions) for positions in task.relevant]
        log(
            stage="texts",
            task=task.name,
            items=len(task.items),
            queries=len(task.queries),
            dev=sum(task.dev),
        )
    return tasks


def vectors(
    name: str, texts: list[str], work: Path, model: BertModel, tokenizer: Tokenizer, log: Log
) -> np.ndarray:
    path = work / f"teacher-{name}.npy"
    if not path.exists():
        length = LENGTHS.get(name.removesuffix("-items"), 128)
        np.save(path, embed(model, tokenizer, texts, length, log).astype(np.float16))
        log(stage="vectors", of=name, count=len(texts))
    return np.load(path).astype(np.float32)


def mine(task: Task, work: Path, model: BertModel, tokenizer: Tokenizer, log: Log) -> None:
    """Write the first 40 wrong candidates of every query: BM25 and teacher fused, likely false
    negatives left out."""
    path = work / f"candidates-{task.name}.jsonl"
    if path.exists():
        return
    limit = {"medquad": 2600, "docs-later": 8000}.get(task.name, len(task.queries))
    order = np.random.default_rng(7).permutation(len(task.queries))
    order = np.array(
        sorted(
            [q for q in order if task.dev[q]][:300] + [q for q in order if not task.dev[q]][:limit]
        ),
        dtype=int,
    )
    source = (
        "docs" if task.name == "docs-later" else task.name
    )  # its negatives are mined on the items without first sentence
    sparse_only = (
        task.groups is not None
    )  # WordNet: the senses of a word share their title, so BM25 finds the hard ones
    if not sparse_only:
        items = vectors(f"{source}-items", task.items, work, model, tokenizer, log)
        queries = vectors(
            f"{task.name}-queries", [task.queries[q] for q in order], work, model, tokenizer, log
        )
    groups = np.zeros(len(task.items), dtype=int) if task.groups is None else np.array(task.groups)
    rows = []
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        mine_here = [n for n, q in enumerate(order) if groups[min(task.relevant[q])] == group]
        if not mine_here:
            continue
        sparse, _ = bm25_top(
            [task.items[i] for i in members], [task.queries[order[n]] for n in mine_here], 100
        )
        rankings = (
            [sparse]
            if sparse_only
            else [sparse, dense_top(items[members], queries[mine_here], 100)]
        )
        for n, candidates in zip(mine_here, fuse(*rankings, count=100), strict=True):
            query = int(order[n])
            best = [int(members[c]) for c in candidates]
            right = sorted(task.relevant[query])
            wrong = [c for c in best if c not in task.relevant[query]]
            if not sparse_only:
                near = (items[wrong] @ items[right].T).max(axis=1)
                wrong = [c for c, cosine in zip(wrong, near, strict=True) if cosine < SAME]
            rows.append(
                {"query": query, "top": best[:50] if task.dev[query] else [], "wrong": wrong[:40]}
            )
    write_jsonl(path, rows)
    log(stage="mined", task=task.name, queries=len(rows))


if __name__ == "__main__":
    main()
