"""Published layouts of data folders: the role of each file (docs/how-to/data.md)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from crossknn.data.text_files import existing
from crossknn.errors import InputError, nearest
from crossknn.files import as_path


class Layout(ABC):
    """A folder in one layout; it names files, and reads none."""

    name: ClassVar[str]
    signs: ClassVar[tuple[str, ...]]
    """File patterns by which a folder is recognised as this layout."""
    judged_only: ClassVar[bool] = False
    """Whether one file has the queries of all splits, and the judgements decide which are in a
    split."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Return the names of the splits."""

    @abstractmethod
    def items(self) -> Path:
        """Return the file of items."""

    @abstractmethod
    def queries(self, split: str) -> Path:
        """Return the file of a split's queries."""

    @abstractmethod
    def judgements(self, split: str) -> Path:
        """Return the file of a split's judgements."""

    def lists(self, split: str) -> Path | None:
        """Return the file of the lists that come with a split's queries, if there is one."""
        return None

    def split(self, wanted: str | None) -> str:
        """Return `wanted` if this split exists; by default `test`, or the only split; `InputError`
        otherwise."""
        splits = self.splits()
        usual = splits[0] if len(splits) == 1 else "test"
        if wanted is None and usual not in splits:
            raise InputError(
                f"{self.path} has the splits {', '.join(splits)}: name one (split=...)"
            )
        if wanted is not None and wanted not in splits:
            raise InputError(f"{self.path} has no split {wanted!r} ({nearest(wanted, splits)})")
        return wanted or usual


class Beir(Layout):
    """`corpus.jsonl`, `queries.jsonl` (each maybe `.gz`), `qrels/<split>.tsv` (Thakur 2021)."""

    name = "beir"
    signs = ("qrels/", "corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz")
    judged_only = True

    def splits(self) -> Sequence[str]:
        return sorted(path.stem for path in (self.path / "qrels").glob("*.tsv"))

    def items(self) -> Path:
        return self._file("corpus")

    def queries(self, split: str) -> Path:
        return self._file("queries")

    def judgements(self, split: str) -> Path:
        return self.path / "qrels" / f"{split}.tsv"

    def _file(self, name: str) -> Path:
        zipped = self.path / f"{name}.jsonl.gz"
        return zipped if zipped.is_file() else self.path / f"{name}.jsonl"


# A stem, a split between dots, dashes or underscores, and any ending: `topics.robust04.txt`,
# `qrels-rnd5.txt`, `queries.dev.small.tsv`, `top1000.dev`.
_ENDINGS = re.compile(r"(\.(txt|tsv|csv|jsonl|ndjson|json|xml|trec|topics|qrels|run|gz))*$")


class Trec(Layout):
    """`collection.*`, `topics*`, `qrels*`, `run*` (trec_eval, README: "qrels" and "results").

    A split is a file of queries. It is judged by the file of judgements of the same name, or by the
    only one there is if there is only one of each; the same holds for lists of candidates.
    """

    name = "trec"
    signs = ("topics*",)
    query_stem = "topics"
    list_stem = "run"

    def splits(self) -> Sequence[str]:
        return sorted(self._named(self.query_stem))

    def items(self) -> Path:
        stems = ("collection", "corpus", "docs")
        files = [path for stem in stems for path in self._named(stem).values()]
        if len(files) != 1:
            raise InputError(
                f"{self.path} has {len(files)} files of items (collection.tsv or .jsonl); there "
                "must be one"
            )
        return files[0]

    def queries(self, split: str) -> Path:
        return self._named(self.query_stem)[split]

    def judgements(self, split: str) -> Path:
        path = self._beside(split, "qrels")
        if path is None:
            raise InputError(f"{self.path} has no judgements qrels for the split {split!r}")
        return path

    def lists(self, split: str) -> Path | None:
        return self._beside(split, self.list_stem)

    def _beside(self, split: str, stem: str) -> Path | None:
        """Return the file of this kind that belongs to a split's queries; `dev.small` may use that
        of `dev`."""
        files = self._named(stem)
        if len(files) == len(self.splits()) == 1:
            return next(iter(files.values()))
        return files.get(split) or files.get(split.removesuffix(".small"))

    def _named(self, stem: str) -> Mapping[str, Path]:
        """Return files by the split in their names, `all` for those without one."""
        files: dict[str, Path] = {}
        for path in sorted(self.path.glob(f"{stem}*")):
            after = _ENDINGS.sub("", path.name).removeprefix(stem)
            if not path.is_file() or (after and after[0] not in ".-_"):
                continue
            split = after.lstrip(".-_") or "all"
            if split in files:
                raise InputError(f"{files[split]} and {path.name} hold the same: keep one of them")
            files[split] = path
        return files


class MsMarco(Trec):
    """`collection.tsv`, `queries.<split>.tsv`, `qrels.<split>.tsv`, `top1000.<split>`."""

    name = "msmarco"
    signs = ("queries.*.tsv*",)
    query_stem = "queries"
    list_stem = "top1000"


LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in (Beir, Trec, MsMarco)}


def layout_at(source: str | Path, name: str | None = None) -> Layout | None:
    """Return the folder at `source` as the layout that its files show or that is named; None if it
    is a file."""
    if name is not None and name not in LAYOUTS:
        raise InputError(f"unknown data format {name!r}: {nearest(name, LAYOUTS)}")
    path = as_path(source, "the source")
    if not existing(path).is_dir():
        return None
    names = [name] if name else [n for n, layout in LAYOUTS.items() if _shows(path, layout)]
    if not names:
        raise InputError(
            f"{path} is a folder without corpus.jsonl, topics or another sign of a known format "
            f"({', '.join(LAYOUTS)}; see the docs, data)"
        )
    if len(names) > 1:
        raise InputError(f"{path} looks like {' and '.join(names)}: say which (format=...)")
    return LAYOUTS[names[0]](path)


def _shows(path: Path, layout: type[Layout]) -> bool:
    return any(next(path.glob(sign), None) is not None for sign in layout.signs)
