"""Execute searches, one after the other with several scorers: an expensive scorer goes on from what
a cheaper one found. Axes: m queries, n items.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from crossknn.data.queries import query_set
from crossknn.errors import InputError, ScorerError
from crossknn.linalg import one_thread
from crossknn.scorers.base import Scorer
from crossknn.search.loop import SearchRetriever
from crossknn.search.request import SearchRequest
from crossknn.search.results import Results, merged
from crossknn.search.run import FailurePolicy, SearchRun
from crossknn.types import Candidates, Pairs, Progress

logger = logging.getLogger(__name__)

MOST = 400
"""Maximum number of pairs that a cheaper scorer scores without a budget of its own."""
CHEAPER_SHARE = 0.15
"""Share of a budget in seconds or money that each cheaper scorer may take."""
CHEAPER_TIME = 0.5
"""Share of the time before the deadline that a search with a cheaper scorer may take."""
PROBE_TIME = 0.2
"""Share of a budget of seconds that measuring the scorers may take."""
CALLS_TO_COMPARE = 20
"""Number of calls of each scorer from which their speed is compared."""
PROBES, TRIES, UNKNOWN = 4, 20, 20
"""Pairs that measure a scorer, tries if they are stored, and its budget if it has no speed."""


class Rate(NamedTuple):
    """Seconds and money of a scorer for a pair, None if unknown, and the number of pairs that were
    scored to measure them."""

    name: str
    seconds: float | None
    cost: float | None
    calls: int = 0


def rate_of(scorer: Scorer, queries: Sequence[str], items: Sequence[str], **limits: Any) -> Rate:
    """Measure a scorer on a few pairs, which its store keeps; `limits` as in `Scorer.score`."""
    name, rng = str(scorer.fingerprint or type(scorer).__name__), np.random.default_rng(0)
    before, seconds, calls = getattr(scorer, "spent", None), None, 0
    try:
        for count in (1, *[PROBES] * TRIES):  # the first pair may open a model
            began, drawn = time.perf_counter(), rng.integers(len(items), size=count)
            pairs = Pairs(np.arange(count) % len(queries), drawn)
            stream, is_open = scorer.score(pairs, queries, items, **limits), calls > 0
            scored = sum(len(places) for places, _ in stream)
            # Stored scores say nothing about the scorer.
            if computed := int(getattr(stream, "computed", scored)):
                seconds = (time.perf_counter() - began) / computed
            calls += computed
            if not scored or (computed and is_open):
                break
    except Exception as error:  # whatever the scorer raises: the search meets it again
        logger.warning("the speed of %s could not be measured: %s", name, error)
    after = getattr(scorer, "spent", None)
    cost = None if before is None or after is None or not calls else (after - before) / calls
    return Rate(name, seconds, cost, calls)


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
    scorer takes at most this share of what is left, for at most 400 pairs.

    >>> rates = Rate("small", 0.001, None), Rate("large", 0.1, 0.002)
    >>> affordable(rates, 2.0, 1000, of_time=True), affordable(rates, 0.05, 1000, of_time=False)
    ((300, 17), (400, 25))
    """
    last, calls = rates[-1], list[int]()
    if not of_time and not last.cost:
        what = "0" if last.cost is not None else "unknown: it has no price, or counts no tokens"
        raise InputError(f"the cost of {last.name} is {what}; give a budget of pairs or seconds")
    left, (*cheaper, own) = budget, [each.seconds if of_time else each.cost for each in rates]
    for unit in cheaper:  # None or 0 if the pairs cost nothing
        calls.append(int(min(MOST, share * left / unit)) if unit else MOST)
        left -= calls[-1] * (unit or 0.0)
    calls.append(int(min(left / own + 1e-9, n)) if own else UNKNOWN)
    if not calls[-1]:
        kind = "takes {:.2g} seconds" if of_time else "costs {:.2g}"
        logger.warning(
            "one pair of %s %s, more than the %g that are left: one is scored anyway, if in time",
            *(last.name, kind.format(own), budget),
        )
    return tuple(min(max(count, 1), n) for count in calls)


def execute(request: SearchRequest, progress: Progress | None = None) -> Results:
    """Execute a request, with as many queries in a batch as memory and the deadline allow.

    Raises the first error of the scorer or a store if no pair could be scored.
    """
    began, policy, answers = time.perf_counter(), FailurePolicy(request), list[Results]()
    done, total = 0, len(request.queries) * (_most_pairs(request) if progress else 0)

    def scored(pairs: int) -> None:
        nonlocal done
        done += pairs
        if progress is not None:
            progress(done, total)

    request = _after_cheaper(replace(request, scored=scored), policy)
    starts = [*request.starts(), len(request.queries)]
    for number, (start, stop) in enumerate(pairwise(starts), start=1):
        run = SearchRun(request, policy, range(start, stop), len(starts) - number)
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
    own = min(request.pairs, available) if request.method.bounded else available
    return own if request.cheaper is None else own + _most_pairs(request.cheaper)


def _check_rungs(request: SearchRequest, results: Results) -> None:
    """Warn once if the method does not use the cheaper scorer, or if that scorer is less than half
    as fast as the next one, which costs no money."""
    below = results.cheaper
    if below is None and results.stopped_by == "budget":
        _warn_once(f"{request.method} does not use the cheaper scorer: name the retriever 'search'")
    elif below is not None and min(below.n_calls, results.n_calls) >= CALLS_TO_COMPARE:
        speeds = [each.n_calls / each.scoring_seconds for each in (below, results)]
        if 2 * speeds[0] < speeds[1] and results.cost is None:
            name = getattr(request.scorer, "fingerprint", None) or "the next one"
            _warn_once(f"the cheaper scorer is slower than {name}: try without it")


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _after_cheaper(request: SearchRequest, policy: FailurePolicy) -> SearchRequest:
    """Let a request begin with the search with the cheaper scorer, if there is one."""

    def limits() -> dict[str, Any]:
        left = policy.deadline.left() if policy.deadline.limited else None
        deadline = None if left is None else max(CHEAPER_TIME * left, 1e-3)
        return {"deadline": deadline, "cancel": request.cancel, "scored": request.scored}

    if request.cheaper is None:
        return request
    found = as_retriever(request.cheaper, limits)
    return replace(request, index=request.index.after_search(found), found=found)


def as_retriever(
    request: SearchRequest, limits: Callable[[], dict[str, Any]] = dict
) -> SearchRetriever:
    """Make a retriever that executes a request for other queries; `limits` gives its fields that
    limit a search when it begins. If the scorer fails, the first stage answers."""

    def search(texts: Sequence[str]) -> tuple[Candidates, Results]:
        began = time.perf_counter()
        own = replace(request, queries=query_set(list(texts)), **limits())
        policy = FailurePolicy(own)
        run = SearchRun(_after_cheaper(own, policy), policy, range(len(texts)), 1)
        results = replace(run.results(), seconds=time.perf_counter() - began)
        if (error := policy.first_error) is not None:
            logger.warning("the cheaper scorer failed, but the search goes on: %s", error)
        with one_thread(run.cells):
            return run.search.ranked(), results

    return SearchRetriever(search, request.index.n)
