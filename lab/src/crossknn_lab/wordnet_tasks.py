"""Tasks made of WordNet in which many right answers lie beyond a retriever's first hundred.

Each is a `Dataset` with judgements of its source; nothing is written that holds the source's texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossknn.data.dataset import Dataset
from crossknn.data.items import DEFAULT_TEMPLATE, Items, items_from
from crossknn.data.queries import ITEM_TEMPLATE, Qrels, QuerySet, marked_query
from crossknn.data.records import given_records
from crossknn.files import parse_json, read_given


def senses(*domains: str) -> Callable[[Path], Dataset]:
    """WordNet, a word marked in a sentence -> its sense: mentions of the first domain, items of all
    `domains` ("all" for every one)."""

    def build(sources: Path) -> Dataset:
        folder = sources / "wordnet"
        items = _documents(folder, domains)
        [file] = folder.glob(f"processed/*/{domains[0]}_mentions.jsonl")
        mentions = _lines(file)
        queries = {
            m["mention_id"]: marked_query(m["context_left"], m["mention"], m["context_right"])
            for m in mentions
        }
        qrels = {m["mention_id"]: {m["label_document_id"]: 1} for m in mentions}
        return _dataset(" + ".join(domains), items, queries, qrels, ITEM_TEMPLATE)

    return build


def kinds(*domains: str, wordnet: Path = Path("/usr/share/wordnet")) -> Callable[[Path], Dataset]:
    """WordNet, the description of a sense -> it and all its hyponyms, direct or not.

    The relation comes from Princeton WordNet 3.0 (Debian's wordnet-base), whose senses are those of
    equal definition and a common lemma. Queries are senses of the first domain with 3 to 100
    hyponyms.
    """

    def build(sources: Path) -> Dataset:
        items = _documents(sources / "wordnet", domains, "noun.*")
        asked = {item["id"] for item in items if item["domain"] == domains[0]}
        senses, parents = _hypernyms(wordnet / "data.noun")
        by_text = defaultdict(list)
        for sense, (lemmas, definition) in senses.items():
            by_text[definition].append((sense, lemmas))
        ids, texts = {}, {}
        for item in items:
            lemmas = {lemma.strip().lower() for lemma in item["title"].split(",")}
            for sense, known in by_text[item["gloss"].strip()]:
                if known & lemmas:
                    ids[sense], texts[item["id"]] = item["id"], item["gloss"]
        below: dict[str, dict[str, int]] = defaultdict(dict)
        for sense, own in ids.items():
            above, waiting = set(), [sense]
            while waiting:
                waiting = [p for s in waiting for p in parents[s] if p not in above]
                above.update(waiting)
            for parent in above & ids.keys():
                if ids[parent] in asked:
                    below[ids[parent]][own] = 1
        qrels = {i: {i: 1} | found for i, found in below.items() if 3 <= len(found) <= 100}
        queries = {item: marked_query("", "a kind of", texts[item]) for item in qrels}
        return _dataset("kinds: " + " + ".join(domains), items, queries, qrels, ITEM_TEMPLATE)

    return build


def _dataset(
    name: str,
    items: Iterable[Mapping[str, Any]],
    queries: Mapping[str, str],
    qrels: Qrels,
    template: str = DEFAULT_TEMPLATE,
) -> Dataset:
    found: Items = items_from(given_records(list(items)), template=template)
    return Dataset(
        name=name,
        items=found,
        queries=QuerySet(tuple(queries), tuple(queries.values())),
        qrels=qrels,
    )


def _documents(folder: Path, domains: Sequence[str], pattern: str = "*") -> list[dict[str, str]]:
    """Marked items of the domains, or of all whose name fits the pattern; the first comes first."""
    names = list(domains)
    if "all" in names:
        names = sorted(p.stem for p in folder.glob(f"documents/{pattern}.json"))
        names = sorted(names, key=domains[0].__ne__)
    return [
        {
            "id": row["document_id"],
            "title": row["title"],
            "text": row["text"],
            "gloss": row["text"],
            "domain": name,
        }
        for name in names
        for row in _lines(folder / "documents" / f"{name}.json")
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in read_given(path).decode().splitlines()]


def _hypernyms(file: Path) -> tuple[dict[str, tuple[set[str], str]], dict[str, list[str]]]:
    """Of `data.noun` (wndb(5WN)): lemmas and definition of each sense, and its hypernyms."""
    senses, parents = {}, {}
    for line in read_given(file).decode("latin-1").splitlines():
        if line.startswith("  "):
            continue
        data, _, gloss = line.partition("|")
        fields = data.split()
        words = int(fields[3], 16)
        lemmas = {word.replace("_", " ").lower() for word in fields[4 : 4 + 2 * words : 2]}
        links = fields[5 + 2 * words :]
        count = 4 * int(fields[4 + 2 * words])
        senses[fields[0]] = lemmas, gloss.partition('"')[0].strip().rstrip(";").strip()
        parents[fields[0]] = [links[i + 1] for i in range(0, count, 4) if links[i] in ("@", "@i")]
    return senses, parents
