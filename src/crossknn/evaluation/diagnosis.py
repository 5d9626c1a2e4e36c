"""Diagnose whether reranking, fusion and searching deeper pay on judged queries, and why.

Three figures explain the verdict. Reach: the share of relevant items beyond the retriever's first B
items, where reranking never sees them. Trust: the gain of reranking those B over the retriever's
order. Relevant: the share of relevant items among the cross-encoder's top 10 that lie beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import Texts, query_set
from crossknn.errors import InputError
from crossknn.evaluation.compare import Evaluation, batches
from crossknn.evaluation.measures import (
    Comparison,
    Estimate,
    bootstrap,
    bootstrap_ratio,
    fewest_queries,
    paired,
)
from crossknn.evaluation.outcome import Outcome, check
from crossknn.evaluation.task import Judgements, TaskMeasures, relevant_items
from crossknn.evaluation.verdict import (
    RERANK,
    RETRIEVER,
    SEARCH,
    Values,
    Verdict,
    Way,
    in_words,
    verdict_of,
)
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method
from crossknn.methods.rerank import Rerank, Retrieve
from crossknn.retrievers import specs
from crossknn.search.fusion import Fuse, Fusion
from crossknn.search.searcher import Searcher
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, as_count

FEWEST = 5
"""Minimum number of judged queries for a verdict."""

ENOUGH = fewest_queries(4)
"""Number of queries from which a difference can be clear, after the correction for four claims."""

TOP = 10
"""Number of the search's best items of which those beyond the retriever's first B are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Figures at a budget of B scored pairs; those that need judgements are None without them.

    Attributes:
        means: Of the measure, by way.
        reach: Share (0-1) of a query's relevant items beyond the retriever's first B: what a deeper
            search could add at most.
        trust: Reranking those B minus the retriever, in the measure.
        agreement: Rank correlation of these two orders.
        beyond: How many of the ten best by exact score that the search finds lie beyond those B.
        relevant: Share of these that is relevant, over all queries.
    """

    budget: int
    means: Mapping[Way, float]
    reach: Estimate | None
    trust: Comparison | None
    agreement: Estimate
    beyond: Estimate
    relevant: Estimate | None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; None for an estimate over no query."""
        estimates = (getattr(self, name) for name in _ESTIMATES)
        shown = (asdict(e) if e is not None and e.n else None for e in estimates)
        means = {str(way): mean for way, mean in self.means.items()}
        return {"budget": self.budget, "means": means, **dict(zip(_ESTIMATES, shown, strict=True))}

    def cells(self) -> dict[str, str]:
        """Return a row of the table, by column."""
        beyond = {f"beyond, of {TOP}": _shown(self.beyond, ".1f")}
        if self.trust is None:
            return {"calls": f"{self.budget}", "agreement": _shown(self.agreement, ".2f")} | beyond
        means = {str(way): f"{mean:.3f}" for way, mean in self.means.items()}
        why = {"reach": _shown(self.reach, ".0%"), "trust": in_words(self.trust)}
        relevant = {"relevant": _shown(self.relevant, ".0%")}
        return {"calls": f"{self.budget}"} | means | why | beyond | relevant


