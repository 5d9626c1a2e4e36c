"""Whether reranking, fusion and searching deeper pay: what a few judged queries say beforehand.

Three figures say why. Reach: how much that is relevant lies beyond the retriever's first B items,
where reranking never sees it. Trust: whether reranking those B improves on the retriever's order.
Phantoms: items from beyond them that the cross-encoder has in its top 10 and that are not relevant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.queries import Qrels, Texts, query_set
from crossknn.errors import InputError
from crossknn.evaluation import measures
from crossknn.evaluation.measures import (
    Comparison,
    Estimate,
    bootstrap,
    fewest_queries,
    paired,
)
from crossknn.evaluation.replay import Outcome, Part, check, outcome, parts_on_demand
from crossknn.evaluation.task import Judgements, TaskMeasures, relevant_items
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method
from crossknn.methods.rerank import Rerank, Retrieve
from crossknn.retrievers import specs
from crossknn.search.fusion import Fuse, Fusion
from crossknn.searcher.searcher import Searcher
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, IntArray, Progress, as_count

RETRIEVER, RERANK, SEARCH, FUSED = "retriever", "rerank", "search", " fused"
"""Ways to answer a query; with fusion there are fused ones beside them, such as `rerank fused`."""

FEWEST, TOP, ENOUGH = 5, 10, fewest_queries(4)
"""Queries that a verdict needs; how many items of an answer are looked at for phantoms; queries of
which a difference can be clear, after the correction for four claims."""

Values: TypeAlias = Mapping[int, Mapping[str, FloatArray]]
"""A measure of every query (m,) by budget and way, NaN where a query has no value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """That one way is better than another at a budget: clearly so if `found.sign` is 1.

    Attributes:
        budget: At which number of calls.
        way: What is claimed to be better: `search`, `rerank`, each perhaps ` fused`.
        than: What it is compared with, or `retriever`.
        found: The difference in the measure; its p-value is corrected (Holm) for all claims at this
            budget.
    """

    budget: int
    way: str
    than: str
    found: Comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What to do, by a measure.

    Attributes:
        way: `retriever`, `rerank` or `search`, perhaps ` fused`.
        budget: At which number of calls.
        than: What its gain is over.
        gain: The difference in the measure.
        claims: All that was tested, at every budget.
        sentence: The same in words.
    """

    way: str
    budget: int
    than: str
    gain: Comparison
    claims: tuple[Claim, ...]
    sentence: str


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
        relevant: Share of these that is relevant, over all queries; the others are phantoms.
    """

    budget: int
    means: Mapping[str, float]
    reach: Estimate | None
    trust: Comparison | None
    agreement: Estimate
    beyond: Estimate
    relevant: Estimate | None

    def cells(self) -> dict[str, str]:
        """A line of the table, by column."""
        beyond = {f"beyond, of {TOP}": _shown(self.beyond, ".1f")}
        if self.trust is None:
            return {"calls": f"{self.budget}", "agreement": _shown(self.agreement, ".2f")} | beyond
        means = {way: f"{mean:.3f}" for way, mean in self.means.items()}
        known = {"reach": _shown(self.reach, ".0%"), "trust": _said(self.trust)}
        relevant = {"relevant": _shown(self.relevant, ".0%")}
        return {"calls": f"{self.budget}"} | means | known | beyond | relevant


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """Figures for each budget, and with judgements a verdict; `str` gives a table.

    Args:
        retriever: The retriever that is weighed.
        method: The search that is weighed.
        measure: The measure that counts.
        queries: Number of queries.
        figures: What was found at each budget.
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
        """Everything as values for JSON, without the values of single queries.

        Returns:
            The fields by name.
        """
        found = asdict(replace(self, values={}))
        del found["values"]
        for at in found["figures"]:  # no query has a value: NaN is no JSON
            at |= {n: None for n, v in at.items() if isinstance(v, dict) and v.get("n") == 0}
        return found

    def table(self) -> list[list[str]]:
        """The figures as a table.

        Returns:
            The heads of the columns, then a row for each budget.
        """
        rows = [at.cells() for at in self.figures]
        return [[*rows[0]], *([*row.values()] for row in rows)]

    @property
    def legend(self) -> str:
        """What the columns of the table are."""
        of = "the retriever's first B items"
        known = {
            "retriever": f"{self.measure} of each way to answer, with B calls",
            "agreement": f"rank correlation of retriever and cross-encoder on {of}, for B calls",
            "reach": f"share of the relevant items below {of}: what searching deeper can add",
            "trust": "the measure after reranking minus the retriever's",
            f"beyond, of {TOP}": f"how many of the search's top {TOP} lie below {of}",
            "relevant": "which share of these is relevant",
        }
        head = self.table()[0]
        said = "; ".join(f"{name}: {what}" for name, what in known.items() if name in head)
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
    kept as `judge` does.

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

    Returns:
        Figures for each budget, and the verdict in a sentence.

    Raises:
        InputError: Fewer than five queries have a relevant item in the index, a budget exceeds its
            items, the measure is unknown, or what `Searcher` raises.
        ScorerError: The scorer fails as a whole.
    """
    if isinstance(queries, Sequence) and any(isinstance(query, str) for query in queries):
        raise InputError("a diagnosis needs queries with ids, such as {id: text}")
    queries = query_set(queries)
    searcher, judged = Searcher(index, scorer, method, fuse=fuse, seed=seed), None
    if searcher.scorer is None or not searcher.method.calls:
        raise InputError(f"a diagnosis needs a scorer and a method with calls, not {method}")
    searcher.check_scorer(searcher.method)
    if qrels is not None:
        every = Judgements.from_qrels(qrels, queries, index.items.ids, keep_own=keep_own)
        known = [q for q, row in enumerate(every.rows) if row]
        queries, own = queries.take(known), None if every.own is None else every.own[known]
        judged = Judgements(tuple(every.rows[q] for q in known), every.absent, own)
    most = sum(as_count(b, "a budget") for b in budgets) * (4 if searcher.fusion else 2)
    parts = parts_on_demand(index, searcher.scorer, queries, progress, most)
    how = searcher.method, searcher.fusion, budgets, measure, seed
    return diagnose_parts(parts, judged, *how)


