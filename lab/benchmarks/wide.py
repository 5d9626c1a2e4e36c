"""All of WordNet's definitions and MedQuAD's answers, scored with thirty queries: exact neighbours
among 112,332 real items.

    python lab/benchmarks/wide.py WORDNET MEDQUAD FOLDER

WORDNET and MEDQUAD are the unpacked data sets, FOLDER takes an index of all items and the scores.
The bundled models encode and score them: 3.4 million pairs, four to five hours of two idle cores. Killed,
the same command resumes. The scores (30, n) are in FOLDER/wide.npz, in half precision, with a mark for
each query that is complete; put there from another machine once the index is built, it is not scored again.

Fifteen queries are sentences of WordNet's test worlds, with the word whose meaning is sought in
brackets, and fifteen are MedQuAD's test questions, drawn by a seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.scores.collect import exact_scores

SEED, EACH = 0, 15


def items_of(wordnet: Path, medquad: Path) -> list[dict[str, str]]:
    """Ids, titles and texts of all items."""
    found = []
    for path in sorted((wordnet / "documents").glob("*.json")):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            found.append({"id": f"w{one['document_id']}", **_texts(one)})
    for line in (medquad / "corpus.jsonl").read_text().splitlines():
        one = json.loads(line)
        found.append({"id": f"m{one['_id']}", **_texts(one)})
    return found


def queries_of(wordnet: Path, medquad: Path, seed: int = SEED, each: int = EACH) -> list[str]:
    """Sentences, then as many questions."""
    sentences = []
    for path in sorted((wordnet / "processed" / "test_worlds").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            mention = f"{one['context_left']} [{one['mention']}] {one['context_right']}"
            sentences.append(mention.strip())
    asked = [json.loads(line) for line in (medquad / "queries.jsonl").read_text().splitlines()]
    lines = (medquad / "qrels" / "test.tsv").read_text().splitlines()[1:]
    test = {line.split("\t")[0] for line in lines}
    questions = [one["text"] for one in asked if one["_id"] in test]
    rng = np.random.default_rng(seed)
    chosen = (rng.choice(len(texts), each, replace=False) for texts in (sentences, questions))
    pools = sentences, questions
    return [texts[p] for texts, places in zip(pools, chosen, strict=True) for p in places.tolist()]


def _texts(record: dict[str, str]) -> dict[str, str]:
    return {"title": record.get("title", ""), "text": record["text"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("wordnet", "medquad", "folder"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    queries = queries_of(options.wordnet, options.medquad)
    if not (options.folder / "crossknn-index.json").exists():
        items = items_of(options.wordnet, options.medquad)
        ck.ItemIndex.build(items, encoder="bundled", progress=_every_minute()).save(options.folder)
    index = ck.ItemIndex.load(options.folder)
    scorer, texts = ck.CrossEncoder("bundled"), index.items.texts
    rows = np.zeros((len(queries), index.n), np.float16)
    done, out = np.zeros(len(queries), bool), options.folder / "wide.npz"
    if out.exists():
        with np.load(out) as kept:
            rows, done = kept["scores"], kept["done"]
    for q in np.arange(len(queries)).reshape(2, -1).T.ravel():  # a sentence, a question, in turn
        if done[q]:
            continue
        print(f"query {q}: {queries[q]}", flush=True)
        given = [queries[q]]
        rows[q] = exact_scores(index.scores, scorer, given, texts, progress=_every_minute())
        done[q] = True
        np.savez_compressed(part := out.with_suffix(".part.npz"), scores=rows, done=done)
        part.replace(out)


def _every_minute():
    """Says how far it is, once a minute."""
    said = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"  {done:,} of {total:,}", file=sys.stderr, flush=True)

    return say


if __name__ == "__main__":
    main()
