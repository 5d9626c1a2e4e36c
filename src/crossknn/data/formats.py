"""Published data formats: docs/how-to/data.md has their layouts, and where field names are from."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from crossknn.data.dataset import Dataset
from crossknn.data.items import DEFAULT_TEMPLATE, item_records, items_from
from crossknn.data.queries import (
    ITEM_TEMPLATE,
    Qrels,
    QuerySet,
    Run,
    file_qrels,
    queries_from,
    query_records,
    read_run,
)
from crossknn.data.records import Record, Records, read_records
from crossknn.errors import InputError, nearest, needs_extra


class DataFolder(ABC):
    """Data in one published layout; nothing is read before it is asked for."""

    format: ClassVar[str]
    signs: ClassVar[tuple[str, ...]] = ()
    template: ClassVar[str] = DEFAULT_TEMPLATE

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path, self.name = path, name or path.name

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether `path` looks like this format: one of its `signs` is there."""
        return any(next(path.glob(sign), None) is not None for sign in cls.signs)

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """The names of the splits there are."""

    @abstractmethod
    def item_records(self, split: str | None = None) -> Records:
        """The items as records; `split` matters to data sets of ir_datasets alone."""

    @abstractmethod
    def queries(self, split: str | None) -> QuerySet:
        """The queries of a split; without one, of all splits or of the usual one."""

    @abstractmethod
    def qrels(self, split: str) -> Qrels:
        """The judgements of a split."""

    def candidates(self, split: str) -> Run | None:
        """The lists that come with the queries of a split, if any do."""
        return None

    def datasets(self, split: str, domains: Iterable[str] | None, lists: bool) -> list[Dataset]:
        """The corpora of a split, or of the domains named; items whose text is empty stay."""
        if domains is not None:
            raise InputError(f"{self.path} has the format {self.format}, which has no domains")
        data = Dataset(
            name=self.name,
            queries=self.queries(split),
            items=items_from(self.item_records(split), self.template, allow_empty=True),
            qrels=self.qrels(split),
            candidates=self.candidates(split) if lists else None,
        )
        return [data]

    def dataset(self, split: str, domain: str | None = None) -> Dataset:
        """The only corpus of a split, or that of a domain."""
        found = self.datasets(split, None if domain is None else [domain], lists=True)
        if len(found) != 1:
            known = ", ".join(data.name for data in found)
            raise InputError(f"{self.path} has the domains {known}: name one (domain=...)")
        return found[0]

    def split(self, wanted: str | None) -> str:
        """`wanted` if it is there; without one `test`, or the only one; `InputError` otherwise."""
        known = self.splits()
        usual = known[0] if len(known) == 1 else "test"
        if wanted is None and usual not in known:
            raise InputError(f"{self.path} has the splits {', '.join(known)}: name one (split=...)")
        if wanted is not None and wanted not in known:
            raise InputError(f"{self.path} has no split {wanted!r} ({nearest(wanted, known)})")
        return wanted or usual


class Beir(DataFolder):
    """`corpus.jsonl`, `queries.jsonl` (each maybe `.gz`), `qrels/<split>.tsv` (Thakur 2021)."""

    format = "beir"
    signs = ("qrels/", "corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz")

    def splits(self) -> Sequence[str]:
        return sorted(path.stem for path in (self.path / "qrels").glob("*.tsv"))

    def item_records(self, split: str | None = None) -> Records:
        return item_records(self._file("corpus"))

    def queries(self, split: str | None) -> QuerySet:
        queries = queries_from(query_records(self._file("queries")))
        if split is None:
            return queries
        qrels = self.qrels(self.split(split))
        judged = [row for row, query in enumerate(queries.ids) if query in qrels]
        if not judged:
            raise InputError(
                f"{self.path}, split {split}: none of the queries is judged: the judgements name "
                f"{next(iter(qrels))!r}, and the first query is {queries.ids[0]!r}"
            )
        return queries.take(judged)

    def qrels(self, split: str) -> Qrels:
        return file_qrels(self.path / "qrels" / f"{split}.tsv")

    def _file(self, name: str) -> Path:
        zipped = self.path / f"{name}.jsonl.gz"
        return zipped if zipped.is_file() else self.path / f"{name}.jsonl"


