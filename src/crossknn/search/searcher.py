"""Search over texts with an index, a scorer and a method."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.passages import DOCUMENT, positions_of
from crossknn.data.queries import QuerySet, Texts, query_set
from crossknn.errors import InputError, counted
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import running, solvable
from crossknn.methods import DEFAULT, Method, parse_method
from crossknn.methods.kriging import Kriging, apart
from crossknn.retrievers.base import RandomItems
from crossknn.scorers.base import Scorer
from crossknn.scorers.opening import as_scorer
from crossknn.search import ladder
from crossknn.search.fusion import CALIBRATION, Fuse, open_calibration, open_fusion
from crossknn.search.loop import SearchRetriever
from crossknn.search.request import SearchRequest
from crossknn.search.results import Results
from crossknn.types import BoolArray, Progress, as_count, as_positive

logger = logging.getLogger(__name__)

K = 10
"""Default number of hits per query."""
PER_QUERY = 100
"""Default budget: number of pairs scored per query."""
TIMES, FEWEST = 10, 100
"""Without a budget of its own, a cheaper scorer scores ten pairs for each pair of the next scorer,
at least 100 and at most `ladder.MOST`."""
Filter: TypeAlias = Mapping[str, Any] | Iterable[str] | BoolArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of a search; `budget=50` in `Searcher.search` is short for `Budget(per_query=50)`.

    Args:
        per_query: Maximum number of pairs scored per query, including stored scores; 100 by
            default. With several scorers, one number for each, such as `[200, 20]`. A single number
            is the last scorer's; each cheaper one gets ten times the next one's, from 100 to 400.
        deadline: Time limit in seconds, after which the search returns the best hits so far.
        seconds: Instead of `per_query`: as many pairs as fit into this time per query, by the
            scorers' measured speed; the time is also the deadline.
        cost: Instead of `per_query`: as many pairs as cost this much money per query, by the
            scorers' prices.
        target_recall: End a query when its expected recall of its true top k reaches this share
            (0-1), for `kriging` on an index with anchors, for which the first search also searches.
    """

    per_query: int | Sequence[int] | None = None
    deadline: float | None = None
    target_recall: float | None = None
    seconds: float | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.per_query, self.seconds, self.cost)) > 1:
            raise InputError("give one budget: per_query (--budget), seconds or cost")
        if not self.calls:
            raise InputError("budget is empty: give a number for each scorer")
        most = {"deadline": math.inf, "target_recall": 1.0, "seconds": 1e9, "cost": 1e9}
        for name, largest in most.items():
            if (value := getattr(self, name)) is not None:
                as_positive(value, name, largest)

    @property
    def calls(self) -> tuple[int, ...]:
        """The given numbers of pairs; 100 if none were given."""
        given = PER_QUERY if self.per_query is None else self.per_query
        each = given if isinstance(given, Sequence) else [given]
        return tuple(as_count(pairs, "budget") for pairs in each)

    def of_each(self, scorers: Sequence[object]) -> tuple[int, ...]:
        """Return the number of pairs of each scorer, cheapest first; InputError for a number too
        many or too few.

        >>> Budget(per_query=20).of_each("ab"), Budget(per_query=20).of_each("abc")
        ((200, 20), (400, 200, 20))
        """
        calls, n = self.calls, max(1, len(scorers))
        while len(self.calls) == 1 and len(calls) < n:
            calls = (min(max(TIMES * calls[0], FEWEST), ladder.MOST), *calls)
        if len(calls) != n:
            both = counted(len(calls), "budget"), counted(n, "scorer")
            raise InputError("there are {} for {}: give one for each".format(*both))
        return calls


