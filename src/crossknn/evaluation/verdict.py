"""The verdict on judged queries: keep the retriever, rerank its items, or search deeper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from crossknn.evaluation.measures import Comparison, fewest_queries, holm, paired
from crossknn.types import FloatArray


@dataclass(frozen=True, slots=True)
class Way:
    """A way to answer a query: by the retriever alone, by reranking its items, or by searching;
    `fused` orders the answer by the final instead of the exact score."""

    kind: Literal["retriever", "rerank", "search"]
    fused: bool = False

    def __str__(self) -> str:
        return f"{self.kind} fused" if self.fused else self.kind

    def name(self, budget: int, retriever: str) -> str:
        """Return its name in sentences, such as `rerank 50 fused`."""
        if self.kind == "retriever":
            return "the fused retriever" if self.fused else retriever
        return f"{self.kind} {budget} fused" if self.fused else f"{self.kind} {budget}"


RETRIEVER, RERANK, SEARCH = Way("retriever"), Way("rerank"), Way("search")

Values: TypeAlias = Mapping[int, Mapping[Way, FloatArray]]
"""Values of a measure for every query (m,) by budget and way, NaN if undefined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The claim that `way` is better than `than` at a budget; it is clear if `difference.sign` is
    1. The p-value of the difference is corrected (Holm) for all claims at this budget."""

    budget: int
    way: Way
    than: Way
    difference: Comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The recommended way to answer and its budget per query, with the gain over the way `than`,
    all tested claims, and the recommendation as a sentence."""

    way: Way
    budget: int
    than: Way
    gain: Comparison
    claims: tuple[Claim, ...]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, without the claims."""
        return {
            "way": str(self.way),
            "budget": self.budget,
            "than": str(self.than),
            "gain": asdict(self.gain),
            "sentence": self.sentence,
        }


def verdict_of(
    values: Values, *, measure: str = "the measure", retriever: str = "retriever", seed: int = 0
) -> Verdict:
    """Recommend a way to answer and a budget, from the queries' values of a measure.

    At each budget the retriever, reranking and the search each use their better order, with or
    without fusion. The search is recommended if it is clearly better than reranking and than the
    retriever; reranking if it is clearly better than the retriever; otherwise the retriever. The
    budget is the smallest at which the recommended way is not clearly worse than at the largest.
    The gain is over reranking without fusion or, if that is recommended, over the retriever.
    """
    claims = {b: _claims(b, values[b], seed) for b in sorted(values)}
    advised = {b: way for b, of in claims.items() if (way := _advised(of)).kind != "retriever"}
    largest = max(advised or claims)
    best = {b: values[b][way] for b, way in advised.items()}
    enough = (b for b in best if paired(best[b] - best[largest], seed=seed).sign >= 0)
    budget = next(enough, largest)
    tested, at = claims[budget], values[budget]
    way = advised.get(budget, tested[-1].than)
    than = RETRIEVER if way == RERANK else RERANK
    names = {w: w.name(budget, retriever) for w in at}
    if way.kind == "retriever":
        unclear = _unclear(way, tested)
        until = " until more queries are judged" if any(d.difference > 0 for d in unclear) else ""
        why = ": nothing is proven better, and it costs no calls" if unclear else ""
        clauses = [f"Keep {names[way]}{until}{why}"]
    else:
        others = dict.fromkeys([tested[-1].than, RERANK, *(c.than for c in tested if c.way == way)])
        gains = {w: paired(at[way] - at[w], seed=seed) for w in others if w != way}
        over = [f"{gain}{doubt(gain)} over {names[w]}" for w, gain in gains.items()]
        clauses = [f"{names[way].capitalize()}: {measure} {', '.join(over)}"]
    gain = paired(at[way] - at[than], seed=seed)
    clauses += _comparisons(way, tested, names) + _more_queries(way, tested, gain.n)
    if tested[-1].difference.high < 0:
        fusion = ", or let a fusion weigh its scores (crossknn fit INDEX fusion)"
        fusion = "" if any(w.fused for w in at) else fusion
        alone = names[tested[-1].than]
        clauses.append(f"this cross-encoder hurts here: answer with {alone} alone{fusion}")
    return Verdict(
        way=way,
        budget=budget,
        than=than,
        gain=gain,
        claims=tuple(claim for of in claims.values() for claim in of),
        sentence=f"{'; '.join(clauses)}.",
    )


def _claims(budget: int, values: Mapping[Way, FloatArray], seed: int) -> tuple[Claim, ...]:
    """Test the claims at a budget; the last three compare search with reranking, and each with the
    retriever."""

    def better(way: Way) -> Way:
        orders = [w for w in (replace(way, fused=True), way) if w in values]
        return max(orders, key=lambda w: float(np.nanmean(values[w])))

    alone, rerank, search = map(better, (RETRIEVER, RERANK, SEARCH))
    pairs = [(search, rerank), (search, alone), (rerank, alone)]
    if (fused := replace(RERANK, fused=True)) in values:
        pairs.insert(0, (fused, RERANK))
    differences = [paired(values[one] - values[other], seed=seed) for one, other in pairs]
    corrected = holm([each.p_value for each in differences])
    return tuple(
        Claim(budget=budget, way=one, than=other, difference=replace(each, p_value=p))
        for (one, other), each, p in zip(pairs, differences, corrected, strict=True)
    )


def _advised(claims: Sequence[Claim]) -> Way:
    *_, deeper, searching, reranking = claims
    if deeper.difference.sign > 0 and searching.difference.sign > 0:
        return searching.way
    return reranking.way if reranking.difference.sign > 0 else reranking.than


def _unclear(way: Way, claims: Sequence[Claim]) -> list[Comparison]:
    return [c.difference for c in claims if c.than == way and not c.difference.sign]


def _comparisons(way: Way, claims: Sequence[Claim], names: Mapping[Way, str]) -> list[str]:
    """Describe how the other ways compare with the recommended one, and with each other."""
    clauses = []
    for claim in claims:
        one, difference = names[claim.way], claim.difference
        if claim.than == way and difference.sign <= 0:
            clauses.append(_compared(one, difference))
        elif way == claims[-1].than and difference.sign > 0:
            clauses.append(f"{one} is better than {names[claim.than]}, {difference}")
    return clauses


def _more_queries(way: Way, claims: Sequence[Claim], n: int) -> list[str]:
    """Estimate how many judged queries would decide the comparisons that `n` queries leave open."""
    clauses = []
    # An interval's half-width falls with 1 / sqrt(n); Holm's correction needs 1.5 times as many.
    needed = [
        1.5 * d.n * (1 - d.low / d.difference) ** 2
        for d in _unclear(way, claims)
        if d.difference > 0
    ]
    if needed:
        enough = math.ceil(max(*needed, n + 1) / 10) * 10
        clauses.append(f"if this goes on, about {enough:,} judged queries will decide ({n} now)")
    if n < (fewest := fewest_queries(len(claims))):
        clauses.append(f"with {n} queries no difference can be clear: judge {fewest} or more")
    return clauses


def _compared(one: str, difference: Comparison) -> str:
    """Describe how a way compares with the recommended one, in words that match the interval."""
    p = f"(p = {difference.p_value:.2g})"
    if difference.high < 0:
        return f"{one} is worse, {difference}" + ("" if difference.sign else f" {p}")
    if difference.low > 0:
        return f"{one} looks better, {difference}, but may be so by chance {p}"
    if difference.low == difference.high == 0:  # the interval if no query differs
        return f"{one} makes no difference, {difference}"
    return f"cannot tell if {one} is better, {difference}"


def doubt(difference: Comparison) -> str:
    """Return the remark on a difference that is not clear; nothing if it is clear."""
    if difference.sign:
        return ""
    within = difference.low <= 0 <= difference.high
    return " (unclear)" if within else f" (unclear, p = {difference.p_value:.2g})"
