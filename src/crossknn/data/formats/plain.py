"""Folders of plain files, found by their names: TREC collections and MS MARCO.

A name is a stem, a split between dots, dashes or underscores, and any ending:
`topics.robust04.txt`, `qrels-rnd5.txt`, `run.dev.txt`; `queries.dev.small.tsv`, `top1000.dev`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from crossknn.data.formats.base import DataFolder
from crossknn.data.items import item_records
from crossknn.data.queries import (
    Qrels,
    QuerySet,
    Run,
    file_qrels,
    queries_from,
    query_records,
    read_run,
)
from crossknn.data.records import Located
from crossknn.errors import InputError

_ENDINGS = re.compile(r"(\.(txt|tsv|csv|jsonl|ndjson|json|xml|trec|topics|qrels|run|gz))*$")


class PlainFiles(DataFolder):
    """A collection, queries, judgements and lists in files of their own.

    A split is a file of queries. It is judged by the file of judgements of the same name, or by the
    only one there is if there is only one of each; the same holds for lists of candidates.
    """

    query_stem: ClassVar[str]
    list_stem: ClassVar[str]
    collection_stems: ClassVar[tuple[str, ...]] = ("collection", "corpus", "docs")

    def splits(self) -> Sequence[str]:
        """The files of queries."""
        return sorted(_named(self.path, self.query_stem))

    def item_records(self, split: str | None = None) -> Located:
        """The collection."""
        found = [
            path for stem in self.collection_stems for path in _named(self.path, stem).values()
        ]
        if len(found) != 1:
            raise InputError(
                f"{self.path} has {len(found)} files of items ({self.collection_stems[0]}.tsv or "
                ".jsonl); there must be one"
            )
        return item_records(found[0])

    def queries(self, split: str | None) -> QuerySet:
        """The queries of a split."""
        path = _named(self.path, self.query_stem)[self.split(split)]
        return queries_from(query_records(path))

    def qrels(self, split: str) -> Qrels:
        """The judgements of a split."""
        path = self._beside(split, "qrels")
        if path is None:
            raise InputError(f"{self.path} has no judgements qrels for the split {split!r}")
        return file_qrels(path)

    def candidates(self, split: str) -> Run | None:
        """The lists of a split."""
        path = self._beside(split, self.list_stem)
        return None if path is None else read_run(path)

    def _beside(self, split: str, stem: str) -> Path | None:
        """The file of a stem that belongs to the queries of a split."""
        found = _named(self.path, stem)
        if split in found:
            return found[split]
        return next(iter(found.values())) if len(found) == len(self.splits()) == 1 else None


class Trec(PlainFiles):
    """TREC: `collection.*`, `topics*`, `qrels*`, `run*`.

    Topics as `crossknn.data.topics` or a table; judgements `query 0 item grade`; runs
    `query Q0 item rank score tag` (trec_eval, README: "qrels" and "results" files).
    """

    format = "trec"
    layout = "a TREC folder"
    query_stem = "topics"
    list_stem = "run"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with files of topics."""
        return any(path.glob("topics*"))


class MsMarco(PlainFiles):
    """MS MARCO passages: `collection.tsv` (pid, passage), `queries.<split>.tsv` (qid, query),
    `qrels.<split>.tsv` (TREC), `top1000.<split>` (qid, pid, query, passage), none with a header.

    microsoft/msmarco, `Datasets.md`. The lists of `dev.small` are those in `top1000.dev`.
    """

    format = "msmarco"
    layout = "an MS MARCO folder"
    query_stem = "queries"
    list_stem = "top1000"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with tables of queries."""
        return any(path.glob("queries.*.tsv*"))

    def candidates(self, split: str) -> Run | None:
        """The lists of a split; those of `dev` hold `dev.small` too."""
        own = super().candidates(split)
        return super().candidates(split.removesuffix(".small")) if own is None else own


def _named(folder: Path, stem: str) -> Mapping[str, Path]:
    """Files by the split in their names, `all` where there is none.

    Raises `InputError` for two files of one name.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob(f"{stem}*")):
        name = _ENDINGS.sub("", path.name)
        rest = name.removeprefix(stem)
        if not path.is_file() or (rest and rest[0] not in ".-_"):
            continue
        split = rest.lstrip(".-_") or "all"
        if split in found:
            raise InputError(f"{found[split]} and {path.name} hold the same: keep one of them")
        found[split] = path
    return found
