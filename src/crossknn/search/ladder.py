"""Execute searches, one after the other with several scorers: an expensive scorer goes on from what
a cheaper one found. Axes: m queries, n items.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from crossknn.data.queries import query_set
from crossknn.errors import InputError, ScorerError, counted
from crossknn.linalg import one_thread
from crossknn.scorers.base import Scorer
from crossknn.search.loop import SearchRetriever
from crossknn.search.results import Results, merged
from crossknn.search.run import FailurePolicy, SearchRequest, SearchRun
from crossknn.types import Candidates, IntArray, Pairs

logger = logging.getLogger(__name__)

TIMES, FEWEST, MOST = 10, 100, 400
"""Without a budget of its own, a cheaper scorer scores ten pairs for each pair of the next scorer,
at least 100 and at most 400."""


def budgets(given: tuple[int, ...], n_scorers: int) -> tuple[int, ...]:
    """Return the budget of each scorer, cheapest first, given that of the last one or of all;
    InputError for another number of budgets.

    >>> budgets((20,), 2), budgets((20,), 3), budgets((50, 5), 2)
    ((200, 20), (400, 200, 20), (50, 5))
    """
    if len(given) == 1:
        for _ in range(n_scorers - 1):
            given = (min(max(TIMES * given[0], FEWEST), MOST), *given)
    if len(given) != n_scorers:
        both = counted(len(given), "budget"), counted(n_scorers, "scorer")
        raise InputError("there are {} for {}: give one for each".format(*both))
    return given


CHEAPER_SHARE = 0.3
"""Share of a budget in seconds or money that each cheaper scorer may take, up to `MOST` pairs."""
CHEAPER_TIME = 0.5
"""Share of the time before the deadline that a search with a cheaper scorer may take."""
CALLS_TO_COMPARE = 20
"""Number of calls of each scorer from which their speed is compared."""
PROBES, UNKNOWN = 4, 20
"""Number of pairs that are scored to measure a scorer, and the budget of one of unknown speed."""
PROBE_TIME = 0.2
"""Share of a budget of seconds that measuring a scorer may take."""


class Rate(NamedTuple):
    """Seconds of a scorer for a pair, NaN if unknown; money for a pair, None without a price; and
    the number of pairs that were scored to measure both."""

    name: str
    seconds: float
    cost: float | None
    calls: int = 0


def rate_of(scorer: Scorer, queries: Sequence[str], items: Sequence[str], **limits: Any) -> Rate:
    """Measure a scorer on a few pairs, which its store keeps; `limits` as in `Scorer.score`."""
    name, rng = str(scorer.fingerprint or type(scorer).__name__), np.random.default_rng(0)
    before, seconds, calls = getattr(scorer, "spent", None), math.nan, 0
    model = getattr(scorer, "scorer", scorer)
    try:  # a model is opened by a first pair, an endpoint is not
        for count in (PROBES,) if getattr(model, "per_request", None) else (1, PROBES):
            began, drawn = time.perf_counter(), rng.integers(len(items), size=count)
            pairs = Pairs(np.arange(count) % len(queries), drawn)
            stream, scored = scorer.score(pairs, queries, items, **limits), 0
            for places, _ in stream:
                scored += len(places)
            computed = int(getattr(stream, "computed", scored))
            calls += computed
            seconds = (time.perf_counter() - began) / computed if computed else math.nan
    except Exception as error:  # whatever the scorer raises: the search meets it again
        logger.warning("the speed of %s could not be measured: %s", name, error)
    spent = None if before is None else getattr(scorer, "spent", before) - before
    return Rate(name, seconds, None if spent is None or not calls else spent / calls, calls)


def with_probes(results: Results, rates: Sequence[Rate]) -> Results:
    """Add the calls for measuring the scorers, and their money, to results."""
    *below, own = rates
    cost = results.cost if own.cost is None else (results.cost or 0.0) + own.cost * own.calls
    cheaper = results.cheaper and with_probes(results.cheaper, below)
    return replace(results, n_calls=results.n_calls + own.calls, cost=cost, cheaper=cheaper)


def affordable(
    rates: Sequence[Rate], budget: float, n: int, *, of_time: bool, share: float = CHEAPER_SHARE
) -> tuple[int, ...]:
    """Return how many of n items each scorer scores within a budget of seconds or money. A cheaper
    scorer takes at most this share of what is left, for at most 400 pairs; if its pairs cost
    nothing, it scores as many as `budgets` says.

    >>> rates = Rate("small", 0.001, None), Rate("large", 0.1, 0.002)
    >>> affordable(rates, 2.0, 1000, of_time=True), affordable(rates, 0.05, 1000, of_time=False)
    ((400, 16), (250, 25))
    """
    last = rates[-1]
    if not of_time and not last.cost:
        what = "no price is known" if last.cost is None else "the price is 0, or tokens unknown"
        raise InputError(f"{last.name}: {what}; give one (price=), or a budget of pairs or seconds")
    calls, left = list[int | None](), budget
    for rate in rates[:-1]:
        unit = (rate.seconds if of_time else rate.cost) or math.nan
        count = None if math.isnan(unit) else min(MOST, int(share * left / unit))
        calls.append(count)
        left -= (count or 0) * (0.0 if count is None else unit)
    unit = max(last.seconds if of_time else last.cost or 0.0, 1e-9)
    own = UNKNOWN if math.isnan(last.seconds) and of_time else int(min(left / unit, n))
    if own < 1:
        kind = "takes {:.2g} seconds" if of_time else "costs {:.2g}"
        logger.warning(
            "one pair of %s %s, more than the budget of %g: one is scored anyway, if in time",
            *(last.name, kind.format(unit), budget),
        )
    usual = budgets((max(own, 1),), len(rates))
    found = (u if c is None else c for c, u in zip([*calls, None], usual, strict=True))
    return tuple(min(max(count, 1), n) for count in found)


def execute(request: SearchRequest) -> Results:
    """Execute a request, with as many queries in a batch as memory and the deadline allow.

    Raises the first error of the scorer or a store if no pair could be scored.
    """
    began, policy, answers = time.perf_counter(), FailurePolicy(request), list[Results]()
    progress, done, total = request.progress, 0, 0

    def scored(pairs: int) -> None:
        nonlocal done
        done += pairs
        if progress is not None:
            progress(done, total)

    request = _after_cheaper(replace(request, scored=scored), policy)
    if progress is not None:
        total = len(request.queries) * _most_pairs(request)
    starts, run = [*request.starts(), len(request.queries)], None
    for number, (start, stop) in enumerate(pairwise(starts), start=1):
        run = SearchRun(request, policy, range(start, stop), len(starts) - number, run)
        answers.append(run.results())
    results, error = merged(answers), policy.first_error
    forgiven = request.fallback and isinstance(error, ScorerError)
    if results.cheaper is not None and request.min_score is None:
        forgiven |= results.cheaper.n_scored > 0
    if error is not None and not results.n_scored and not forgiven:
        raise error
    if request.found is not None:
        _check_rungs(request, results)
    return replace(results, seconds=time.perf_counter() - began)


def _most_pairs(request: SearchRequest) -> int:
    """Return how many pairs of a query this search and those before it score at most."""
    mask = request.equal_texts.left_out(request.index.n, request.allowed)
    available = request.index.n if mask is None else int(mask.sum())
    own, below = sum(request.plan.batches), request.cheaper
    budgets = [own]
    while below is not None:
        budgets.append(below.pairs)
        below = below.cheaper
    return sum(min(budget, available) for budget in budgets)


def _check_rungs(request: SearchRequest, results: Results) -> None:
    """Warn once if the method does not use the cheaper scorer, or if that scorer is slower than the
    next one, which costs no money."""
    below, message = results.cheaper, ""
    if below is None and results.stopped_by == "budget":
        message = f"{request.method} does not use the cheaper scorer: name the retriever 'search'"
    elif below is not None and min(below.n_calls, results.n_calls) >= CALLS_TO_COMPARE:
        speeds = [each.n_calls / each.scoring_seconds for each in (below, results)]
        if speeds[0] < speeds[1] and results.cost is None:
            name = getattr(request.scorer, "fingerprint", None) or "the last scorer"
            message = f"the cheaper scorer is slower than {name}: try without it"
    if message:
        _warn_once(message)


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _after_cheaper(request: SearchRequest, policy: FailurePolicy) -> SearchRequest:
    """Let a request begin with the search with the cheaper scorer, if there is one."""
    cheaper = request.cheaper
    if cheaper is None:
        return request
    search = partial(searched, cheaper, request, policy)
    found = SearchRetriever(search, request.index.n, cheaper.rung)
    return replace(request, index=request.index.after_search(found), found=found)


def searched(
    cheaper: SearchRequest, then: SearchRequest, policy: FailurePolicy, texts: Sequence[str]
) -> tuple[Candidates, IntArray, Results]:
    """Search for the texts (m,) with the cheaper scorer, before the search `then`, whose policy
    gives the time that is left. If the scorer fails, the first stage answers."""
    began, deadline = time.perf_counter(), None
    if policy.deadline.limited:
        deadline = max(CHEAPER_TIME * policy.deadline.left(), 1e-3)
    how: dict[str, Any] = {"deadline": deadline, "cancel": then.cancel, "scored": then.scored}
    request = replace(cheaper, queries=query_set(list(texts)), **how)
    own = FailurePolicy(request)
    run = SearchRun(_after_cheaper(request, own), own, range(len(texts)), 1, None)
    results = replace(run.results(), seconds=time.perf_counter() - began)
    if own.first_error is not None:
        logger.warning("the cheaper scorer failed, but the search goes on: %s", own.first_error)
    with one_thread(run.cells):
        return run.search.ranked(), run.search.picks().items, results
