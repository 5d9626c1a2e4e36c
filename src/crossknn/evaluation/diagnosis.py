"""Measure on judged queries whether reranking, fusion or a deeper search improves the answers.

Two figures explain the verdict. Reach is the share of the relevant items that rank below the
retriever's first B items, where reranking cannot find them. Trust is how much the measure gains
when the cross-encoder reranks the retriever's first B items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import Texts, query_set
from crossknn.errors import InputError
from crossknn.evaluation.compare import Evaluation, query_batches
from crossknn.evaluation.measures import Comparison, Estimate, bootstrap, fewest_queries, paired
from crossknn.evaluation.outcome import Outcome, check
from crossknn.evaluation.task import Judgements, TaskMeasures, relevant_items
from crossknn.evaluation.verdict import RERANK, RETRIEVER, SEARCH, Values, Verdict, Way, verdict_of
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method
from crossknn.methods.kriging import apart
from crossknn.methods.rerank import Rerank, Retrieve
from crossknn.retrievers import specs
from crossknn.search.fusion import Fuse, Fusion
from crossknn.search.searcher import Searcher
from crossknn.spec import Spec
from crossknn.table import Cell, Table
from crossknn.types import FloatArray, Progress, as_count

FEWEST = 5
"""Minimum number of judged queries for a verdict."""

ENOUGH = fewest_queries(4)
"""Minimum number of queries for a significant difference, corrected for four tests."""

Ways: TypeAlias = Mapping[int, Mapping[Way, Outcome]]
"""Outcomes by budget and by way to answer: retriever, reranking or search."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """A verdict on judged queries and its figures; its `str` is the verdict and two tables.

    Attributes:
        retriever, method: The retriever and the search method that are compared with reranking.
        measure: The measure that decides.
        values: By budget and way to answer, the measure's value for every judged query (m,).
        reach: By budget B, the mean share (0-1) of a query's relevant items below the retriever's
            first B: the most that a deeper search could add.
        trust: By budget B, the measure after reranking the first B items minus the retriever's.
        verdict: The recommendation.
    """

    retriever: str
    method: str
    measure: str
    values: Values
    reach: Mapping[int, Estimate]
    trust: Mapping[int, Comparison]
    verdict: Verdict

    @property
    def queries(self) -> int:
        """Number of judged queries."""
        return len(next(iter(self.values.values()))[RETRIEVER])

    @property
    def sentence(self) -> str:
        """The verdict as text, with a remark if no relevant item is left for a search to find."""
        nothing = [budget for budget, reach in self.reach.items() if not reach.high]
        none = "No relevant item ranks below the first {}: searching can hardly find more."
        return " ".join([self.verdict.sentence, *map(none.format, nothing[:1])])

    def means(self, budget: int) -> dict[str, float]:
        """Return the mean of the measure for each way to answer."""
        return {str(way): float(np.nanmean(of)) for way, of in self.values[budget].items()}

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready means and the verdict, without the values of single queries."""
        figures = [
            {"budget": b, "means": self.means(b)}
            | {"reach": asdict(self.reach[b]), "trust": asdict(self.trust[b])}
            for b in self.values
        ]
        return {
            "retriever": self.retriever,
            "method": self.method,
            "measure": self.measure,
            "queries": self.queries,
            "figures": figures,
            "verdict": self.verdict.as_dict(),
            "sentence": self.sentence,
        }

    def table(self) -> Table:
        """Tabulate the figures, with a row for each budget."""
        ways = [str(way) for way in next(iter(self.values.values()))]
        rows = []
        for budget, reach in self.reach.items():
            means = (f"{mean:.3f}" for mean in self.means(budget).values())
            share = f"{reach.mean:.0%} [{reach.low:.0%}-{reach.high:.0%}]"
            rows.append([f"{budget}", *means, share])
        legend = (
            f"{self.measure} of the retriever ({self.retriever}) alone, of reranking its first B "
            f"items and of {self.method} with B calls; reach: share of the relevant items below "
            "the retriever's first B: what searching can add"
        )
        return Table(head=["calls", *ways, "reach"], rows=rows, caption=legend)

    def comparisons(self) -> Table:
        """Tabulate the differences between the ways to answer, and whether they are clear."""
        rows: list[list[Cell]] = []
        for claim in self.verdict.claims:
            d, pair = claim.difference, f"{claim.way} - {claim.than}"
            rows.append([claim.budget, pair, f"{d}", f"{d.p_value:.2g}", "yes" if d.sign else "no"])
        legend = (
            "difference: of the means, with its 95% interval; clear: the interval leaves out zero "
            "and p, corrected for the comparisons at a budget (Holm), is at most 0.05"
        )
        return Table(head=["calls", "ways", "difference", "p", "clear"], rows=rows, caption=legend)

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.table()}\n{self.comparisons()}"


