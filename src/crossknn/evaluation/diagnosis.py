"""Whether reranking, fusion and searching deeper pay on judged queries, and why.

Three figures say why. Reach: how much that is relevant lies beyond the retriever's first B items,
where reranking never sees it. Trust: whether reranking those B improves on the retriever's order.
Relevant: of the items beyond them that the cross-encoder has in its top 10, the share that is
relevant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import QuerySet, Texts, query_set
from crossknn.errors import InputError
from crossknn.evaluation.compare import Outcome, Part, check, outcome, parts_on_demand
from crossknn.evaluation.measures import (
    Comparison,
    Estimate,
    bootstrap,
    bootstrap_ratio,
    fewest_queries,
    paired,
)
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
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method
from crossknn.methods.rerank import Rerank, Retrieve
from crossknn.retrievers import specs
from crossknn.search.fusion import Fuse, Fusion
from crossknn.searcher.searcher import Searcher
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, as_count

FEWEST = 5
"""Judged queries that a verdict needs."""

ENOUGH = fewest_queries(4)
"""Queries of which a difference can be clear, after the correction for four claims."""

TOP = 10
"""How many of the search's best items are looked for beyond the retriever's first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What was seen at a budget of B calls; what needs judgements is None without them.

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
        """JSON-ready values; None for an estimate of no query."""
        estimates = (getattr(self, name) for name in _ESTIMATES)
        shown = (asdict(e) if e is not None and e.n else None for e in estimates)
        means = {str(way): mean for way, mean in self.means.items()}
        return {"budget": self.budget, "means": means, **dict(zip(_ESTIMATES, shown, strict=True))}

    def cells(self) -> dict[str, str]:
        """A line of the table, by column."""
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
    """Figures for each budget, and with judgements a verdict; `str` gives a table.

    Attributes:
        retriever: The retriever that is weighed.
        method: The search that is weighed.
        measure: The measure that counts.
        queries: Number of queries.
        figures: One for each budget.
        verdict: What to do; None without judgements.
        sentence: The same as a sentence.
        values: Of each budget and way the measure of every query (m,), to check a verdict on other
            queries.
    """

    retriever: str
    method: str
    measure: str
    queries: int
    figures: tuple[Figures, ...]
    verdict: Verdict | None
    sentence: str
    values: Values = field(default_factory=dict, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values, without those of single queries."""
        return {
            "retriever": self.retriever,
            "method": self.method,
            "measure": self.measure,
            "queries": self.queries,
            "figures": [at.as_dict() for at in self.figures],
            "verdict": self.verdict and self.verdict.as_dict(),
            "sentence": self.sentence,
        }

    def table(self) -> list[list[str]]:
        """The heads of the columns, then a row for each budget."""
        rows = [at.cells() for at in self.figures]
        return [[*rows[0]], *([*row.values()] for row in rows)]

    @property
    def legend(self) -> str:
        """What the columns of the table are."""
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

    The retriever is the one that `method` names, or else the dual encoder, or words. Only pairs
    that reranking and the search choose are scored, each once, of judged queries alone; scores are
    kept as `compare` keeps them.

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
    queries, judged = query_set(queries), None
    searcher = Searcher(index, scorer, method, fuse=fuse, seed=seed)
    if searcher.scorer is None or not searcher.method.calls:
        raise InputError(f"a diagnosis needs a scorer and a method with calls, not {method}")
    searcher.check_scorer(searcher.method)
    budgets = sorted({as_count(budget, "a budget") for budget in budgets})
    if not budgets or budgets[-1] > index.n:
        n = index.n
        raise InputError(f"budgets are {budgets}: give budgets of at most {n}, the number of items")
    if qrels is not None:
        queries, judged = _judged(queries, qrels, index, keep_own)
    calls = sum(budgets) * (4 if searcher.fusion else 2)
    parts = parts_on_demand(index, searcher.scorer, queries, progress, calls)
    return _diagnosis(parts, judged, searcher.method, searcher.fusion, budgets, measure, seed)


def _judged(
    queries: QuerySet, qrels: Qrels, index: ItemIndex, keep_own: bool
) -> tuple[QuerySet, Judgements]:
    """The queries that have judgements, and these."""
    every = Judgements.from_qrels(qrels, queries, index.items.ids, keep_own=keep_own)
    rows = [q for q, row in enumerate(every.rows) if row]
    own = None if every.own is None else every.own[rows]
    return queries.take(rows), Judgements(tuple(every.rows[q] for q in rows), every.absent, own)


def _diagnosis(
    parts: Sequence[Part],
    judgements: Judgements | None,
    method: Method,
    fusion: Fusion | None,
    budgets: Sequence[int],
    measure: str,
    seed: int,
) -> Diagnosis:
    """Search in every way at every budget, and say what that shows."""
    task = relevant = verdict = None
    if judgements is not None:
        task = TaskMeasures(judgements, [measure])
        relevant = relevant_to(judgements)
    stage, fused_stage = _stages(parts[0], method)
    ways = {RETRIEVER: Retrieve(retriever=stage), **_reranking(method, stage)}
    if fusion is not None:
        if fused_stage != stage:
            ways[replace(RETRIEVER, fused=True)] = Retrieve(retriever=fused_stage)
        reranking = _reranking(method, fused_stage)
        ways |= {replace(way, fused=True): how for way, how in reranking.items()}
    check(parts, {str(way): how for way, how in ways.items()}, budgets[0], seed)
    own = judgements is not None and judgements.own is not None
    depth = max(TOP + own, *budgets)

    def run(way: Way, budget: int) -> Outcome:
        by = fusion if way.fused and way.kind != "retriever" else None
        how = {"ks": [depth], "seed": seed, "task": task, "fusion": by}
        return outcome(str(way), ways[way], parts, None, budget=budget, **how)  # type: ignore[arg-type]

    alone = {way: run(way, 0) for way in ways if way.kind == "retriever"}
    outcomes = {
        b: {way: alone[way] if way in alone else run(way, b) for way in ways} for b in budgets
    }
    figures = tuple(_figures(b, outcomes[b], relevant, seed) for b in budgets)
    values: Values = {}
    if task is not None:
        [measure] = task.names
        values = {b: {w: o.task[measure] for w, o in of.items()} for b, of in outcomes.items()}
        verdict = verdict_of(values, measure=measure, retriever=str(stage), seed=seed)
    retrieved = alone[RETRIEVER]
    return Diagnosis(
        retriever=str(stage),
        method=str(method),
        measure=measure,
        queries=len(retrieved.items) - retrieved.unjudged,
        figures=figures,
        verdict=verdict,
        sentence=verdict.sentence if verdict else _unjudged(figures[-1], str(stage)),
        values=values,
    )


def _stages(part: Part, method: Method) -> tuple[Spec, Spec]:
    """The retriever that is weighed, and the one that fused ways begin with.

    Where fusion was fitted, `auto` begins with the retrievers' share of the final score.
    """
    named = getattr(method, "retriever", specs.AUTO)
    if named != specs.AUTO:
        return named, named
    stage = Spec(specs.first_stage(part.index))
    return stage, named if specs.FUSION in part.index.artifacts else stage


def _reranking(method: Method, stage: Spec) -> dict[Way, Method]:
    """Reranking and the search, both beginning with that retriever."""
    search = replace(method, retriever=stage) if hasattr(method, "retriever") else method  # type: ignore[call-arg]
    return {RERANK: Rerank(retriever=stage), SEARCH: search}


def relevant_to(judgements: Judgements) -> list[IntArray]:
    """Each query's relevant items; `InputError` if fewer than `FEWEST` queries have any."""
    relevant = [relevant_items(row) for row in judgements.rows]
    if (queries := sum(len(items) > 0 for items in relevant)) < FEWEST:
        raise InputError(
            f"a verdict needs {FEWEST} judged queries with a relevant item in the index, and got "
            f"{queries}: check that the ids agree, or judge more; search works without"
        )
    return relevant


def _figures(
    budget: int, outcomes: Mapping[Way, Outcome], relevant: Sequence[IntArray] | None, seed: int
) -> Figures:
    first, top = outcomes[RETRIEVER].items[:, :budget], outcomes[SEARCH].items[:, :TOP]
    new = [t[(t != NO_ITEM) & ~np.isin(t, seen)] for t, seen in zip(top, first, strict=True)]
    beyond = np.array([len(items) for items in new], np.float64)
    values = {way: values for way, each in outcomes.items() for values in each.task.values()}
    reach = trust = right = None
    if relevant is not None:
        both = zip(relevant, first, strict=True)
        missed = [1 - np.isin(of, seen).mean() if len(of) else np.nan for of, seen in both]
        reach = bootstrap(np.array(missed), seed=seed)
        trust = paired(values[RERANK] - values[RETRIEVER], seed=seed)
        beyond[np.isnan(values[RETRIEVER])] = np.nan  # of an unjudged query nothing is irrelevant
        hits = [np.isin(items, of).sum() for items, of in zip(new, relevant, strict=True)]
        right = bootstrap_ratio(np.array(hits), beyond, seed=seed)
    return Figures(
        budget=budget,
        means={way: float(np.nanmean(of)) for way, of in values.items()},
        reach=reach,
        trust=trust,
        agreement=bootstrap(_correlations(first, outcomes[RERANK].items), seed=seed),
        beyond=bootstrap(beyond, seed=seed),
        relevant=right,
    )


def _correlations(first: IntArray, reranked: IntArray) -> FloatArray:
    """(m,) Spearman's correlation of two orders of the same items; NaN for fewer than two."""
    from scipy.stats import spearmanr

    correlations = []
    for row, other in zip(first, reranked, strict=True):
        place = {item: rank for rank, item in enumerate(other.tolist()) if item != NO_ITEM}
        ranks = [place[item] for item in row.tolist() if item in place]
        both = range(len(ranks)), ranks
        correlations.append(spearmanr(*both).statistic if len(ranks) > 1 else np.nan)
    return np.array(correlations)


def _unjudged(at: Figures, retriever: str) -> str:
    """What can be said without judgements, and what not."""
    return (
        f"On the first {at.budget} items of {retriever}, its rank correlation with the "
        f"cross-encoder is {at.agreement.mean:.2f}, and {at.beyond.mean:.1f} of the "
        f"cross-encoder's top {TOP} lie below them: only judgements (qrels) can tell which of "
        "the two is right, and so whether reranking or searching deeper helps."
    )


def _shown(found: Estimate | None, form: str) -> str:
    if found is None or not found.n:
        return "-"
    return f"{found.mean:{form}} [{found.low:{form}}-{found.high:{form}}]"