def diagnose_parts(
    parts: Sequence[Part],
    judgements: Judgements | None,
    method: Method,
    fusion: Fusion | None,
    budgets: Sequence[int] = (20, 50, 100),
    measure: str = "nDCG@10",
    seed: int = 0,
) -> Diagnosis:
    """`diagnose` for queries in parts, such as those of a stored matrix, and their judgements."""
    budgets, n = sorted({as_count(b, "a budget") for b in budgets}), parts[0].index.n
    if not budgets or budgets[-1] > n:
        raise InputError(f"budgets are {budgets}: give budgets of at most {n}, the number of items")
    task = relevant = verdict = None
    if judgements is not None:
        task = TaskMeasures(judgements, [measure])
        relevant = relevant_to(judgements)
    index, named = parts[0].index, getattr(method, "retriever", specs.AUTO)
    auto = named == specs.AUTO
    stage = Spec(specs.first_stage(index)) if auto else named
    kinds: dict[str, tuple[Spec, Fusion | None]] = {"": (stage, None)}
    if fusion is not None:  # `auto` begins with the retrievers' part of the final score
        kinds[FUSED] = (named if auto and specs.FUSION in index.artifacts else stage), fusion
    own = judgements is not None and judgements.own is not None
    run = partial(
        outcome, parts=parts, truth=None, ks=[max(TOP + own, *budgets)], seed=seed, task=task
    )
    found: dict[int, dict[str, Outcome]] = {b: {} for b in budgets}
    for kind, (first, by) in kinds.items():
        ways = {RERANK: Rerank(retriever=first), SEARCH: method}
        if hasattr(method, "retriever"):
            ways[SEARCH] = replace(method, retriever=first)  # type: ignore[call-arg]
        check(parts, ways, budgets[0], seed)
        if not kind or first != stage:
            alone = run(RETRIEVER, Retrieve(retriever=first), budget=0)
            found = {b: of | {RETRIEVER + kind: alone} for b, of in found.items()}
        for b, (way, how) in product(budgets, ways.items()):
            found[b][way + kind] = run(way, how, budget=b, fusion=by)
    figures = tuple(_figures(b, found[b], relevant, seed) for b in budgets)
    values: Values = {}
    if task is not None:
        [measure] = task.names
        values = {b: {w: each.task[measure] for w, each in of.items()} for b, of in found.items()}
        verdict = verdict_of(values, measure=measure, retriever=str(stage), seed=seed)
    return Diagnosis(
        retriever=str(stage),
        method=str(method),
        measure=measure,
        queries=len(alone.items) - alone.unjudged,
        figures=figures,
        verdict=verdict,
        sentence=verdict.sentence if verdict else _unjudged(figures[-1], str(stage)),
        values=values,
    )


def relevant_to(judgements: Judgements) -> list[IntArray]:
    """Each query's relevant items; `InputError` if fewer than `FEWEST` queries have any."""
    found = [relevant_items(row) for row in judgements.rows]
    if (known := sum(map(bool, map(len, found)))) < FEWEST:
        raise InputError(
            f"a verdict needs {FEWEST} judged queries with a relevant item in the index, and got "
            f"{known}: check that the ids agree, or judge more; search works without"
        )
    return found


