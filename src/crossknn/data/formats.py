"""Published data formats: BEIR, TREC, MS MARCO, ir_datasets and ZESHEL.

What lies in a folder is items, and for each split queries, judgements and candidates. The layouts
and the origins of the field names are listed in docs/data.md.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from crossknn.data.items import DEFAULT_TEMPLATE, Items, item_records, items_from
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
from crossknn.errors import InputError, MissingExtraError, nearest


class DataFolder(ABC):
    """Data in one published layout; nothing is read before it is asked for."""

    format: ClassVar[str]
    signs: ClassVar[tuple[str, ...]] = ()
    template: ClassVar[str] = DEFAULT_TEMPLATE

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether `path` looks like this format: one of its `signs` is there."""
        return any(next(path.glob(sign), None) is not None for sign in cls.signs)

    @property
    def name(self) -> str:
        """What the data are called: the folder, or a domain."""
        return self.path.name

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

    def items(self, split: str | None = None) -> Items:
        """The items, rendered; those whose text is empty stay."""
        return items_from(self.item_records(split), template=self.template, allow_empty=True)

    def parts(self, split: str, domains: Iterable[str] | None = None) -> Sequence[Self]:
        """One corpus each: the domains of a split, or those named; otherwise the folder itself."""
        if domains is not None:
            raise InputError(f"{self.path} has the format {self.format}, which has no domains")
        return [self]

    def part(self, split: str, domain: str | None = None) -> Self:
        """The only corpus of a split, or that of a domain."""
        parts = self.parts(split, None if domain is None else [domain])
        if len(parts) != 1:
            known = ", ".join(part.name for part in parts)
            raise InputError(f"{self.path} has the domains {known}: name one (domain=...)")
        return parts[0]

    def split(self, wanted: str | None) -> str:
        """`wanted` if it is there; without one `test`, or the only one; `InputError` otherwise."""
        known = self.splits()
        if wanted is None and len(known) == 1:
            return known[0]
        if wanted is None and "test" not in known:
            raise InputError(f"{self.path} has the splits {', '.join(known)}: name one (split=...)")
        wanted = wanted or "test"
        if wanted not in known:
            raise InputError(f"{self.path} has no split {wanted!r} ({nearest(wanted, known)})")
        return wanted


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
        judged = queries.select(qrels)
        if not len(judged):
            raise InputError(
                f"{self.path}, split {split}: none of the queries is judged: the judgements name "
                f"{next(iter(qrels))!r}, and the first query is {queries.ids[0]!r}"
            )
        return judged

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
    """`collection.tsv` (pid, passage), `queries.<split>.tsv` (qid, query), `qrels.<split>.tsv`
    (TREC), `top1000.<split>` (qid, pid, query, passage), none with a header (microsoft/msmarco,
    Datasets.md).
    """

    format = "msmarco"
    signs = ("queries.*.tsv*",)
    query_stem = "queries"
    list_stem = "top1000"


class Irds(DataFolder):
    """A data set of ir_datasets by name, `irds:beir/scifact/test` (MacAvaney et al. 2021).

    A split is the last part of a name. ir_datasets (`ir_datasets/formats/base.py`) gives named
    tuples: documents with `doc_id`, `text` and often `title`; queries with `query_id`, `text`;
    judgements `query_id`, `doc_id`, `relevance`; lists (`scoreddocs`) `query_id`, `doc_id`,
    `score`. Data that are not there are downloaded by ir_datasets.
    """

    format = "irds"

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
        for found in self._data(split, "qrels").qrels_iter():
            qrels.setdefault(found.query_id, {})[found.doc_id] = int(found.relevance)
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


