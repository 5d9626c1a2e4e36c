"""Run many searches at once, each on its own thread, with one scorer (`crossknn.service.batches`).

The time of a request is measured from its arrival, on the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from starlette.exceptions import HTTPException

from crossknn.data.items import Items
from crossknn.demo import first_sentence
from crossknn.errors import InputError, nearest
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import available_threads
from crossknn.methods import DEFAULT, METHODS, parse_method
from crossknn.scorers.base import Scorer
from crossknn.scores.stored import StoredScorer
from crossknn.search.fresh import FreshSearcher
from crossknn.search.rerank import Reranked, rerank
from crossknn.search.results import Hit, Results
from crossknn.search.run import OnRound
from crossknn.search.searcher import Budget, K, Searcher
from crossknn.service.batches import SharedScorer
from crossknn.service.metrics import Metrics
from crossknn.service.shapes import (
    RerankBody,
    SearchBody,
    budget_of,
    search_answer,
)

T = TypeVar("T")

MAX_HITS = 10_000  # of a request
MAX_TEXT = 1 << 18  # characters of its queries
MAX_REQUESTS = 64  # at once
AT_ONCE = 4  # searches for each core, or for each batch that the scorer runs at once
RETRY_AFTER = "1"  # seconds
DEPTH = 1000  # how far down the first stage's ranking an explanation looks
_FIRST_STAGE = "retrieve"
_MIN_SECONDS = 0.1  # that a search needs besides scoring, on busy cores
_ANSWER_SECONDS, _HIT_SECONDS = 0.06, 5e-5  # that an answer takes on busy cores, and each hit of it
_STORED = 0.2  # seconds in which the batches of a call are stored together


def busy(message: str = "the service has more requests than it takes: come again") -> HTTPException:
    """Make the error for a request that may be sent again later."""
    return HTTPException(429, message, {"Retry-After": RETRY_AFTER})


class Engine:
    """Indexes by name, a scorer for all their searches, and the threads that run these.

    Args:
        indexes: Indexes by name; the first serves requests that name none.
        scorer: The scorer for all indexes.
        method: The method for requests that name none.
        methods: Specs that requests may name beside the bare names of all methods but `exact`.
        budget: Default number of pairs per query.
        most_pairs: Maximum number of pairs per request.
        deadline: Maximum and default seconds from a request's arrival to its answer.
    """

    def __init__(
        self,
        indexes: Mapping[str, ItemIndex],
        scorer: Scorer,
        *,
        method: str = DEFAULT,
        methods: Sequence[str] = (),
        budget: int = 100,
        most_pairs: int = 10_000,
        deadline: float = 10.0,
    ) -> None:
        self.method, self.budget = method, budget
        self.most_pairs, self.deadline = most_pairs, deadline
        self.metrics = Metrics()
        self.shared = SharedScorer(scorer, self.metrics)
        named = [name for name in (DEFAULT, *METHODS) if name != "exact"]
        self.methods = list(dict.fromkeys([*named, method, *methods]))
        for spec in self.methods:
            parse_method(spec)
        # Of these the ones that the page offers.
        self.menu = list(dict.fromkeys([method, *methods, DEFAULT, "rerank", _FIRST_STAGE]))
        self._served = {
            name: FreshSearcher(Searcher(index, self._scorer(index), method))
            for name, index in indexes.items()
        }
        self.closing = False
        self._live, self._lock = set[threading.Event](), threading.Lock()
        # More threads would only take the time that each of them needs to end before its deadline.
        at_once = AT_ONCE * max(available_threads(), self.shared.workers)
        self._pool = ThreadPoolExecutor(min(MAX_REQUESTS, at_once), "crossknn-search")
        self.metrics.live.set_function(lambda: len(self._live))

    def _scorer(self, index: ItemIndex) -> Scorer:
        if self.shared.fingerprint is None:
            return self.shared
        return StoredScorer(self.shared, index.scores, required=False, every=_STORED)

    @property
    def scorer_name(self) -> str:
        """The cross-encoder's name, without the path of a folder or of an endpoint."""
        scorer = self.shared.scorer
        name = str(getattr(scorer, "name", None) or type(scorer).__name__)
        if self.shared.per_request is not None:
            return f"an endpoint at {urlsplit(name).hostname}"
        return Path(name).name if Path(name).is_absolute() else name

    def examples(self) -> dict[str, str]:
        """Return an example query for each index, made from an item; call it outside the event
        loop."""
        return {name: _example(each.opened.index.items) for name, each in self._served.items()}

    @property
    def searchers(self) -> Mapping[str, Searcher]:
        """The searchers by the names of their indexes, as they were opened last."""
        return {name: served.opened for name, served in self._served.items()}

    def name_of(self, name: str | None) -> str:
        """Return the name of a served index, by default the first; 404 if unknown."""
        if name is not None and name not in self._served:
            message = f"there is no index {name!r:.80} here: {nearest(name, self._served)}"
            raise HTTPException(404, message)
        return next(iter(self._served)) if name is None else name

    def searcher(self, name: str | None) -> Searcher:
        """Return the searcher of an index, opening it if necessary; call it outside the event
        loop."""
        return self._served[self.name_of(name)].now()

    def problems(self) -> list[str]:
        """Return the problems of indexes that other processes have changed; call it outside the
        event loop."""
        for served in self._served.values():
            served.now()
        return [served.problem for served in self._served.values() if served.problem]

    def submit(self, work: Callable[[threading.Event], T]) -> tuple[Future[T], threading.Event]:
        """Run `work` on a thread, first come, first served; it must end soon after the event is
        set. Raises `busy` if there are too many requests."""
        cancel = threading.Event()
        with self._lock:
            if len(self._live) >= MAX_REQUESTS or self.closing:
                raise busy()
            self._live.add(cancel)
        future = self._pool.submit(work, cancel)
        future.add_done_callback(lambda _: self._live.discard(cancel))
        return future, cancel

    def stop(self) -> None:
        """End all searches with the best hits so far, and accept no more."""
        with self._lock:
            self.closing = True
            for cancel in [*self._live]:
                cancel.set()

    def close(self) -> None:
        """Stop, and wait for the searches."""
        self.stop()
        self._pool.shutdown()
        self.shared.close()

    def check(self, body: SearchBody) -> None:
        """Refuse a search that exceeds the service's limits, or names an unknown index."""
        self.name_of(body.index)
        queries = body.texts
        if (length := sum(map(len, queries))) > MAX_TEXT:
            raise HTTPException(
                413,
                f"the queries have {length:,} characters, and those of a request may have "
                f"{MAX_TEXT:,}: send fewer at once",
            )
        if (hits := (body.k or K) * len(queries)) > MAX_HITS:
            raise InputError(
                f"k is {body.k} for {len(queries)} queries: {hits:,} hits, and an "
                f"answer holds {MAX_HITS:,}"
            )
        budget = budget_of(body.budget, None, self.budget)
        self.check_pairs((budget.per_query or 0) * len(queries))
        if body.method is not None and body.method not in self.methods:
            raise InputError(
                f"this service does not offer the method {body.method!r:.80}: "
                f"{nearest(body.method, self.methods)}"
            )

    def check_pairs(self, pairs: int) -> None:
        """Refuse a request for too many calls."""
        if pairs > self.most_pairs:
            raise InputError(
                f"the request asks for {pairs:,} calls; this service gives up to "
                f"{self.most_pairs:,}"
            )

    def search(
        self,
        body: SearchBody,
        arrived: float,
        cancel: threading.Event,
        on_round: OnRound | None = None,
    ) -> dict[str, Any]:
        """Return the `SearchAnswer` to a request. Queries that cannot be scored, or not in time,
        are answered by the first stage."""
        began, searcher = time.monotonic(), self.searcher(body.index)
        budget = budget_of(body.budget, body.deadline_ms, self.budget)

        def counted(round: int, picks: list[list[Hit]]) -> None:
            self.metrics.rounds.inc()
            if on_round is not None:
                on_round(round, picks)

        results = searcher.search(
            body.texts,
            body.k,
            self._in_time(budget, arrived, (body.k or K) * len(body.texts)),
            filter=body.filter,
            method=body.method or self.method,
            trace=bool(body.explain),
            cancel=cancel,
            on_round=counted,
            fallback=True,
        )
        gone = cancel.is_set() and not self.closing
        ends = self._ends(budget, arrived)
        if not all(results.hits) and results.stopped_by == "scorer":
            # A method whose first items are fixed, or drawn, has not asked the first stage.
            plain = _first_stage(searcher, body, body.k, ends)
            both = zip(results.hits, plain, strict=True)
            results = replace(results, hits=tuple(hits or first for hits, first in both))
        ranks = None
        if body.explain and not gone:
            depth = min(DEPTH, len(searcher.index))
            ranks = _ranks(results, _first_stage(searcher, body, depth, ends))
        degraded = _degraded(results)
        self.metrics.search(results, began - arrived, degraded=degraded and not gone)
        return search_answer(results, degraded, ranks)

    def rerank(
        self, body: RerankBody, arrived: float, cancel: threading.Event, *, return_documents: bool
    ) -> tuple[Reranked, bool]:
        """Order documents; also return whether that was less than requested. The scores are not
        stored, because the documents belong to no index."""
        began = time.monotonic()
        budget = budget_of(body.budget, body.deadline_ms, self.budget)
        documents = [
            each if isinstance(each, str) else each.model_dump(exclude_none=True)
            for each in body.texts or body.documents or ()
        ]
        at_once = budget.deadline is None and len(documents) <= (budget.per_query or 0)
        ranked = rerank(
            body.query,
            documents,
            self._in_time(budget, arrived),
            scorer=self.shared,
            top_k=body.top_n,
            return_documents=return_documents,
            method="exact" if at_once else None,  # rounds serve a deadline alone
            cancel=cancel,
        )
        degraded = _degraded(ranked.results)
        self.metrics.search(ranked.results, began - arrived, degraded=degraded)
        return ranked, degraded

    def _in_time(self, budget: Budget, arrived: float, hits: int = 0) -> Budget:
        """The budget with what is left of its deadline, or of the service's, for the search alone:
        less what an answer of so many hits takes. Raises `busy` if the request has waited so long
        that its answer would be late."""
        ends, now = self._ends(budget, arrived), time.monotonic()
        limit, left = ends - arrived, ends - now
        if left < min(_MIN_SECONDS, limit / 2):
            raise busy(
                f"{now - arrived:.2f} s of the {limit:.4g} s that the request may take had passed "
                "before its search could begin: come again, or with a longer deadline"
            )
        answering = min(_ANSWER_SECONDS + hits * _HIT_SECONDS, left / 3)
        return replace(budget, deadline=left - answering)

    def _ends(self, budget: Budget, arrived: float) -> float:
        """Return when a request must be answered."""
        return arrived + min(budget.deadline or np.inf, self.deadline)