# A stem, a split between dots, dashes or underscores, and any ending: `topics.robust04.txt`,
# `qrels-rnd5.txt`, `queries.dev.small.tsv`, `top1000.dev`.
_ENDINGS = re.compile(r"(\.(txt|tsv|csv|jsonl|ndjson|json|xml|trec|topics|qrels|run|gz))*$")


class Trec(DataFolder):
    """`collection.*`, `topics*`, `qrels*`, `run*` (trec_eval, README: "qrels" and "results").

    A split is a file of queries. It is judged by the file of judgements of the same name, or by the
    only one there is if there is only one of each; the same holds for lists of candidates.
    """

    format = "trec"
    signs = ("topics*",)
    query_stem = "topics"
    list_stem = "run"

    def splits(self) -> Sequence[str]:
        return sorted(self._named(self.query_stem))

    def item_records(self, split: str | None = None) -> Records:
        stems = ("collection", "corpus", "docs")
        found = [path for stem in stems for path in self._named(stem).values()]
        if len(found) != 1:
            raise InputError(
                f"{self.path} has {len(found)} files of items (collection.tsv or .jsonl); there "
                "must be one"
            )
        return item_records(found[0])

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
        """The file of a stem that belongs to the queries of a split; `dev` has `dev.small`'s."""
        found = self._named(stem)
        if len(found) == len(self.splits()) == 1:
            return next(iter(found.values()))
        return found.get(split) or found.get(split.removesuffix(".small"))

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


class MsMarco(Trec):
    """`collection.tsv`, `queries.<split>.tsv`, `qrels.<split>.tsv`, `top1000.<split>`."""

    format = "msmarco"
    signs = ("queries.*.tsv*",)
    query_stem = "queries"
    list_stem = "top1000"


class Irds(DataFolder):
    """A data set of ir_datasets by name, `irds:beir/scifact/test` (MacAvaney et al. 2021).

    A split is the last part of a name. Data that are not there are downloaded by ir_datasets, which
    gives named tuples (`ir_datasets/formats/base.py`).
    """

    format = "irds"

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.as_posix().removeprefix("irds:"))

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.as_posix().startswith("irds:")

    def splits(self) -> Sequence[str]:
        return (self.name.rpartition("/")[2],)

    def split(self, wanted: str | None) -> str:
        return wanted or self.splits()[0]

    def item_records(self, split: str | None = None) -> Records:
        found = self._data(split, "docs").docs_iter()
        return Records(str(self.path), self._records(found, "document"))

    def queries(self, split: str | None) -> QuerySet:
        found = self._data(split, "queries").queries_iter()
        return queries_from(Records(str(self.path), self._records(found, "query")))

    def qrels(self, split: str) -> Qrels:
        qrels: Qrels = self._data(split, "qrels").qrels_dict()
        return qrels

    def candidates(self, split: str) -> Run | None:
        data = self._data(split, "queries")
        if not data.has_scoreddocs():
            return None
        run: Run = {}
        for found in data.scoreddocs_iter():
            run.setdefault(found.query_id, []).append((found.doc_id, float(found.score)))
        return {query: sorted(listed, key=lambda entry: -entry[1]) for query, listed in run.items()}

    def _records(self, found: Iterable[Any], unit: str) -> Iterator[Record]:
        for number, entry in enumerate(found, start=1):
            fields = entry._asdict()
            if "text" not in fields:
                fields["text"] = entry.default_text()
            yield Record(fields, number, f"{self.path}, {unit} {number}")

    def _data(self, split: str | None, part: str) -> Any:
        """The data set of a split (added to the name unless it is its end), which has `part`."""
        name = self.name if split in (None, *self.splits()) else f"{self.name}/{split}"
        try:
            with needs_extra(f"reading irds:{self.name}", "irds"):
                import ir_datasets

                data = ir_datasets.load(name)
        except KeyError:
            raise InputError(f"ir_datasets has no data set {name!r}") from None
        if not getattr(data, f"has_{part}")():
            raise InputError(f"irds:{name} has no {part}; name one of its parts, e.g. .../test")
        return data


