"""The verdict on judged queries: keep the retriever, rerank its items, or search deeper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from crossknn.errors import counted
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

    def name(self, budget: int) -> str:
        """Return its name in sentences, such as `search with 50 calls (fused)`."""
        name = f"search with {counted(budget, 'call')}"
        if self.kind != "search":
            name = f"reranking {budget}" if self.kind == "rerank" else "the first stage alone"
        return f"{name} (fused)" if self.fused else name


RETRIEVER, RERANK, SEARCH = Way("retriever"), Way("rerank"), Way("search")

Decision: TypeAlias = Literal["search", "rerank", "keep", "undecided"]

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
    all tested claims, and the recommendation in sentences.

    If neither reranking nor the search is recommended, `way` is the retriever, which makes no
    calls, and `budget` the one with the highest gain over it.
    """

    decision: Decision
    way: Way
    budget: int
    than: Way
    gain: Comparison
    claims: tuple[Claim, ...]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, without the claims."""
        return {
            "decision": self.decision,
            "way": str(self.way),
            "budget": self.budget,
            "than": str(self.than),
            "gain": asdict(self.gain),
            "sentence": self.sentence,
        }


def verdict_of(values: Values, *, measure: str = "the measure", seed: int = 0) -> Verdict:
    """Recommend a way to answer and a budget, from the queries' values of a measure.

    At each budget the retriever, reranking and the search each use their better order, with or
    without fusion. The search is recommended if it is clearly better than reranking and than the
    retriever; reranking if it is clearly better than the retriever. The budget is the smallest at
    which the recommended way is not clearly worse than at the largest. If neither is recommended,
    the retriever is kept where no other way has a higher mean; else the verdict is undecided.
    The gain is over reranking without fusion or, if that is recommended, over the retriever.
    """
    claims = {b: _claims(b, values[b], seed) for b in sorted(values)}
    every = [claim for of in claims.values() for claim in of]
    gains = [claim.difference for claim in every if claim.than.kind == "retriever"]
    advised = {b: way for b, of in claims.items() if (way := _advised(of)).kind != "retriever"}
    budget = max(claims, key=lambda b: max(c.difference.difference for c in claims[b][-2:]))
    decision: Decision = "undecided"
    if advised:
        best = {b: values[b][way] for b, way in advised.items()}
        equal = (b for b in best if paired(best[b] - best[max(best)], seed=seed).sign >= 0)
        budget = next(equal, max(best))
        decision = "search" if advised[budget].kind == "search" else "rerank"
    tested, at = claims[budget], values[budget]
    enough = gains[0].n >= fewest_queries(len(tested))
    if not advised and enough and max(gain.difference for gain in gains) <= 0:
        decision = "keep"
    way = advised.get(budget, tested[-1].than)
    than = RETRIEVER if way == RERANK else RERANK
    sentences = [_reason(decision, tested, gains), _numbers(decision, tested, measure)]
    above = any(claim.difference.low > 0 and not claim.difference.sign for claim in every)
    if above and enough and decision != "search":
        chance = "An interval above zero does not decide while p, corrected for the {} comparisons"
        sentences.append(f"{chance.format(len(tested))} at a budget, exceeds 0.05.")
    return Verdict(
        decision=decision,
        way=way,
        budget=budget,
        than=than,
        gain=paired(at[way] - at[than], seed=seed),
        claims=tuple(every),
        sentence=" ".join(sentences),
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


def _reason(decision: Decision, claims: Sequence[Claim], gains: Sequence[Comparison]) -> str:
    """State the decision, how many queries were judged, and why, or how many are needed."""
    deeper, searching, reranking = tests = [claim.difference for claim in claims[-3:]]
    search, rerank = (claim.way.name(claim.budget) for claim in claims[-2:])
    n, fewest, alone = reranking.n, fewest_queries(len(claims)), claims[-1].than.name(0)
    show = f"{n:,} judged queries show that"
    needed = [0 if test.sign > 0 else test.needed(len(claims)) for test in tests]
    if decision == "search":
        return f"S{search[1:]}: {show} it is better than {alone} and than {rerank}."
    if decision == "rerank":
        also = f" and than {search}" if deeper.sign < 0 else ""
        if deeper.sign == 0 < deeper.difference:
            also = f"; {_about(needed[0], n)} would show whether search is better still"
        return f"Rerank{rerank.removeprefix('reranking')}: {show} it is better than {alone}{also}."
    if decision == "keep":
        why = f"on {n:,} judged queries, neither search nor reranking is better"
        if all(gain.sign < 0 for gain in gains):
            fused = any(claim.way.fused for claim in claims)
            why = f"{show} search and reranking are worse"
            why += "" if fused else "; fusion may help (crossknn fit INDEX fusion)"
        return f"Keep {alone.replace(' alone', '')}: {why}."
    why = f"; with fewer than {fewest}, any difference can be chance" if n < fewest else ""
    if searching.sign > 0:
        why = "; search is clearly better than the first stage alone, but not than reranking"
    least = min(max(needed[:2]), needed[2])  # for the search, two claims must be clear
    enough = _about(fewest if least == math.inf else least, n)
    return f"Undecided: {n:,} queries judged, {enough} needed{why}."


def _about(needed: float, n: int) -> str:
    """Write how many queries are needed, more than `n`; an estimate beyond 100 `n` means little."""
    if needed > 100 * n:
        return f"more than {100 * n:,}"
    step = max(10, 10 ** (len(str(math.ceil(needed))) - 2))
    return f"about {math.ceil(max(needed, n + 1) / step) * step:,}"


def _numbers(decision: Decision, claims: Sequence[Claim], measure: str) -> str:
    """State the mean gains over the retriever; the recommended or else the better way is first."""
    ways = sorted(claims[-2:], key=lambda c: (c.way.kind != decision, -c.difference.difference))
    one, other = (claim.way.name(claim.budget) for claim in ways)
    gain, its = (f"{claim.difference.difference:+z.3f}" for claim in ways)
    lead = "So far" if decision == "undecided" else "On average"
    over = f"{'against' if gain[0] == '-' else 'over'} {ways[0].than.name(0)}"
    return f"{lead}, {one}: {gain} {measure} {over}; {other}: {'the same' if its == gain else its}."


def doubt(difference: Comparison) -> str:
    """Return the remark on a difference that is not clear, and why; nothing if it is clear."""
    few = difference.n < (fewest := fewest_queries())
    why = f"fewer than {fewest} queries" if few else f"p = {difference.p_value:.2g}"
    within = difference.low <= 0 <= difference.high
    clear = difference.sign or difference.low == difference.high == 0  # or no query differs
    return "" if clear else " (unclear)" if within else f" (unclear: {why})"
