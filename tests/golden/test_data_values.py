"""What every reader makes of a small sample of its format, and what it says of a damaged one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorded import check

from crossknn.data.items import Items, read_items
from crossknn.data.qrels import read_qrels, read_run
from crossknn.data.queries import QuerySet, read_queries
from crossknn.errors import CrossknnError
from crossknn.trial.data import first_sentence
from crossknn.types import Candidates
from crossknn_train.reading import read_labelled


def _files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in paths}


SAMPLES = {folder.name: _files(folder) for folder in (Path(__file__).parent / "samples").iterdir()}
"""A small folder in each format: name -> file -> text."""
SAMPLES["files"]["c.jsonl.gz"] = SAMPLES["files"]["c.jsonl"]
CASES = json.loads((Path(__file__).parent / "data_cases.json").read_text(encoding="utf-8"))
"""`reads`: sample -> [reader, path below the sample, options]; `damages`: [sample, reader, options,
file, what is replaced, by what], the whole file if nothing is named."""


def labelled(*source: Any, **options: Any) -> list[Any]:
    """Training's view of each corpus."""
    found = []
    for d in read_labelled(*source, **options):
        listed = [(d.candidates or {}).get(query, []) for query in d.queries.ids]
        places = [d.items.positions(item for item, _ in row) for row in listed]
        lists = d.candidates and Candidates.from_rows([(row, row) for row in places]).items
        found.append([d.name, len(d.items), told(d.queries), d.positives, lists])
    return found


READERS: dict[str, Callable[..., Any]] = {
    "items": read_items,
    "queries": read_queries,
    "qrels": read_qrels,
    "labelled": labelled,
    "run": read_run,
}


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
    return [told(part) for part in value] if isinstance(value, list) else value


def outcome(read: Callable[..., Any], folder: Path, *source: Any, **options: Any) -> Any:
    try:
        return told(read(*source, **options))
    except CrossknnError as error:
        return f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")


def test_samples(tmp_path):
    found = {}
    for sample, reads in CASES["reads"].items():
        folder = write(tmp_path / sample / "data", SAMPLES[sample])
        for reader, path, options in reads:
            said = " ".join(f"{key}={value}" for key, value in options.items())
            made = outcome(READERS[reader], folder, folder / path, **options)
            found[f"{sample}: {reader} {path} {said}"] = made
    check("data_samples.json", found)


def test_damages(tmp_path):
    found = {}
    for n, (sample, reader, options, file, old, new) in enumerate(CASES["damages"]):
        text = SAMPLES[sample].get(file, "")
        assert old in text
        changed = text.replace(old, new) if old else new
        folder = write(tmp_path / str(n) / "data", SAMPLES[sample] | {file: changed})
        place = folder / file if sample == "files" else folder
        found[f"{n} {sample} {file}"] = outcome(READERS[reader], folder, place, **options)
    check("data_damages.json", found)


def test_given_items_and_queries():
    items, asked, records = read_items, read_queries, [{"id": "a", "query": "two"}]
    reads: dict[str, tuple[Callable[..., Any], object, dict[str, Any]]] = {
        "texts": (items, ["first", {"text": "second"}], {}),
        "none": (items, [], {}),
        "number": (items, ["x", 3], {}),
        "no list": (items, 3, {}),
        "queries": (asked, ["one", *records], {}),
        "no queries": (asked, [], {}),
        "split": (asked, ["one"], {"split": "test"}),
        "surrogate": (items, ["a \ud800 b"], {}),
    }
    for template in ("{text.__class__}", "{text!r}", "{", "nothing", "{0}", "{text}!"):
        reads[template] = (items, ["x"], {"template": template})
    folder = Path("/nowhere")
    found = {n: outcome(read, folder, given, **o) for n, (read, given, o) in reads.items()}
    found["unknown"] = outcome(items(["x", "y"]).position, folder, "5")
    check("data_given.json", found)


def test_first_sentences():
    sentences = ["Return a new list.", "Open a file.", "Convert text, e.g. Latin, to bytes. Rest."]
    check("data_splits.json", {"first_sentence": [first_sentence(s) for s in sentences]})
