"""Write what train.py reads: pairs, dev queries, and the model to start from.

    python prepare.py --general DIR --gathered DIR --domains DIR --encoder DIR --out work

`--domains` holds the held-out domains (domains.py): pairs with a text of theirs are left out, and
their dev queries, with the items nearest to them, become dev-NAME.jsonl.xz. `--general` holds pairs of
general questions and texts (NAME.jsonl.gz, lines {"query", "text", "label"}), `--gathered` those that
gather_*.py wrote, `--encoder` the model all-MiniLM-L6-v2. `start` scores as this encoder does, with
token weights from the training texts; it is kept small, in int8.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from docstrings import called_pairs, code_pairs, docstring_pairs, question_pairs
from domain import lines_of as rows_of
from domains import evaluation_texts, is_held_out, leak, programs

import crossknn as ck
from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel

SEED = 13
FEW = 300
"""Gathered sources with fewer pairs are put together."""
N_ITEMS = 16_000
"""Most items of a line: a query's wrong candidates come from its own line."""
CHARACTERS = 800
"""Most characters of a training text."""
RIGHT, WRONG = 6, 4
"""Most right and labelled wrong items of a query."""
QUERIES = {
    "conala": 4_600,
    "disfl_qa": 8_000,
    "nl2bash": 8_000,
    "nq_qed_passages": 1_400,
    "nq_qed_sentences": 1_100,
    "selqa": 900,
    "squad_sentences": 10_000,
    "squad_passages": 10_000,
    "strategyqa": 5_500,
    "tldr": 16_000,
    "tldr_pages": 7_000,
    "wordset": 20_000,
    "xquad_en": 1_200,
    "docstrings": 15_000,
    "code": 15_000,
    "questions": 10_000,
    "called": 1_000,
    "npm": 10_000,
    "dict-gcide": 6_000,
    "dict-foldoc": 5_000,
    "libreoffice-help-en-us": 6_000,
    "perl-doc": 3_600,
}
"""How many queries a source gives at most."""
GATHERED = {"docs": 2_000, "qa": 7_000, "packages": 1_000}
"""What gather_*.py wrote, and how many queries each of its sources gives at most."""
IN_PASSAGE = 5
"""Sentences of SQuAD in a passage."""
TASKS = ("conala", "code", "docstrings", "nl2bash", "tldr", "tldr_pages")
"""Sources whose queries are tasks, such as "List all files"."""
SMALL = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "to",
        "in",
        "on",
        "for",
        "is",
        "are",
        "was",
        "were",
        "do",
        "does",
        "did",
        "how",
        "what",
        "which",
        "who",
        "when",
        "where",
        "i",
        "my",
        "can",
        "with",
        "and",
        "or",
        "by",
        "from",
        "at",
        "be",
        "it",
    ]
)
DEV = {
    "debian": "test", "everyday-debian": "test", "everyday-pydocs": "test", "man": "dev",
    "nfcorpus": "dev", "cosqa": "dev", "tldr": "dev", "tldr-pages": "dev", "faq": "dev",
    "senses": "dev", "scifact": "dev", "pydocs": "dev",
}  # fmt: skip
"""Held-out domains that train.py watches. It chooses by dev queries alone."""
DEV_QUERIES, NEAREST = 60, 50
Pair = tuple[str, str, int]


