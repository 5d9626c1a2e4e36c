"""A held-out domain: items, queries and judgements, written as a BEIR folder."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEED, TESTS, DEVS, ITEMS = 44, 300, 100, 12_000
HERE = Path(__file__).parent

Qrels = dict[str, dict[str, int]]


@dataclass
class Domain:
    """Items by id as (title, text), queries by id, and per split the relevant items of a query."""

    items: dict[str, tuple[str, str]]
    queries: dict[str, str]
    test: Qrels
    dev: Qrels = field(default_factory=dict)
    most: int = ITEMS

    def drawn(self) -> Domain:
        """At most TESTS and DEVS queries, and items until there are `most`."""
        test, dev = _draw(self.test, TESTS), _draw(self.dev, DEVS)
        right = {item for found in (*test.values(), *dev.values()) for item in found}
        others = [item for item in sorted(self.items) if item not in right]
        room = max(0, min(len(others), self.most - len(right)))
        kept = right.union(random.Random(SEED).sample(others, room))
        items = {item: value for item, value in self.items.items() if item in kept}
        return Domain(items, {q: self.queries[q] for q in (*test, *dev)}, test, dev)

    def write(self, folder: Path) -> str:
        """Writes the BEIR folder; returns a line with its sizes."""
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        rows = ({"_id": i, "title": a, "text": b} for i, (a, b) in self.items.items())
        write_lines(folder / "corpus.jsonl", rows)
        queries = ({"_id": i, "text": text} for i, text in self.queries.items())
        write_lines(folder / "queries.jsonl", queries)
        sizes = [f"{folder.name}: {len(self.items):,} items"]
        for split, qrels in ("test", self.test), ("dev", self.dev):
            path = folder / "qrels" / f"{split}.tsv"
            path.unlink(missing_ok=True)
            if qrels:
                lines = [f"{q}\t{i}\t{g}\n" for q, found in qrels.items() for i, g in found.items()]
                path.write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8")
                sizes.append(f"{len(qrels)} {split} queries with {len(lines)} relevant items")
        return ", ".join(sizes)


def _draw(qrels: Qrels, count: int) -> Qrels:
    if len(qrels) <= count:
        return qrels
    chosen = set(random.Random(SEED).sample(sorted(qrels), count))
    return {query: found for query, found in qrels.items() if query in chosen}


def halves(qrels: Qrels, dev: int = DEVS) -> tuple[Qrels, Qrels]:
    """(test, dev): a seeded draw of `dev` queries, a third of them at most, is for dev."""
    chosen = set(random.Random(SEED + 1).sample(sorted(qrels), min(dev, len(qrels) // 3)))
    test = {query: found for query, found in qrels.items() if query not in chosen}
    return test, {query: found for query, found in qrels.items() if query in chosen}


def write_lines(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def lines_of(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def grouped(pairs: Iterable[tuple[str, str]], prefix: str) -> tuple[dict[str, str], Qrels]:
    """(queries, qrels) of (query text, relevant item) pairs; equal texts are one query."""
    by_text: dict[str, dict[str, int]] = defaultdict(dict)
    for text, item in pairs:
        by_text[text][item] = 1
    ids = {text: f"{prefix}{number}" for number, text in enumerate(by_text)}
    return {ids[text]: text for text in by_text}, {ids[t]: found for t, found in by_text.items()}


def words_of(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


# Debian packages


def read_tsv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
