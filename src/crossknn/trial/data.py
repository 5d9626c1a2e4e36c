"""The data of a trial: samples of items, queries and judgements."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.items import Items, items_from
from crossknn.data.layouts import DataFolder
from crossknn.data.qrels import Qrels, read_qrels
from crossknn.data.queries import QuerySet, read_queries
from crossknn.data.records import given_records
from crossknn.errors import InputError
from crossknn.evaluation.diagnosis import FEWEST, check_enough
from crossknn.evaluation.task import Judgements, TaskMeasures

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\b[A-Z])[.!?][\"')\]]*(?=\s+[A-Z0-9\"'(]|$)")


@dataclass(frozen=True, kw_only=True)
class TrialData:
    """Items, queries and their judgements; `origin` describes the source of the queries."""

    items: Items
    queries: QuerySet
    qrels: Qrels | None
    origin: str = ""
    made_up: bool = False

    @property
    def n_judged(self) -> int:
        """Number of queries that can be used for the verdict."""
        if self.qrels is None:
            return len(self.queries)
        return sum(query in self.qrels for query in self.queries.ids)

    def sample(self, max_items: int) -> TrialData:
        """Shuffle the queries, judged ones first, and sample items, all judged items included."""
        judged, items = self.qrels or {}, self.items
        order = np.random.default_rng(0).permutation(len(self.queries)).tolist()
        order.sort(key=lambda row: self.queries.ids[row] not in judged)
        queries = self.queries.take(order)
        if len(items) > max_items:
            wanted = {item for query in queries.ids for item in judged.get(query, ())}
            random = np.random.default_rng(0).permutation(len(items)).tolist()
            random.sort(key=lambda position: items.ids[position] not in wanted)
            items = items.take(sorted(random[:max_items]))
        return replace(self, items=items, queries=queries)

    def first(self, n_queries: int) -> TrialData:
        """Select the first queries and their judgements."""
        queries = self.queries.take(range(min(n_queries, len(self.queries))))
        qrels = self.qrels and {q: self.qrels[q] for q in queries.ids if q in self.qrels}
        return replace(self, queries=queries, qrels=qrels)

    def task(self, measure: str) -> TaskMeasures | None:
        """Return the measure for these queries; None without judgements."""
        if self.qrels is None:
            return None
        judgements = Judgements.from_qrels(self.qrels, self.queries, self.items.ids)
        return TaskMeasures(judgements, [measure])

    def check(self, measure: str) -> list[str]:
        """Return notes about the measure's limits; `InputError` if no verdict can be made."""
        task = self.task(measure)
        if task is None:
            return []
        check_enough(task.judgements)
        return task.judgements.notes()


def read_trial(
    items: Items, place: Path, queries: Any, qrels: Path | None, n_queries: int
) -> TrialData:
    """Add queries to the items: those of the BEIR folder `place`, the given `queries`, or up to
    `n_queries` made from the items. `qrels` are by default those of the folder."""
    if any(place.glob("queries.jsonl*")):
        judged, split, origin = None, None, f" of {place}"
        if qrels is not None:
            judged, origin = read_qrels(qrels), f" of {place}, judged by {qrels}"
        elif splits := DataFolder(place).splits():
            if len(splits) > 1 and "test" not in splits:
                raise InputError(
                    f"{place} has judgements of {', '.join(splits)}: name one, such as --qrels "
                    f"{place / 'qrels' / splits[0]}.tsv"
                )
            split = DataFolder(place).split(None)
            judged = read_qrels(place, split=split)
            origin = f" of {place}, judged by its split {split}"
        return TrialData(
            items=items, queries=read_queries(place, split=split), qrels=judged, origin=origin
        )
    if queries is not None:
        judged = None if qrels is None else read_qrels(qrels)
        return TrialData(items=items, queries=read_queries(queries), qrels=judged)
    if qrels is not None:
        raise InputError("--qrels judges queries: give them, too, with --queries FILE")
    return questions_from(items, n_queries)


def questions_from(items: Items, count: int) -> TrialData:
    """Make up to `count` queries from the items themselves, for want of real ones. A query is an
    item's title or, if the title has fewer than two words, its first sentence. The item keeps the
    remaining text, eight words or more, and is the query's right answer."""
    texts, queries = list(items.texts), dict[str, str]()
    for position in np.random.default_rng(0).permutation(len(texts)).tolist():
        text, title = texts[position], items.titles[position].strip()
        query, remaining = first_sentence(text)
        if len(title.split()) > 1 and text.startswith(title):
            query, remaining = title, text.removeprefix(title).strip()
        enough = 2 <= len(query.split()) <= 60 and len(remaining.split()) >= 8
        if len(queries) < count and enough:
            queries[items.ids[position]], texts[position] = query, remaining
    if len(queries) < FEWEST:
        raise InputError(
            f"queries can be made of {len(queries)} of the items only, and {FEWEST} are needed: an "
            "item must have a title or a first sentence and eight words more; give --queries FILE"
        )
    records = [{"id": i, "text": text} for i, text in zip(items.ids, texts, strict=True)]
    return TrialData(
        items=items_from(given_records(records)),
        queries=QuerySet(tuple(f"q:{i}" for i in queries), tuple(queries.values())),
        qrels={f"q:{i}": {i: 1} for i in queries},
        origin=" made of items",
        made_up=True,
    )


def first_sentence(text: str) -> tuple[str, str]:
    """Split a text into its first sentence, on one line, and the remaining text."""
    opening, *others = re.split(r"\n\s*\n", text.strip(), maxsplit=1)
    paragraph, remainder = " ".join(opening.split()), "".join(others).strip()
    if end := _SENTENCE_END.search(paragraph):
        others = [paragraph[end.end() :].strip(), remainder]
        return paragraph[: end.end()], "\n\n".join(filter(None, others))
    return paragraph, remainder
