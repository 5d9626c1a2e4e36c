"""Reranking and the default search at equal budgets, on queries scored against every item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import QuerySet
from crossknn.errors import counted
from crossknn.evaluation.compare import Evaluation, batches
from crossknn.evaluation.diagnosis import Diagnosis, depth_of, diagnosis_of
from crossknn.evaluation.measures import Comparison, fewest_queries, paired
from crossknn.evaluation.outcome import truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures, relevant_items
from crossknn.evaluation.verdict import RERANK, SEARCH
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, parse_method
from crossknn.page import Cell, Page, Section, Table, bars, literal
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers.base import Scorer
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, Queries

K = 10
"""Number of exact neighbours of a query that are counted in an answer."""

RETURNED = 20
"""Maximum number of items in an answer."""

_SHOWN = 50
"""Maximum number of queries on a page."""


@dataclass(frozen=True, slots=True)
class Case:
    """A query whose right item the search returned but reranking did not: the item's text, and its
    rank in the retriever's list and in the search's answer."""

    query: str
    text: str
    retriever_place: int
    search_place: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """The results of reranking and the search, `budget` scored pairs each, with the exact answers.

    `exact` (m, c) are the best items of the first m queries by all scores, those which the trial
    counts; the diagnosis may be of more. `made_up` queries are sentences of the items themselves,
    which nobody has asked.
    """

    index: ItemIndex
    queries: QuerySet
    budget: int
    exact: IntArray
    diagnosis: Diagnosis
    made_up: bool = False

    @classmethod
    def run(
        cls,
        index: ItemIndex,
        queries: QuerySet,
        scores: FloatArray,
        qrels: Qrels | None = None,
        *,
        scorer: Scorer | None = None,
        budget: int = 100,
        budgets: Sequence[int] = (),
        measure: str = "nDCG@10",
        seed: int = 0,
        made_up: bool = False,
        progress: Progress | None = None,
    ) -> Trial:
        """Search for queries; for the first m of them all exact scores (m, n) are known.

        Args:
            index: The n items.
            queries: The queries.
            scores: The exact scores.
            qrels: Their judgements.
            scorer: Scores what is asked for of the other queries, if there are any.
            budget: Calls per query.
            budgets: Those of the diagnosis, if there are more.
            measure: That of the diagnosis.
            seed: Seed of all randomness.
            made_up: Whether the queries are sentences of the items.
            progress: Called with (done, total) pairs that are scored.
        """
        task = None
        if qrels is not None:
            judged = Judgements.from_qrels(qrels, queries, index.items.ids)
            task = TaskMeasures(judged, [measure])
        parts, budget = batches(index, queries, scorer, scores), min(budget, index.n)
        budgets = sorted({*budgets, budget})
        depth, k = max(RETURNED + 1, depth_of(budgets)), min(K, index.n)
        evaluation = Evaluation(parts, ks=[k], depth=depth, seed=seed, task=task)
        diagnosis = diagnosis_of(evaluation, parse_method(DEFAULT), budgets, progress=progress)
        return cls(
            index=index,
            queries=queries.take(range(len(scores))),
            budget=budget,
            exact=truth_of(parts, min(RETURNED + 1, index.n)),
            diagnosis=diagnosis,
            made_up=made_up,
        )

    @cached_property
    def answers(self) -> dict[str, IntArray]:
        """By way what was returned (m, c), best first, without the items that are the queries
        themselves."""
        m, ways = len(self.exact), self.diagnosis.outcomes[self.budget]
        items = {"rerank": ways[RERANK].items, "crossknn": ways[SEARCH].items, "exact": self.exact}
        judgements = self.diagnosis.judgements
        return {
            way: of[:m] if judgements is None else judgements.seen(of[:m])
            for way, of in items.items()
        }

    @cached_property
    def right(self) -> list[IntArray]:
        """The relevant items of each query; empty for all without judgements."""
        judgements = self.diagnosis.judgements
        rows = () if judgements is None else judgements.rows[: len(self.exact)]
        return [relevant_items(row) for row in rows]

    @property
    def k(self) -> int:
        """Number of true neighbours that are counted: `K`, or all items if there are fewer."""
        return min(K, self.index.n)

    @property
    def n_returned(self) -> int:
        """Number of items in an answer: those with a score, since others would be guesses."""
        return min(RETURNED, self.budget)

    @cached_property
    def neighbours(self) -> dict[str, FloatArray]:
        """By way, the share (m,) of the exact top k in the answer."""
        m, ways = len(self.exact), self.diagnosis.outcomes[self.budget]
        rerank, search = (ways[way].recall[self.k][:m] for way in (RERANK, SEARCH))
        return {"rerank": rerank, "crossknn": search, "exact": np.ones(m)}

    @property
    def recall(self) -> Comparison:
        """The recall of the search minus that of reranking."""
        return paired(self.neighbours["crossknn"] - self.neighbours["rerank"])

    @cached_property
    def returned(self) -> dict[str, FloatArray]:
        """By way, the share (m,) of the right items in the answer; NaN for queries without any."""

        def share(items: IntArray, right: IntArray) -> float:
            return float(np.isin(right, items[: self.n_returned]).mean()) if len(right) else np.nan

        return {
            way: np.array([share(*row) for row in zip(items, self.right, strict=True)])
            for way, items in self.answers.items()
        }

    @property
    def gain(self) -> Comparison | None:
        """The difference of search minus reranking in `returned`; None without judgements."""
        if not self.right or np.isnan(self.returned["exact"]).all():
            return None
        return paired(self.returned["crossknn"] - self.returned["rerank"])

    @cached_property
    def cases(self) -> tuple[list[Case], int]:
        """Return the queries that only the search answered, and the number that only reranking
        answered."""
        if not self.right:
            return [], 0
        by_rerank, by_search = self.returned["rerank"] > 0, self.returned["crossknn"] > 0
        cases, retriever = [], open_retriever(self.index, self.diagnosis.retriever)
        for q in np.flatnonzero(by_search & ~by_rerank).tolist():
            answer, text = self.answers["crossknn"][q], self.queries.texts[q]
            place = int(np.flatnonzero(np.isin(answer, self.right[q]))[0])
            order = retriever.top(Queries([text]), self.index.n).items[0]
            listed = np.flatnonzero(order == answer[place])
            rank = int(listed[0]) if len(listed) else int((order != NO_ITEM).sum())
            cases.append(Case(text, self.index.items.texts[answer[place]], rank + 1, place + 1))
        return cases, int((by_rerank & ~by_search).sum())

    def groups(self) -> dict[str, list[tuple[str, float]]]:
        """Return the groups of bars: what is counted, with the name and share of each way."""
        names = {
            "rerank": f"rerank the first {self.budget}",
            "crossknn": f"crossknn, {counted(self.budget, 'call')}",
            "exact": f"all {self.index.n:,} scored",
        }
        shares = {f"the cross-encoder's own top {self.k}, found": self.neighbours}
        if self.gain is not None:
            shares = {f"right items among the {self.n_returned} returned": self.returned} | shares
        return {
            title: [(names[way], float(np.nanmean(of))) for way, of in ways.items()]
            for title, ways in shares.items()
        }

    @property
    def sentence(self) -> str:
        """State the result in a sentence, claiming a difference only if its interval excludes
        zero."""
        said = [_said(self.recall, f"of the cross-encoder's own top {self.k}")]
        if self.gain is not None:
            said.insert(
                0, _said(self.gain, f"of the right items among the {self.n_returned} returned")
            )
        asked, calls = len(self.queries), counted(self.budget, "call")
        kind = " made-up" if self.made_up else ""
        of = f"each of {asked:,}{kind} queries" if asked > 1 else f"one{kind} query"
        return f"With {calls} for {of}, searching instead of reranking {', and '.join(said)}."

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "n": self.index.n,
            "queries": len(self.queries),
            "made_up_queries": self.made_up,
            "budget": self.budget,
            "retriever": self.diagnosis.retriever,
            "shares": {name: dict(rows) for name, rows in self.groups().items()},
            "sentence": self.sentence,
        }

    def page(self, title: str, lead: str, sections: Sequence[Section] = ()) -> Page:
        """Make the page of the trial: the sentence, the bars, and the items that reranking
        missed."""
        cases, opposite = self.cases
        shown = [Section(title="At equal calls", blocks=[bars(self.groups()), self.sentence])]
        missed = [
            f"“{literal(c.query)}” → {literal(' · '.join(c.text.splitlines()).rstrip('.'))}. "
            f"Number {c.retriever_place:,} of the retriever, {c.search_place} of the search."
            for c in cases[:RETURNED]
        ]
        about = (
            f"Searching found the right item for {counted(len(cases), 'query')} where reranking "
            f"missed it, and missed it for {opposite} where reranking found it."
        )
        if missed:
            shown.append(Section(title="What reranking missed", blocks=[about, missed]))
        return Page(title=title, lead=lead, sections=[*shown, self._by_query(), *sections])

    def _by_query(self) -> Section:
        """Make a table per query of its true top k, with the items that each way returned or
        missed."""
        asked = len(self.queries)
        of = "" if asked <= _SHOWN else f" The first {_SHOWN} of {asked:,} are here."
        about = (
            f"Each query opens to its true top {self.k}, by all {self.index.n:,} scores, with the "
            f"places that the items have in the two answers of {self.n_returned}.{of}"
        )
        made = (
            "**These queries are made up**: each is the title or the first sentence of an item, "
            "taken out of it, and this item counts as right. Such queries are easier than those of "
            "users: give yours."
        )
        tables = [self._table(q) for q in range(min(asked, _SHOWN))]
        return Section(
            title="Query by query", blocks=[*([made] if self.made_up else []), about, *tables]
        )

    def _table(self, q: int) -> Table:
        """Make a table of a query's true top k and further right items, with their ranks in both
        answers."""
        items, answers = (
            self.index.items,
            [self.answers[way][q, : self.n_returned] for way in ("rerank", "crossknn")],
        )
        true: list[int] = self.answers["exact"][q, : self.k].tolist()
        right: list[int] = self.right[q].tolist() if self.right else []
        rows = list[list[Cell]]()
        for item in (*true, *(item for item in right if item not in true)):
            text = literal(items.titles[item] or items.texts[item], 100)
            mark = " **(right)**" if item in right else ""
            name = f"{literal(items.ids[item], 40)}: {text}{mark}"
            rank = f"{true.index(item) + 1}" if item in true else f"beyond {self.k}"
            places = [np.flatnonzero(answer == item) + 1 for answer in answers]
            rows.append([rank, name, *(f"{at[0]}" if len(at) else "missed" for at in places)])
        by_rerank, by_search = (int(np.isin(true, answer).sum()) for answer in answers)
        return Table(
            head=["true place", "item", "by reranking", "by searching"],
            rows=rows,
            caption=f"“{literal(self.queries.texts[q], 200)}”: of {len(true)} reranking finds "
            f"{by_rerank}, searching {by_search}",
            folded=True,
        )


def _said(found: Comparison, of: str) -> str:
    """Describe a difference in points, with its interval if it is clear."""
    ends = f"[{100 * found.low:+.0f}, {100 * found.high:+.0f}]"
    points, fewest = 100 * found.difference, fewest_queries()
    if found.n < fewest:
        return (
            f"finds {points:+.0f} points {of} {ends}, which says little: of {found.n} queries no "
            f"difference can be clear, of {fewest} or more it can"
        )
    if found.low <= 0 <= found.high:
        return f"makes no clear difference to the share {of} ({points:+.0f} {ends})"
    doubt = "" if found.sign else f", though that may be chance (p = {found.p_value:.2g})"
    more = "more" if points > 0 else "fewer"
    return f"finds {abs(points):.0f} points {more} {of} {ends}{doubt}"
