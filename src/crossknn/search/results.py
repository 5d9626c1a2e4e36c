"""The results of a search: hits ordered by exact score, their source, and the cost.

Axes: m queries, k hits of a query, n items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossknn.data.items import Items
from crossknn.data.passages import FIELDS, document_of
from crossknn.errors import InputError, ScorerError, counted
from crossknn.types import NO_ITEM, BoolArray, FloatArray, IntArray, Ranking, json_value


class Passage(NamedTuple):
    """A passage of a document: `text` is the document's text from `start` to `end`."""

    id: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A result of a query: a scored item, or, if k exceeds the budget, a predicted item; or a
    document, with the scores of its best passage.

    Args:
        id, title, text, extra: The item's id, title, text as the cross-encoder read it, and fields.
        score: The raw logit, or the retriever's score if the method scores no pairs.
        final_score: The score by which hits are ordered: `score` plus a fusion's added scores.
        position: The item's position in the index.
        round: The round in which the item was chosen, from 1; 0 if the method scores no pairs.
        source: What chose the item: `retriever`, the method's name, or `order` (the order of the
            index, after retriever and method had no more items).
        approx: Score predicted when the item was chosen: in round 1 the retriever's score; None if
            `source` is `order`.
        std: Standard deviation of `approx`; None if the method computes none.
        calibrated: Probability of relevance if the index has a calibration (`fit_calibration`).
        predicted: Whether `score` is a prediction, because the budget was spent. The final score is
            at most that of the hit before it.
        rung: Number of the most expensive scorer that scored the item, from 1; 0 if none did.
        group, members: With `group_by`, the group's value and its scored items, best first, the
            hit itself among them, at most `group_size`.
        passage: If the hit is a document, its best passage; `members` are passages.
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
    rung: int = 1
    group: object = None
    members: tuple[Hit, ...] = ()
    passage: Passage | None = None

    @property
    def probability(self) -> float:
        """The calibrated probability of relevance; without a calibration, the logistic function of
        the logit, which orders hits in the same way but is no reliable probability."""
        if self.calibrated is not None:
            return self.calibrated
        return float(np.exp(-np.logaddexp(0, -self.score)))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Results:
    """Answers to m queries: `results[q]` is query q's list of hits, best first.

    Args:
        queries, query_ids, numbered: Texts and ids (m), and whether the ids are positions.
        hits: The hits of each query, best first.
        method: The method's spec.
        budget: Maximum number of distinct pairs per query, including stored scores.
        stopped_by: `budget`, `target` (every query reached `target_recall`), `deadline`,
            `cancelled`, `scorer` (it failed for a query), or `store` (the items' database failed).
        errors: The error of each query, or None; a failed query keeps the hits it had.
        n_calls, n_scored, n_failed: Pairs computed by the cross-encoder, over all queries; pairs
            whose score was used, including stored scores; pairs that could not be scored.
        rounds: Rounds of calls, one after the other; the most of any query.
        truncated: Pairs that the model cut to its length limit, also in other threads.
        cost: Money that the calls cost, also in other threads; None if the scorer has no price.
        seconds, scoring_seconds: Duration of the search, and the part spent waiting for the scorer.
        trace: With `trace=True`, every scored item of each query in the order of scoring.
        min_score, best_scores: The minimum final score of hits, if one was given; each query's best
            final score, even if below it.
        none_relevant: The calibrated probability that none of a query's ten best items is relevant.
        together: Number of queries that learned from each other's scores; 0 if each was alone.
        cheaper: With several scorers, the results of the search with the one before; counts and
            seconds of calls above are those of the last scorer.
    """

    queries: tuple[str, ...]
    query_ids: tuple[str, ...]
    hits: tuple[list[Hit], ...]
    method: str
    budget: int
    stopped_by: str
    errors: tuple[str | None, ...]
    n_calls: int = 0
    n_scored: int = 0
    n_failed: int = 0
    rounds: int = 0
    truncated: int = 0
    cost: float | None = None
    seconds: float = 0.0
    scoring_seconds: float = 0.0
    trace: tuple[list[Hit], ...] | None = None
    min_score: float | None = None
    best_scores: tuple[float | None, ...] = ()
    none_relevant: tuple[float | None, ...] | None = None
    numbered: bool = False
    together: int = 0
    cheaper: Results | None = None

    @property
    def rungs(self) -> list[Results]:
        """The results of the search with each scorer, cheapest first; the last are these."""
        return [*(() if self.cheaper is None else self.cheaper.rungs), self]

    @property
    def error(self) -> str | None:
        """The error of the first query that failed, if one did."""
        return next(filter(None, self.errors), None)

    def check(self) -> None:
        """Raise `ScorerError` if a query failed: its hits may be predictions."""
        if self.error is not None:
            raise ScorerError(self.error)

    def to_run(
        self, path: str | Path | None = None, *, keep_own: bool = False
    ) -> dict[str, dict[str, float]]:
        """Return the answers as a run for ir_measures, `{query id: {item id: final score}}`.

        Args:
            path: Also write a TREC run to this file.
            keep_own: Keep an item that has the query's id, which BEIR leaves out as the query
                itself.
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
        """Return costs, hits and, with `trace=True`, the trace as JSON values."""
        answers = []
        for q, (name, text) in enumerate(zip(self.query_ids, self.queries, strict=True)):
            entry: dict[str, Any] = {"id": name, "query": text, "error": self.errors[q]}
            if self.none_relevant is not None:
                entry["none_relevant"] = self.none_relevant[q]
            if self.min_score is not None:
                entry["best_score"] = self.best_scores[q]
            entry["hits"] = [_entry(hit) for hit in self.hits[q]]
            if self.trace is not None:
                steps = ("round", "id", "title", "approx", "std", "score")
                entry["trace"] = [{s: getattr(hit, s) for s in steps} for hit in self.trace[q]]
            answers.append(entry)
        names = ["method", "budget", "n_calls", "n_scored", "n_failed", "rounds", "truncated"]
        names += ["cost", "stopped_by", "error", "seconds", "scoring_seconds", "together"]
        whole = {name: getattr(self, name) for name in names} | {"results": answers}
        if self.cheaper is not None:
            whole["cheaper"] = [
                {name: getattr(each, name) for name in names} for each in self.rungs[:-1]
            ]
        return dict(json_value(whole))

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


def _entry(hit: Hit) -> dict[str, Any]:
    """Return a hit's fields by name, with those of its group's members."""
    own = {of.name: getattr(hit, of.name) for of in fields(hit)}
    own["members"] = [_entry(member) for member in hit.members]
    own["passage"] = hit.passage and hit.passage._asdict()
    return own | {"probability": hit.probability if hit.round else None}


REASONS = "cancelled", "deadline", "store", "scorer", "budget", "target"
"""Reasons for stopping, in order of precedence when results of several searches are merged."""


def merged(results: Sequence[Results]) -> Results:
    """Merge the results of several searches for different queries."""
    lists = ("queries", "query_ids", "hits", "errors", "best_scores", "trace", "none_relevant")
    counts = ("n_calls", "n_scored", "n_failed", "truncated", "scoring_seconds", "seconds")
    first, whole = results[0], dict[str, Any]()
    for name in lists:
        if getattr(first, name) is not None:
            whole[name] = tuple(chain.from_iterable(getattr(each, name) for each in results))
    whole |= {name: sum(getattr(each, name) for each in results) for name in counts}
    whole |= {name: max(getattr(e, name) for e in results) for name in ("together", "rounds")}
    costs = [each.cost for each in results if each.cost is not None]
    whole["cost"] = sum(costs) if costs else None
    stopped_by = min((each.stopped_by for each in results), key=REASONS.index)
    below = [each.cheaper for each in results if each.cheaper is not None]
    whole["cheaper"] = merged(below) if below else None
    return replace(first, **whole, stopped_by=stopped_by)


def hits_of(
    items: Items, ranking: Ranking, method: str, rung: int, probabilities: FloatArray | None = None
) -> list[list[Hit]]:
    """Return the hits of each row of a ranking (m, k); `method` is the source of items after
    round 1, `rung` the number of the scorer, and `probabilities` (m, k) are calibrated."""
    rows: list[list[Hit]] = [[] for _ in ranking.items]
    for at in zip(*np.nonzero(ranking.items != NO_ITEM), strict=True):
        position, round = int(ranking.items[at]), int(ranking.rounds[at])
        approx, std = float(ranking.approx[at]), float(ranking.std[at])
        score, added = float(ranking.scores[at]), float(ranking.added[at])
        item, scored, picked_by = items[position], not math.isnan(score), method
        if math.isnan(approx):
            picked_by = "order"
        elif scored and round <= 1:
            picked_by = "retriever"
        last = rows[at[0]][-1].final_score if rows[at[0]] else math.inf
        hit = Hit(
            id=item.id,
            score=score if scored else approx - added,
            final_score=score + added if scored else min(approx, below(last)),
            position=position,
            round=round,
            source=picked_by,
            approx=None if math.isnan(approx) else approx,
            std=None if math.isnan(std) else std,
            title=item.title,
            text=item.text,
            extra=item.extra,
            calibrated=None if probabilities is None else float(probabilities[at]),
            predicted=not scored,
            rung=rung if scored and round else 0,
        )
        rows[at[0]].append(hit)
    return rows


def with_members(hits: list[Hit], members: list[Hit], field: str, of: IntArray) -> list[Hit]:
    """Return hits with their group's value of a field, or the item's id if it has none, and its
    `members`; `of` (n,) are the numbers of the items' groups."""
    by_group, grouped = dict[int, list[Hit]](), list[Hit]()
    for member in members:
        by_group.setdefault(int(of[member.position]), []).append(member)
    for hit in hits:
        value = None if field == "id" else hit.extra.get(field)
        if isinstance(value, list | tuple):  # of one value, or none
            value = next(iter(value), None)
        own = tuple(by_group.get(int(of[hit.position]), ()))
        grouped.append(replace(hit, group=hit.id if value is None else value, members=own))
    return grouped


