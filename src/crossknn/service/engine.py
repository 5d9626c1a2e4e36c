"""Many searches at once, each on a thread of its own, as `Searcher.search` does.

What they have in common is the scorer (`crossknn.service.batches`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from crossknn.data.items import Items
from crossknn.demo import first_sentence
from crossknn.errors import InputError, nearest
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, METHODS, parse_method
from crossknn.scorers.base import Scorer
from crossknn.scorers.onnx import available_threads
from crossknn.scores.stored import StoredScorer
from crossknn.search.results import Hit, Results
from crossknn.searcher.fresh import FreshSearcher
from crossknn.searcher.rerank import Reranked, rerank
from crossknn.searcher.searcher import Budget, K, OnRound, Searcher
from crossknn.service.batches import SharedScorer
from crossknn.service.metrics import Metrics
from crossknn.types import Pairs

T = TypeVar("T")
logger = logging.getLogger(__name__)

AT_ONCE = 4  # searches for each core, or for each batch that the scorer runs at once
_ENOUGH = 0.1  # seconds that a search needs besides scoring, on busy cores
_ANSWER = 0.06  # seconds before its deadline, a tenth at most, that a search on busy cores ends
_WRITE = 5e-5  # seconds for each hit of an answer
_STORED = 0.2  # seconds in which the batches of a call are stored together
DEPTH = 1000  # how far down the first stage's ranking an explanation looks
_FIRST_STAGE = "retrieve"
_SELF_TEST = (
    "how do I open a zip file",
    (
        "How to open a zip file: unpack all files of the zip archive into a folder.",
        "How to open a door without a key.",
        "Bananas are rich in potassium.",
    ),
)


class BusyError(Exception):
    """There are as many requests as the service takes, or one waited until its time was over."""

    def __init__(self, said: str = "") -> None:
        super().__init__(said or "the service has more requests than it takes: come again")


def self_test(scorer: Scorer) -> None:
    """Raises `InputError` unless the scorer puts three pairs into the right order."""
    query, items = _SELF_TEST
    scores, pairs = np.full(3, np.nan), Pairs(np.zeros(3, np.int64), np.arange(3))
    for positions, found in scorer.score(pairs, [query], items):
        scores[positions] = found
    if not scores[0] > scores[1] > scores[2]:
        shown = ", ".join(f"{score:.2f}" for score in scores)
        raise InputError(
            f"the cross-encoder fails its self-test: for {query!r} it scores a right, a similar "
            f"and a wrong text {shown}, which should fall; check the model, or start with "
            "--no-self-test if it knows no English"
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a service gives, and at most.

    Args:
        method: Of a request that names none.
        methods: Specs that requests may name beside the bare names of all methods but `exact`.
        budget: Pairs of a query, of a request that says nothing, and `most_pairs` of a request.
        deadline: Seconds from its arrival that a request may take, and takes if it says nothing.
        requests: At once; more are refused.
    """

    method: str = DEFAULT
    methods: Sequence[str] = ()
    budget: int = 100
    most_pairs: int = 10_000
    deadline: float = 10.0
    requests: int = 64


@dataclass(frozen=True, kw_only=True)
class Request:
    """A search: of which index, and the arguments of `Searcher.search`; `arrived` is the time on
    the monotonic clock, from which its deadline counts."""

    index: str
    queries: Sequence[str]
    k: int | None
    budget: Budget
    arrived: float
    method: str | None = None
    filter: Any = None
    explain: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a search found; `degraded` if it is less than what was asked for, and with `explain` the
    first stage's rank of each hit, None beyond `DEPTH`."""

    results: Results
    degraded: bool
    first_ranks: Sequence[Sequence[int | None]] | None


