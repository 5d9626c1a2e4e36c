"""Write what the cross-encoder of the tasks `kinds-*` trains on: descriptions of senses -> their
hyponyms, of WordNet's noun domains that test nothing, as BEIR folders `train` and `dev`.

python lab/recipes/kinds/prepare.py SOURCES WORK
crossknn-train run cross-encoder --config lab/recipes/kinds/cross-encoder.toml --out WORK/kinds
crossknn-train export WORK/kinds WORK/models/kinds --precision int8
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from crossknn.data.dataset import Dataset
from crossknn_lab.wordnet_tasks import kinds

NEVER = {"noun.act", "noun.artifact", "noun.communication", "noun.state"}
DEV = "noun.state"


def write(folder: Path, split: str, parts: Sequence[Dataset]) -> None:
    """All parts as one BEIR folder."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    items = {
        i: text for part in parts for i, text in zip(part.items.ids, part.items.texts, strict=True)
    }
    queries = {
        q: text
        for part in parts
        for q, text in zip(part.queries.ids, part.queries.texts, strict=True)
    }
    for name, texts in (("corpus", items), ("queries", queries)):
        rows = (json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    judged = [f"{q}\t{i}\t1\n" for part in parts for q, row in part.qrels.items() for i in row]
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))


if __name__ == "__main__":
    sources, work = map(Path, sys.argv[1:])
    found = {path.stem for path in (sources / "wordnet/documents").glob("noun.*.json")}
    domains = sorted(found - NEVER)
    rotated = [(domain, *(other for other in domains if other != domain)) for domain in domains]
    write(work / "train", "train", [kinds(*names)(sources) for names in rotated])
    write(work / "dev", "dev", [kinds(DEV)(sources)])
