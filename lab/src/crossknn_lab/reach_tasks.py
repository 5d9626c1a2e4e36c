"""Tasks in which many right answers lie beyond a retriever's first hundred, made from the sources.

Each is a `Dataset` with judgements of its source, and random halves of its queries: `fit`, on which
weights are fitted and verdicts made, and `test`. Nothing is written that holds the sources' texts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossknn.data.dataset import Dataset, split
from crossknn.data.items import DEFAULT_TEMPLATE, Items, items_from
from crossknn.data.queries import ITEM_TEMPLATE, Qrels, QuerySet, marked_query
from crossknn.data.reading import read_qrels
from crossknn.data.records import given_records
from crossknn.demo import first_sentence, standard_library_items
from crossknn.files import parse_json, read_given

CHARACTERS = 500
"""What is read of medquad's answers (1,288 characters on average): a hundred tokens."""


@dataclass(frozen=True)
class Task:
    """What is searched with which models; `tests` queries at most are measured.

    `build` makes the data from the folder of sources; `scorer` is a folder, or "bundled". `fits`
    queries, at most a third, are fitted to, `tests` at most measured. `lexical` is without a dual
    encoder: BM25, and vectors by LSA.
    """

    build: Callable[[Path], Dataset]
    scorer: str
    lexical: bool = False
    fits: int = 300
    tests: int = 1000
    budgets: tuple[int, ...] = (20, 50, 100)

    def data(self, sources: Path) -> tuple[Dataset, Dataset]:
        """The queries to fit on, and those to measure, with all items."""
        whole = self.build(sources).judged()
        fit = min(self.fits, len(whole) // 3)
        parts = split(len(whole), {"fit": fit, "test": min(self.tests, len(whole) - fit)}, seed=0)
        return whole.take(parts["fit"]), whole.take(parts["test"])


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


def answers(sources: Path) -> Dataset:
    """MedQuAD whole, a question -> its answer."""
    return _medquad(sources, *_medquad_questions(sources))


def diseases(sources: Path) -> Dataset:
    """MedQuAD whole, the name of a disease -> all answers on it, of all pages about it, 3 or more."""
    texts, qrels = _medquad_questions(sources)
    pages: dict[str, dict[str, int]] = defaultdict(dict)
    named: dict[str, set[str]] = defaultdict(set)
    for query, judged in qrels.items():
        for item in judged:
            page = item.rpartition("_Sec")[0]
            pages[page][item] = 1
            if match := re.fullmatch(r"What is \(are\) (.+?)\s*\?+", texts[query].strip()):
                named[match[1].strip().lower()].add(page)
    found = {
        name: {item: 1 for page in about for item in pages[page]} for name, about in named.items()
    }
    many = {name: judged for name, judged in found.items() if len(judged) >= 3}
    return _medquad(sources, {name: f"everything about {name}" for name in many}, many)


def members(sources: Path) -> Dataset:
    """Documentation of the Python library, the purpose of a module or class, its first sentence ->
    all its documented members; the item that says the purpose is left out."""
    docs = {item.name: item for item in standard_library_items()}
    below: dict[str, dict[str, int]] = defaultdict(dict)
    for name in docs:
        below[name.rpartition(".")[0]][name] = 1
    purposes = {n: first_sentence(docs[n].text)[0] for n in below if n in docs}
    qrels = {n: below[n] for n, text in purposes.items() if 3 <= len(text.split()) <= 60}
    qrels = {name: found for name, found in qrels.items() if len(found) >= 3}
    items = [{"id": n, "text": item.item_text} for n, item in docs.items() if n not in qrels]
    left = {item["id"] for item in items}
    judged = {name: {n: 1 for n in found if n in left} for name, found in qrels.items()}
    return _dataset("members", items, {name: purposes[name] for name in judged}, judged)


FEW: dict[str, Any] = {"fits": 100, "tests": 300, "budgets": (20, 50)}
TASKS = {
    "senses-artifact": Task(senses("noun.artifact"), "wordnet"),
    "senses-artifact-lexical": Task(senses("noun.artifact"), "wordnet", lexical=True),
    "senses-adjectives": Task(senses("adj.all"), "wordnet", fits=150, tests=600, budgets=(20, 50)),
    "senses-of-96,523": Task(
        senses("noun.act", "all"), "wordnet", fits=150, tests=500, budgets=(20, 50)
    ),
    "senses-of-96,523-lexical": Task(
        senses("noun.act", "all"), "wordnet", True, fits=150, tests=400, budgets=(20, 50)
    ),
    "kinds-artifact": Task(kinds("noun.artifact"), "kinds", fits=150, tests=500, budgets=(20, 50)),
    "kinds-of-60,871": Task(kinds("noun.artifact", "all"), "kinds", **FEW),
    "members": Task(members, "bundled", **FEW),
    "diseases": Task(diseases, "bundled", **FEW),
    "answers-lexical": Task(answers, "bundled", lexical=True, **FEW),
    "answers": Task(answers, "bundled", **FEW),
}


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


def _medquad(sources: Path, queries: Mapping[str, str], qrels: Qrels) -> Dataset:
    items = [
        {"id": row["_id"], "text": row["text"][:CHARACTERS]}
        for row in _lines(sources / "medquad" / "corpus.jsonl")
    ]
    return _dataset("medquad", items, queries, qrels)


def _medquad_questions(sources: Path) -> tuple[dict[str, str], Qrels]:
    """The questions of the dev and test splits, whose diseases train nothing, and their answers."""
    folder = sources / "medquad"
    qrels = read_qrels(folder / "qrels/test.tsv") | read_qrels(folder / "qrels/dev.tsv")
    texts = {row["_id"]: row["text"] for row in _lines(folder / "queries.jsonl")}
    return {query: texts[query] for query in qrels}, qrels
