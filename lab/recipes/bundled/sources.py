"""Training texts: docstrings of installed third-party packages and the train splits of the data
folder, each as a BEIR folder."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from crossknn.demo import (
    DocItem,
    first_sentence,
    is_held_out,
    merge_identical,
    python_files,
    sentence_bucket,
    source_items,
    standard_library_items,
)
from questions import question

from crossknn.data.queries import ENTITY, MENTION_END, MENTION_START
from crossknn_train.reading import Dataset, read_labelled

SEED = 13

PACKAGES = """django sympy pandas sklearn scipy statsmodels matplotlib skimage networkx nltk dask
xarray sqlalchemy trio aiohttp flask jinja2 pydantic torch transformers numpy requests click rich
h5py lxml PIL yaml hypothesis _pytest werkzeug joblib fontTools fsspec pygments setuptools attr
httpcore2 httpx2 anyio urllib3 wrapt toolz markdown_it narwhals mpmath patsy formulaic tifffile
imageio sentence_transformers tokenizers huggingface_hub onnx onnxruntime packaging filelock
sortedcontainers sqlparse typer dateutil pyparsing""".split()  # noqa: SIM905
NEVER = {"noun.act", "noun.artifact", "adj.all", "noun.state", "noun.communication"}
"""WordNet's dev and test domains."""
DEV_BUCKETS = range(10, 13)  # of sentence_bucket; 0..9 are held out
DOCS, DOCS_LATER, MEDQUAD, PER_DOMAIN = 7_000, 2_600, 1_000, 50
"""How many train queries each source gives at most: a folder counts by its queries. SciFact gives
all, WordNet `PER_DOMAIN` of each domain."""
PER_PACKAGE, QUESTIONS, QUESTIONS_REST, DEV_QUESTIONS = 30, 1_200, 500, 150
"""How many questions a package gives at most in each of two folders, and how many are taken."""


@dataclass
class Corpus:
    """Items and queries as texts; `train` and `dev` say which query has which relevant items."""

    name: str
    items: list[str]
    train: list[tuple[str, set[int]]] = field(default_factory=list)
    dev: list[tuple[str, set[int]]] = field(default_factory=list)

    def write(self, parent: Path) -> None:
        """The BEIR folder `parent/name`, its splits in `qrels/`."""
        folder = parent / self.name
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        rows = ({"_id": str(i), "title": "", "text": text} for i, text in enumerate(self.items))
        _write_lines(folder / "corpus.jsonl", rows)
        queries = [*self.train, *self.dev]
        rows = ({"_id": f"q{q}", "text": text} for q, (text, _) in enumerate(queries))
        _write_lines(folder / "queries.jsonl", rows)
        numbered = list(enumerate(right for _, right in queries))
        splits = {"train": numbered[: len(self.train)], "dev": numbered[len(self.train) :]}
        for split, judged in splits.items():
            path = folder / "qrels" / f"{split}.tsv"
            path.unlink(missing_ok=True)
            if judged:
                lines = [f"q{q}\t{i}\t1\n" for q, right in judged for i in sorted(right)]
                path.write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))

    def sample(self, count: int) -> None:
        """Keep at most so many train queries."""
        if count < len(self.train):
            self.train = random.Random(SEED).sample(self.train, count)

    def again(self, queries: int, items: int) -> Corpus:
        """Some of the train queries with their items and so many items in all, for a later stage.

        Fewer items hold fewer right ones that are not labelled.
        """
        generator = random.Random(SEED)
        train = generator.sample(self.train, queries)
        right = set().union(*(found for _, found in train))
        others = [item for item in range(len(self.items)) if item not in right]
        kept = sorted(right.union(generator.sample(others, items - len(right))))
        place = {item: new for new, item in enumerate(kept)}
        train = [(query, {place[item] for item in found}) for query, found in train]
        return Corpus(f"{self.name}-again", [self.items[item] for item in kept], train)