def verdict_of(
    values: Values, *, measure: str = "the measure", retriever: str = RETRIEVER, seed: int = 0
) -> Verdict:
    """What to do by a measure of the queries, at which budget, and with which gain.

    At each budget retriever, reranking and search count in their better order, with fusion or
    without, and it is tested, with Holm's correction, whether fusion improves reranking, the search
    reranking, and either of them the retriever. The search is advised if it is clearly better than
    reranking and than the retriever, reranking if it is clearly better than the retriever; else the
    retriever, which costs no calls. The budget is the smallest at which what is advised is not
    clearly worse than at the largest. The gain is over reranking without fusion, or its own.

    Args:
        values: By budget and way, each (m,); without the fused ways where there is no fusion.
        measure, retriever: Their names, for the sentence.

    Raises:
        InputError: No query has values.
    """
    claims = {b: _claims(b, values[b], seed) for b in sorted(values)}
    advised = {b: way for b, of in claims.items() if (way := _advised(of)) != of[-1].than}
    last = max(advised or claims)
    best = {b: values[b][way] for b, way in advised.items()}
    enough = (b for b in best if paired(best[b] - best[last], seed=seed).sign >= 0)
    budget = next(enough, last)
    ways, alone = values[budget], claims[budget][-1].than
    way = advised.get(budget, alone)
    than = RETRIEVER if way == RERANK else RERANK
    gain = paired(ways[way] - ways[than], seed=seed)
    names = {w: f"{w} {budget}".replace(f"{FUSED} {budget}", f" {budget}{FUSED}") for w in ways}
    names |= {RETRIEVER: retriever, RETRIEVER + FUSED: "the fused retriever"}
    if way == alone:
        doubts = [c for c in claims[budget] if c.than == way and not c.found.sign]
        more = any(claim.found.difference > 0 for claim in doubts)
        until = f"Keep {names[way]}{' until more queries are judged' * more}"
        said = [until + ": nothing is proven better, and it costs no calls" * bool(doubts)]
    else:
        others = dict.fromkeys([alone, RERANK, *(c.than for c in claims[budget] if c.way == way)])
        gains = {w: paired(ways[way] - ways[w], seed=seed) for w in others if w != way}
        over = [f"{_said(g)}{_doubt(g)} over {names[w]}" for w, g in gains.items()]
        said = [f"{names[way].capitalize()}: {measure} {', '.join(over)}"]
    for claim in claims[budget]:
        one, other, sign = names[claim.way], names[claim.than], claim.found.sign
        if claim.than == way and sign <= 0:
            said.append(_compared(one, claim.found))
        elif way == alone and sign > 0:
            said.append(f"{one} is better than {other}, {_said(claim.found)}")
    unclear = [c.found for c in claims[budget] if c.than == way and not c.found.sign]
    # An interval's half-width falls with 1 / sqrt(n); Holm's correction asks half as many more.
    needed = [1.5 * f.n * (1 - f.low / f.difference) ** 2 for f in unclear if f.difference > 0]
    if needed:
        enough_queries = math.ceil(max(*needed, gain.n + 1) / 10) * 10
        said.append(
            f"if it stays so, about {enough_queries:,} judged queries would tell ({gain.n} now)"
        )
    if gain.n < (fewest := fewest_queries(len(claims[budget]))):
        said.append(f"with {gain.n} queries no difference can be clear: judge {fewest} or more")
    said += _hurting(claims[budget], ways, names)
    return Verdict(
        way=way,
        budget=budget,
        than=than,
        gain=gain,
        claims=tuple(claim for of in claims.values() for claim in of),
        sentence=f"{'; '.join(said)}.",
    )


def _hurting(
    claims: Sequence[Claim], ways: Mapping[str, FloatArray], names: Mapping[str, str]
) -> list[str]:
    """What to do if the cross-encoder's order is worse than the retriever's."""
    reranking = claims[-1]
    if reranking.found.high >= 0:
        return []
    fused = any(FUSED in way for way in ways)
    fusion = "" if fused else ", or let a fusion weigh its scores (crossknn fit INDEX fusion)"
    return [f"this cross-encoder hurts here: answer with {names[reranking.than]} alone{fusion}"]


