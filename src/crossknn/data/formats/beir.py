"""BEIR: `corpus.jsonl`, `queries.jsonl`, `qrels/<split>.tsv`.

Fields `_id`, `title`, `text` of the corpus, `_id`, `text` of the queries; judgements under the
header `query-id corpus-id score` (Thakur et al. 2021; beir-cellar/beir, wiki "Load your custom
dataset" and `beir/datasets/data_loader.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from crossknn.data.formats.base import DataFolder
from crossknn.data.items import item_records
from crossknn.data.queries import (
    Qrels,
    QuerySet,
    columns,
    file_qrels,
    queries_from,
    query_records,
)
from crossknn.data.records import Located, read_lines
from crossknn.errors import InputError, nearest


class Beir(DataFolder):
    """A BEIR folder; the files may end in `.gz`."""

    format = "beir"
    layout = "a BEIR folder"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with a corpus, queries, or a folder of judgements."""
        return (path / "qrels").is_dir() or any(
            (path / f"{name}.jsonl{end}").is_file()
            for name in ("corpus", "queries")
            for end in ("", ".gz")
        )

    def splits(self) -> Sequence[str]:
        """The judgements there are."""
        return sorted(path.stem for path in (self.path / "qrels").glob("*.tsv"))

    def item_records(self, split: str | None = None) -> Located:
        """The corpus."""
        return item_records(self._file("corpus"))

    def queries(self, split: str | None) -> QuerySet:
        """The queries that a split judges; without one, all. `InputError` if it judges none."""
        file = self._file("queries")
        queries = queries_from(query_records(file))
        if split is None:
            return queries
        qrels = self.qrels(split)
        judged = queries.select(qrels)
        if not len(judged):
            raise InputError(
                f"{self._qrels_file(split)} judges none of the queries in {file}: it names "
                f"{_some(qrels)}, and there are {_some(queries.ids)}"
            )
        return judged

    def qrels(self, split: str) -> Qrels:
        """The judgements of a split."""
        return file_qrels(self._qrels_file(split))

    def split(self, wanted: str | None) -> str:
        """`wanted`, or `test`: a BEIR folder may lack a split that its name seems to promise."""
        wanted = wanted or "test"
        self._qrels_file(wanted)
        return wanted

    def judged_at(self, split: str, query: str, item: str | None = None) -> str:
        """The file and the first line that judges the query, and the item if one is given."""
        path = self._qrels_file(split)
        for number, line in read_lines(path):
            row = columns(line)
            if row and row[0] == query and item in (None, *row[1:]):
                return f"{path}, line {number}"
        return str(path)

    def _file(self, name: str) -> Path:
        for path in (self.path / f"{name}.jsonl", self.path / f"{name}.jsonl.gz"):
            if path.is_file():
                return path
        raise InputError(f"{self.path} is a folder without {name}.jsonl")

    def _qrels_file(self, split: str) -> Path:
        path = self.path / "qrels" / f"{split}.tsv"
        if not path.is_file():
            known = self.splits()
            hint = nearest(split, known) if known else "there are none"
            raise InputError(f"{self.path} has no judgements qrels/{split}.tsv ({hint})")
        return path


def _some(ids: Iterable[str]) -> str:
    """The first three, for a sentence."""
    found = list(islice(ids, 4))
    return ", ".join([*map(repr, found[:3]), *["..."] * (len(found) > 3)])
