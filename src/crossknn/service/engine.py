"""Run many searches at once, each on its own thread, with one scorer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from starlette.exceptions import HTTPException

from crossknn.errors import InputError, nearest
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import available_threads
from crossknn.methods import DEFAULT, METHODS
from crossknn.scorers.base import Scorer
from crossknn.scores.stored import StoredScorer
from crossknn.search.fresh import FreshSearcher
from crossknn.search.rerank import Reranked, rerank
from crossknn.search.results import Results
from crossknn.search.searcher import Budget, K, Searcher
from crossknn.service.batches import SharedScorer
from crossknn.service.metrics import Metrics
from crossknn.service.shapes import RerankBody, SearchBody

T = TypeVar("T")

MAX_HITS = 10_000  # in the answer to a request
MAX_TEXT = 1 << 18  # characters in the queries of a request
MAX_REQUESTS = 64  # running or waiting at once
AT_ONCE = 4  # searches per core, or per batch that the scorer runs at once
DEPTH = 1000  # hits of the first stage in which an explanation finds ranks
_MIN_SECONDS = 0.1  # a search needs this besides scoring, or what the last ones without calls took
_ANSWER_SECONDS, _HIT_SECONDS = 0.06, 5e-5  # per answer and per hit on busy cores


def busy(message: str = "the service has too many requests: try again later") -> HTTPException:
    """Make the error for a request that the client may send again later."""
    return HTTPException(429, message, {"Retry-After": "1"})


class Engine:
    """Indexes by name, the scorers of all searches, and the threads that run searches.

    Requests that name no index use the first, and those without a method use `method`; they may
    give `methods` besides the names of all methods but `exact`. `budget` is the default number of
    pairs per query, or of each scorer, cheapest first; `most_pairs` the maximum of a request;
    `deadline` the maximum and default seconds from a request's arrival to its answer.
    """

    def __init__(
        self,
        indexes: Mapping[str, ItemIndex],
        scorer: Scorer | Sequence[Scorer],
        *,
        method: str = DEFAULT,
        methods: Sequence[str] = (),
        budget: int | Sequence[int] = 100,
        most_pairs: int = 10_000,
        deadline: float = 10.0,
    ) -> None:
        self.method, self.most_pairs, self.deadline = method, most_pairs, deadline
        self.metrics = Metrics()
        given = scorer if isinstance(scorer, Sequence) else [scorer]
        self.scorers = [SharedScorer(each, self.metrics) for each in given]
        self.shared = self.scorers[-1]
        self.metrics.queue.set_function(lambda: sum(each.waiting for each in self.scorers))
        self.budgets = Budget(per_query=budget).of_each(given)
        named = [name for name in (DEFAULT, *METHODS) if name != "exact"]
        self.methods = list(dict.fromkeys([*named, method, *methods]))
        self.menu = list(dict.fromkeys([method, *methods, DEFAULT, "rerank", "retrieve"]))  # shown
        self._served = dict[str, FreshSearcher]()
        for name, index in indexes.items():
            store = index.scores
            stored = [
                each if each.fingerprint is None else StoredScorer(each, store, required=False)
                for each in self.scorers
            ]
            self._served[name] = FreshSearcher(Searcher(index, stored, method))
        self.closing, self._needs = False, 0.0
        self._live, self._lock = set[threading.Event](), threading.Lock()
        # More threads would slow each other down, and answers would miss their deadlines.
        at_once = AT_ONCE * max(available_threads(), self.shared.workers)
        self._pool = ThreadPoolExecutor(min(MAX_REQUESTS, at_once), "crossknn-search")
        self.metrics.live.set_function(lambda: len(self._live))

    def described(self) -> dict[str, Any]:
        """Return what the service offers, for its page."""
        indexes = []
        for name in self._served:
            index = self.searcher(name).index
            words = index.items.texts[0].removeprefix(index.items.titles[0]).split()[:8]
            indexes.append({"name": name, "items": len(index), "example": " ".join(words)})
        return {
            "indexes": indexes,
            "methods": self.methods,
            "menu": self.menu,
            "scorer": self._scorer_name(),
            "method": self.method,
            "budget": self.budgets[-1],
            "most_pairs": self.most_pairs,
            "deadline_ms": self.deadline * 1000,
        }

    def _scorer_name(self) -> str:
        """Return the cross-encoder's name, without the path of a folder or of an endpoint."""
        scorer = self.shared.scorer
        name = str(getattr(scorer, "name", None) or type(scorer).__name__)
        if self.shared.per_request is not None:
            return f"an endpoint at {urlsplit(name).hostname}"
        return Path(name).name if Path(name).is_absolute() else name

    def name_of(self, name: str | None) -> str:
        """Return the name of a served index, by default the first; 404 if unknown."""
        if name is not None and name not in self._served:
            message = f"there is no index {name!r:.80} here: {nearest(name, self._served)}"
            raise HTTPException(404, message)
        return next(iter(self._served)) if name is None else name

    def searcher(self, name: str | None) -> Searcher:
        """Return the searcher of an index, opened again if its folder has changed."""
        return self._served[self.name_of(name)].now()

    def problems(self) -> list[str]:
        """Return the problems of indexes that other processes have changed."""
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
        """End all searches with the best hits so far, and accept no more requests."""
        with self._lock:
            self.closing = True
            for cancel in [*self._live]:
                cancel.set()

    def close(self) -> None:
        """Stop, and wait until all searches have ended."""
        self.stop()
        self._pool.shutdown()
        for shared in self.scorers:
            shared.close()

    def check(self, body: SearchBody) -> None:
        """Refuse a request that exceeds the service's limits, or names an unknown index."""
        self.name_of(body.index)
        n_queries, length = len(body.texts), sum(map(len, body.texts))
        if length > MAX_TEXT:
            most = f"the queries have {length:,} characters, and may have {MAX_TEXT:,} together"
            raise HTTPException(413, f"{most}: send fewer at once")
        if (hits := (body.k or K) * (body.group_size or 1) * n_queries) > MAX_HITS:
            raise InputError(f"the request asks for {hits:,} hits; an answer holds {MAX_HITS:,}")
        self.check_pairs(sum(self.calls_of(body)) * n_queries)
        if body.method is not None and body.method not in self.methods:
            hint = nearest(body.method, self.methods)
            raise InputError(f"the method {body.method!r:.80} is not offered here: {hint}")

    def calls_of(self, body: SearchBody | RerankBody) -> tuple[int, ...]:
        """Return the budget of each scorer."""
        given = self.budgets if body.budget is None else body.budget
        return Budget(per_query=given).of_each(self.scorers)

    def check_pairs(self, pairs: int) -> None:
        """Refuse a request that would score too many pairs."""
        if pairs > self.most_pairs:
            most = f"this service gives up to {self.most_pairs:,}"
            raise InputError(f"the request asks for {pairs:,} calls; {most}")

    def search(self, body: SearchBody, arrived: float, cancel: threading.Event) -> dict[str, Any]:
        """Return the answer to a request: `Results.to_dict`, whether it is `degraded`, and with
        `explain` the `first_rank` of each hit. Queries that cannot be scored, or not in time, are
        answered by the first stage."""
        began, searcher = time.monotonic(), self.searcher(body.index)
        of: Any = {"filter": body.filter, "group_by": body.group_by}
        results = searcher.search(
            body.texts,
            body.k,
            self._in_time(body, arrived, (body.k or K) * len(body.texts)),
            **of,
            group_size=body.group_size or 1,
            method=body.method or self.method,
            trace=bool(body.explain),
            cancel=cancel,
            fallback=True,
        )
        gone = cancel.is_set() and not self.closing
        degraded = _degraded(results)
        took = 0.0 if results.n_calls or gone else time.monotonic() - began
        self._needs = max(took, 0.97 * self._needs)
        self.metrics.search(results, began - arrived, degraded=degraded and not gone)
        answer = {"degraded": degraded} | results.to_dict()
        left = self._ends(body, arrived) - time.monotonic()
        if body.explain and left > 0 and not gone:
            first = searcher.search(
                body.texts, DEPTH, Budget(deadline=left), method="retrieve", **of
            )
            for entry, hits in zip(answer["results"], first, strict=True):
                what = "id" if not hits or hits[0].group is None else "group"
                ranks = {getattr(hit, what): rank for rank, hit in enumerate(hits, 1)}
                for hit in entry["hits"]:
                    hit["first_rank"] = ranks.get(hit[what])
        return answer

    def rerank(
        self, body: RerankBody, arrived: float, cancel: threading.Event, *, shown: bool
    ) -> tuple[Reranked, bool]:
        """Order documents, with their texts if `shown`; also return whether the answer is degraded.
        Scores are not stored, because the documents belong to no index."""
        began, most = time.monotonic(), self.calls_of(body)[-1]
        documents = [
            each if isinstance(each, str) else each.model_dump(exclude_none=True)
            for each in body.texts or body.documents or ()
        ]
        at_once = body.deadline_ms is None and len(documents) <= most
        ranked = rerank(
            body.query,
            documents,
            self._in_time(body, arrived),
            scorer=self.scorers,
            top_k=body.top_n,
            return_documents=shown,
            method="exact" if at_once else None,  # rounds are useful only with a deadline
            cancel=cancel,
        )
        degraded = _degraded(ranked.results)
        self.metrics.search(ranked.results, began - arrived, degraded=degraded)
        return ranked, degraded

    def _in_time(self, body: SearchBody | RerankBody, arrived: float, hits: int = 0) -> Budget:
        """Return the budget with the seconds left for the search, less the time to write an answer;
        raise `busy` if the request has waited so long that its answer would be late."""
        ends, now = self._ends(body, arrived), time.monotonic()
        limit, left = ends - arrived, ends - now
        if left < min(max(_MIN_SECONDS, self._needs), limit / 2):
            raise busy(
                f"{now - arrived:.2f} s of the {limit:.4g} s that the request may take had passed "
                "before its search could begin: try again later, or with a longer deadline"
            )
        answering = min(_ANSWER_SECONDS + hits * _HIT_SECONDS, left / 3)
        return Budget(
            per_query=self.calls_of(body),
            target_recall=getattr(body, "target_recall", None),
            deadline=left - answering,
        )

    def _ends(self, body: SearchBody | RerankBody, arrived: float) -> float:
        """Return when a request must be answered."""
        return arrived + min((body.deadline_ms or np.inf) / 1000, self.deadline)


def _degraded(results: Results) -> bool:
    """Whether a search ended early, or could not score all pairs."""
    return any(
        each.stopped_by not in ("budget", "target") or each.n_failed > 0 for each in results.rungs
    )