class Searcher:
    """Searches an index with a scorer and a method.

    >>> import crossknn as ck
    >>> index = ck.ItemIndex.build(["zip a file", "sort a list", "lock a thread"], lsa=2)
    >>> overlap = lambda pairs: [len(set(q.split()) & set(t.split())) for q, t in pairs]
    >>> results = Searcher(index, overlap).search("a list", k=1, budget=2)
    >>> results[0][0].text, results.n_calls
    ('sort a list', 2)

    Threads may share a searcher. To store exact scores in the index, so that no pair is scored
    twice, pass `ck.StoredScorer(scorer, index.scores)`.

    Args:
        index: The index to search.
        scorer: A `Scorer`, a model with `predict`, a function of (query, item) pairs, a matrix of
            scores, or a folder, hub name or URL. None for methods that score no pairs, such as
            `cmc(retriever=bm25)`. Or several, cheapest first: each goes on from what the search
            with the one before has found. The first may be a `Searcher`, with its own method.
        method: A method, or its spec; "auto" by default.
        fuse: Search and order by a final score: the exact score plus retrievers' scores, weighted
            in standard deviations, such as `{"dense": 0.75}`. "auto" uses the weights of
            `fit_fusion` if the index has them; None uses the exact score alone.
        seed: Seed of all randomness, 0 or more.
    """

    def __init__(
        self,
        index: ItemIndex,
        scorer: Any,
        method: str | Method | None = None,
        *,
        fuse: Fuse = "auto",
        seed: int = 0,
    ) -> None:
        if not hasattr(index, "items"):
            raise InputError(f"{index!r} is not an index: open one with ItemIndex.load(folder)")
        self.index = index
        self.method = parse_method(DEFAULT if method is None else method)
        scorers = scorer if isinstance(scorer, list | tuple) else [scorer]
        if not scorers:
            raise InputError("the list of scorers is empty: give one scorer or more")
        if len(scorers) > 1 and any(each is None for each in scorers):
            raise InputError("one of several scorers is None: give a scorer for each")
        *cheaper, own = scorers
        self.scorer: Scorer | None = None if own is None else as_scorer(own)
        self.cheaper: Searcher | None = None
        self._rates = dict[int, ladder.Rate]()
        if len(cheaper) == 1 and isinstance(cheaper[0], Searcher):
            self.cheaper = cheaper[0]
            if self.cheaper.index is not index:
                raise InputError("the cheaper search has another index: give both the same one")
        elif cheaper:
            self.cheaper = Searcher(index, cheaper, fuse=fuse, seed=seed)
        names = [each.fingerprint or id(each) for each in self.scorers]
        if len(set(names)) < len(names):
            raise InputError("the same scorer is given twice: give different ones, or one")
        self.seed = as_count(seed, "seed", 0)
        self._fuse, self._items = fuse, index.items
        self.fusion = open_fusion(self.of_scorer(), fuse, self.seed)

    def reopened(self, index: ItemIndex) -> Searcher:
        """Return this searcher with another version of the index."""
        cheaper = [] if self.cheaper is None else [self.cheaper.reopened(index)]
        scorers = [*cheaper, self.scorer]
        return Searcher(index, scorers, self.method, fuse=self._fuse, seed=self.seed)

    @property
    def scorers(self) -> list[Scorer]:
        """The scorers, cheapest first."""
        cheaper = [] if self.cheaper is None else self.cheaper.scorers
        return cheaper if self.scorer is None else [*cheaper, self.scorer]

    @running()
    @solvable()
    def search(
        self,
        queries: Texts,
        k: int | None = None,
        budget: int | Sequence[int] | Budget = PER_QUERY,
        *,
        min_score: float | None = None,
        filter: Filter | None = None,
        group_by: str | None = None,
        group_size: int = 1,
        method: str | Method | None = None,
        seed: int | None = None,
        together: bool = True,
        trace: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
        fallback: bool = False,
    ) -> Results:
        """Return the k best items of each query, by exact score or, with fusion, by final score.

        A query whose pairs cannot be scored ends with the best hits so far, and its error is in
        `errors`; after three such queries in a row the search ends. The scorer's error is raised if
        no query has a single score. With a deadline, queries are searched eight at a time.

        Args:
            queries: A text, m texts, or queries with ids in any form that `read_queries` accepts.
            k: Maximum number of hits per query; by default 10, or no limit with `min_score`. If k
                exceeds the budget, unscored items follow by predicted score, marked `predicted`.
            budget: Maximum number of pairs scored per query, or a `Budget`. Items with the same
                text count as one pair.
            min_score: Return only hits with at least this final score.
            filter: The items that may be returned: conditions on item fields, such as `{"lang":
                "en", "year": {"gte": 2020}}` (`ItemIndex.allowed`), ids, or a mask (n,).
            group_by, group_size: Find the k best groups of items, those with the same value of this
                field ("id": single items), each by its best item; `Hit.members` has at most so many
                of them. Documents are found if the index has passages.
            method, seed: Replace the method and seed of the searcher.
            together: By default, ten queries or more learn from each other's scores, unless the
                index has learned already, or with a deadline or `cancel`.
            trace: Keep every scored item in `Results.trace`.
            progress: Called with (done, total) scored pairs.
            cancel: An event that stops the search at the next batch, with the best hits so far.
            fallback: If no pair of a query could be scored in time, return the retriever's hits
                (their `round` is 0) instead of raising the scorer's error.
        """
        chosen = self.method if method is None else parse_method(method)
        chosen = chosen if together else apart(chosen)
        limits = budget if isinstance(budget, Budget) else Budget(per_query=budget)
        queries = query_set(queries)
        rates = list[ladder.Rate]()
        if chosen.calls and (limits.seconds is not None or limits.cost is not None):
            self.check_scorer(chosen)
            limits, rates = self._counted(limits, queries.texts, cancel)
        index = self.index.snapshot()
        field = _group_field(index, group_by, group_size, chosen, limits)
        request = self._request(index, queries, chosen, limits, k, min_score, filter, seed)
        request = replace(request, trace=trace, cancel=cancel, fallback=fallback)
        request = request if field is None else _of_groups(request, field, group_size)
        results = ladder.execute(request, progress)
        return ladder.with_probes(results, rates) if rates else results

    async def asearch(self, queries: Texts, *args: Any, **options: Any) -> Results:
        """Run `search` in a worker thread; cancelling the task stops it at the next batch.

        Args:
            queries, args, options: The arguments of `search`.
        """
        cancel = options["cancel"] = options.get("cancel") or threading.Event()
        try:
            return await asyncio.to_thread(self.search, queries, *args, **options)
        except asyncio.CancelledError:
            cancel.set()
            raise

    def as_retriever(self, budget: int | Sequence[int] | Budget = PER_QUERY) -> SearchRetriever:
        """Return this search with a budget as a retriever, for `ItemIndex.add_retriever`."""
        limits = budget if isinstance(budget, Budget) else Budget(per_query=budget)
        none = query_set(["-"])  # until it is asked about others
        request = self._request(self.index.snapshot(), none, self.method, limits)
        return ladder.as_retriever(request)

    def of_scorer(self, index: ItemIndex | None = None) -> ItemIndex:
        """Return a snapshot of the index without the fits and scores of other scorers."""
        index = self.index if index is None else index
        if self.scorer is None:
            return index.snapshot()
        return index.for_scorer(self.scorer.fingerprint)

    def check_scorer(self, method: Method) -> None:
        """Raise `InputError` if the method needs a scorer but there is none, or needs scores
        or a fit that the index has only from another cross-encoder."""
        if self.scorer is None:
            if method.calls:
                raise InputError(f"{method.name} needs a scorer: give one, such as 'bundled'")
            return
        everything, own = self.index.artifacts, self.of_scorer()
        if self.cheaper is not None:  # no prior is read then
            own = own.after_search(RandomItems(own.n, 0))
        for name in set(method.required_artifacts(own)) & set(everything) - set(own.artifacts):
            mine = self.scorer.fingerprint or "one whose model is unknown (no fingerprint)"
            raise InputError(
                f"{name!r} in the index was made with scores of the cross-encoder "
                f"{everything[name].meta.get('fingerprint')}, but this search uses {mine}: "
                "collect or fit with this one, too, or search with kriging(use_anchors=false)"
            )

    def rates(self, queries: Sequence[str], **limits: Any) -> list[ladder.Rate]:
        """Measure the scorers' seconds and money per pair on a few pairs of these queries, unless
        that has been done; cheapest scorer first. `limits` as in `Scorer.score`."""
        known, texts = self._rates, self.index.items.texts
        rates = [
            known[number] if number in known else ladder.rate_of(scorer, queries, texts, **limits)
            for number, scorer in enumerate(self.scorers)
        ]
        self._rates = {n: rate._replace(calls=0) for n, rate in enumerate(rates) if rate.seconds}
        return rates

    def _counted(
        self, limits: Budget, queries: Sequence[str], cancel: threading.Event | None
    ) -> tuple[Budget, list[ladder.Rate]]:
        """Convert a budget in seconds or money to numbers of pairs and a deadline, and return what
        was measured for it."""
        began, amount, deadline = time.monotonic(), limits.cost, limits.deadline
        if limits.seconds is not None:
            amount = limits.seconds
            deadline = min(deadline or math.inf, len(queries) * amount)
        assert amount is not None
        of_time = limits.seconds is not None
        if not of_time and getattr(self.scorer, "spent", None) is None:
            name = getattr(self.scorer, "fingerprint", None) or "the scorer"
            raise InputError(f"{name} has no price (price=): give a budget of pairs or seconds")
        time_left = deadline and ladder.PROBE_TIME * deadline
        rates = self.rates(queries, time_left=time_left, cancel=cancel)
        if not of_time:
            spent = sum(rate.calls * (rate.cost or 0.0) for rate in rates)
            amount = max(0.0, amount - spent / len(queries))
        calls = ladder.affordable(rates, amount, len(self.index), of_time=of_time)
        if deadline is not None:
            deadline = max(deadline - (time.monotonic() - began), deadline / 2)
        limits = replace(limits, per_query=calls, deadline=deadline, seconds=None, cost=None)
        return limits, rates

    def _request(
        self,
        index: ItemIndex,
        queries: QuerySet,
        method: Method,
        limits: Budget,
        k: int | None = None,
        min_score: float | None = None,
        filter: Filter | None = None,
        seed: int | None = None,
    ) -> SearchRequest:
        """Check the arguments and make the request, given a snapshot of the index."""
        snapshot, index = index, self.of_scorer(index)
        fusion, calibration = self.fusion, None
        if index.items is not self._items:  # items were added
            fusion = open_fusion(index, self._fuse, self.seed)
        if not (n := len(index)):
            raise InputError("every item of the index is deleted: add items first")
        if min_score is None:
            k = K if k is None else k
        else:
            _check_min_score(min_score, limits)
        k = None if k is None else min(as_count(k, "k"), n)
        method = _for_k(method, k or 1, limits.target_recall)
        allowed, pairs, cheaper = _mask(filter, index), k or 1, None
        if method.calls:
            *others, pairs = limits.of_each(self.scorers)
        if self.cheaper is not None and method.calls:
            if getattr(method, "target_recall", None) is not None:
                raise InputError(
                    "target_recall works with one scorer only: leave it out, or the others"
                )
            below = replace(limits, per_query=others, target_recall=None)
            how = self.cheaper.method, below, k, None, allowed, seed
            cheaper = self.cheaper._request(snapshot, queries, *how)
        self.check_scorer(method)
        chosen_seed = self.seed if seed is None else as_count(seed, "seed", 0)
        if isinstance(method, Kriging) and method.target_recall is not None:
            from crossknn.fitting.stopping import calibrate

            calibrate(index, method, pairs, chosen_seed)
        if self.scorer is not None and method.calls and CALIBRATION in index.artifacts:
            calibration = open_calibration(index, fusion, self.scorer.fingerprint)
        return SearchRequest(
            index=index,
            scorer=self.scorer,
            cheaper=cheaper,
            rung=len(self.scorers),
            fusion=fusion,
            calibration=calibration,
            queries=queries,
            method=method,
            k=n if k is None else k,
            pairs=pairs,
            allowed=allowed,
            seed=chosen_seed,
            deadline=limits.deadline,
            min_score=min_score,
        )