class Engine:
    """Indexes by name, one scorer for all of their searches, and threads to run these on."""

    def __init__(
        self, indexes: Mapping[str, ItemIndex], scorer: Scorer, settings: Settings | None = None
    ) -> None:
        self.settings = settings = Settings() if settings is None else settings
        self.metrics = Metrics()
        self.shared = SharedScorer(scorer, self.metrics)
        self.methods = {name: name for name in (DEFAULT, *METHODS) if name != "exact"}
        self.methods |= {spec: spec for spec in (settings.method, *settings.methods)}
        for spec in self.methods:
            parse_method(spec)
        self._served = {
            name: FreshSearcher(Searcher(index, self._scorer(index), settings.method))
            for name, index in indexes.items()
        }
        self.closing = False
        self._live, self._lock = 0, threading.Lock()
        # More threads would only take the time that each of them needs to end before its deadline.
        each = max(available_threads(), self.shared.workers)
        self._at_once = min(settings.requests, AT_ONCE * each)
        self._pool = ThreadPoolExecutor(self._at_once, "crossknn-search")
        self._cancel = threading.Event()
        self.metrics.live.set_function(lambda: self._live)

    @property
    def menu(self) -> list[str]:
        """Of the methods that requests may name those that the page offers: the service's own and
        those that whoever started it has named, the default, and two to compare them with."""
        own = self.settings.method, *self.settings.methods
        return [*dict.fromkeys((*own, DEFAULT, "rerank", _FIRST_STAGE))]

    @property
    def scorer_name(self) -> str:
        """The cross-encoder's name, without the path of a folder or of an endpoint."""
        scorer = self.shared.scorer
        name = str(getattr(scorer, "name", None) or type(scorer).__name__)
        if self.shared.per_request is not None:  # an endpoint
            host = urlsplit(name).hostname
            _, _, model = (scorer.fingerprint or "").partition("|model=")
            return f"{model.partition('|')[0] or 'an endpoint'} at {host}"
        return Path(name).name if Path(name).is_absolute() else name

    def examples(self) -> dict[str, str]:
        """For each index a query that it can answer, made of an item; not for the loop."""
        found = dict[str, str]()
        for name, served in self._served.items():
            index = served.opened.index
            make = partial(_example, index.items)
            found[name] = index.cache.get(("example",), (index.items,), make)
        return found

    def _scorer(self, index: ItemIndex) -> Scorer:
        named = self.shared.fingerprint is not None
        if not named:
            return self.shared
        return StoredScorer(self.shared, index.scores, required=False, every=_STORED)

    def stop(self) -> None:
        """End all searches with the best so far, and take no more."""
        self.closing = True
        self._cancel.set()

    def close(self) -> None:
        """`stop`, and wait for the searches."""
        self.stop()
        self._pool.shutdown()
        self.shared.close()

    @property
    def searchers(self) -> Mapping[str, Searcher]:
        """By the names of the indexes, as these were opened last."""
        return {name: served.opened for name, served in self._served.items()}

    def name_of(self, name: str | None) -> str:
        """The name of an index that is served: of the first one without a name."""
        if name is not None and name not in self._served:
            raise InputError(f"there is no index {name!r:.80} here: {nearest(name, self._served)}")
        return next(iter(self._served)) if name is None else name

    def searcher(self, name: str | None) -> Searcher:
        """That of an index as it is now, which may have to be opened first: not for the loop."""
        return self._served[self.name_of(name)].now()

    def problems(self) -> list[str]:
        """What is wrong with indexes that other processes have changed; not for the loop."""
        for served in self._served.values():
            served.now()
        return [served.problem for served in self._served.values() if served.problem]

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on a thread, first come, first served; `BusyError` if there are too many."""
        with self._lock:
            if self._live >= self.settings.requests or self.closing:
                raise BusyError
            self._live += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: Future[Any]) -> None:
        with self._lock:
            self._live -= 1

    def search(
        self, asked: Request, cancel: threading.Event, on_round: OnRound | None = None
    ) -> Answer:
        """The answer to a request. What cannot be scored, or not in time, is answered by the first
        stage."""
        began, searcher = time.monotonic(), self.searcher(asked.index)
        method = self._method(asked.method)
        given: dict[str, Any] = {"k": asked.k, "filter": asked.filter}

        def counted(round: int, picks: list[list[Hit]]) -> None:
            self.metrics.round()
            if on_round is not None:
                on_round(round, picks)

        results = searcher.search(
            list(asked.queries),
            budget=self._in_time(asked.budget, asked.arrived, (asked.k or K) * len(asked.queries)),
            method=method,
            trace=asked.explain,
            cancel=_Either(cancel, self._cancel),
            on_round=counted,
            fallback=True,
            **given,
        )
        if cancel.is_set():  # nobody waits for an answer
            self.metrics.search(results, began - asked.arrived, degraded=False)
            return Answer(results=results, degraded=True, first_ranks=None)
        if not all(results.hits) and results.stopped_by == "scorer":
            # The method's first items are fixed, or drawn: the first stage is another one.
            plain = self._first_stage(searcher, asked, asked.k)
            both = zip(results.hits, plain, strict=True)
            results = replace(results, hits=tuple(found or other for found, other in both))
        ranks = self._ranks(searcher, asked, results) if asked.explain else None
        degraded = self._count(results, began - asked.arrived)
        return Answer(results=results, degraded=degraded, first_ranks=ranks)

    def rerank(
        self,
        query: str,
        documents: Sequence[Any],
        budget: Budget,
        arrived: float,
        cancel: threading.Event,
        **options: Any,
    ) -> tuple[Reranked, bool]:
        """What `ck.rerank` answers, and whether fewer were scored than asked for. The scores
        are not stored: the documents are of no index."""
        began = time.monotonic()
        if budget.deadline is None and len(documents) <= (budget.per_query or 0):
            options["method"] = "exact"  # at once, where rounds would serve a deadline
        found = rerank(
            query,
            documents,
            self._in_time(budget, arrived),
            scorer=self.shared,
            cancel=_Either(cancel, self._cancel),
            **options,
        )
        return found, self._count(found.results, began - arrived)

    def _in_time(self, budget: Budget, arrived: float, hits: int = 0) -> Budget:
        """The budget with what is left of its deadline, or of the service's, less what an answer of
        so many hits takes, and more where others compute, too; `BusyError` if the request has
        waited so long that its answer would be late."""
        ends = self._ends(budget, arrived)
        limit = ends - arrived
        if (left := ends - (now := time.monotonic())) < min(_ENOUGH, limit / 2):
            raise BusyError(
                f"{now - arrived:.2f} s of the {limit:.4g} s that the request may take had passed "
                "before its search could begin: come again, or with a longer deadline"
            )
        busy = min(1, (self._live - 1) / self._at_once)
        writing = min(hits * _WRITE, left / 3)
        return replace(budget, deadline=left - writing - busy * min(_ANSWER, limit / 10))

    def _ends(self, budget: Budget, arrived: float) -> float:
        """When a request has to be answered."""
        return arrived + min(budget.deadline or np.inf, self.settings.deadline)

    def _count(self, results: Results, waited: float) -> bool:
        """Count an answer; whether it is less than what was asked for."""
        whole = results.stopped_by in ("budget", "target")
        degraded = not whole or results.n_failed > 0
        self.metrics.search(results, waited, degraded=degraded)
        return degraded

    def _method(self, name: str | None) -> str:
        if name is None:
            return self.settings.method
        if name not in self.methods:
            raise InputError(
                f"this service does not offer the method {name!r:.80}: "
                f"{nearest(name, self.methods)}"
            )
        return name

    def _ranks(
        self, searcher: Searcher, asked: Request, results: Results
    ) -> list[list[int | None]]:
        first = self._first_stage(searcher, asked, min(DEPTH, len(searcher.index)))
        places = [{hit.id: rank for rank, hit in enumerate(hits, 1)} for hits in first]
        return [
            [known.get(hit.id) for hit in hits] for known, hits in zip(places, results, strict=True)
        ]

    def _first_stage(
        self, searcher: Searcher, asked: Request, k: int | None
    ) -> Sequence[list[Hit]]:
        """The first stage's hits of each query, none of those that there is no time left for."""
        left = self._ends(asked.budget, asked.arrived) - time.monotonic()
        if left <= 0:
            return [[] for _ in asked.queries]
        budget, how = Budget(deadline=left), {"method": _FIRST_STAGE, "filter": asked.filter}
        return searcher.search(list(asked.queries), k, budget, **how).hits


def _example(items: Items) -> str:
    """The title or the first sentence of an item, in a few words; empty where none has one."""
    for position in np.linspace(0, len(items) - 1, min(len(items), 20)).astype(int).tolist():
        if items.alive is None or items.alive[position]:
            title, text = items.titles[position].strip(), items.texts[position]
            name = title or items.ids[position]
            said = title if len(title.split()) > 1 else first_sentence(text.removeprefix(name))[0]
            if 8 <= len(said) <= 80:
                return said.rstrip(".")
    return ""


class _Either(threading.Event):
    """Set once one of two events is."""

    def __init__(self, one: threading.Event, other: threading.Event) -> None:
        super().__init__()
        self._events = one, other

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._events)
