"""Training texts: docstrings of installed third-party packages and the train splits of the data
folder."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from common import SEED, read_jsonl

from crossknn.data.docstrings import (
    DocItem,
    collect_package,
    first_sentence,
    is_held_out,
    merge_identical,
    sentence_bucket,
    standard_library_items,
)

PACKAGES = """django sympy pandas sklearn scipy statsmodels matplotlib skimage networkx nltk dask
xarray sqlalchemy trio aiohttp flask jinja2 pydantic torch transformers numpy requests click rich
h5py lxml PIL yaml hypothesis _pytest werkzeug joblib fontTools fsspec pygments setuptools attr
httpcore2 httpx2 anyio urllib3 wrapt toolz markdown_it narwhals mpmath patsy formulaic tifffile
imageio sentence_transformers tokenizers huggingface_hub onnx onnxruntime packaging filelock
sortedcontainers sqlparse typer dateutil pyparsing""".split()  # noqa: SIM905
NEVER = {"noun.act", "noun.artifact", "adj.all", "noun.state", "noun.communication"}
"""WordNet's dev and test domains."""
DEV_BUCKETS = range(10, 13)  # of sentence_bucket; 0..9 are held out


@dataclass
class Task:
    """Queries and items as texts; `relevant[q]` are item positions; `dev` marks the queries that
    never train."""

    name: str
    items: list[str]
    queries: list[str] = field(default_factory=list)
    relevant: list[set[int]] = field(default_factory=list)
    dev: list[bool] = field(default_factory=list)
    groups: list[int] | None = None  # item -> group: items of a query's group only are candidates
    negatives_differ: list[str] | None = (
        None  # the positives' texts, if they are not the items themselves
    )

    def add(self, query: str, relevant: set[int], dev: bool) -> None:
        self.queries.append(query)
        self.relevant.append(relevant)
        self.dev.append(dev)


def package_docs() -> list[tuple[DocItem, str, str]]:
    """(item, first sentence, rest) of third-party docstrings that share nothing with the standard
    library's."""
    known = {" ".join(item.text.split()) for item in standard_library_items()}
    items: list[DocItem] = []
    for package in PACKAGES:
        try:
            items.extend(collect_package(package))
        except ModuleNotFoundError:
            print("not installed, left out:", package)
    docs = []
    for item in merge_identical(items):
        first, rest = first_sentence(item.text)
        if not is_held_out(first) and " ".join(item.text.split()) not in known:
            docs.append((item, first, rest))
    return docs


def docs_tasks() -> list[Task]:
    """Three tasks, in each of which positives and negatives look alike.

    docs: first sentence -> the rest, every item without its first sentence. docs-later: another
        sentence -> the docstring without it, every other item whole. docs-dev: as in the demo, the
        dev queries' items lack their first sentence and the others are whole.
    """
    generator = random.Random(SEED)
    docs = [
        doc for doc in package_docs() if len(doc[2].split()) >= 8 and 3 <= len(doc[1].split()) <= 60
    ]
    generator.shuffle(docs)
    heads = [f"{item.name}{item.signature}\n" for item, _, _ in docs]
    same: dict[str, set[int]] = {}
    for position, (_, first, _) in enumerate(docs):
        same.setdefault(_normal(first), set()).add(position)
    plain = Task("docs", [head + rest for head, (_, _, rest) in zip(heads, docs, strict=True)])
    later = Task(
        "docs-later", [head + item.text for head, (item, _, _) in zip(heads, docs, strict=True)]
    )
    later.negatives_differ = []
    for position, (item, first, rest) in enumerate(docs):
        if sentence_bucket(first) in DEV_BUCKETS:
            continue
        plain.add(first, same[_normal(first)], dev=False)
        sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+(?=[A-Z])|\n\s*\n", rest)]
        sentences = [
            s
            for s in sentences
            if 5 <= len(s.split()) <= 40 and s[0].isalpha() and ">>>" not in s and s.endswith(".")
        ]
        sentences = [s for s in sentences if not is_held_out(s)]
        if sentences:
            chosen = generator.choice(sentences)
            later.add(" ".join(chosen.split()), {position}, dev=False)
            later.negatives_differ.append(heads[position] + item.text.replace(chosen, "", 1))
    is_dev = [sentence_bucket(first) in DEV_BUCKETS for _, first, _ in docs]
    chosen_items = [p for p in range(len(docs)) if is_dev[p]] + [
        p for p in range(len(docs)) if not is_dev[p]
    ][:5000]
    place = {position: new for new, position in enumerate(chosen_items)}
    dev = Task("docs-dev", [plain.items[p] if is_dev[p] else later.items[p] for p in chosen_items])
    for position in chosen_items:
        if is_dev[position]:
            dev.add(
                docs[position][1], {place[p] for p in same[_normal(docs[position][1])]}, dev=True
            )
    return [plain, later, dev]


def _normal(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", sentence.lower()))


def beir_task(name: str, folder: Path, splits: dict[str, bool], dev_share: float = 0.0) -> Task:
    """A BEIR folder; `splits` maps a qrels file to whether it is for dev; `dev_share` of a train
    split becomes dev."""
    rows = list(read_jsonl(folder / "corpus.jsonl"))
    place = {row["_id"]: position for position, row in enumerate(rows)}
    task = Task(name, [f"{row['title']} {row['text']}".strip() for row in rows])
    queries = {row["_id"]: row["text"] for row in read_jsonl(folder / "queries.jsonl")}
    for split, is_dev in splits.items():
        relevant: dict[str, set[int]] = {}
        for line in (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]:
            query, item, score = line.split("\t")
            if int(score) > 0:
                relevant.setdefault(query, set()).add(place[item])
        for query, positions in relevant.items():
            text = queries[query]
            task.add(text, positions, is_dev or sentence_bucket(text) < 100 * dev_share)
    return task


def wordnet_task(folder: Path, per_domain: int) -> Task:
    """Marked mentions -> senses of the same domain, train domains only. The query is `left [
    mention ] right`."""
    generator = random.Random(SEED)
    task = Task("wordnet", [])
    task.groups = []
    for path in sorted((folder / "processed" / "train_worlds").glob("*_mentions.jsonl")):
        domain = path.name.removesuffix("_mentions.jsonl")
        if domain in NEVER:
            raise SystemExit(f"{domain} is a dev or test domain")
        mentions = list(read_jsonl(path))
        offset, group = len(task.items), len(set(task.groups))
        for row in read_jsonl(folder / "documents" / f"{domain}.json"):
            task.items.append(f"{row['title']} {row['text']}")
            task.groups.append(group)
        for row in generator.sample(mentions, min(per_domain, len(mentions))):
            query = f"{row['context_left']} [ {row['mention']} ] {row['context_right']}".strip()
            task.add(query, {offset + row["label_id"]}, dev=False)
    return task