def as_documents(hits: list[Hit], items: Items) -> list[Hit]:
    """Return the documents of hits that are the best passages of their groups."""
    documents = []
    for hit in hits:
        name, start, end = (hit.extra[field] for field in FIELDS)
        document = document_of(items, str(name))
        assert document is not None
        passage = Passage(hit.id, hit.text, start, end)  # type: ignore[arg-type]
        own: Any = {"id": document.id, "text": document.text, "extra": document.extra}
        documents.append(replace(hit, **own, passage=passage))
    return documents


def completed(k: int, of: IntArray | None, hits: list[Hit], others: list[Hit]) -> list[Hit]:
    """Return `hits`, filled up to k with the hits of a search with a cheaper scorer, which are
    marked as predicted; or those alone, if none of `hits` was scored. `of` (n,) are the numbers of
    the items' groups, if hits are groups."""
    if all(hit.predicted for hit in hits):
        return others
    number = int if of is None else lambda position: int(of[position])
    made, found = [*hits], {number(hit.position) for hit in hits}
    for hit in others:
        if len(made) < k and number(hit.position) not in found:
            score = min(hit.final_score, below(made[-1].final_score))
            none: dict[str, Any] = {"approx": None, "std": None, "calibrated": None, "members": ()}
            made.append(replace(hit, final_score=score, predicted=True, round=0, **none))
    return made


