"""Data sets of ir_datasets by name, `irds:beir/scifact/test` (MacAvaney et al. 2021; extra `irds`).

ir_datasets (allenai/ir_datasets, `ir_datasets/formats/base.py`) gives named tuples: documents with
`doc_id`, `text` and often `title`; queries with `query_id`, `text`; judgements `query_id`,
`doc_id`, `relevance`; lists (`scoreddocs`) `query_id`, `doc_id`, `score`. Where a document or a
query has no field `text`, its `default_text()` is one. Data that are not there are downloaded by
ir_datasets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from crossknn.data.formats.base import DataFolder
from crossknn.data.queries import Qrels, QuerySet, Run, judge, queries_from
from crossknn.data.records import Located, Numbered
from crossknn.errors import InputError, MissingExtraError

PREFIX = "irds:"


class Irds(DataFolder):
    """A data set of ir_datasets; a split is the last part of a name, `test` of `irds:x/test`."""

    format = "irds"
    layout = "a data set of ir_datasets"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A name that begins with `irds:`."""
        return path.as_posix().startswith(PREFIX)

    @property
    def name(self) -> str:
        """The name without its prefix."""
        return self.path.as_posix().removeprefix(PREFIX)

    def splits(self) -> Sequence[str]:
        """The name is a split itself."""
        return (self.name.rpartition("/")[2],)

    def split(self, wanted: str | None) -> str:
        """`wanted`, which is added to the name unless it is its end."""
        [own] = self.splits()
        return own if wanted is None else wanted

    def item_records(self, split: str | None = None) -> Located:
        """The documents."""
        return Located(_records(self._data(split, "docs").docs_iter()), "document", self._place)

    def queries(self, split: str | None) -> QuerySet:
        """The queries."""
        found = self._data(split, "queries").queries_iter()
        return queries_from(Located(_records(found), "query", self._place))

    def qrels(self, split: str) -> Qrels:
        """The judgements."""
        qrels: Qrels = {}
        for number, found in enumerate(self._data(split, "qrels").qrels_iter(), start=1):
            place = f"{self._place}, judgement {number}"
            judge(qrels, found.query_id, found.doc_id, int(found.relevance), place)
        return qrels

    def candidates(self, split: str) -> Run | None:
        """The lists, best first."""
        data = self._data(split, "queries")
        if not data.has_scoreddocs():
            return None
        run: Run = {}
        for found in data.scoreddocs_iter():
            run.setdefault(found.query_id, []).append((found.doc_id, float(found.score)))
        return {query: sorted(listed, key=lambda entry: -entry[1]) for query, listed in run.items()}

    @property
    def _place(self) -> str:
        return f"{PREFIX}{self.name}"

    @cached_property
    def _library(self) -> Any:
        try:
            import ir_datasets
        except ImportError as error:
            raise MissingExtraError(f"reading {self._place}", "irds") from error
        return ir_datasets

    def _data(self, split: str | None, part: str) -> Any:
        """The data set of a split, which must have `part`."""
        name = self.name
        if split is not None and split not in self.splits():
            name = f"{name}/{split}"
        try:
            data = self._library.load(name)
        except KeyError:
            raise InputError(f"ir_datasets knows no data set {name!r}") from None
        if not getattr(data, f"has_{part}")():
            raise InputError(f"{PREFIX}{name} has no {part}; name one of its parts, e.g. .../test")
        return data


def _records(found: Iterable[Any]) -> Iterator[Numbered]:
    for number, entry in enumerate(found, start=1):
        record = entry._asdict()
        yield number, record if "text" in record else {**record, "text": entry.default_text()}