def pairs_of(general: Path, name: str) -> Iterator[Pair]:
    """Read a source's pairs (query, text, label)."""
    if name == "docstrings":
        yield from ((query, text, 1) for query, text in docstring_pairs())
    elif name == "code":
        yield from ((query, text, 1) for query, text in code_pairs())
    elif name == "questions":
        yield from ((query, text, 1) for query, text in question_pairs())
    elif name == "called":
        asked = ((query, text) for query, text, _ in lines_of(general, "conala"))
        yield from ((query, text, 1) for query, text in called_pairs(asked))
    elif name == "squad_passages":  # sentences of an article follow each other
        pairs = [*lines_of(general, "squad_sentences")]
        texts = [*dict.fromkeys(text for _, text, _ in pairs)]
        at = {text: place // IN_PASSAGE * IN_PASSAGE for place, text in enumerate(texts)}
        for query, text, label in pairs:
            yield query, " ".join(texts[at[text] : at[text] + IN_PASSAGE]), label
    elif name.startswith("tldr"):
        for command, about, examples in tldr_pages(general):
            if is_held_out(command):
                continue
            if name == "tldr":
                kept = (e for e in examples if not any(map(is_held_out, programs(*e))))
                yield from ((task, line, 1) for task, line in kept)
            elif " alias of " not in about:
                yield from ((task, f"{command}: {about}", 1) for task, _ in examples[:3])
                yield f"{command} command", f"{command}: {about}", 1
    else:
        yield from lines_of(general, name)


def lines_of(general: Path, name: str) -> Iterator[Pair]:
    with gzip.open(general / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            yield pair["query"].strip(), pair["text"].strip(), int(pair["label"])


def tldr_pages(general: Path) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield pages (command, description, examples): the line of a page's name, which has no other
    mark, follows those of its examples."""
    examples: list[tuple[str, str]] = []
    for query, text, _ in lines_of(general, "tldr"):
        first = query.split()[0]
        if query[:1].isupper() or text.split()[0].casefold() == first or not text[:1].isupper():
            examples.append((query, text))
            continue
        yield query, text, examples
        examples = []


def sources(given: argparse.Namespace, known: set[str]) -> Iterator[tuple[str, list[Pair], int]]:
    """Yield each source with its pairs, without those of held-out domains, and its most queries."""
    for name in [*QUERIES][:17]:
        pairs = [p for p in pairs_of(given.general, name) if not leak(p[0], p[1], known)]
        yield name, pairs, QUERIES[name]
    for kind, most in GATHERED.items():
        groups: dict[str, list[Pair]] = {}
        for path in sorted(given.gathered.glob(f"{kind}-*.jsonl.gz")):
            for row in rows_of(path):
                query, text = " ".join(row["query"].split()), row["text"].strip()
                if len(query) > 1 and len(text) > 20 and not leak(query, text, known):
                    pair = query, text, int(row.get("label", 1))
                    groups.setdefault(row["source"], []).append(pair)
        small = [name for name, pairs in groups.items() if len(pairs) < FEW]
        groups[f"{kind}, small ones"] = [p for name in small for p in groups.pop(name)]
        for name, pairs in groups.items():
            yield name, pairs, QUERIES.get(name, most)


def write_source(file: IO[str], name: str, pairs: Iterable[Pair], most: int) -> list[str]:
    """Write a source, in lines of about `N_ITEMS` texts at most, and return its texts."""
    rng = random.Random(SEED)
    texts: dict[str, int] = {}
    labelled: tuple[dict[str, set[int]], ...] = {}, {}  # wrong and right items of queries
    for query, text, label in pairs:
        place = texts.setdefault(text[:CHARACTERS], len(texts))
        if query.casefold() != text.casefold():
            labelled[label].setdefault(query, set()).add(place)
    wrong = {q: sorted(found)[:WRONG] for q, found in labelled[0].items()}
    right = {q: sorted(found)[:RIGHT] for q, found in labelled[1].items()}
    queries = sorted(right)
    rng.shuffle(queries)
    queries = queries[:most]
    all_texts = [*texts]
    parts = max(1, math.ceil(len({p for q in queries for p in right[q]}) / N_ITEMS))
    for part in range(parts):
        chosen = queries[part::parts]
        needed = {p for q in chosen for p in (*right[q], *wrong.get(q, ()))}
        others = [place for place in range(len(texts)) if place not in needed]
        rng.shuffle(others)
        kept = sorted(needed.union(others[: max(0, FEW - len(needed))]))
        at = {place: number for number, place in enumerate(kept)}
        put = asked if name in TASKS else typed
        rows = [
            (put(q, rng), [at[p] for p in right[q]], [at[p] for p in wrong.get(q, ())])
            for q in chosen
        ]
        if rows and len(kept) > 20:
            line = {"source": name, "texts": [all_texts[p] for p in kept], "queries": rows}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"{name}: {len(queries)} queries, {len(texts)} texts", flush=True)
    return all_texts


def asked(query: str, rng: random.Random) -> str:
    """Put a third of the tasks as people ask for them: in lower case, or as a question."""
    form = rng.choice(["{}", "{}", "{}", "{}", "how to {}", "how do I {}?", "how can I {}"])
    if not query[1:2].islower():
        return query
    lower = query[:1].lower() + query[1:].rstrip(".")
    return form.format(lower if form != "{}" or rng.random() < 0.3 else query)


def typed(query: str, rng: random.Random) -> str:
    """Put a third of the queries as people type them: in lower case, some without small words."""
    chance = rng.random()
    if chance < 0.3:
        query = query.lower().rstrip("?.! ") or query
    if chance < 0.08:
        query = " ".join(w for w in query.split() if w not in SMALL) or query
    return query


def dev_rows(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    """Yield queries of a held-out domain with their nearest items by the dual encoder."""
    index = ck.ItemIndex.build(folder / "corpus.jsonl", encoder="bundled")
    queries = ck.read_queries(folder, split=split)
    queries = queries.take(range(len(queries))[:DEV_QUERIES])
    qrels = ck.read_qrels(folder, split=split)
    retrieve = ck.parse_method("retrieve(retriever=dense)")
    found = ck.Searcher(index, None).search(queries, NEAREST, method=retrieve)
    for query, text, hits in zip(queries.ids, queries.texts, found, strict=True):
        grades = qrels[query]
        best = sorted(grades.values(), reverse=True)[:10]
        yield {
            "domain": f"{folder.name}:{split}",
            "query": text,
            "texts": [hit.text[:CHARACTERS] for hit in hits],
            "grades": [grades.get(hit.id, 0) for hit in hits],
            "ideal": sum(grade / math.log2(rank + 2) for rank, grade in enumerate(best)),
        }


def start(encoder: Path, texts: list[str], out: Path) -> None:
    """Write the model to start from: a token's weight is its inverse document frequency."""
    config = CrossEncoderConfig(head="interaction", max_length=256)
    model = CrossEncoderModel.new(encoder, config)
    counts: Counter[int] = Counter()
    for ids in model.tokenizer.ids(texts):
        if ids is not None:
            counts.update(set(ids.tolist()))
    found = np.array([counts[token] for token in range(model.head.token_weight.num_embeddings)])
    idf = np.log1p((len(texts) - found + 0.5) / (found + 0.5)) / 6
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(model.encoder.config.to_json_string())
    model.tokenizer.fast.save(str(out / "tokenizer.json"))
    arrays = {}
    for name, value in model.state_dict().items():
        array = value.numpy()
        if name.endswith("token_weight.weight"):
            arrays[name] = idf.astype(np.float32)[:, None]
        elif array.size > 50_000:
            scale = np.abs(array).max(1, keepdims=True) / 127
            arrays[f"{name} scale"] = scale
            arrays[name] = np.rint(array / np.maximum(scale, 1e-12)).astype(np.int8)
        elif value.is_floating_point():
            arrays[name] = array
    np.savez(out / "weights.npz", **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("general", "gathered", "domains", "encoder", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name, split in DEV.items():
        path = given.out / f"dev-{name}.jsonl.xz"
        if not path.exists():
            rows = [*dev_rows(given.domains / name, split)]
            with lzma.open(path, "wt", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            print(f"{name}: {len(rows)} dev queries", flush=True)
    known, texts = evaluation_texts(given.domains), []
    with lzma.open(given.out / "pairs.jsonl.xz", "wt", encoding="utf-8", preset=6) as file:
        for name, pairs, most in sources(given, known):
            texts += write_source(file, name, pairs, most)
    start(given.encoder, texts, given.out / "start")


if __name__ == "__main__":
    main()