class Zeshel(DataFolder):
    """Entity linking in worlds (Logeswaran et al. 2019); each domain is a corpus of its own.

    Items are the entities of `documents/<domain>.json`, `title [ENT] text`; queries are mentions in
    the whole of their document, `left [Ms] mention [Me] right`, from `mentions/<split>.json`, or
    from `processed/`, where `label_id` is a position in the documents.
    """

    format = "zeshel"
    signs = ("documents/",)
    template = ITEM_TEMPLATE

    def splits(self) -> Sequence[str]:
        return ("train", "valid", "test")

    def datasets(self, split: str, domains: Iterable[str] | None, lists: bool) -> list[Dataset]:
        """The domains of a split; `domains` are found in any split."""
        wanted = None if domains is None else list(domains)
        found: dict[str, list[Record]] = {}
        for name in (split,) if wanted is None else self.splits():
            for domain, mentions in self._mentions(name):
                if wanted is None or domain in wanted:
                    found.setdefault(domain, []).extend(mentions)
        for domain in wanted or ():
            if domain not in found:
                hint = nearest(domain, self._domains())
                raise InputError(f"{self.path} has no mentions of {domain!r} ({hint})")
        if not found:
            raise InputError(f"{self.path} has no mentions in the split {split}")
        return [self._dataset(*part) for part in found.items()]

    def item_records(self, split: str | None = None) -> Records:
        domains = self._domains()
        if len(domains) != 1:
            raise InputError(
                f"{self.path} has the domains {', '.join(domains)}: give one of its files "
                "documents/<domain>.json"
            )
        return self._documents(domains[0])

    def queries(self, split: str | None) -> QuerySet:
        return self.dataset(self.split(split)).queries

    def qrels(self, split: str) -> Qrels:
        return self.dataset(split).qrels

    def _dataset(self, domain: str, mentions: Sequence[Record]) -> Dataset:
        documents = list(self._documents(domain).rows)
        processed = (self.path / "processed").is_dir()
        in_context = _as_processed(mentions) if processed else _placed(mentions, documents)
        queries = queries_from(Records(str(self.path), in_context))
        items = items_from(Records(str(self.path), documents), self.template, allow_empty=True)
        known, qrels = set(items.ids), dict[str, dict[str, int]]()
        for query, mention in zip(queries.ids, mentions, strict=True):
            label: object = mention.fields.get("label_id")
            if not processed:
                label = mention.text("label_document_id")
            elif type(label) is int and 0 <= label < len(items):
                label = items.ids[label]
            if not isinstance(label, str) or label not in known:
                raise InputError(
                    f"{mention.place} has the label {label!r}, which is none of the {len(items)} "
                    f"items of {domain}"
                )
            qrels[query] = {label: 1}
        return Dataset(name=domain, items=items, queries=queries, qrels=qrels)

    def _domains(self) -> list[str]:
        return sorted(path.stem for path in (self.path / "documents").glob("*.json"))

    def _documents(self, domain: str) -> Records:
        return read_records(self.path / "documents" / f"{domain}.json")

    def _mentions(self, split: str) -> Iterator[tuple[str, Iterable[Record]]]:
        """Mentions of a split by domain, as they are in their files."""
        end = "_mentions.jsonl"
        for path in sorted(self.path.glob(f"processed/{split}_worlds/*{end}")):
            yield path.name.removesuffix(end), read_records(path).rows
        path = self.path / "mentions" / f"{'val' if split == 'valid' else split}.json"
        if path.is_file() and not (self.path / "processed").is_dir():
            for record in read_records(path).rows:
                yield record.text("corpus"), [record]


_IN_CONTEXT = ("mention_id", "context_left", "mention", "context_right")


def _as_processed(mentions: Iterable[Record]) -> Iterator[Record]:
    for record in mentions:
        yield record._replace(fields={name: record.field(name) for name in _IN_CONTEXT})


def _placed(mentions: Iterable[Record], documents: Iterable[Record]) -> Iterator[Record]:
    """Mentions and what is around them, found by the places of their words, both inclusive."""
    contexts = {d.text("document_id"): d.text("text").split(" ") for d in documents}
    for record in mentions:
        words = contexts.get(record.text("context_document_id"), [])
        given = record.field("start_index"), record.field("end_index")
        start, end = (place if type(place) is int else -1 for place in given)
        mention = " ".join(words[start : end + 1])
        if not 0 <= start <= end < len(words) or mention != record.field("text"):
            raise InputError(
                f"{record.place}: the mention {record.field('text')!r} is not the words {given[0]} "
                f"to {given[1]} of the document {record.text('context_document_id')!r}"
            )
        left, right = " ".join(words[:start]), " ".join(words[end + 1 :])
        values = (record.field("mention_id"), left, mention, right)
        yield record._replace(fields=dict(zip(_IN_CONTEXT, values, strict=True)))
