"""Published data formats: BEIR, TREC, MS MARCO, ir_datasets (others: `linking`, `dialogs`).

What lies in a folder is items, and for each split queries, judgements and candidates. The layouts
and the origins of the field names are listed in docs/data.md.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from crossknn.data.items import DEFAULT_TEMPLATE, Items, item_records, items_from
from crossknn.data.queries import (
    Qrels,
    QuerySet,
    Run,
    columns,
    file_qrels,
    judge,
    queries_from,
    query_records,
    read_run,
)
from crossknn.data.records import Record, Records, read_lines
from crossknn.errors import InputError, MissingExtraError, nearest


class DataFolder(ABC):
    """Data in one published layout; nothing is read before it is asked for.

    `complete`: all judged items should be there; those of a list made elsewhere may be missing.
    """

    format: ClassVar[str]
    layout: ClassVar[str]
    signs: ClassVar[tuple[str, ...]] = ()
    template: ClassVar[str] = DEFAULT_TEMPLATE
    id_field: ClassVar[str | None] = None
    title_field: ClassVar[str | None] = None
    complete: ClassVar[bool] = True

    def __init__(self, path: Path, domain: str | None = None) -> None:
        self.path = path
        self.domain = domain
        self._read: dict[str, Any] = {}

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether `path` looks like this format: one of its `signs` is there."""
        return any(next(path.glob(sign), None) is not None for sign in cls.signs)

    @property
    def name(self) -> str:
        """What the data are called: the domain, or the folder."""
        return self.domain or self.path.name

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """The names of the splits there are."""

    @abstractmethod
    def item_records(self, split: str | None = None) -> Records:
        """The items as records; `split` matters where every split has items of its own."""

    @abstractmethod
    def queries(self, split: str | None) -> QuerySet:
        """The queries of a split; without one, of all splits or of the usual one."""

    @abstractmethod
    def qrels(self, split: str) -> Qrels:
        """The judgements of a split."""

    def candidates(self, split: str) -> Run | None:
        """The lists that come with the queries of a split, if any do."""
        return None

    def items(self, split: str | None = None) -> Items:
        """The items (of a split), rendered; those whose text is empty stay."""
        return items_from(
            self.item_records(split),
            id_field=self.id_field,
            title_field=self.title_field,
            template=self.template,
            allow_empty=True,
        )

    def parts(self, split: str, domains: Iterable[str] | None) -> Sequence[DataFolder]:
        """One corpus each: the domains of a split, or those named; otherwise the folder itself."""
        if domains is not None:
            raise InputError(f"{self.path} is {self.layout}, which has no domains")
        return [self]

    def judged_at(self, split: str, query: str, item: str | None = None) -> str:
        """Where a query (and an item) is judged: a file and its line if there is one."""
        return str(self.path)

    def only(self, found: Sequence[Path], what: str) -> Path:
        """The one file that there is; `InputError` otherwise."""
        if len(found) != 1:
            raise InputError(f"{self.path} has {len(found)} {what}; there must be one")
        return found[0]

    def split(self, wanted: str | None) -> str:
        """`wanted` if it is there; without one `test`, or the only one; `InputError` otherwise."""
        known = self.splits()
        if wanted is None and len(known) == 1:
            return known[0]
        if wanted is None and "test" not in known:
            raise InputError(f"{self.path} has the splits {', '.join(known)}: name one (split=...)")
        wanted = wanted or "test"
        if wanted not in known:
            hint = nearest(wanted, known) if known else "there are none"
            raise InputError(f"{self.path} has no split {wanted!r} ({hint})")
        return wanted


class Beir(DataFolder):
    """`corpus.jsonl`, `queries.jsonl` (each maybe `.gz`), `qrels/<split>.tsv` (Thakur et al.
    2021).
    """

    format = "beir"
    layout = "a BEIR folder"
    signs = ("qrels/", "corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz")

    def splits(self) -> Sequence[str]:
        return sorted(path.stem for path in (self.path / "qrels").glob("*.tsv"))

    def item_records(self, split: str | None = None) -> Records:
        return item_records(self._file("corpus"))

    def queries(self, split: str | None) -> QuerySet:
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
        return file_qrels(self._qrels_file(split))

    def split(self, wanted: str | None) -> str:
        wanted = wanted or "test"  # a folder may lack a split that its name seems to promise
        self._qrels_file(wanted)
        return wanted

    def judged_at(self, split: str, query: str, item: str | None = None) -> str:
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


# A stem, a split between dots, dashes or underscores, and any ending: `topics.robust04.txt`,
# `qrels-rnd5.txt`, `queries.dev.small.tsv`, `top1000.dev`.
_ENDINGS = re.compile(r"(\.(txt|tsv|csv|jsonl|ndjson|json|xml|trec|topics|qrels|run|gz))*$")