def _group_field(
    index: ItemIndex, field: str | None, size: int, method: Method, limits: Budget
) -> str | None:
    """Check the options of groups, and return the field whose values make them, if any; an index
    of passages is searched for documents."""
    if as_count(size, "group_size") > 1 and field is None and index.passages is None:
        raise InputError(f"group_size is {size}, but there are no groups: give group_by, too")
    if field is None:
        field = None if index.passages is None else DOCUMENT
    elif not isinstance(field, str):
        raise InputError(f"group_by is {field!r:.80}: give the name of a field of the items")
    target = limits.target_recall or getattr(method, "target_recall", None)
    if field is not None and target is not None:
        raise InputError("target_recall does not work for groups or documents: leave it out")
    if field is not None:
        index.groups(field)  # raises an error if no item has it
    return field


def _of_groups(request: SearchRequest, field: str, size: int) -> SearchRequest:
    """Return the request for groups, also in the searches with cheaper scorers before it."""
    cheaper = request.cheaper and _of_groups(request.cheaper, field, size)
    return replace(request, group_by=field, group_size=size, cheaper=cheaper)


def _check_min_score(min_score: object, limits: Budget) -> None:
    number = isinstance(min_score, Real) and not isinstance(min_score, bool)
    if not number or not np.isfinite(min_score):  # type: ignore[call-overload]
        raise InputError(f"min_score is {min_score!r}; it must be a number")
    if limits.target_recall is not None:
        raise InputError("target_recall refers to the top k: leave out either it or min_score")