def below(score: float) -> float:
    """Return the next smaller number in single precision, in which evaluation tools order runs."""
    return float(np.nextafter(np.float32(score), np.float32(-np.inf)))


@dataclass(frozen=True, eq=False)
class EqualTexts:
    """Positions of items with the same text as an earlier item: `copies` (c,) and the earlier items
    `originals` (c,), ascending. Only originals are scored; copies are returned, too."""

    copies: IntArray
    originals: IntArray

    @classmethod
    def among(cls, alike: tuple[IntArray, IntArray], allowed: BoolArray | None) -> EqualTexts:
        """Select from `Items.alike` the items that a search may return."""
        positions, texts = alike
        if allowed is not None:
            kept = allowed[positions]
            positions, texts = positions[kept], texts[kept]
        first = np.diff(texts, prepend=-1) != 0
        originals = positions[first][np.cumsum(first) - 1][~first]
        order = np.argsort(originals, kind="stable")
        return cls(positions[~first][order], originals[order])

    def left_out(self, n: int, allowed: BoolArray | None) -> BoolArray | None:
        """Return the mask (n,) of allowed items without copies."""
        if not len(self.copies):
            return allowed
        mask = np.ones(n, np.bool_) if allowed is None else allowed.copy()
        mask[self.copies] = False
        return mask

    def put_back(self, ranking: Ranking, k: int) -> Ranking:
        """Insert copies of items into a ranking, and cut it to k; ties go to the lower position."""
        if not np.isin(ranking.items, self.originals).any():
            return ranking
        ends = (np.searchsorted(self.originals, ranking.items, side) for side in ("left", "right"))
        rows, final = list[tuple[IntArray, IntArray]](), ranking.final
        for row, start, stop, score in zip(ranking.items, *ends, final, strict=True):
            here = np.flatnonzero(row != NO_ITEM)
            columns = np.repeat(here, 1 + (stop - start)[here])
            items = np.array([i for c in here for i in (row[c], *self.copies[start[c] : stop[c]])])
            # Scored items come first by score, then predicted items in their order.
            later = np.isnan(score[columns]) * columns
            order = np.lexsort((items, later, -score[columns]))[:k]
            rows.append((columns[order], items[order]))
        whole = Ranking.empty(len(rows), max(len(items) for _, items in rows))
        for q, (columns, items) in enumerate(rows):
            for of in fields(Ranking):
                getattr(whole, of.name)[q, : len(items)] = getattr(ranking, of.name)[q, columns]
            whole.items[q, : len(items)] = items
        return whole