def _first_stage(
    searcher: Searcher, body: SearchBody, k: int | None, ends: float
) -> Sequence[list[Hit]]:
    """Return the first stage's hits of each query; none for queries without time left."""
    left = ends - time.monotonic()
    if left <= 0:
        return [[] for _ in body.texts]
    budget = Budget(deadline=left)
    return searcher.search(body.texts, k, budget, method=_FIRST_STAGE, filter=body.filter).hits


def _ranks(results: Results, first_stage: Sequence[Sequence[Hit]]) -> list[list[int | None]]:
    """Return each hit's rank in the first stage, if it has one."""
    ranks = [{hit.id: rank for rank, hit in enumerate(hits, 1)} for hits in first_stage]
    return [[own.get(hit.id) for hit in hits] for own, hits in zip(ranks, results, strict=True)]


def _degraded(results: Results) -> bool:
    """Whether an answer is less than was requested."""
    return results.stopped_by not in ("budget", "target") or results.n_failed > 0


def _example(items: Items) -> str:
    """Return the title or the first sentence of an item, in a few words; empty if none has one."""
    for position in np.linspace(0, len(items) - 1, min(len(items), 20)).astype(int).tolist():
        if items.alive is None or items.alive[position]:
            title, text = items.titles[position].strip(), items.texts[position]
            if len(title.split()) < 2:
                title, _ = first_sentence(text.removeprefix(title or items.ids[position]))
            if 8 <= len(title) <= 80:
                return title.rstrip(".")
    return ""
