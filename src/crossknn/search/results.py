"""What a search returns: hits by exact score, with what each cost and where it came from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.items import Items
from crossknn.errors import InputError, ScorerError, counted
from crossknn.types import NO_ITEM, FloatArray, Ranking, json_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A result of a query: an item that was scored, or predicted where k exceeds the budget.

    Args:
        id: The item's id.
        title: The item's title.
        text: The item's text, as the cross-encoder read it.
        score: The raw logit, or the retriever's own score where the method makes no calls.
        predicted: `score` is no exact score but a prediction: there was no call left for the item.
            Its final score is at most that of the hit before it.
        final_score: What hits are ordered by: `score`, and what fusion adds to it.
        position: Of the item in the index.
        round: In which it was picked, from 1; 0 where the method makes no calls.
        source: Who picked it: `retriever`, the method's name, or `order` (by item order, because
            those ran short).
        approx: Score predicted when it was picked: the retriever's own in round 1, None in item
            order.
        std: Standard deviation of `approx`, from methods that know it.
        extra: The item's further fields.
        calibrated: Probability of relevance where the index has a calibration (`fit_calibration`).
    """

    id: str
    score: float
    final_score: float
    position: int
    round: int
    source: str
    approx: float | None = None
    std: float | None = None
    title: str = ""
    text: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)
    calibrated: float | None = None
    predicted: bool = False

    @property
    def probability(self) -> float:
        """That the item is relevant, 0-1, where the index has a calibration; else the logistic
        function of the logit, which is in the same order and easier to read, and no more."""
        known = self.calibrated
        return float(np.exp(-np.logaddexp(0, -self.score))) if known is None else known


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Results:
    """Answers to m queries: `results[q]` is query q's list of hits, best first.

    Args:
        queries: Texts (m) of the queries.
        query_ids: Their ids (m): those given, or positions.
        hits: Of each query its hits, best first.
        method: The method's spec.
        budget: Distinct pairs that a query could score at most, stored scores included.
        n_calls: Pairs really computed, of all queries.
        n_scored: Pairs whose score was used, stored scores included.
        seconds: Of the whole search.
        scoring_seconds: Of these, seconds that were spent waiting for the scorer.
        stopped_by: `budget`, `target` (every query expects to have found enough), `deadline`,
            `cancelled`, `scorer`: it failed, for some queries or for all, or `store`: the database
            of the items did.
        n_failed: Pairs that could not be scored.
        errors: Of each query why it failed, or None; its hits are those found before.
        n_backfilled: Items taken in item order.
        truncated: Pairs that the model read only the beginning of (other threads' pairs included,
            if the scorer is shared).
        min_score: The least final score of a hit, if the search was given one.
        best_scores: The best final score of each query, whether or not it reached `min_score`; None
            where nothing was scored.
        none_relevant: Where the index has a calibration, the probability that none of a query's ten
            best items is relevant.
        trace: If asked for, every scored item of each query in the order of scoring.
        numbered: Whether the ids of the queries are positions.
    """

    queries: tuple[str, ...]
    query_ids: tuple[str, ...]
    hits: tuple[list[Hit], ...]
    method: str
    budget: int
    n_calls: int
    n_scored: int
    seconds: float
    scoring_seconds: float
    stopped_by: str
    n_failed: int
    errors: tuple[str | None, ...]
    n_backfilled: int
    truncated: int
    trace: tuple[list[Hit], ...] | None
    min_score: float | None = None
    best_scores: tuple[float | None, ...] = ()
    none_relevant: tuple[float | None, ...] | None = None
    numbered: bool = False

    @property
    def error(self) -> str | None:
        """Why the first query that failed did, if one did."""
        return next(filter(None, self.errors), None)

    def check(self) -> None:
        """Raise what an evaluation must not measure: predictions in the place of scores.

        Raises:
            ScorerError: A query failed.
        """
        if self.error is not None:
            raise ScorerError(self.error)

    def completeness(self, query: int) -> str:
        """How complete the hits of a query are, in a sentence.

        Args:
            query: The query's position.

        Returns:
            How many scored items reached `min_score`; "" of a search without `min_score`.
        """
        if self.min_score is None:
            return ""
        best = self.best_scores[query]
        found = f"{counted(len(self.hits[query]), 'item')} scored {self.min_score:g} or more"
        if not self.hits[query]:
            reached = "nothing was scored" if best is None else f"the best score is {best:.2f}"
            found = f"no item that was scored reaches {self.min_score:g}: {reached}"
        return found

    def to_run(
        self, path: str | Path | None = None, *, keep_own: bool = False
    ) -> dict[str, dict[str, float]]:
        """The answers as a run, as ir_measures and others take it.

        Args:
            path: Write them to this file, too, as a TREC run (query, Q0, item, rank, score, tag).
            keep_own: Keep the item that has a query's id, which is the query itself where queries
                are documents of the corpus; as in BEIR it is left out.

        Returns:
            `{query id: {item id: final score}}`.

        Raises:
            InputError: The file cannot be written, or an id has blanks in it.
        """
        own = [None] * len(self.hits) if keep_own or self.numbered else self.query_ids
        rows = zip(self.query_ids, self.hits, own, strict=True)
        answers = [(query, [h for h in hits if h.id != left_out]) for query, hits, left_out in rows]
        if path is not None:
            tag, lines = self.method.partition("(")[0], []
            for query, hits in answers:
                for rank, hit in enumerate(hits, start=1):
                    if query.split() != [query] or hit.id.split() != [hit.id]:
                        raise InputError(
                            f"{path}: query {query!r} or item {hit.id!r} has blanks in its id, "
                            "which a TREC run cannot hold: use other ids"
                        )
                    lines.append(f"{query} Q0 {hit.id} {rank} {hit.final_score:.9g} {tag}\n")
            try:
                Path(path).write_text("".join(lines), encoding="utf-8")
            except OSError as error:
                raise InputError(f"{path} cannot be written: {error.strerror}") from error
        return {query: {hit.id: hit.final_score for hit in hits} for query, hits in answers}

    def to_dict(self) -> dict[str, Any]:
        """Everything as values for JSON: NaN and infinity are null, dates are ISO 8601.

        Returns:
            What the search cost, and for each query its hits and, if asked for, its trace.
        """
        answers = []
        for q, (name, text) in enumerate(zip(self.query_ids, self.queries, strict=True)):
            entry: dict[str, Any] = {"id": name, "query": text, "error": self.errors[q]}
            if self.none_relevant is not None:
                entry["none_relevant"] = self.none_relevant[q]
            if self.min_score is not None:
                entry["best_score"] = self.best_scores[q]
            entry["hits"] = [
                {of.name: getattr(hit, of.name) for of in fields(hit)}
                | {"probability": hit.probability if hit.round else None}
                for hit in self.hits[q]
            ]
            if self.trace is not None:
                steps = ("round", "id", "approx", "std", "score")
                entry["trace"] = [{s: getattr(hit, s) for s in steps} for hit in self.trace[q]]
            answers.append(entry)
        whole = ("method", "budget", "n_calls", "n_scored", "n_failed", "n_backfilled", "truncated")
        how = ("stopped_by", "error", "seconds", "scoring_seconds")
        known = {name: getattr(self, name) for name in (*whole, *how)} | {"results": answers}
        made: dict[str, Any] = json_value(known)
        return made

    def to_pandas(self) -> Any:
        """The answers as a data frame.

        Returns:
            A row for each hit: qid, query, docno, score, rank (from 0), round, source, approx,
            title and text.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise InputError("to_pandas needs pandas: run  pip install pandas") from None
        names = ("round", "source", "approx", "title", "text")
        rows = []
        for query_id, query, hits in zip(self.query_ids, self.queries, self.hits, strict=True):
            for rank, hit in enumerate(hits):
                row = {"qid": query_id, "query": query, "docno": hit.id, "score": hit.score}
                rows.append({**row, "rank": rank, **{name: getattr(hit, name) for name in names}})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        hits = sum(map(len, self.hits))
        return (
            f"<Results of {self.method}: {counted(len(self), 'query')}, {counted(hits, 'hit')}, "
            f"{counted(self.n_calls, 'call')}, {self.seconds:.2f} s, stopped by {self.stopped_by}>"
        )

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, query: int) -> list[Hit]:
        return self.hits[query]

    def __iter__(self) -> Iterator[list[Hit]]:
        return iter(self.hits)


def hits_of(
    items: Items, ranking: Ranking, method: str, probabilities: FloatArray | None = None
) -> list[list[Hit]]:
    """A list of hits for each row of a ranking; `method` is the source of later rounds' items.
    `probabilities` (m, k) are calibrated ones."""
    rows: list[list[Hit]] = [[] for _ in ranking.items]
    for at in zip(*np.nonzero(ranking.items != NO_ITEM), strict=True):
        position, round = int(ranking.items[at]), int(ranking.rounds[at])
        approx, std = float(ranking.approx[at]), float(ranking.std[at])
        item, predicted = items[position], not math.isnan(approx)
        score, known = float(ranking.scores[at]), float(ranking.known[at])
        scored = not math.isnan(score)
        last = rows[at[0]][-1].final_score if rows[at[0]] else math.inf
        hit = Hit(
            id=item.id,
            score=score if scored else approx - known,
            final_score=score + known if scored else min(approx, below(last)),
            position=position,
            round=round,
            source=_source(round, method, scored=scored, predicted=predicted),
            approx=approx if predicted else None,
            std=None if math.isnan(std) else std,
            title=item.title,
            text=item.text,
            extra=item.extra,
            calibrated=None if probabilities is None else float(probabilities[at]),
            predicted=not scored,
        )
        rows[at[0]].append(hit)
    return rows


def below(score: float) -> float:
    """The next smaller number in single precision, in which tools of evaluation order a run."""
    return float(np.nextafter(np.float32(score), np.float32(-np.inf)))


def _source(round: int, method: str, *, scored: bool, predicted: bool) -> str:
    if not predicted:
        return "order"
    return "retriever" if scored and round <= 1 else method