def _compared(one: str, found: Comparison) -> str:
    """How a way compares with the one that is kept, in words that fit the interval."""
    if found.high < 0:
        doubt = "" if found.sign else f" (p = {found.p_value:.2g})"
        return f"{one} is worse, {_said(found)}{doubt}"
    if found.low > 0:
        return (
            f"{one} looks better, {_said(found)}, but may be so by chance (p = {found.p_value:.2g})"
        )
    if found.low == found.high == 0:  # the interval of no query that differs
        return f"{one} makes no difference, {_said(found)}"
    return f"cannot tell if {one} is better, {_said(found)}"


def _doubt(found: Comparison) -> str:
    """What is to be said of a difference that is not clear."""
    if found.sign:
        return ""
    within = found.low <= 0 <= found.high
    return " (unclear)" if within else f" (unclear, p = {found.p_value:.2g})"


def _claims(budget: int, ways: Mapping[str, FloatArray], seed: int) -> tuple[Claim, ...]:
    """Of a budget; the last three: search and reranking, and each of them and the retriever."""
    kinds = {
        way: [w for w in (way + FUSED, way) if w in ways] for way in (RETRIEVER, RERANK, SEARCH)
    }
    better = (max(of, key=lambda way: float(np.nanmean(ways[way]))) for of in kinds.values())
    alone, rerank, search = better
    fusing = [(way, RERANK) for way in kinds[RERANK] if way != RERANK]
    pairs = [*fusing, (search, rerank), (search, alone), (rerank, alone)]
    found = [paired(ways[one] - ways[other], seed=seed) for one, other in pairs]
    corrected = measures.holm([each.p_value for each in found])
    return tuple(
        Claim(budget=budget, way=one, than=other, found=replace(each, p_value=p))
        for (one, other), each, p in zip(pairs, found, corrected, strict=True)
    )


def _advised(claims: Sequence[Claim]) -> str:
    *_, deeper, searching, reranking = claims
    if deeper.found.sign > 0 and searching.found.sign > 0:
        return searching.way
    return reranking.way if reranking.found.sign > 0 else reranking.than


def _figures(
    budget: int, ways: Mapping[str, Outcome], relevant: Sequence[IntArray] | None, seed: int
) -> Figures:
    first, top = ways[RETRIEVER].items[:, :budget], ways[SEARCH].items[:, :TOP]
    new = [f[(f != NO_ITEM) & ~np.isin(f, seen)] for f, seen in zip(top, first, strict=True)]
    beyond = np.array([len(found) for found in new], np.float64)
    values = {way: values for way, each in ways.items() for values in each.task.values()}
    reach = trust = right = None
    if relevant is not None:
        both = zip(relevant, first, strict=True)
        missed = [1 - np.isin(of, seen).mean() if len(of) else np.nan for of, seen in both]
        reach = bootstrap(np.array(missed), seed=seed)
        trust = paired(values[RERANK] - values[RETRIEVER], seed=seed)
        beyond[np.isnan(values[RETRIEVER])] = np.nan  # an unjudged item is no phantom
        hits = [np.isin(f, of).sum() for f, of in zip(new, relevant, strict=True)]
        right = measures.bootstrap_ratio(np.array(hits), beyond, seed=seed)
    return Figures(
        budget=budget,
        means={way: float(np.nanmean(of)) for way, of in values.items()},
        reach=reach,
        trust=trust,
        agreement=bootstrap(_correlations(first, ways[RERANK].items), seed=seed),
        beyond=bootstrap(beyond, seed=seed),
        relevant=right,
    )


def _correlations(first: IntArray, reranked: IntArray) -> FloatArray:
    """(m,) Spearman's correlation of two orders of the same items; NaN for fewer than two."""
    from scipy.stats import spearmanr

    found = []
    for row, other in zip(first, reranked, strict=True):
        place = {item: rank for rank, item in enumerate(other.tolist()) if item != NO_ITEM}
        ranks = [place[item] for item in row.tolist() if item in place]
        found.append(spearmanr(range(len(ranks)), ranks).statistic if len(ranks) > 1 else np.nan)
    return np.array(found)


def _unjudged(at: Figures, retriever: str) -> str:
    """What can be said without judgements, and what not."""
    return (
        f"On the first {at.budget} items of {retriever}, its rank correlation with the "
        f"cross-encoder is {at.agreement.mean:.2f}, and {at.beyond.mean:.1f} of the "
        f"cross-encoder's top {TOP} lie below them: only judgements (qrels) can tell which of "
        "the two is right, and so whether reranking or searching deeper helps."
    )


def _said(found: Comparison) -> str:
    return f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _shown(found: Estimate | None, form: str) -> str:
    if found is None or not found.n:
        return "-"
    return f"{found.mean:{form}} [{found.low:{form}}-{found.high:{form}}]"
