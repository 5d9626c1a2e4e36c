"""The data of a trial: samples of items, queries and judgements, of a size that fits into a given
time by the speed of the models."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
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
from crossknn.evaluation.diagnosis import ENOUGH, FEWEST, check_enough
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.scorers.base import Scorer
from crossknn.scorers.opening import DualEncoder
from crossknn.types import Pairs

FEWEST_ITEMS = 100
"""With fewer items there is no point in searching."""

SECONDS = 1.0
"""Seconds for measuring a cross-encoder's speed."""

_BATCH, _WORDS = 16, 10
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

    def task(self, measure: str, ids: Sequence[str] | None = None) -> TaskMeasures | None:
        """Return the measure for these queries, of answers whose ids are by default the items';
        None without judgements."""
        if self.qrels is None:
            return None
        judgements = Judgements.from_qrels(self.qrels, self.queries, ids or self.items.ids)
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


def pairs_per_second(scorer: Scorer, texts: Sequence[str]) -> float:
    """Measure how fast items are scored, with the first ten words of other items as queries."""
    n, rng = len(texts), np.random.default_rng(0)

    def score_batch() -> int:
        queries = [" ".join(texts[p].split()[:_WORDS]) for p in rng.integers(n, size=_BATCH)]
        pairs = Pairs(np.arange(_BATCH), rng.integers(n, size=_BATCH))
        return sum(len(where) for where, _ in scorer.score(pairs, queries, texts))

    score_batch()  # the first batch also opens the model
    began, scored = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < SECONDS or not scored:
        scored += score_batch()
    return scored / spent


def texts_per_second(encoder: str, texts: Sequence[str]) -> float:
    """Measure how fast a dual encoder encodes random items."""
    model, rng = DualEncoder(encoder), np.random.default_rng(0)
    some = [texts[p] for p in rng.integers(len(texts), size=2 * _BATCH)]
    model.encode_items(some[:1])
    began = time.perf_counter()
    model.encode_items(some)
    return len(some) / (time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The size of a trial: `queries` are scored against all `items`, about `pairs` pairs (more than
    one per item if items are cut into passages), and `judged` queries count in the verdict, which
    alone needs at most `verdict_pairs`. `complete` says whether all requested items and queries fit
    into the time."""

    items: int
    pairs: int
    queries: int
    judged: int
    verdict_pairs: int
    pairs_per_second: float
    minutes: float
    complete: bool

    @classmethod
    def within(
        cls,
        minutes: float,
        *,
        pairs_per_second: float,
        seconds_per_text: float,
        items: int,
        judged: int,
        n_queries: int,
        budget: int,
        texts_per_item: float = 1.0,
    ) -> Plan:
        """Choose as many items, and then as many of `n_queries`, as fit into the time. If the
        verdict uses more queries than that, half of the time is kept for the verdict."""
        speed, seconds_per_text = pairs_per_second, seconds_per_text * texts_per_item
        fewest = min(ENOUGH, judged, n_queries)
        whole = 60 * minutes
        for_exact = whole * (0.5 if judged > n_queries else 1.0)
        seconds_per_item = seconds_per_text + fewest * texts_per_item / speed
        fitting = min(items, int(for_exact / seconds_per_item))
        needed_items = min(items, max(FEWEST_ITEMS, 2 * budget))
        if fitting < needed_items:
            needed = needed_items * seconds_per_item * whole / for_exact
            enough = f"{math.ceil(needed / 6) / 10:g}"
            raise InputError(
                f"{minutes:g} minutes are too few: with {speed:,.3g} pairs a second, "
                f"{fewest} queries with {needed_items} items take {enough} minutes; give --minutes "
                f"{enough}"
            )
        encoding = fitting * seconds_per_text
        texts = round(fitting * texts_per_item)
        affordable = int(speed * (for_exact - encoding) / texts)
        queries = min(judged, n_queries, affordable)
        left = speed * (whole - encoding) - queries * texts
        in_verdict = min(judged, queries + int(left / (2 * budget)))
        pairs = queries * texts + (verdict_pairs := 2 * budget * (in_verdict - queries))
        return cls(
            items=fitting,
            pairs=queries * texts,
            queries=queries,
            judged=in_verdict,
            verdict_pairs=verdict_pairs,
            pairs_per_second=speed,
            minutes=(encoding + pairs / speed) / 60,
            complete=(fitting, in_verdict) == (items, judged),
        )