class Zeshel(DataFolder):
    """Entity linking in worlds (Logeswaran et al. 2019); each domain is a corpus of its own.

    Items are the entities of `documents/<domain>.json`, `title [ENT] text`; queries are mentions in
    the whole of their document, `left [Ms] mention [Me] right`. Mentions lie in
    `mentions/<split>.json` as published (lajanugen/zeshel, README), or in
    `processed/<split>_worlds/<domain>_mentions.jsonl` as the authors of ANNCUR make them
    (iesl/anncur, `utils/preprocess_zeshel.py`), where `label_id` is a position in the documents.
    """

    format = "zeshel"
    signs = ("documents/",)
    template = ITEM_TEMPLATE

    def __init__(self, path: Path, domain: str = "", mentions: Sequence[Record] = ()) -> None:
        super().__init__(path)
        self.domain, self.mentions = domain, mentions

    @property
    def name(self) -> str:
        return self.domain or super().name

    def splits(self) -> Sequence[str]:
        return ("train", "valid", "test")

    def parts(self, split: str, domains: Iterable[str] | None = None) -> Sequence[Self]:
        """The domains of a split; `domains` are found in any split."""
        if self.domain:
            return [self]
        wanted = None if domains is None else list(domains)
        read = self._processed if (self.path / "processed").is_dir() else self._published
        found: dict[str, list[Record]] = {}
        for name in (self.split(split),) if wanted is None else self.splits():
            for domain, mention in read(name, wanted):
                found.setdefault(domain, []).append(mention)
        for domain in wanted or ():
            if domain not in found:
                hint = nearest(domain, self._domains())
                raise InputError(f"{self.path} has no mentions of {domain!r} ({hint})")
        if not found:
            raise InputError(f"{self.path} has no mentions in the split {split}")
        return [type(self)(self.path, *part) for part in found.items()]

    def item_records(self, split: str | None = None) -> Records:
        domains = [self.domain] if self.domain else self._domains()
        if len(domains) != 1:
            raise InputError(
                f"{self.path} has the domains {', '.join(domains)}: give one of its files "
                "documents/<domain>.json"
            )
        return read_records(self._documents(domains[0]))

    def queries(self, split: str | None) -> QuerySet:
        return queries_from(Records(str(self.path), self.part(self.split(split)).mentions))

    def qrels(self, split: str) -> Qrels:
        part = self.part(self.split(split))
        ids, qrels = part.items().ids, dict[str, dict[str, int]]()
        known = set(ids)
        for mention in part.mentions:
            label = mention.fields["label"]
            if type(label) is int and 0 <= label < len(ids):
                label = ids[label]
            if not isinstance(label, str) or label not in known:
                raise InputError(
                    f"{mention.place} has the label {label!r}, which is none of the {len(ids)} "
                    f"items of {part.domain}"
                )
            qrels[mention.id("mention_id")] = {label: 1}
        return qrels

    def items(self, split: str | None = None) -> Items:
        return self._items

    @cached_property
    def _items(self) -> Items:
        return super().items()

    def _domains(self) -> list[str]:
        return sorted(path.stem for path in (self.path / "documents").glob("*.json"))

    def _documents(self, domain: str) -> Path:
        return self.path / "documents" / f"{domain}.json"

    def _processed(self, split: str, wanted: list[str] | None) -> Iterator[tuple[str, Record]]:
        for path in sorted((self.path / "processed" / f"{split}_worlds").glob("*_mentions.jsonl")):
            domain = path.name.removesuffix("_mentions.jsonl")
            for record in read_records(path).rows if wanted is None or domain in wanted else ():
                names = ("mention_id", "context_left", "mention", "context_right")
                fields = {name: record.field(name) for name in names}
                fields["label"] = record.fields.get("label_id")
                yield domain, record._replace(fields=fields)

    def _published(self, split: str, wanted: list[str] | None) -> Iterator[tuple[str, Record]]:
        path = self.path / "mentions" / f"{'val' if split == 'valid' else split}.json"
        contexts: dict[str, dict[str, list[str]]] = {}
        for record in read_records(path).rows if path.is_file() else ():
            domain = record.text("corpus")
            if wanted is not None and domain not in wanted:
                continue
            if domain not in contexts:  # as the text stands: mentions count its words
                contexts[domain] = {
                    document.text("document_id"): document.text("text").split(" ")
                    for document in read_records(self._documents(domain)).rows
                }
            words = contexts[domain].get(record.text("context_document_id"), [])
            fields = {
                "mention_id": record.field("mention_id"),
                **_context(record, words),
                "label": record.text("label_document_id"),
            }
            yield domain, record._replace(fields=fields)


def _context(record: Record, words: Sequence[str]) -> Mapping[str, str]:
    """The mention and what is around it, given by the places of its words, inclusive."""
    start, end = record.field("start_index"), record.field("end_index")
    if type(start) is int and type(end) is int and 0 <= start <= end < len(words):
        mention = " ".join(words[start : end + 1])
        if mention == record.field("text"):
            left, right = " ".join(words[:start]), " ".join(words[end + 1 :])
            return {"context_left": left, "mention": mention, "context_right": right}
    raise InputError(
        f"{record.place}: the mention {record.field('text')!r} is not the words {start} to {end} "
        f"of the document {record.text('context_document_id')!r}"
    )
