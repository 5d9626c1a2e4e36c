"""What every reader makes of a small sample of its format, and what it says of a damaged one."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorded import check

from crossknn import demo
from crossknn.data import dataset, queries, reading
from crossknn.data.items import Items
from crossknn.data.queries import QuerySet
from crossknn.errors import CrossknnError


def _files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in paths}


SAMPLES = {folder.name: _files(folder) for folder in (Path(__file__).parent / "samples").iterdir()}
"""A small folder in each format: name -> file -> text."""
SAMPLES["files"]["c.jsonl.gz"] = SAMPLES["files"]["c.jsonl"]
XML, OLD = SAMPLES["trec"]["topics.robust.xml"], SAMPLES["trec-old"]["topics.robust"]

# What is read of each: (reader, path below the sample, options)

READERS: dict[str, Callable[..., Any]] = {
    "items": reading.read_items,
    "queries": reading.read_queries,
    "qrels": reading.read_qrels,
    "dataset": reading.read_dataset,
    "labelled": reading.read_labelled,
    "run": queries.read_run,
}
EVERY = [(reader, "", {}) for reader in ("items", "queries", "qrels", "dataset", "labelled")]


def each(reader: str, *splits: str, **more: object) -> list[tuple[str, str, dict[str, object]]]:
    return [(reader, "", {"split": split, **more}) for split in splits]


READS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "beir": EVERY
    + each("queries", "test", "train", "tset")
    + each("dataset", "test", "train", limit=2)
    + each("labelled", "test", "tran", "train")
    + [("dataset", "", {"limit": 0}), ("dataset", "", {"domain": "x"}), ("labelled", "", {"domains": ["x"]})]
    + [("dataset", "", {"format": name}) for name in ("trec", "bier", "beir")]
    + [("dataset", "corpus.jsonl", {}), ("items", "qrels", {}), ("items", "gone", {}), ("run", "gone", {})],
    "trec": EVERY,
    "trec-splits": [*EVERY, *each("dataset", "dev", "robust", "robus")],
    "trec-old": EVERY,
    "trec-alone": EVERY,
    "msmarco": EVERY + each("dataset", "dev", "dev.small", "train") + each("labelled", "dev", lists=True),
    "zeshel": EVERY
    + each("dataset", "train", "valid", "test")
    + each("dataset", "train", domain="fish")
    + each("labelled", "valid", "dev")
    + [("labelled", "", {"domains": names}) for names in (["fish", "trees"], ["tree"], ["trees", "tree"])]
    + [("items", "documents/trees.json", {}), ("queries", "mentions/train.json", {})],
    "processed": EVERY
    + each("dataset", "train", "valid", "test")
    + [("dataset", "", {"split": "train", "domain": "trees"})]
    + [("labelled", "", {"domains": names}) for names in (["fish", "trees"], ["tree"])],
    "files": [("items", name, {}) for name in SAMPLES["files"]]
    + [("queries", name, {}) for name in ("c.txt", "bare.tsv", "named.tsv", "q.csv", "m.jsonl")]
    + [("qrels", name, {}) for name in ("qrels.txt", "beir.tsv", "run.txt")]
    + [("run", name, {}) for name in ("run.txt", "run.tsv", "top1000.dev", "qrels.txt")]
    + [("items", "key.jsonl", options | {"id_field": "key", "text_field": "body"}) for options in (
        {"title_field": "head", "template": "{key}: {title} / {text}", "limit": 1},
        {"title_field": "haed"}, {"template": "{year} {text}"},
    )]
    + [("queries", "c.txt", {"split": "x"}), ("queries", "c.txt", {"limit": 1})],
}  # fmt: skip

# Damages: (sample, reader, options, file, what is replaced, by what)

TRAIN, TREES = {"split": "train"}, "processed/train_worlds/trees_mentions.jsonl"
MENTION = '"mention_id": "m1", "context_left": "the tall oak stands by", "mention": "the lake"'


def damages(sample: str, reader: str, options: Any, file: str, *changes: tuple[str, str]):
    return [(sample, reader, options, file, old, new) for old, new in changes]


DAMAGES = [
    *damages("files", "items", {}, "c.jsonl", *(
        ("", "\n\n"), ('"id": 7', '"id": "a"'), ('"y"', '" "'), ('"text": "y"', '"txet": "y"'),
        ('{"id": 7', '{"id": '), ('{"id": 7', '[{"id": 7'), ('{"id": 7,', '7\n{"id": 7,'), ('"y"', '["y"]'),
        ('"id": 7', '"id": ""'), ('"id": 7', '"id": true'), ('"id": 7', '"id": "a\\tb"'), ('"id": 7, ', ""),
        ('"id": "a", ', ""), ('"y"', "null"), ('"y"', "7.5"), ('"y"', '"\\ud800 b"'),
    )),
    *damages("files", "items", {}, "c.csv", ("7,,y", "7,y"), ('lines"', "lines"), ("id,", "text,"), ("", " ")),
    *damages("files", "items", {}, "docs.tsv", ("\tweb.site", "")),
    *damages("files", "queries", {}, "bare.tsv", ("7\tone", "7\tone\tx"), ("one", " "), ("8", "7"), ("", "\n")),
    *damages("files", "qrels", {}, "beir.tsv", ("\t1", "\tgood"), ("\t1\n", "\t1\nq1\td1\t2\n"), ("q1\td1\t1", "")),
    *damages("files", "run", {}, "run.txt", (" 2 1.5", " two 1.5"), ("d3", "d2"), ("", "\n"), ("2.5 t", "2.5")),
    *damages("beir", "queries", {"split": "test"}, "qrels/test.tsv", ("q", "r")),
    *damages("beir", "labelled", {"split": "test"}, "qrels/test.tsv",
        ("d3", "d9"), ("q3", "q9"), ("d1\t1", "d1\t0"), ("d3\t2", "d2\t2"), ("\td3\t2", "\td3")),
    *damages("beir", "labelled", {"split": "test"}, "corpus.jsonl", ("d2", "d1"), ("_id", "key")),
    *damages("trec", "dataset", {}, "topics.robust.xml",
        ("</query>", ""), (' number="2"', ""), ("query>", "sum>"), ('"2"', '"1"'), (XML, "<topics/>"), (XML, OLD + "x"),
        (XML, OLD.replace("Number: 2", "")), (XML, OLD.rpartition("</top>")[0]), (XML, '<topics><topic number="7">an oak</topic></topics>')),
    *damages("trec", "dataset", {}, "collection.tsv", ("\tan elm", ""), ("\tan oak", "\ta\tb")),
    *damages("trec", "dataset", {}, "run.robust.txt", ("1 Q0 d1", "1 Q0 d2")),
    *damages("trec", "dataset", {}, "qrels.robust.txt", ("d2 2", "d2 good"), ("d1 1", "d9 1"), ("1 0", "7 0")),
    *damages("trec", "dataset", {}, "qrels.robust.txt", ("d1 1", "d1 0"), ("2 0 d2 2", "1 0 d2 1")),
    *damages("trec", "dataset", {}, "collection.jsonl", ("", '{"id": "d1", "text": "x"}\n')),
    *damages("processed", "labelled", TRAIN, TREES,
        *(('"label_id": 2', new) for new in ('"x": 1', *(f'"label_id": {v}' for v in ("3", "-1", "true", '"d9"', '"d1"')))),
        ('"m1"', '"m0"'), (MENTION, MENTION.replace("mention_id", "id")), (MENTION, MENTION.replace('"mention"', '"x"')),
        ('"the lake"', '"  "'), ('"the lake"', '["oak"]'), (MENTION, MENTION.replace("context_left", "left")), (MENTION, "{")),
    *damages("processed", "labelled", {"domains": ["trees"]}, "processed/test_worlds/trees_mentions.jsonl", ("", SAMPLES["processed"][TREES])),
    *(damage for sample in ("processed", "zeshel") for damage in damages(sample, "labelled", TRAIN, "documents/trees.json",
        ('"d1"', '"d0"'), ('"document_id": "d1", ', ""), ('"title": "Elm (tree)", ', ""), (', "text": "an elm"', ""))),
    *damages("zeshel", "labelled", TRAIN, "mentions/train.json",
        ('"label_document_id": "d2", ', ""), ('"d2"', "null"), ('"d2"', '"f0"'), ('"m1"', '"m0"'), ('"the lake"', '"oak"'),
        ('"end_index": 6', '"end_index": 7'), ('"start_index": 5', '"start_index": -2'), ('"end_index": 6', '"end_index": 6.0'), ('"end_index": 6, ', ""),
        ('"context_document_id": "d0"', '"context_document_id": "d9"'), (', "corpus": "trees"', ""), ('"trees"', '"birds"')),
]  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def told(value: Any) -> Any:
    """What was read, as JSON."""
    if isinstance(value, Items):
        return list(zip(value.ids, value.titles, value.texts, value.extra, strict=True))
    if isinstance(value, QuerySet):
        return list(zip(value.ids, value.texts, strict=True))
    if isinstance(value, dataset.Dataset):
        parts = (value.items, value.queries, value.qrels, value.candidates)
        return [str(value), *map(told, parts)]
    if isinstance(value, dataset.Labelled):
        ranked = value.lists and value.lists.items
        return [value.name, len(value.items), told(value.queries), value.positives, ranked]
    return [told(part) for part in value] if isinstance(value, list) else value


def outcome(read: Callable[[], Any], folder: Path) -> Any:
    try:
        return told(read())
    except CrossknnError as error:
        return f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")


def test_samples(tmp_path):
    found = {}
    for sample, reads in READS.items():
        folder = write(tmp_path / sample / "data", SAMPLES[sample])
        for reader, path, options in reads:
            said = " ".join(f"{key}={value}" for key, value in options.items())
            read = lambda r=reader, p=folder / path, o=options: READERS[r](p, **o)  # noqa: E731
            found[f"{sample}: {reader} {path} {said}"] = outcome(read, folder)
    check("data_samples.json", found)


def test_damages(tmp_path):
    found = {}
    for n, (sample, reader, options, file, old, new) in enumerate(DAMAGES):
        text = SAMPLES[sample].get(file, "")
        assert old in text
        changed = text.replace(old, new) if old else new
        folder = write(tmp_path / str(n) / "data", SAMPLES[sample] | {file: changed})
        place = folder / file if sample == "files" else folder
        read = lambda r=reader, p=place, o=options: READERS[r](p, **o)  # noqa: E731
        found[f"{n} {sample} {file}"] = outcome(read, folder)
    check("data_damages.json", found)


def test_given_items_and_queries():
    items, asked = reading.read_items, reading.read_queries
    reads = {
        "texts": lambda: items(["first", {"text": "second"}]),
        "none": lambda: items([]),
        "number": lambda: items(["x", 3]),
        "no list": lambda: items(3),
        "limit": lambda: items(["x"], limit=0),
        "queries": lambda: asked(["one", {"id": "a", "query": "two"}]),
        "no queries": lambda: asked([]),
        "split": lambda: asked(["one"], split="test"),
        "unknown": lambda: items(["x", "y"]).position("5"),
        "surrogate": lambda: items(["a \ud800 b"]),
    }
    for template in ("{text.__class__}", "{text!r}", "{", "nothing", "{0}", "{text}!"):
        reads[template] = lambda t=template: items(["x"], template=t)
    check(
        "data_given.json", {name: outcome(read, Path("/nowhere")) for name, read in reads.items()}
    )


def test_splits_and_docstrings():
    sentences = ["Return a new list.", "Open a file.", "Convert text, e.g. Latin, to bytes. Rest."]
    documents = [
        demo.DocItem(f"m.f{n}", "(x)", f"Turn number {n} into words.\n\n{'and more ' * 5}")
        for n in range(40)
    ]
    corpus = demo.build_corpus(documents)
    check(
        "data_splits.json",
        {
            "split": {
                k: v.tolist() for k, v in dataset.split(20, {"a": 5, "b": 7}, seed=3).items()
            },
            "first_sentence": [demo.first_sentence(s) for s in sentences],
            "sentence_bucket": [demo.sentence_bucket(s) for s in sentences],
            "queries": dict(zip(corpus.queries.ids, corpus.queries.texts, strict=True)),
            "items": list(corpus.items.texts[:8]),
        },
    )
