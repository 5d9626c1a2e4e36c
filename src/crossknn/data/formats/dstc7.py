"""DSTC7, track 1 (sentence selection): dialogs, each with the answers to choose from.

`<dataset>_<split>_subtask_<number>.json`, a JSON list of dialogs with `example-id`,
`messages-so-far` (each `speaker`, `utterance`), `options-for-next` and
`options-for-correct-answers` (each `candidate-id`, `utterance`); those of the test split have no
correct answers, which are in `<dataset>_responses_subtask_<number>.tsv`: example-id, candidate-id,
utterance (dstc7-track1/sentence-selection, README, "Data format"; facebookresearch/ParlAI,
`parlai/tasks/dstc7/agents.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from crossknn.data.formats.base import DataFolder
from crossknn.data.queries import Qrels, QuerySet, Run, queries_from
from crossknn.data.records import (
    Located,
    Numbered,
    Record,
    as_text,
    id_text,
    missing_field,
    read_lines,
    read_rows,
)
from crossknn.errors import InputError, nearest

_FILE = re.compile(r"(\w+)_(train|dev|test)_subtask_(\d+)\.json")

Answer: TypeAlias = tuple[str, str]
"""An answer's id and its text."""


class Dstc7(DataFolder):
    """Dialogs are queries, `participant 1: hello` on a line each; answers are items.

    A domain is a data set and its subtask, `ubuntu_subtask_1`. Items are the answers to choose
    from and the correct ones of a split's dialogs, each once; every dialog's own are its
    candidates, in their order. A dialog without a correct answer (subtask 4) has no judgement.
    """

    format = "dstc7"
    layout = "a DSTC7 folder"

    def __init__(self, path: Path, domain: str | None = None) -> None:
        super().__init__(path, domain)
        self._read: dict[str, Sequence[Dialog]] = {}

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """A folder with files of dialogs."""
        return bool(_files(path))

    def splits(self) -> Sequence[str]:
        """The splits of the domain."""
        return sorted(self._splits())

    def parts(self, split: str, domains: Iterable[str] | None) -> Sequence[Dstc7]:
        """The domains."""
        del split
        return [Dstc7(self.path, domain) for domain in domains or _files(self.path)]

    def item_records(self, split: str | None = None) -> Located:
        """The answers of the dialogs of a split; without one, of all."""
        splits = self.splits() if split is None else [split]
        return Located(self._answers(splits), "answer", str(self.path))

    def queries(self, split: str | None) -> QuerySet:
        """The dialogs of a split."""
        split = self.split(split)
        records = [
            (number, {"id": dialog.id, "text": dialog.context})
            for number, dialog in enumerate(self._dialogs(split), start=1)
        ]
        return queries_from(Located(records, "dialog", str(self._splits()[split])))

    def qrels(self, split: str) -> Qrels:
        """The correct answers."""
        return {
            dialog.id: {answer: 1 for answer, _ in dialog.correct}
            for dialog in self._dialogs(split)
            if dialog.correct
        }

    def candidates(self, split: str) -> Run:
        """The answers to choose from, scored -1, -2, ... in their order."""
        return {
            dialog.id: [(answer, -float(r)) for r, (answer, _) in enumerate(dialog.options, 1)]
            for dialog in self._dialogs(split)
        }

    def _answers(self, splits: Sequence[str]) -> Iterator[Numbered]:
        dialogs = [dialog for split in splits for dialog in self._dialogs(split)]
        texts: dict[str, str] = {}
        for dialog in dialogs:
            for answer, text in dialog.options:
                if texts.setdefault(answer, text) != text:
                    raise InputError(f"{dialog.place} gives the answer {answer!r} another text")
        for dialog in dialogs:
            for answer, text in dialog.correct:
                texts.setdefault(answer, text)
        for number, (answer, text) in enumerate(texts.items(), start=1):
            yield number, {"id": answer, "text": text}

    def _dialogs(self, split: str) -> Sequence[Dialog]:
        if split not in self._read:
            path = self._splits()[split]
            responses = _responses(
                path.parent / _FILE.sub(r"\1_responses_subtask_\3.tsv", path.name)
            )
            self._read[split] = [
                _dialog(record, f"{path}, dialog {number}", responses)
                for number, record in enumerate(_load(path), start=1)
            ]
        return self._read[split]

    def _splits(self) -> Mapping[str, Path]:
        """The file of each split of the one domain."""
        found = _files(self.path)
        domain = self.domain or next(iter(found))
        if domain not in found:
            raise InputError(f"{self.path} has no domain {domain!r} ({nearest(domain, found)})")
        if self.domain is None and len(found) > 1:
            raise InputError(
                f"{self.path} has the domains {', '.join(found)}: name one (domain=...)"
            )
        return found[domain]


@dataclass(frozen=True)
class Dialog:
    """One dialog: where it stands, its context, and answers as (id, text)."""

    place: str
    id: str
    context: str
    options: Sequence[Answer]
    correct: Sequence[Answer]


def _files(folder: Path) -> Mapping[str, Mapping[str, Path]]:
    """Files of dialogs: domain -> split -> file."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.glob("*_subtask_*.json")):
        match = _FILE.fullmatch(file.name)
        if match:
            found.setdefault(f"{match[1]}_subtask_{match[3]}", {})[match[2]] = file
    return found


def _load(path: Path) -> list[object]:
    text = "".join(line for _, line in read_lines(path))
    try:
        dialogs = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        reason = getattr(error, "msg", str(error))
        raise InputError(f"{path}, line {line} is not valid JSON: {reason}") from None
    if not isinstance(dialogs, list):
        raise InputError(f"{path} holds a JSON {type(dialogs).__name__}, not a list of dialogs")
    return dialogs


def _dialog(record: object, place: str, responses: Mapping[str, Answer]) -> Dialog:
    if not isinstance(record, dict):
        raise InputError(f"{place} is a JSON {type(record).__name__}, not an object")
    query = id_text(_field(record, "example-id", place), place)
    messages = _field(record, "messages-so-far", place)
    correct = _answers_of(record.get("options-for-correct-answers") or [], place)
    if query in responses and not correct:
        correct = [responses[query]]
    return Dialog(
        place=place,
        id=query,
        context="\n".join(_message(message, place) for message in _list(messages, place)),
        options=_answers_of(_field(record, "options-for-next", place), place),
        correct=correct,
    )


def _message(message: object, place: str) -> str:
    speaker, utterance = (_part(message, name, place) for name in ("speaker", "utterance"))
    return f"{speaker.replace('_', ' ')}: {utterance.strip()}"


def _answers_of(answers: object, place: str) -> list[Answer]:
    return [
        (_part(answer, "candidate-id", place), _part(answer, "utterance", place))
        for answer in _list(answers, place)
    ]


def _responses(path: Path) -> Mapping[str, Answer]:
    """The correct answers of the test split, by dialog."""
    found: dict[str, Answer] = {}
    if path.is_file():
        for number, row in read_rows(path, tabs=True):
            if len(row) < 3:
                raise InputError(f"{path}, line {number} has {len(row)} fields, not 3")
            found[row[0].strip()] = (row[1].strip(), "\t".join(row[2:]))
    return found


def _field(record: Record, name: str, place: str) -> object:
    if name not in record:
        raise missing_field(place, name, record)
    return record[name]


def _part(record: object, name: str, place: str) -> str:
    if not isinstance(record, dict):
        raise InputError(f"{place} holds a JSON {type(record).__name__} where {name} is expected")
    return as_text(_field(record, name, place), place, name)


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise InputError(f"{place} holds a JSON {type(value).__name__} where a list is expected")
    return value
