"""Published layouts of data folders: which file has the items, queries, judgements and lists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from crossknn.data.text_files import existing
from crossknn.errors import InputError, nearest
from crossknn.files import as_path

_BEIR = ("qrels", "corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz")
# After the stem: a split between dots, dashes or underscores, and any ending, as in
# `topics.robust04.txt`, `qrels-rnd5.txt` and `queries.dev.small.tsv`.
_ENDINGS = re.compile(r"(\.(txt|tsv|csv|jsonl|ndjson|json|xml|trec|topics|qrels|run|gz))*$")


class DataFolder:
    """A folder in the layout of BEIR, TREC or MS MARCO (docs/how-to/data.md).

    In TREC and MS MARCO each file of queries (`topics*`, `queries.*.tsv`) is a split; its
    judgements (`qrels*`) and ranked lists (`run*`) are the files that name the split, or the only
    ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_beir = any((path / name).exists() for name in _BEIR)
        topics = self._by_split("topics")
        if self.is_beir and topics:
            raise InputError(
                f"{path} looks like BEIR and TREC: move its topics* or its BEIR files elsewhere"
            )
        is_marco = not self.is_beir and any(path.glob("queries.*.tsv*"))
        self._queries = topics or (self._by_split("queries") if is_marco else {})
        if not (self.is_beir or self._queries):
            raise InputError(
                f"{path} is a folder without corpus.jsonl (BEIR), topics* (TREC) or queries.*.tsv "
                "(MS MARCO): name a file, or see the docs, data"
            )

    def splits(self) -> Sequence[str]:
        """Return the names of the splits."""
        if self.is_beir:
            return sorted(path.stem for path in (self.path / "qrels").glob("*.tsv"))
        return sorted(self._queries)

    def split(self, name: str | None) -> str:
        """Return `name` if this split exists; by default `test`, or the only split."""
        splits = self.splits()
        usual = splits[0] if len(splits) == 1 else "test"
        if name is None and usual not in splits:
            raise InputError(
                f"{self.path} has the splits {', '.join(splits)}: name one (split=...)"
            )
        if name is not None and name not in splits:
            raise InputError(f"{self.path} has no split {name!r} ({nearest(name, splits)})")
        return name or usual

    def items(self) -> Path:
        """Return the file of items."""
        if self.is_beir:
            return self._jsonl("corpus")
        stems = ("collection", "corpus", "docs")
        files = [path for stem in stems for path in self._by_split(stem).values()]
        if len(files) != 1:
            raise InputError(
                f"{self.path} has {len(files)} files of items (collection.tsv or .jsonl); there "
                "must be one"
            )
        return files[0]

    def queries(self, split: str) -> Path:
        """Return the file of a split's queries; BEIR has one file for all splits."""
        return self._jsonl("queries") if self.is_beir else self._queries[split]

    def judgements(self, split: str) -> Path:
        """Return the file of a split's judgements."""
        if self.is_beir:
            return self.path / "qrels" / f"{split}.tsv"
        path = self._beside(split, "qrels")
        if path is None:
            raise InputError(f"{self.path} has no judgements (qrels) for the split {split!r}")
        return path

    def lists(self, split: str) -> Path | None:
        """Return the file of the ranked lists that come with a split's queries, if there is one."""
        return None if self.is_beir else self._beside(split, "run")

    def _jsonl(self, name: str) -> Path:
        zipped = self.path / f"{name}.jsonl.gz"
        return zipped if zipped.is_file() else self.path / f"{name}.jsonl"

    def _beside(self, split: str, stem: str) -> Path | None:
        files = self._by_split(stem)
        if len(files) == len(self._queries) == 1:
            return next(iter(files.values()))
        return files.get(split)

    def _by_split(self, stem: str) -> Mapping[str, Path]:
        """Return the files whose names begin with a stem, by split; `all` if they name none."""
        files: dict[str, Path] = {}
        for path in sorted(self.path.glob(f"{stem}*")):
            after = _ENDINGS.sub("", path.name).removeprefix(stem)
            if not path.is_file() or (after and after[0] not in ".-_"):
                continue
            split = after.lstrip(".-_") or "all"
            if split in files:
                raise InputError(
                    f"{files[split]} and {path.name} are both the {stem} of the split {split!r}: "
                    "keep one of them"
                )
            files[split] = path
        return files


def folder_at(source: str | Path) -> DataFolder | None:
    """Return the data folder at `source`; None if it is a file."""
    path = existing(as_path(source, "the source"))
    return DataFolder(path) if path.is_dir() else None