def _for_k(method: Method, k: int, target_recall: float | None) -> Method:
    if target_recall is None:
        return replace(method, k=k) if k > getattr(method, "k", k) else method  # type: ignore[call-arg]
    if not hasattr(method, "target_recall"):
        raise InputError(
            f"{method.name} cannot estimate its recall: use kriging, or leave target_recall out"
        )
    return replace(method, target_recall=target_recall, k=k)  # type: ignore[call-arg]


def _mask(filter: Filter | None, index: ItemIndex) -> BoolArray | None:
    """Convert a filter to a mask (n,) of the allowed items."""
    alive = index.items.alive
    if filter is None:
        return alive
    if isinstance(filter, np.ndarray) and filter.dtype == np.bool_:
        allowed = filter
    elif isinstance(filter, Mapping):
        allowed = index.allowed(filter)
    elif isinstance(filter, Iterable) and not isinstance(filter, str):
        allowed, items = np.zeros(index.n, np.bool_), index.items
        for name in filter:
            parts = [] if index.passages is None else positions_of(items, name)
            allowed[parts or [items.position(name)]] = True
    else:
        raise InputError(f"the filter is {filter!r}; give conditions, a list of ids or a mask")
    if alive is not None and allowed.shape == alive.shape:
        allowed = allowed & alive
    return allowed
