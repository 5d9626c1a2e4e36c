"""Reranking and the default search at equal budgets, on queries scored against every item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import QuerySet
from crossknn.errors import counted
from crossknn.evaluation.compare import Evaluation, query_batches
from crossknn.evaluation.diagnosis import Diagnosis, diagnosis_of, search_ways
from crossknn.evaluation.measures import Comparison, paired
from crossknn.evaluation.outcome import truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures, relevant_items
from crossknn.evaluation.verdict import RERANK, SEARCH, doubt
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, parse_method
from crossknn.page import Block, Cell, Page, Plain, Section, Share, Table
from crossknn.retrievers.specs import first_stage, open_retriever
from crossknn.scorers.base import Scorer
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, Queries

K = 10
"""Number of exact neighbours of a query that are counted in an answer."""

RETURNED = 20
"""Maximum number of items in an answer."""

_SHOWN = 50
"""Maximum number of queries on a page."""

_MADE_UP = (
    "**These queries are made up**: each is the title or the first sentence of an item, taken out "
    "of it, and this item counts as right. Such queries are easier than those of users: give yours."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """Answers for the m queries that were scored against every item: those of reranking and of the
    search, which score `budget` pairs per query, and those of exact search.

    Attributes:
        answers: By way to answer (`rerank`, `crossknn`, `exact`), the best items (m, c), without
            items that are the queries themselves.
        neighbours: By way to answer, the share (m,) of the exact top k in the answer.
        right: The relevant items of each query; empty without judgements.
        diagnosis: The diagnosis of all judged queries; None without judgements.
        made_up: Whether the queries were made from the items, for want of real ones.
    """

    index: ItemIndex
    queries: QuerySet
    budget: int
    retriever: str
    answers: dict[str, IntArray]
    neighbours: dict[str, FloatArray]
    right: Sequence[IntArray]
    diagnosis: Diagnosis | None
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
        """Search for queries; the first m have exact `scores` (m, n) of all items.

        `scorer` scores pairs of the other queries, which count only in the diagnosis.
        """
        task = None
        if qrels is not None:
            judged = Judgements.from_qrels(qrels, queries, index.items.ids)
            task = TaskMeasures(judged, [measure])
        batches, budget = query_batches(index, queries, scorer, scores), min(budget, index.n)
        budgets, m, k = sorted({*budgets, budget}), len(scores), min(K, index.n)
        depth = max(RETURNED + 1, *budgets)  # one of the items may be the query itself
        evaluation = Evaluation(batches=batches, ks=[k], depth=depth, seed=seed, task=task)
        method = parse_method(DEFAULT)
        ways = search_ways(evaluation, method, budgets, progress=progress)
        rerank, search = ways[budget][RERANK], ways[budget][SEARCH]
        answers = {"rerank": rerank.items[:m], "crossknn": search.items[:m]}
        answers["exact"] = truth_of(batches, min(RETURNED + 1, index.n))
        if task is not None:
            answers = {way: task.judgements.seen(items) for way, items in answers.items()}
        shares = {"rerank": rerank.recall[k][:m], "crossknn": search.recall[k][:m]}
        return cls(
            index=index,
            queries=queries.take(range(m)),
            budget=budget,
            retriever=first_stage(index),
            answers=answers,
            neighbours=shares | {"exact": np.ones(m)},
            right=[relevant_items(row) for row in task.judgements.rows[:m]] if task else [],
            diagnosis=diagnosis_of(evaluation, method, ways) if task else None,
            made_up=made_up,
        )

    @property
    def k(self) -> int:
        """Number of true neighbours that are counted: `K`, or all items if there are fewer."""
        return min(K, self.index.n)

    @property
    def n_returned(self) -> int:
        """Number of items in an answer, at most the budget: unscored items would be guesses."""
        return min(RETURNED, self.budget)

    @property
    def recall(self) -> Comparison:
        """The recall of the search minus that of reranking."""
        return paired(self.neighbours["crossknn"] - self.neighbours["rerank"])

    @cached_property
    def returned(self) -> dict[str, FloatArray]:
        """By way to answer, the share (m,) of a query's right items in the answer; NaN if none."""

        def share(items: IntArray, right: IntArray) -> float:
            return float(np.isin(right, items[: self.n_returned]).mean()) if len(right) else np.nan

        return {
            way: np.array([share(*row) for row in zip(items, self.right, strict=True)])
            for way, items in self.answers.items()
            if self.right
        }

    @property
    def gain(self) -> Comparison | None:
        """The difference of search minus reranking in `returned`; None without judgements."""
        if not self.right or np.isnan(self.returned["exact"]).all():
            return None
        return paired(self.returned["crossknn"] - self.returned["rerank"])

    @property
    def sentence(self) -> str:
        """State how searching instead of reranking changes each share, and whether clearly."""
        differences = {f"of the cross-encoder's own top {self.k}": self.recall}
        if self.gain is not None:
            right = f"of right items among the {self.n_returned} returned"
            differences = {right: self.gain} | differences
        changes = [f"{of} by {gain}{doubt(gain)}" for of, gain in differences.items()]
        kind = " made-up" if self.made_up else ""
        asked = len(self.queries)
        queries = f"each of {asked:,}{kind} queries" if asked > 1 else f"one{kind} query"
        return (
            f"With {counted(self.budget, 'call')} for {queries}, searching instead of reranking "
            f"changes the share {', and '.join(changes)}."
        )

    def table(self) -> Table:
        """Tabulate the shares of right items and of the exact top k that each way returns."""
        names = {
            "rerank": f"rerank the first {self.budget}",
            "crossknn": f"crossknn, {counted(self.budget, 'call')}",
            "exact": f"all {self.index.n:,} scored",
        }
        shares = {f"own top {self.k} found": self.neighbours}
        if self.gain is not None:
            shares = {"right items found": self.returned} | shares
        rows: list[list[Cell]] = [
            [name, *(Share(np.nanmean(of[way])) for of in shares.values())]
            for way, name in names.items()
        ]
        ours = frozenset((1, column) for column in range(1, 1 + len(shares)))
        return Table(head=["", *shares], rows=rows, best=ours)

    @cached_property
    def missed(self) -> Table | None:
        """Tabulate the right items that the search returned and reranking did not, with their
        places in the retriever's list and in the search's answer; None if there are none."""
        if not self.right:
            return None
        by_rerank, by_search = self.returned["rerank"] > 0, self.returned["crossknn"] > 0
        items, rows = self.index.items, list[list[Cell]]()
        retriever = open_retriever(self.index, self.retriever)
        for q in np.flatnonzero(by_search & ~by_rerank).tolist():
            answer, text = self.answers["crossknn"][q], self.queries.texts[q]
            place = int(np.flatnonzero(np.isin(answer, self.right[q]))[0])
            order = retriever.top(Queries([text]), self.index.n).items[0]
            listed = np.flatnonzero(order == answer[place])
            rank = int(listed[0]) if len(listed) else int((order != NO_ITEM).sum())
            shown = ": ".join(items.texts[answer[place]].splitlines())
            rows.append([rank + 1, place + 1, Plain(text), Plain(shown)])
        if not rows:
            return None
        opposite = int((by_rerank & ~by_search).sum())
        about = (
            f"Right items that searching found and reranking missed, for {len(rows)} of "
            f"{counted(len(self.queries), 'query')} ({opposite} the other way round): place in the "
            "retriever's list, and in the search's answer"
        )
        head = ["retriever", "search", "query", "right item"]
        return Table(head=head, rows=rows[:RETURNED], caption=about)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        table = self.table()
        return {
            "n": self.index.n,
            "queries": len(self.queries),
            "made_up_queries": self.made_up,
            "budget": self.budget,
            "retriever": self.retriever,
            "shares": {
                head: {str(row[0]): row[column] for row in table.rows}
                for column, head in enumerate(table.head)
                if column
            },
            "sentence": self.sentence,
            "diagnosis": self.diagnosis and self.diagnosis.as_dict(),
        }

    def page(self, title: str, lead: str) -> Page:
        """Make the page of the trial, with each query's true top k and the diagnosis."""
        equal: list[Block] = [self.table(), self.sentence]
        if self.missed is not None:
            equal.append(self.missed)
        asked = len(self.queries)
        of = "" if asked <= _SHOWN else f" The first {_SHOWN} of {asked:,} are here."
        about = (
            f"Each query opens to its true top {self.k}, by all {self.index.n:,} scores, with the "
            f"places that the items have in the two answers of {self.n_returned}.{of}"
        )
        tables = [self._of_query(q) for q in range(min(asked, _SHOWN))]
        by_query: list[Block] = [*([_MADE_UP] if self.made_up else []), about, *tables]
        sections = [
            Section(title="At equal calls", blocks=equal),
            Section(title="Query by query", blocks=by_query),
        ]
        if self.diagnosis is not None:
            at, table = ", ".join(map(str, self.diagnosis.values)), self.diagnosis.table()
            made = f"The verdict is made at {at} calls."
            blocks: list[Block] = [made, replace(table, caption=""), table.caption]
            sections.append(Section(title="By budget", blocks=blocks))
        return Page(title=title, lead=lead, sections=sections)

    def _of_query(self, q: int) -> Table:
        """Tabulate a query's true top k and right items, with their ranks in both answers."""
        items, rows = self.index.items, list[list[Cell]]()
        answers = [self.answers[way][q, : self.n_returned] for way in ("rerank", "crossknn")]
        true = self.answers["exact"][q, : self.k].tolist()
        right = self.right[q].tolist() if self.right else []
        for item in dict.fromkeys([*true, *right]):
            rank = f"{true.index(item) + 1}" if item in true else f"beyond {self.k}"
            name = f"{items.ids[item][:40]}: {items.titles[item] or items.texts[item]}"
            places = [np.flatnonzero(answer == item) + 1 for answer in answers]
            shown = [f"{at[0]}" if len(at) else "missed" for at in places]
            rows.append([rank, Plain(name), "**right**" if item in right else "", *shown])
        by_rerank, by_search = (int(np.isin(true, answer).sum()) for answer in answers)
        return Table(
            head=["true place", "item", "", "by reranking", "by searching"],
            rows=rows,
            caption=f"“{Plain(self.queries.texts[q]).markdown()}”: of the top {len(true)}, "
            f"reranking finds {by_rerank}, searching {by_search}",
            folded=True,
        )