def _write_lines(path: Path, rows: Iterable[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


@cache
def package_docs() -> list[tuple[DocItem, str, str]]:
    """(item, first sentence, rest) of third-party docstrings that share nothing with the standard
    library's."""
    known = {" ".join(item.text.split()) for item in standard_library_items()}
    items: list[DocItem] = []
    for package in PACKAGES:
        spec = PathFinder.find_spec(package)
        if spec is None:
            print("not installed, left out:", package)
            continue
        folders = spec.submodule_search_locations
        files = [file for f in folders or () for file in python_files(Path(f), package)]
        if folders is None and spec.origin and spec.origin.endswith(".py"):
            files.append((package, Path(spec.origin)))
        items.extend(
            merge_identical([i for module, path in files for i in source_items(module, path)])
        )
    docs = []
    for item in merge_identical(items):
        first, rest = first_sentence(item.text)
        if not is_held_out(first) and " ".join(item.text.split()) not in known:
            docs.append((item, first, rest))
    return docs


def docs_corpora() -> list[Corpus]:
    """Three corpora, in each of which right and wrong items look alike.

    docs: first sentence -> the rest, every item without its first sentence. docs-later: another
        sentence -> the docstring without it, every item with its first sentence. docs-dev: as in
        the demo, the dev queries' items lack their first sentence and the others are whole.
    """
    generator = random.Random(SEED)
    docs = [
        doc for doc in package_docs() if len(doc[2].split()) >= 8 and 3 <= len(doc[1].split()) <= 60
    ]
    generator.shuffle(docs)
    heads = [f"{item.name}{item.signature}\n" for item, _, _ in docs]
    whole = [head + item.text for head, (item, _, _) in zip(heads, docs, strict=True)]
    same: dict[str, set[int]] = {}
    for position, (_, first, _) in enumerate(docs):
        same.setdefault(_normal(first), set()).add(position)
    plain = Corpus("docs", [head + rest for head, (_, _, rest) in zip(heads, docs, strict=True)])
    later = Corpus("docs-later", list(whole))
    is_dev = [sentence_bucket(first) in DEV_BUCKETS for _, first, _ in docs]
    for position, (item, first, rest) in enumerate(docs):
        if is_dev[position]:
            continue
        plain.train.append((first, same[_normal(first)]))
        sentences = _sentences(rest)
        if sentences:
            chosen = generator.choice(sentences)
            later.train.append((" ".join(chosen.split()), {position}))
            later.items[position] = heads[position] + item.text.replace(chosen, "", 1)
    kept = [p for p in range(len(docs)) if is_dev[p]]
    n_dev = len(kept)
    kept += [p for p in range(len(docs)) if not is_dev[p]][:5000]
    place = {position: new for new, position in enumerate(kept)}
    dev = Corpus("docs-dev", [plain.items[p] if is_dev[p] else whole[p] for p in kept])
    for position in kept[:n_dev]:
        first = docs[position][1]
        dev.dev.append((first, {place[p] for p in same[_normal(first)]}))
    plain.sample(DOCS)
    later.sample(DOCS_LATER)
    return [plain, later, dev]


def question_corpora() -> list[Corpus]:
    """Two corpora of questions made of first sentences.

    questions: -> the docstring, every item whole, short ones too. questions-rest: -> the docstring
        without its first sentence, which no item has. Docstrings that begin alike are all right.
    """
    corpora = []
    whole, part = ("questions", 0, 0.09, QUESTIONS), ("questions-rest", 8, 0.12, QUESTIONS_REST)
    for name, least, others, count in whole, part:
        generator = random.Random(SEED)
        corpus, asked, same, taken = Corpus(name, []), [], {}, Counter[str]()
        for item, first, rest in generator.sample(package_docs(), len(package_docs())):
            if len(rest.split()) < least:
                continue
            made, package = question(first, generator), item.name.partition(".")[0]
            is_dev = sentence_bucket(first) in DEV_BUCKETS
            use = made and not is_held_out(made) and (is_dev or taken[package] < PER_PACKAGE)
            if use:
                taken[package] += not is_dev
                asked.append((made, _normal(first), is_dev))
            elif generator.random() > others:
                continue
            same.setdefault(_normal(first), set()).add(len(corpus.items))
            text = rest if least else item.text
            corpus.items.append(f"{item.name}{item.signature}\n{text}")
        for made, begins, is_dev in asked:
            (corpus.dev if is_dev else corpus.train).append((made, same[begins]))
        corpus.sample(count)
        corpus.dev = [] if least else corpus.dev[:DEV_QUESTIONS]
        corpora.append(corpus)
    return corpora


def _sentences(text: str) -> list[str]:
    """Sentences that may be queries: of prose, and not held out."""
    found = [s.strip() for s in re.split(r"(?<=[.!?])\s+(?=[A-Z])|\n\s*\n", text)]
    prose = [
        s
        for s in found
        if 5 <= len(s.split()) <= 40 and s[0].isalpha() and ">>>" not in s and s.endswith(".")
    ]
    return [s for s in prose if not is_held_out(s)]


def _normal(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", sentence.lower()))


def scifact(folder: Path) -> Corpus:
    """A fifth of the train queries is for dev, by their hashes; SciFact has no dev split."""
    (part,) = read_labelled(folder, "train")
    corpus = Corpus("scifact", list(part.items.texts))
    for query, right in _queries(part):
        (corpus.dev if sentence_bucket(query) < 20 else corpus.train).append((query, right))
    return corpus


def medquad(folder: Path) -> Corpus:
    """Its own train and dev splits."""
    (train,), (dev,) = read_labelled(folder, "train"), read_labelled(folder, "dev")
    corpus = Corpus("medquad", list(train.items.texts), _queries(train), _queries(dev))
    corpus.sample(MEDQUAD)
    return corpus


def wordnet(folder: Path) -> Corpus:
    """Marked mentions -> senses, train domains only; the query is `left [ mention ] right`.

    The bundled models' tokenizer has no marks: mentions stand in brackets, titles before texts.
    """
    corpus = Corpus("wordnet", [])
    for part in read_labelled(folder, "train"):
        if part.name in NEVER:
            raise SystemExit(f"{part.name} is a dev or test domain")
        offset = len(corpus.items)
        corpus.items.extend(text.replace(f" {ENTITY} ", " ") for text in part.items.texts)
        for query, right in _queries(part.sample(PER_DOMAIN, SEED)):
            query = query.replace(MENTION_START, "[").replace(MENTION_END, "]")
            corpus.train.append((query, {offset + position for position in right}))
    return corpus


def _queries(part: Dataset) -> list[tuple[str, set[int]]]:
    relevant = [set(found.tolist()) for found in part.positives]
    return list(zip(part.queries.texts, relevant, strict=True))
