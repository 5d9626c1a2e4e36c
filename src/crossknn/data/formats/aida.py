"""AIDA CoNLL-YAGO: mentions in news, linked to Wikipedia pages, and a list of those pages.

`AIDA-YAGO2-dataset.tsv` (Hoffart et al. 2011, its README): a document begins with
`-DOCSTART- (1 EU)`, `(947testa CRICKET)`, `(1163testb SOCCER)`; a token a line, blank lines between
sentences. Tokens of mentions have tab-separated columns: token, `B` or `I`, the full mention, the
YAGO2 entity or `--NME--`, and for entities the Wikipedia URL, the Wikipedia id and a Freebase id.

The entities are not part of it: see `crossknn.data.formats.wikipedia.Pages`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossknn.data.formats.wikipedia import Pages
from crossknn.data.marks import marked_query
from crossknn.data.queries import Qrels, QuerySet
from crossknn.data.records import read_lines
from crossknn.errors import InputError

SPLITS = ("train", "testa", "testb")
_DOCUMENT = re.compile(r"-DOCSTART- \((\d+)(testa|testb)?\b.*\)")
_NO_ENTITY = "--NME--"


@dataclass(frozen=True)
class Mention:
    """A mention in its document; `entity` is a Wikipedia id, or None for no entity."""

    id: str
    text: str
    entity: str | None


class Aida(Pages):
    """A folder with the data set and a list of entities.

    Queries are marked mentions in their whole document, named `<document>:<first token>`. Mentions
    of no entity (`--NME--`) are queries without a judgement.
    """

    format = "aida"
    layout = "an AIDA folder"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with the data set."""
        return any(path.glob("AIDA*dataset*.tsv"))

    def splits(self) -> Sequence[str]:
        """Train, and the two test sets."""
        return SPLITS

    def split(self, wanted: str | None) -> str:
        """`wanted`; `valid` (`dev`) is testa and `test`, which is what None means, testb."""
        names = {None: "testb", "test": "testb", "valid": "testa", "dev": "testa"}
        return super().split(names.get(wanted, wanted))

    def queries(self, split: str | None) -> QuerySet:
        """The marked mentions."""
        mentions = self._mentions(self.split(split))
        return QuerySet(tuple(m.id for m in mentions), tuple(m.text for m in mentions))

    def qrels(self, split: str) -> Qrels:
        """The one entity of each mention that has one."""
        return {m.id: {m.entity: 1} for m in self._mentions(self.split(split)) if m.entity}

    def _mentions(self, split: str) -> list[Mention]:
        [path, *more] = self.path.glob("AIDA*dataset*.tsv")
        if more:
            raise InputError(f"{path} and {more[0].name} hold the same: keep one of them")
        found: list[Mention] = []
        for name, part, lines in _documents(path):
            if part == split:
                found.extend(_mentions_of(path, name, lines))
        if not found:
            raise InputError(f"{path} has no mentions in the split {split}")
        return found


def _documents(path: Path) -> Iterator[tuple[str, str, list[tuple[int, str]]]]:
    """(name, split, numbered lines) of each document."""
    name, part, lines = "", "train", list[tuple[int, str]]()
    for number, line in read_lines(path):
        line = line.rstrip("\r\n")
        if line.startswith("-DOCSTART-"):
            if name:
                yield name, part, lines
            found = _DOCUMENT.fullmatch(line.strip())
            if found is None:
                raise InputError(f"{path}, line {number} is not  -DOCSTART- (<number> <name>)")
            name, part, lines = found[1] + (found[2] or ""), found[2] or "train", []
        elif line.strip():
            if not name:
                raise InputError(f"{path}, line {number} stands before the first -DOCSTART-")
            lines.append((number, line))
    if name:
        yield name, part, lines


def _mentions_of(path: Path, document: str, lines: list[tuple[int, str]]) -> Iterator[Mention]:
    rows = [line.split("\t") for _, line in lines]
    words = [row[0] for row in rows]
    starts: list[int] = []
    ends: list[int] = []
    for token, (number, _) in enumerate(lines):
        row = rows[token]
        place = f"{path}, line {number}"
        if len(row) > 1 and row[1] not in ("B", "I", "O"):
            raise InputError(f"{place} has {row[1]!r} where B, I or O is expected")
        if len(row) == 1 or row[1] == "O":
            continue
        if row[1] == "B":
            starts.append(token)
            ends.append(token + 1)
        elif ends and ends[-1] == token:
            ends[-1] += 1
        else:
            raise InputError(f"{place} continues a mention that has not begun")
    for start, end in zip(starts, ends, strict=True):
        left, mention, right = (
            " ".join(part) for part in (words[:start], words[start:end], words[end:])
        )
        entity = _entity(rows[start], f"{path}, line {lines[start][0]}")
        yield Mention(f"{document}:{start}", marked_query(left, mention, right), entity)


def _entity(row: list[str], place: str) -> str | None:
    if len(row) > 3 and row[3] == _NO_ENTITY:
        return None
    if len(row) < 6 or not row[5].strip().isdigit():
        raise InputError(f"{place} has neither {_NO_ENTITY} nor a Wikipedia id in column 6")
    return row[5].strip()
