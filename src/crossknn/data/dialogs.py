"""DSTC7, track 1 (sentence selection): dialogs, each with the answers to choose from.

dstc7-track1/sentence-selection, README, "Data format"; ParlAI, `parlai/tasks/dstc7/agents.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from crossknn.data.formats import DataFolder
from crossknn.data.queries import Qrels, QuerySet, Run, queries_from
from crossknn.data.records import Record, Records, expect, parse_json, read_lines, read_rows
from crossknn.errors import InputError, nearest

_DIALOGS = re.compile(r"(\w+)_(train|dev|test)_subtask_(\d+)\.json")


class Dialog(NamedTuple):
    """One dialog: where it stands, its context, and answers: id -> text."""

    place: str
    id: str
    context: str
    options: Sequence[tuple[str, str]]
    correct: Sequence[tuple[str, str]]


class Dstc7(DataFolder):
    """Dialogs are queries, `participant 1: hello` on a line each; answers are items.

    `<dataset>_<split>_subtask_<number>.json` is a JSON list of dialogs; those of the test split
    have
    no correct answers, which are in `<dataset>_responses_subtask_<number>.tsv`. A domain is a data
    set and its subtask, `ubuntu_subtask_1`. Items are the answers to choose from and the correct
    ones of a split's dialogs, each once; every dialog's own are its candidates, in their order. A
    dialog without a correct answer (subtask 4) has no judgement.
    """

    format = "dstc7"
    layout = "a DSTC7 folder"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return bool(_dialog_files(path))

    def splits(self) -> Sequence[str]:
        return sorted(self._files())

    def parts(self, split: str, domains: Iterable[str] | None) -> Sequence[Dstc7]:
        return [Dstc7(self.path, domain) for domain in domains or _dialog_files(self.path)]

    def item_records(self, split: str | None = None) -> Records:
        splits = self.splits() if split is None else [split]
        dialogs = [dialog for split in splits for dialog in self._dialogs(split)]
        texts: dict[str, str] = {}
        for dialog in dialogs:
            for answer, text in dialog.options:
                if texts.setdefault(answer, text) != text:
                    raise InputError(f"{dialog.place} gives the answer {answer!r} another text")
        for dialog in dialogs:
            for answer, text in dialog.correct:
                texts.setdefault(answer, text)
        return Records(
            str(self.path),
            [
                Record({"id": answer, "text": text}, number, f"{self.path}, answer {number}")
                for number, (answer, text) in enumerate(texts.items(), start=1)
            ],
        )

    def queries(self, split: str | None) -> QuerySet:
        split = self.split(split)
        records = [
            Record({"id": dialog.id, "text": dialog.context}, number, dialog.place)
            for number, dialog in enumerate(self._dialogs(split), start=1)
        ]
        return queries_from(Records(str(self._files()[split]), records))

    def qrels(self, split: str) -> Qrels:
        found = ((d.id, {answer: 1 for answer, _ in d.correct}) for d in self._dialogs(split))
        return {query: judged for query, judged in found if judged}

    def candidates(self, split: str) -> Run:
        return {
            dialog.id: [(answer, -float(r)) for r, (answer, _) in enumerate(dialog.options, 1)]
            for dialog in self._dialogs(split)
        }

    def _files(self) -> Mapping[str, Path]:
        """The file of each split of the one domain."""
        found = _dialog_files(self.path)
        domain = self.domain or next(iter(found))
        if domain not in found:
            raise InputError(f"{self.path} has no domain {domain!r} ({nearest(domain, found)})")
        if self.domain is None and len(found) > 1:
            raise InputError(
                f"{self.path} has the domains {', '.join(found)}: name one (domain=...)"
            )
        return found[domain]

    def _dialogs(self, split: str) -> Sequence[Dialog]:
        if split not in self._read:
            path = self._files()[split]
            content = parse_json("".join(line for _, line in read_lines(path)), path)
            dialogs: list[object] = expect(list, content, str(path), "a list of dialogs")
            responses = _responses(
                path.with_name(_DIALOGS.sub(r"\1_responses_subtask_\3.tsv", path.name))
            )
            self._read[split] = [
                _dialog(dialog, number, f"{path}, dialog {number}", responses)
                for number, dialog in enumerate(dialogs, start=1)
            ]
        return self._read[split]


def _dialog_files(folder: Path) -> Mapping[str, Mapping[str, Path]]:
    """Files of dialogs: domain -> split -> file."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.glob("*_subtask_*.json")):
        if match := _DIALOGS.fullmatch(file.name):
            found.setdefault(f"{match[1]}_subtask_{match[3]}", {})[match[2]] = file
    return found


def _responses(path: Path) -> Mapping[str, tuple[str, str]]:
    """The correct answers of the test split, by dialog."""
    found: dict[str, tuple[str, str]] = {}
    for number, row in read_rows(path, tabs=True) if path.is_file() else ():
        if len(row) < 3:
            raise InputError(f"{path}, line {number} has {len(row)} fields, not 3")
        found[row[0].strip()] = (row[1].strip(), "\t".join(row[2:]))
    return found


def _dialog(
    dialog: object, number: int, place: str, responses: Mapping[str, tuple[str, str]]
) -> Dialog:
    record = Record(expect(dict, dialog, place, "an object"), number, place)
    query = record.id("example-id")
    said = _pairs(record.field("messages-so-far"), "speaker", place)
    options = _pairs(record.field("options-for-next"), "candidate-id", place)
    given = record.fields.get("options-for-correct-answers") or []
    correct = _pairs(given, "candidate-id", place)
    if query in responses and not correct:
        correct = [responses[query]]
    context = (f"{speaker.replace('_', ' ')}: {text.strip()}" for speaker, text in said)
    return Dialog(place, query, "\n".join(context), options, correct)


def _pairs(value: object, name: str, place: str) -> list[tuple[str, str]]:
    """(name, utterance) of each object in a JSON list."""
    entries: list[object] = expect(list, value, place, "a list")
    records = [Record(expect(dict, entry, place, name), 0, place) for entry in entries]
    return [(record.text(name), record.text("utterance")) for record in records]