class PlainFiles(DataFolder):
    """A collection, queries, judgements and lists in files of their own.

    A split is a file of queries. It is judged by the file of judgements of the same name, or by the
    only one there is if there is only one of each; the same holds for lists of candidates.
    """

    query_stem: ClassVar[str]
    list_stem: ClassVar[str]

    def splits(self) -> Sequence[str]:
        return sorted(self._named(self.query_stem))

    def item_records(self, split: str | None = None) -> Records:
        stems = ("collection", "corpus", "docs")
        found = [path for stem in stems for path in self._named(stem).values()]
        return item_records(self.only(found, "files of items (collection.tsv or .jsonl)"))

    def queries(self, split: str | None) -> QuerySet:
        return queries_from(query_records(self._named(self.query_stem)[self.split(split)]))

    def qrels(self, split: str) -> Qrels:
        path = self._beside(split, "qrels")
        if path is None:
            raise InputError(f"{self.path} has no judgements qrels for the split {split!r}")
        return file_qrels(path)

    def candidates(self, split: str) -> Run | None:
        path = self._beside(split, self.list_stem)
        return None if path is None else read_run(path)

    def _beside(self, split: str, stem: str) -> Path | None:
        """The file of a stem that belongs to the queries of a split."""
        found = self._named(stem)
        if split in found:
            return found[split]
        return next(iter(found.values())) if len(found) == len(self.splits()) == 1 else None

    def _named(self, stem: str) -> Mapping[str, Path]:
        """Files by the split in their names, `all` where there is none."""
        found: dict[str, Path] = {}
        for path in sorted(self.path.glob(f"{stem}*")):
            rest = _ENDINGS.sub("", path.name).removeprefix(stem)
            if not path.is_file() or (rest and rest[0] not in ".-_"):
                continue
            split = rest.lstrip(".-_") or "all"
            if split in found:
                raise InputError(f"{found[split]} and {path.name} hold the same: keep one of them")
            found[split] = path
        return found


class Trec(PlainFiles):
    """`collection.*`, `topics*`, `qrels*`, `run*` (trec_eval, README: "qrels" and "results")."""

    format = "trec"
    layout = "a TREC folder"
    signs = ("topics*",)
    query_stem = "topics"
    list_stem = "run"


class MsMarco(PlainFiles):
    """`collection.tsv` (pid, passage), `queries.<split>.tsv` (qid, query), `qrels.<split>.tsv`
    (TREC), `top1000.<split>` (qid, pid, query, passage), none with a header (microsoft/msmarco,
    Datasets.md).
    """

    format = "msmarco"
    layout = "an MS MARCO folder"
    signs = ("queries.*.tsv*",)
    query_stem = "queries"
    list_stem = "top1000"

    def candidates(self, split: str) -> Run | None:
        own = super().candidates(split)  # the lists of `dev` hold those of `dev.small`
        return super().candidates(split.removesuffix(".small")) if own is None else own


class Irds(DataFolder):
    """A data set of ir_datasets by name, `irds:beir/scifact/test` (MacAvaney et al. 2021).

    A split is the last part of a name. ir_datasets (`ir_datasets/formats/base.py`) gives named
    tuples: documents with `doc_id`, `text` and often `title`; queries with `query_id`, `text`;
    judgements `query_id`, `doc_id`, `relevance`; lists (`scoreddocs`) `query_id`, `doc_id`,
    `score`. Data that are not there are downloaded by ir_datasets.
    """

    format = "irds"
    layout = "a data set of ir_datasets"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.as_posix().startswith("irds:")

    @property
    def name(self) -> str:
        return self.path.as_posix().removeprefix("irds:")

    def splits(self) -> Sequence[str]:
        return (self.name.rpartition("/")[2],)

    def split(self, wanted: str | None) -> str:
        return self.splits()[0] if wanted is None else wanted

    def item_records(self, split: str | None = None) -> Records:
        return self._records(self._data(split, "docs").docs_iter(), "document")

    def queries(self, split: str | None) -> QuerySet:
        return queries_from(self._records(self._data(split, "queries").queries_iter(), "query"))

    def qrels(self, split: str) -> Qrels:
        qrels: Qrels = {}
        for number, found in enumerate(self._data(split, "qrels").qrels_iter(), start=1):
            place = f"irds:{self.name}, judgement {number}"
            judge(qrels, found.query_id, found.doc_id, int(found.relevance), place)
        return qrels

    def candidates(self, split: str) -> Run | None:
        data = self._data(split, "queries")
        if not data.has_scoreddocs():
            return None
        run: Run = {}
        for found in data.scoreddocs_iter():
            run.setdefault(found.query_id, []).append((found.doc_id, float(found.score)))
        return {query: sorted(listed, key=lambda entry: -entry[1]) for query, listed in run.items()}

    def _records(self, found: Iterable[Any], unit: str) -> Records:
        def rows() -> Iterator[Record]:
            for number, entry in enumerate(found, start=1):
                fields = entry._asdict()
                if "text" not in fields:
                    fields["text"] = entry.default_text()
                yield Record(fields, number, f"{place}, {unit} {number}")

        place = f"irds:{self.name}"
        return Records(place, rows())

    def _data(self, split: str | None, part: str) -> Any:
        """The data set of a split (added to the name unless it is its end), which has `part`."""
        name = self.name
        if split is not None and split not in self.splits():
            name = f"{name}/{split}"
        try:
            import ir_datasets

            data = ir_datasets.load(name)
        except ImportError as error:
            raise MissingExtraError(f"reading irds:{self.name}", "irds") from error
        except KeyError:
            raise InputError(f"ir_datasets knows no data set {name!r}") from None
        if not getattr(data, f"has_{part}")():
            raise InputError(f"irds:{name} has no {part}; name one of its parts, e.g. .../test")
        return data