def diagnose(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    qrels: Qrels,
    *,
    budgets: Sequence[int] = (20, 50, 100),
    measure: str = "nDCG@10",
    method: str | Method = DEFAULT,
    fuse: Fuse = "auto",
    keep_own: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """Recommend the retriever alone, reranking or a deeper search, with or without fusion.

    Only pairs of judged queries that reranking or the search choose are scored, each once; the
    scores are stored as in `compare`.

    Args:
        index: The index to search.
        scorer: The cross-encoder, in any form that `Searcher` takes.
        queries: Queries with ids, as `read_queries` takes them.
        qrels: Their relevance judgements, `{query id: {item id: grade}}`.
        budgets: Numbers of pairs to score per query.
        measure: The measure that decides, by its name in ir-measures.
        method: The search method to compare with reranking.
        fuse: The fusion, as in `Searcher`.
        keep_own: Keep an item that has the query's id in the answers; BEIR leaves it out.
        seed: Seed of all randomness.
        progress: Called with the numbers (done, total) of pairs to score, stored scores included.
    """
    if isinstance(queries, Sequence) and any(isinstance(query, str) for query in queries):
        raise InputError("a diagnosis needs queries with ids, such as {id: text}")
    queries = query_set(queries)
    searcher = Searcher(index, scorer, method, fuse=fuse, seed=seed)
    if searcher.scorer is None or not searcher.method.calls:
        raise InputError(f"a diagnosis needs a scorer and a method with calls, not {method}")
    searcher.check_scorer(searcher.method)
    budgets = sorted({as_count(budget, "a budget") for budget in budgets})
    if not budgets or budgets[-1] > index.n:
        raise InputError(f"budgets are {budgets}: give budgets of at most {index.n} items")
    judged = Judgements.from_qrels(qrels, queries, index.answer_ids, keep_own=keep_own)
    rows = [q for q, row in enumerate(judged.rows) if row]
    task = TaskMeasures(judged.take(rows), [measure])
    check_enough(task.judgements)
    batches = query_batches(index, queries.take(rows), searcher.scorer)
    evaluation = Evaluation(batches=batches, depth=budgets[-1], seed=seed, task=task)
    ways = search_ways(evaluation, searcher.method, budgets, searcher.fusion, progress)
    return diagnosis_of(evaluation, searcher.method, ways)


def search_ways(
    evaluation: Evaluation,
    method: Method,
    budgets: Sequence[int],
    fusion: Fusion | None = None,
    progress: Progress | None = None,
) -> Ways:
    """Answer the queries by the retriever alone, by reranking and by a search; if there is a
    fusion, also in the order of its final scores. Queries are searched alone, as they come."""
    index, method = evaluation.batches[0].index, apart(method)
    stage, fused_stage = _stages(index, method)
    plain = {RETRIEVER: Retrieve(retriever=stage), **_reranking(index, method, stage)}
    fused = dict[Way, Method]()
    if fusion is not None:
        if fused_stage != stage:
            plain[replace(RETRIEVER, fused=True)] = Retrieve(retriever=fused_stage)
        reranking = _reranking(index, method, fused_stage)
        fused = {replace(way, fused=True): how for way, how in reranking.items()}
    methods = {str(way): how for way, how in {**plain, **fused}.items()}
    check(evaluation.batches, methods, budgets[0], evaluation.seed)
    outcomes: dict[int, dict[Way, Outcome]] = {budget: {} for budget in budgets}
    for ways, by in ((plain, None), (fused, fusion)):
        way_of = {str(way): way for way in ways}
        named = {name: ways[way] for name, way in way_of.items()}
        for each in evaluation.outcomes(named, budgets, by, progress):
            for budget in [each.budget] if each.budget else budgets:
                outcomes[budget][way_of[each.method]] = each
    return outcomes


def diagnosis_of(evaluation: Evaluation, method: Method, ways: Ways) -> Diagnosis:
    """Diagnose a search by an evaluation's first measure; its `depth` is the largest budget."""
    task, seed = evaluation.task, evaluation.seed
    assert task is not None
    retriever, _ = _stages(evaluation.batches[0].index, method)
    rows = np.flatnonzero([bool(row) for row in task.judgements.rows])
    relevant = [relevant_items(task.judgements.rows[q]) for q in rows]
    values: dict[int, dict[Way, FloatArray]] = {}
    reach, trust = {}, {}
    for budget, outcomes in ways.items():
        at = {way: of.task[task.names[0]][rows] for way, of in outcomes.items()}
        first = outcomes[RETRIEVER].items[rows, :budget]
        both = zip(relevant, first, strict=True)
        beyond = [1 - np.isin(of, seen).mean() if len(of) else np.nan for of, seen in both]
        reach[budget] = bootstrap(np.array(beyond), seed=seed)
        trust[budget] = paired(at[RERANK] - at[RETRIEVER], seed=seed)
        values[budget] = at
    return Diagnosis(
        retriever=str(retriever),
        method=str(method),
        measure=task.names[0],
        values=values,
        reach=reach,
        trust=trust,
        verdict=verdict_of(values, measure=task.names[0], seed=seed),
    )


def _stages(index: Index, method: Method) -> tuple[Spec, Spec]:
    """Return the retriever to diagnose, and the retriever that searches with a fusion begin with.

    If a fusion was fitted, `auto` begins with the sum of its weighted retriever scores.
    """
    named = getattr(method, "retriever", specs.AUTO)
    if named != specs.AUTO:
        return named, named
    stage = Spec(specs.first_stage(index))
    return stage, named if specs.FUSION in index.artifacts else stage


def _reranking(index: Index, method: Method, stage: Spec) -> dict[Way, Method]:
    """Return reranking and the search, both with the retriever `stage`."""
    named = getattr(method, "retriever", stage)
    # A search that begins with this retriever anyway keeps its name: its outcome may be known.
    if named == specs.AUTO and specs.stage_names(index, named) == (str(stage),):
        named = stage
    search = method if named == stage else replace(method, retriever=stage)  # type: ignore[call-arg]
    return {RERANK: Rerank(retriever=stage), SEARCH: search}


def check_enough(judgements: Judgements) -> None:
    """Raise `InputError` if fewer than `FEWEST` queries have a relevant item in the index."""
    queries = sum(len(relevant_items(row)) > 0 for row in judgements.rows)
    if queries < FEWEST:
        raise InputError(
            f"a verdict needs {FEWEST} judged queries with a relevant item in the index, and got "
            f"{queries}: check that the ids agree, or judge more queries"
        )
