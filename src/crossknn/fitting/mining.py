"""Training rows for a student of the cross-encoder: its own top items, found by budgeted search.

Options have the names and the meaning that they have in sentence-transformers'
`mine_hard_negatives`, and its losses read the rows. What differs: candidates are those that a
search scored, ranked by the cross-encoder, not the first of a retriever.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from crossknn.data.queries import Qrels, QuerySet, Texts, query_set, relevant
from crossknn.errors import InputError, ScorerError
from crossknn.files import as_path, write_file
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method
from crossknn.scores.collect import pair_scores
from crossknn.scores.stored import StoredScorer
from crossknn.search.fusion import Fuse
from crossknn.search.searcher import PER_QUERY, Searcher
from crossknn.types import IntArray, Pairs, Progress, Queries, as_count

Format: TypeAlias = Literal["margin", "triplet", "n-tuple", "list"]
Sampling: TypeAlias = Literal["top", "random"]
Scored: TypeAlias = Mapping[str, float]
"""Scores by text, best first."""

_AT_ONCE = 256  # queries whose hits are held together


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """Which training rows to mine. Scores are raw logits; with fusion, final scores.

    Args:
        format: "margin" (query, positive, negative, label: the difference of their scores);
            "triplet" (the same without label); "n-tuple" (query, positive, negative_1, ...,
            label: the scores of all of them); "list" (query, docs, labels: the positives and the
            negatives of a query, and their scores).
        positives: The best so many of a query are positives, where there are no judgements.
        negatives: Of each query, at most; rows of n-tuples have all of them.
        range_min, range_max: Negatives are those candidates, best first, from `range_min` to before
            `range_max`; by default all that were scored.
        max_score: The highest score of a negative.
        absolute_margin: How far a negative's score is below that of its query's lowest positive, at
            least; None for anywhere.
        relative_margin: The same, as a share of the size of the positive's score.
        sampling_strategy: "top", the best of these candidates, or "random" ones.

    Raises:
        InputError: for a value that cannot be.
    """

    format: Format = "margin"
    positives: int = 1
    negatives: int = 8
    range_min: int = 0
    range_max: int | None = None
    max_score: float | None = None
    absolute_margin: float | None = 0.0
    relative_margin: float | None = None
    sampling_strategy: Sampling = "top"

    def __post_init__(self) -> None:
        for name, known in ("format", get_args(Format)), ("sampling_strategy", get_args(Sampling)):
            if (given := getattr(self, name)) not in known:
                raise InputError(f"{name} is {given!r}; it must be one of {', '.join(known)}")
        for name, least in ("positives", 1), ("negatives", 1), ("range_min", 0):
            as_count(getattr(self, name), name, least)
        last = self.range_min + self.negatives
        if self.range_max is not None and as_count(self.range_max, "range_max") < last:
            raise InputError(
                f"range_max is {self.range_max}: {self.negatives} negatives from range_min "
                f"{self.range_min} on need {last} or more"
            )
        for name in ("max_score", "absolute_margin", "relative_margin"):
            if (number := getattr(self, name)) is not None and not np.isfinite(number):
                raise InputError(f"{name} is {number}: give a number")

    def made(
        self, query: str, right: Scored, others: Scored, generator: np.random.Generator
    ) -> Iterator[dict[str, Any]]:
        """Rows of a query.

        Args:
            query: The query's text.
            right: Scores of its positives, by text.
            others: Scores of the other items that were scored, best first, by text.
            generator: Draws negatives, with "random".

        Yields:
            Rows in the chosen format: values by column.
        """
        lowest, most = min(right.values()), np.inf if self.max_score is None else self.max_score
        for margin, size in (self.absolute_margin, 1.0), (self.relative_margin, abs(lowest)):
            if margin is not None:
                most = min(most, lowest - margin * size)
        below = [pair for pair in others.items() if pair[1] <= most]
        wrong = below[self.range_min : self.range_max]
        if self.sampling_strategy == "random" and len(wrong) > self.negatives:
            drawn = generator.choice(len(wrong), self.negatives, replace=False)
            wrong = [wrong[place] for place in sorted(drawn.tolist())]
        wrong = wrong[: self.negatives]
        if not wrong or (self.format == "n-tuple" and len(wrong) < self.negatives):
            return
        if self.format == "list":
            texts, scores = zip(*right.items(), *wrong, strict=True)
            yield {"query": query, "docs": list(texts), "labels": list(scores)}
            return
        for positive, score in right.items():
            row = {"query": query, "positive": positive}
            if self.format == "n-tuple":
                named = {f"negative_{i}": text for i, (text, _) in enumerate(wrong, start=1)}
                yield {**row, **named, "label": [score, *(other for _, other in wrong)]}
                continue
            for negative, other in wrong:
                label = {"label": score - other} if self.format == "margin" else {}
                yield {**row, "negative": negative, **label}


@dataclass(kw_only=True)
class Mined:
    """Training rows, and their cost.

    Args:
        rows: Values by column, in the order in which losses read the columns.
        queries: Number of queries that have rows.
        unjudged: Number of queries without rows that have no relevant item.
        short: The same that have too few items below the margin.
        failed: The same that could not be scored.
        n_calls: Pairs really computed.
        n_scored: Pairs used, stored scores included.
        seconds: How long it took.
        error: Why the first query that failed did; None if none did.
    """

    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)
    queries: int = 0
    unjudged: int = 0
    short: int = 0
    failed: int = 0
    n_calls: int = 0
    n_scored: int = 0
    seconds: float = 0.0
    error: str | None = None

    def save(self, path: str | Path) -> None:
        """Write the rows as JSON lines: `datasets.load_dataset("json", data_files=...)` reads them.

        Args:
            path: The file.
        """
        lines = "".join(json.dumps(row) + "\n" for row in self.rows)
        file = as_path(path, "the file of rows")
        write_file(file.parent, file.name, lines.encode())


def mine(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    rows: TrainingRows | None = None,
    *,
    qrels: Qrels | None = None,
    budget: int = PER_QUERY,
    method: str | Method = DEFAULT,
    fuse: Fuse = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Mined:
    """Mine training rows for distillation: positives, and hard negatives that a search finds.

    Scores stay in the index: after an interruption the same call computes only what is missing.

    Args:
        index: What is searched.
        scorer: The teacher, as `Searcher` takes it.
        queries: Training queries: texts, or with the ids that judgements name.
        rows: What rows are made of.
        qrels: Judgements: a query's relevant items are its positives, and are scored beside the
            budget; other queries are left out. Without them the teacher's best are positives.
        budget: Pairs that a query may score.
        method, fuse, seed: As `Searcher` takes them.
        progress: Called with (done, total) scored pairs.

    Returns:
        The rows, what they cost, and how many queries have none.

    Raises:
        InputError: no query has a row, a relevant item is not in the index, the budget is too small
            for the rows, or what `Searcher` refuses.
        ScorerError: no query could be scored.
    """
    began, rows, asked = time.perf_counter(), rows or TrainingRows(), query_set(queries)
    least = rows.positives + rows.range_min + rows.negatives
    if as_count(budget, "budget") < least:
        raise InputError(
            f"the budget is {budget}, but {rows.positives} positives and {rows.negatives} "
            f"negatives from range_min {rows.range_min} on need {least} scored items: raise the "
            "budget"
        )
    scorer, mined = StoredScorer(scorer, index.scores), Mined()
    searcher = Searcher(index, scorer, method, fuse=fuse, seed=seed)
    positives: list[IntArray] = []
    if qrels is not None:
        mined.unjudged = len(asked)
        asked, positives = _judged(asked, qrels, index)
        mined.unjudged -= len(asked)
    for start in range(0, len(asked), _AT_ONCE):
        at = slice(start, start + _AT_ONCE)
        part = asked.take(range(len(asked))[at])
        known = _scores(searcher, part.texts, positives[at], mined) if positives else None

        def report(done: int, _: int, before: int = start * budget) -> None:
            if progress is not None:
                progress(before + done, len(asked) * budget)

        k = min(budget, index.n)
        found = searcher.search(part, k=k, budget=budget, progress=report)
        mined.n_calls += found.n_calls
        mined.n_scored += found.n_scored
        mined.error = mined.error or found.error
        for q, hits in enumerate(found.hits):
            ranked = {hit.text: hit.final_score for hit in hits}  # equal texts, equal scores
            right = known[q] if known else dict(islice(ranked.items(), rows.positives))
            if found.errors[q] is not None or not np.isfinite([*right.values()]).all():
                mined.failed += 1
                continue
            others = {text: score for text, score in ranked.items() if text not in right}
            generator = np.random.default_rng([seed, start + q])
            new = list(rows.made(part.texts[q], right, others, generator))
            mined.rows += new
            mined.queries += bool(new)
            mined.short += not new
    if not mined.rows:
        if mined.error is not None:
            raise ScorerError(mined.error)
        raise InputError(
            f"no query has {rows.negatives} scored items that are low enough for negatives: lower "
            "the margin or the number, or raise max_score or the budget"
        )
    mined.seconds = time.perf_counter() - began
    return mined


def _judged(asked: QuerySet, qrels: Qrels, index: ItemIndex) -> tuple[QuerySet, list[IntArray]]:
    """The queries (m) with relevant items, and the positions (p,) of each one's."""
    asked = asked.take(row for row, query in enumerate(asked.ids) if relevant(qrels, query))
    if not len(asked):
        raise InputError("no query has a relevant item in the judgements: do the ids agree?")
    return asked, [index.items.positions(relevant(qrels, query)) for query in asked.ids]


def _scores(
    searcher: Searcher, queries: Sequence[str], items: Sequence[IntArray], mined: Mined
) -> list[dict[str, float]]:
    """Final scores by text, NaN where unknown, of the `items` (p,) of each of m queries."""
    index, scorer, texts = searcher.index, searcher.scorer, searcher.index.items.texts
    assert scorer is not None  # mining has one
    sizes = [len(row) for row in items]
    pairs = Pairs(np.repeat(np.arange(len(queries)), sizes), np.concatenate(items))
    found, report = pair_scores(index.scores, scorer, queries, texts, pairs)
    mined.n_calls += report.calls
    if searcher.fusion is not None:
        found = found + searcher.fusion.known(Queries(queries))[pairs.query, pairs.item]
    rows = np.split(found, np.cumsum(sizes)[:-1])
    both = zip(items, rows, strict=True)
    return [{texts[int(i)]: float(s) for i, s in zip(*row, strict=True)} for row in both]