_ESTIMATES = "reach", "trust", "agreement", "beyond", "relevant"


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """A diagnosis: figures for each budget from the outcomes of the retriever, reranking and a
    search, and a verdict.

    Its `str` is a table.

    Attributes:
        retriever: The retriever that is weighed.
        method: The search that is weighed.
        measure: The measure that counts; nothing without judgements.
        outcomes: By budget and way; of queries without judgements nothing counts, if there are any.
        judgements: Of all queries; without them the figures are few, and there is no verdict.
        seed: Draws the resamples of the intervals and the signs of the tests.
    """

    retriever: str
    method: str
    measure: str
    outcomes: Mapping[int, Mapping[Way, Outcome]]
    judgements: Judgements | None
    seed: int = 0

    @cached_property
    def _rows(self) -> IntArray:
        """Mask of the queries that count."""
        if self.judgements is not None:
            return np.flatnonzero([bool(row) for row in self.judgements.rows])
        return np.arange(len(next(iter(self.outcomes.values()))[RETRIEVER].items))

    @property
    def queries(self) -> int:
        """Number of queries that count."""
        return len(self._rows)

    @cached_property
    def values(self) -> Values:
        """By budget and way, the measure of every query that counts (m,), for checking a verdict on
        other queries."""
        if self.judgements is None:
            return {}
        return {
            budget: {way: of.task[self.measure][self._rows] for way, of in ways.items()}
            for budget, ways in self.outcomes.items()
        }

    @cached_property
    def figures(self) -> tuple[Figures, ...]:
        """The figures for each budget."""
        return tuple(map(self._figures, self.outcomes))

    @cached_property
    def verdict(self) -> Verdict | None:
        """The recommendation; None without judgements."""
        if not self.values:
            return None
        return verdict_of(
            self.values, measure=self.measure, retriever=self.retriever, seed=self.seed
        )

    @property
    def sentence(self) -> str:
        """The verdict as a sentence; without judgements, a description of the figures."""
        if self.verdict is not None:
            return self.verdict.sentence
        at = self.figures[-1]
        return (
            f"On the first {at.budget} items of {self.retriever}, its rank correlation with the "
            f"cross-encoder is {at.agreement.mean:.2f}, and {at.beyond.mean:.1f} of the "
            f"cross-encoder's top {TOP} lie below them: only judgements (qrels) can tell which of "
            "the two is right, and so whether reranking or searching deeper helps."
        )

    def _figures(self, budget: int) -> Figures:
        rows, seed = self._rows, self.seed
        items = {way: of.items[rows] for way, of in self.outcomes[budget].items()}
        first, top = items[RETRIEVER][:, :budget], items[SEARCH][:, :TOP]
        new = [t[(t != NO_ITEM) & ~np.isin(t, seen)] for t, seen in zip(top, first, strict=True)]
        beyond = np.array([len(of) for of in new], np.float64)
        values = self.values.get(budget, {})
        reach = trust = right = None
        if self.judgements is not None:
            relevant = [relevant_items(self.judgements.rows[q]) for q in rows]
            both = zip(relevant, first, strict=True)
            missed = [1 - np.isin(of, seen).mean() if len(of) else np.nan for of, seen in both]
            reach = bootstrap(np.array(missed), seed=seed)
            trust = paired(values[RERANK] - values[RETRIEVER], seed=seed)
            hits = [np.isin(of, judged).sum() for of, judged in zip(new, relevant, strict=True)]
            right = bootstrap_ratio(np.array(hits), beyond, seed=seed)
        return Figures(
            budget=budget,
            means={way: float(np.nanmean(of)) for way, of in values.items()},
            reach=reach,
            trust=trust,
            agreement=bootstrap(_correlations(first, items[RERANK]), seed=seed),
            beyond=bootstrap(beyond, seed=seed),
            relevant=right,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, without those of single queries."""
        return {
            "retriever": self.retriever,
            "method": self.method,
            "measure": self.measure or None,
            "queries": self.queries,
            "figures": [at.as_dict() for at in self.figures],
            "verdict": self.verdict and self.verdict.as_dict(),
            "sentence": self.sentence,
        }

    def table(self) -> list[list[str]]:
        """Return the column heads, then a row for each budget."""
        rows = [at.cells() for at in self.figures]
        return [[*rows[0]], *([*row.values()] for row in rows)]

    @property
    def legend(self) -> str:
        """Explain the columns of the table."""
        first = "the retriever's first B items"
        columns = {
            "retriever": f"{self.measure} of each way to answer, with B calls",
            "agreement": f"rank correlation of retriever and cross-encoder on {first}, for B calls",
            "reach": f"share of the relevant items below {first}: what searching deeper can add",
            "trust": "the measure after reranking minus the retriever's",
            f"beyond, of {TOP}": f"how many of the search's top {TOP} lie below {first}",
            "relevant": "which share of these is relevant",
        }
        head = self.table()[0]
        said = "; ".join(f"{name}: {what}" for name, what in columns.items() if name in head)
        return said.replace("retriever:", "retriever, rerank, search:", 1)

    def __str__(self) -> str:
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in table)


def diagnose(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    qrels: Qrels | None = None,
    *,
    budgets: Sequence[int] = (20, 50, 100),
    measure: str = "nDCG@10",
    method: str | Method = DEFAULT,
    fuse: Fuse = "auto",
    keep_own: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """Say whether to keep the retriever, rerank or search deeper, with fusion or without.

    The retriever is the one that `method` names, or else the dual encoder, or words. Only pairs of
    judged queries that reranking and the search choose are scored, each once; scores are stored as
    in `compare`.

    Args:
        index: What is searched.
        scorer: What `Searcher` takes.
        queries: m queries with ids, as `read_queries` takes them.
        qrels: Their judgements. Without them there is no verdict: the figures say how far
            cross-encoder and retriever agree, not which of them is right.
        budgets: Calls per query.
        measure: What counts, by its name in ir-measures.
        method: The search that is weighed.
        fuse: As in `Searcher`.
        keep_own: Count the item that has a query's id as any other; BEIR leaves it out of answers.
        seed: Seed of all randomness.
        progress: Called with (done, total) pairs, those scored before included.

    Raises:
        InputError: Fewer than five queries have a relevant item in the index, a budget exceeds its
            items, the measure is unknown, or what `Searcher` raises.
        ScorerError: The scorer fails as a whole.
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
        n = index.n
        raise InputError(f"budgets are {budgets}: give budgets of at most {n}, the number of items")
    task = None
    if qrels is not None:
        every = Judgements.from_qrels(qrels, queries, index.items.ids, keep_own=keep_own)
        judged = [q for q, row in enumerate(every.rows) if row]
        queries, task = queries.take(judged), TaskMeasures(every.take(judged), [measure])
        check_enough(task.judgements)
    parts = batches(index, queries, searcher.scorer)
    evaluation = Evaluation(parts, depth=depth_of(budgets), seed=seed, task=task)
    return diagnosis_of(evaluation, searcher.method, budgets, searcher.fusion, progress)


def depth_of(budgets: Sequence[int]) -> int:
    """Return how many items answers must have for a diagnosis; one of them may be the query
    itself."""
    return max(TOP + 1, *budgets)


def diagnosis_of(
    evaluation: Evaluation,
    method: Method,
    budgets: Sequence[int],
    fusion: Fusion | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose a search by the first measure of an evaluation, whose answers must have `depth_of`
    items."""
    task = evaluation.task
    stage, fused_stage = _stages(evaluation.index, method)
    alone = {RETRIEVER: Retrieve(retriever=stage)}
    plain, fused = _reranking(evaluation.index, method, stage), dict[Way, Method]()
    if fusion is not None:
        if fused_stage != stage:
            alone[replace(RETRIEVER, fused=True)] = Retrieve(retriever=fused_stage)
        reranking = _reranking(evaluation.index, method, fused_stage)
        fused = {replace(way, fused=True): how for way, how in reranking.items()}
    methods = {str(way): how for way, how in {**alone, **plain, **fused}.items()}
    check(evaluation.parts, methods, budgets[0], evaluation.seed)
    outcomes: dict[int, dict[Way, Outcome]] = {budget: {} for budget in budgets}
    for ways, by in ((alone, None), (plain, None), (fused, fusion)):
        named = {str(way): how for way, how in ways.items()}
        way_of = {str(way): way for way in ways}
        for each in evaluation.outcomes(named, budgets, by, progress):
            for budget in [each.budget] if each.budget else budgets:
                outcomes[budget][way_of[each.method]] = each
    return Diagnosis(
        retriever=str(stage),
        method=str(method),
        measure=task.names[0] if task else "",
        outcomes=outcomes,
        judgements=task.judgements if task else None,
        seed=evaluation.seed,
    )


def _stages(index: Index, method: Method) -> tuple[Spec, Spec]:
    """Return the retriever under diagnosis, and the one that fused ways begin with.

    If a fusion was fitted, `auto` begins with the retrievers' share of the final score.
    """
    named = getattr(method, "retriever", specs.AUTO)
    if named != specs.AUTO:
        return named, named
    stage = Spec(specs.first_stage(index))
    return stage, named if specs.FUSION in index.artifacts else stage


def _reranking(index: Index, method: Method, stage: Spec) -> dict[Way, Method]:
    """Return reranking and the search, both beginning with that retriever."""
    named = getattr(method, "retriever", stage)
    # Keep a search that begins with this retriever anyway, because it may have been made already.
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
            f"{queries}: check that the ids agree, or judge more; search works without"
        )


def _correlations(first: IntArray, reranked: IntArray) -> FloatArray:
    """Compute Spearman's correlation (m,) of two orders of the same items; NaN for fewer than
    two."""
    from scipy.stats import spearmanr

    correlations = []
    for row, other in zip(first, reranked, strict=True):
        place = {item: rank for rank, item in enumerate(other.tolist()) if item != NO_ITEM}
        ranks = [place[item] for item in row.tolist() if item in place]
        both = range(len(ranks)), ranks
        correlations.append(spearmanr(*both).statistic if len(ranks) > 1 else np.nan)
    return np.array(correlations)


def _shown(found: Estimate | None, form: str) -> str:
    if found is None or not found.n:
        return "-"
    return f"{found.mean:{form}} [{found.low:{form}}-{found.high:{form}}]"
