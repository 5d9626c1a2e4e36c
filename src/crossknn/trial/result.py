"""Reranking and the default search at equal budgets, on queries scored against every item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from crossknn.retrievers.specs import first_stage, open_retriever
from crossknn.scorers.base import Scorer
from crossknn.table import Cell, Plain, Share, Table
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, Queries

K = 10
"""Of a query's exact best items, so many are looked for in an answer."""

RETURNED = 20
"""Maximum number of items in an answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """Answers for the m queries that were scored against every item: those of reranking and of the
    search, which score `budget` pairs per query, and those of exact search.

    Attributes:
        neighbours: By way to answer (`rerank`, `crossknn`, `exact`), the share (m,) of the exact
            top k in the answer.
        returned: By way to answer, the share (m,) of a query's relevant items among the first
            `n_returned` items, NaN if it has none; empty without judgements.
        items: The items (m, c) that the search answers, without those that are the queries.
        relevant: Each query's relevant items; empty without judgements.
        diagnosis: The diagnosis of all judged queries; None without judgements.
        made_up: Whether the queries were made from the items, for want of real ones.
    """

    index: ItemIndex
    queries: QuerySet
    budget: int
    retriever: str
    neighbours: Mapping[str, FloatArray]
    returned: Mapping[str, FloatArray]
    items: IntArray
    relevant: Sequence[IntArray]
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
        measure: str = "nDCG@10",
        seed: int = 0,
        made_up: bool = False,
        progress: Progress | None = None,
    ) -> Trial:
        """Search for queries; the first m have exact `scores` (m, n) of all items.

        `scorer` scores pairs of the other queries, which count only in the diagnosis.
        """
        task, budget = None, min(budget, index.n)
        share = f"R@{min(RETURNED, budget)}"  # what is returned beyond the budget has no score
        if qrels is not None:
            judged = Judgements.from_qrels(qrels, queries, index.answer_ids)
            task = TaskMeasures(judged, [measure, share])
        batches, method = query_batches(index, queries, scorer, scores), parse_method(DEFAULT)
        m, k = len(scores), min(K, index.n)
        depth = max(RETURNED + 1, budget)  # one of the items may be the query itself
        evaluation = Evaluation(batches=batches, ks=[k], depth=depth, seed=seed, task=task)
        ways = search_ways(evaluation, method, [budget], progress=progress)
        outcomes = {"rerank": ways[budget][RERANK], "crossknn": ways[budget][SEARCH]}
        neighbours = {way: of.recall[k][:m] for way, of in outcomes.items()}
        returned, items = dict[str, FloatArray](), outcomes["crossknn"].items[:m]
        if task is not None:
            returned = {way: of.task[share][:m] for way, of in outcomes.items()}
            exact = truth_of(batches, min(RETURNED + 1, index.n))
            returned["exact"] = task.values(exact)[share]
            items = task.judgements.seen(items)
        return cls(
            index=index,
            queries=queries.take(range(m)),
            budget=budget,
            retriever=first_stage(index),
            neighbours=neighbours | {"exact": np.ones(m)},
            returned=returned,
            items=items,
            relevant=[relevant_items(row) for row in task.judgements.rows[:m]] if task else [],
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

    @property
    def gain(self) -> Comparison | None:
        """The difference of search minus reranking in `returned`; None without judgements."""
        if not self.returned or np.isnan(self.returned["exact"]).all():
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
        m = len(self.queries)
        queries = f"each of {m:,}{kind} queries" if m > 1 else f"one{kind} query"
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
        shares = {f"exact top {self.k} found": self.neighbours}
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
        if not self.returned:
            return None
        by_rerank, by_search = self.returned["rerank"] > 0, self.returned["crossknn"] > 0
        items, rows = self.index.items, list[list[Cell]]()
        retriever = open_retriever(self.index, self.retriever)
        for q in np.flatnonzero(by_search & ~by_rerank).tolist():
            answer, text = self.items[q], self.queries.texts[q]
            place = int(np.flatnonzero(np.isin(answer, self.relevant[q]))[0])
            order = retriever.top(Queries([text]), self.index.n).items[0]
            if (documents := self.index.documents) is not None:
                order = np.where(order == NO_ITEM, NO_ITEM, documents[order])
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
