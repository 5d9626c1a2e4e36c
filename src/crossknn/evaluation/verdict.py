"""The verdict on a set of judged queries: keep the retriever, rerank its items, or search deeper.

    verdict = verdict_of({50: {Way("retriever"): ..., Way("rerank"): ..., Way("search"): ...}})

At each budget the three kinds are compared in pairs. The verdict recommends the way that is clearly
better than the cheaper ones, at the smallest budget that is not clearly worse than the largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from crossknn.evaluation.measures import Comparison, fewest_queries, holm, paired
from crossknn.types import FloatArray

Kind: TypeAlias = Literal["retriever", "rerank", "search"]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to answer a query: by the retriever alone, by reranking its items, or by searching;
    `fused` orders the answer by the final instead of the exact score."""

    kind: Kind
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
    """The claim that one way is better than another at a budget; it is clear if `difference.sign`
    is 1.

    Attributes:
        budget: Calls per query.
        way: The way claimed to be better.
        than: The way it is compared with.
        difference: The difference in the measure; its p-value is corrected (Holm) for all claims at
            this budget.
    """

    budget: int
    way: Way
    than: Way
    difference: Comparison

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        ways = {"way": str(self.way), "than": str(self.than)}
        return {"budget": self.budget, **ways, "difference": asdict(self.difference)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The recommendation, by a measure.

    Attributes:
        way: The recommended way.
        budget: Its calls per query.
        than: The way over which the gain is measured.
        gain: The difference in the measure.
        claims: All tested claims, at every budget.
        sentence: The recommendation as a sentence.
    """

    way: Way
    budget: int
    than: Way
    gain: Comparison
    claims: tuple[Claim, ...]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "way": str(self.way),
            "budget": self.budget,
            "than": str(self.than),
            "gain": asdict(self.gain),
            "claims": [claim.as_dict() for claim in self.claims],
            "sentence": self.sentence,
        }


def verdict_of(
    values: Values, *, measure: str = "the measure", retriever: str = "retriever", seed: int = 0
) -> Verdict:
    """Recommend a way and a budget from a measure of the queries, with its gain.

    At each budget retriever, reranking and search are each represented by their better order, with
    or without fusion. Tests, with Holm's correction, decide whether fusion improves reranking,
    whether the search improves on reranking, and whether either improves on the retriever. The
    search is recommended if it is clearly better than reranking and than the retriever; reranking
    if it is clearly better than the retriever; otherwise the retriever, which scores no pairs. The
    budget is the smallest at which the recommended way is not clearly worse than at the largest.
    The gain is over reranking without fusion, or over the retriever.

    Args:
        values: By budget and way, each (m,); without the fused ways where there is no fusion.
        measure, retriever: Their names, for the sentence.
        seed: Draws the resamples of the intervals and the signs of the tests.

    Raises:
        InputError: No query has values.
    """
    claims = {b: _claims(b, values[b], seed) for b in sorted(values)}
    advised = {b: way for b, of in claims.items() if (way := _advised(of)) != of[-1].than}
    largest = max(advised or claims)
    best = {b: values[b][way] for b, way in advised.items()}
    enough = (b for b in best if paired(best[b] - best[largest], seed=seed).sign >= 0)
    budget = next(enough, largest)
    way = advised.get(budget, claims[budget][-1].than)
    than = RETRIEVER if way == RERANK else RERANK
    gain = paired(values[budget][way] - values[budget][than], seed=seed)
    names = {w: w.name(budget, retriever) for w in values[budget]}
    said = [
        _advice(way, claims[budget], values[budget], names, measure, seed),
        *_comparisons(way, claims[budget], names),
        *_more_queries(way, claims[budget], gain.n),
        *_harm(claims[budget], names),
    ]
    return Verdict(
        way=way,
        budget=budget,
        than=than,
        gain=gain,
        claims=tuple(claim for of in claims.values() for claim in of),
        sentence=f"{'; '.join(said)}.",
    )


def _claims(budget: int, values: Mapping[Way, FloatArray], seed: int) -> tuple[Claim, ...]:
    """Test the claims at a budget; the last three compare search with reranking, and each with the
    retriever."""

    def better(way: Way) -> Way:
        """Return the better of a way's two orders; the fused one if they are equal."""
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


def _advice(
    way: Way,
    claims: Sequence[Claim],
    values: Mapping[Way, FloatArray],
    names: Mapping[Way, str],
    measure: str,
    seed: int,
) -> str:
    """State the recommendation, with its gains over the other ways."""
    alone = claims[-1].than
    if way == alone:
        unclear = [c.difference for c in claims if c.than == way and not c.difference.sign]
        until = " until more queries are judged" if any(d.difference > 0 for d in unclear) else ""
        why = ": nothing is proven better, and it costs no calls" if unclear else ""
        return f"Keep {names[way]}{until}{why}"
    others = dict.fromkeys([alone, RERANK, *(c.than for c in claims if c.way == way)])
    gains = {w: paired(values[way] - values[w], seed=seed) for w in others if w != way}
    over = [f"{in_words(g)}{_doubt(g)} over {names[w]}" for w, g in gains.items()]
    return f"{names[way].capitalize()}: {measure} {', '.join(over)}"


def _comparisons(way: Way, claims: Sequence[Claim], names: Mapping[Way, str]) -> list[str]:
    """Describe how the other ways compare with the recommended one, and with each other."""
    said = []
    for claim in claims:
        one, other = names[claim.way], names[claim.than]
        sign = claim.difference.sign
        if claim.than == way and sign <= 0:
            said.append(_compared(one, claim.difference))
        elif way == claims[-1].than and sign > 0:
            said.append(f"{one} is better than {other}, {in_words(claim.difference)}")
    return said


def _more_queries(way: Way, claims: Sequence[Claim], n: int) -> list[str]:
    """Estimate how many judged queries would decide what `n` of them leave open."""
    said = []
    unclear = [c.difference for c in claims if c.than == way and not c.difference.sign]
    # An interval's half-width falls with 1 / sqrt(n); Holm's correction asks half as many more.
    needed = [1.5 * d.n * (1 - d.low / d.difference) ** 2 for d in unclear if d.difference > 0]
    if needed:
        enough = math.ceil(max(*needed, n + 1) / 10) * 10
        said.append(f"if it stays so, about {enough:,} judged queries would tell ({n} now)")
    if n < (fewest := fewest_queries(len(claims))):
        said.append(f"with {n} queries no difference can be clear: judge {fewest} or more")
    return said


def _harm(claims: Sequence[Claim], names: Mapping[Way, str]) -> list[str]:
    """Advise what to do if the cross-encoder's order is worse than the retriever's."""
    reranking = claims[-1]
    if reranking.difference.high >= 0:
        return []
    weighed = any(way.fused for way in names)
    fusion = "" if weighed else ", or let a fusion weigh its scores (crossknn fit INDEX fusion)"
    return [f"this cross-encoder hurts here: answer with {names[reranking.than]} alone{fusion}"]


def _compared(one: str, found: Comparison) -> str:
    """Describe how a way compares with the recommended one, in words that match the interval."""
    if found.high < 0:
        doubt = "" if found.sign else f" (p = {found.p_value:.2g})"
        return f"{one} is worse, {in_words(found)}{doubt}"
    if found.low > 0:
        chance = f"but may be so by chance (p = {found.p_value:.2g})"
        return f"{one} looks better, {in_words(found)}, {chance}"
    if found.low == found.high == 0:  # the interval of no query that differs
        return f"{one} makes no difference, {in_words(found)}"
    return f"cannot tell if {one} is better, {in_words(found)}"


def _doubt(found: Comparison) -> str:
    """Describe the uncertainty of a difference that is not clear."""
    if found.sign:
        return ""
    within = found.low <= 0 <= found.high
    return " (unclear)" if within else f" (unclear, p = {found.p_value:.2g})"


def in_words(found: Comparison) -> str:
    """Format a difference with its interval: `+0.041 [+0.012, +0.070]`."""
    return f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
