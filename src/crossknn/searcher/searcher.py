"""Search over texts: drives the loop with a scorer, a deadline and an index."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from crossknn.data.queries import Texts, query_set
from crossknn.errors import CrossknnError, InputError, ScorerError, StoreError, counted, first_line
from crossknn.index.database import Column
from crossknn.linalg import one_thread, running, solvable
from crossknn.methods import DEFAULT, Method, parse_method
from crossknn.methods.base import planned
from crossknn.retrievers.base import ItemPriors, RandomItems
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import GIVE_UP_AFTER, Deadline, NothingScoredError
from crossknn.search.calibration import CALIBRATION, CONTEXT, Calibration, open_calibration
from crossknn.search.fusion import Fuse, open_fusion
from crossknn.search.loop import Search
from crossknn.search.results import EqualTexts, Hit, Results, hits_of
from crossknn.searcher.divided import DividedSearch
from crossknn.types import NO_ITEM, BoolArray, Pairs, Progress, Queries, as_count, as_positive

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3  # so many failing queries, or pairs of one, and nothing scored: it is down
K = 10  # hits of a query if nothing is said
PER_QUERY = 100  # pairs that a query may score if nothing is said
_CELLS = 1 << 26  # approximate scores held at once (m x n), 256 MB; more queries come in turn
Filter: TypeAlias = Mapping[str, Any] | Iterable[str] | BoolArray
OnRound: TypeAlias = Callable[[int, list[list[Hit]]], None]
# Of all parts the first is told.
_REASONS = "cancelled", "deadline", "store", "scorer", "budget", "target"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of a search; `searcher.search(queries, budget=50)` is short for `per_query`.

    Args:
        per_query: Pairs that a query may score, stored scores included; 100 by default.
        deadline: Seconds after which the search returns the best so far.
        target_recall: End a query when it expects to have found this share (0-1) of its true top k,
            for `kriging`; the budget is then what it may spend at most.

    Raises:
        InputError: One of them is no such number.
    """

    per_query: int | None = None
    deadline: float | None = None
    target_recall: float | None = None

    def __post_init__(self) -> None:
        if self.per_query is not None:
            as_count(self.per_query, "budget")
        if self.deadline is not None:
            as_positive(self.deadline, "deadline")
        if self.target_recall is not None:
            as_positive(self.target_recall, "target_recall", 1.0)


class Searcher:
    """Searches an index with a scorer and a method.

    >>> import crossknn as ck
    >>> index = ck.ItemIndex.build(["zip a file", "sort a list", "lock a thread"], lsa=2)
    >>> overlap = lambda pairs: [len(set(q.split()) & set(t.split())) for q, t in pairs]
    >>> results = Searcher(index, overlap).search("a list", k=1, budget=2)
    >>> results[0][0].text, results.n_calls
    ('sort a list', 2)

    A search changes nothing in the `Searcher`, so threads may share it (if they may share the
    scorer; all of ours may be shared). It does not keep the exact scores; to keep them in the
    index, so that no pair is computed twice, give it `ck.StoredScorer(scorer, index.scores)` as the
    scorer.

    Args:
        index: What is searched.
        scorer: A `Scorer`, a model with `predict`, a function of (query, item) pairs, a matrix of
            scores, or a folder, hub name or URL. None for methods without calls, such as
            `cmc(retriever=bm25)`.
        method: A method, or its spec; "auto" by default.
        fuse: Orders answers by a final score, and searches for its top k: weights of retrievers
            beside the exact score, `{"dense": 0.75}` in deviations of their scores; "auto" takes
            those that `fit_fusion` left in the index, if any; None, the exact score alone.
        seed: Seed of all randomness, 0 or more.

    Raises:
        InputError: `index` is not an index, `method` is not a method, or `fuse` cannot be.
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
        from crossknn.scorers import as_scorer

        if not hasattr(index, "items"):
            raise InputError(f"{index!r} is not an index: open one with ItemIndex.load(folder)")
        self.index = index
        self.method = parse_method(DEFAULT if method is None else method)
        self.scorer: Scorer | None = None if scorer is None else as_scorer(scorer)
        self.seed = as_count(seed, "seed", 0)
        self._fuse, self._items = fuse, index.items
        self.fusion = open_fusion(self.of_scorer(), fuse, self.seed)

    @running()
    @solvable()
    def search(
        self,
        queries: Texts,
        k: int | None = None,
        budget: int | Budget = PER_QUERY,
        *,
        min_score: float | None = None,
        filter: Filter | None = None,
        method: str | Method | None = None,
        seed: int | None = None,
        trace: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
        on_round: OnRound | None = None,
        fallback: bool = False,
    ) -> Results:
        """The k best items of each query, by exact score or, with fusion, by final score.

        A query whose pairs cannot be scored ends with the best found so far, and its error is in
        `errors`; after three such queries in a row all of them end.

        Args:
            queries: A text, m texts, or queries with ids as `read_queries` takes them.
            k: Hits of each query, at most; by default 10, or all items if there are fewer, and all
                with `min_score`. Where that is more than the budget, unscored items follow by
                predicted score, marked `predicted`.
            budget: Pairs that a query may score, or a `Budget`. Items with the same text are one
                pair, and share its score.
            min_score: Only hits whose final score is this or more.
            filter: The items that may be returned: conditions on their fields, such as
                `{"lang": "en", "year": {"gte": 2020}}` (`ItemIndex.allowed`), ids, or a mask (n,).
                If none meets it, there are no hits and no calls.
            method: In the place of the searcher's own.
            seed: In the place of the searcher's own.
            trace: Keep every pick, for explanations.
            progress: Called with (done, total) scored pairs.
            cancel: Once it is set, the search stops at the next batch with the best so far.
            on_round: Called after each round with its number, from 1, and for each query the hits
                that were scored in it.
            fallback: Answer a query of which nothing could be scored, or not in time, with what the
                first stage has found (`round` is 0), and raise no error of the scorer.

        Returns:
            The hits of each query, best first, and what they cost.

        Raises:
            InputError: A query is empty, an id or a field unknown, or k and the budget do not fit
                each other, the index or the method.
            ScorerError: No query has a single score (or whatever else the scorer raised).
        """
        began = time.perf_counter()
        given, self = self, self._now()
        chosen = self.method if method is None else parse_method(method)
        asked = query_set(queries)
        texts, m = asked.texts, len(asked.texts)
        spend = budget if isinstance(budget, Budget) else Budget(per_query=budget)
        n = len(self.index)
        if not n:
            raise InputError("every item of the index is deleted: add items first")
        if min_score is None:
            k = K if k is None else k
        elif (
            isinstance(min_score, bool)
            or not isinstance(min_score, Real)
            or not np.isfinite(min_score)
        ):
            raise InputError(f"min_score is {min_score!r}; it must be a number")
        elif spend.target_recall is not None:
            raise InputError(
                "target_recall refers to the top k: give either target_recall or min_score"
            )
        k = None if k is None else min(as_count(k, "k"), n)
        pairs = k or 1
        if chosen.calls:
            pairs = PER_QUERY if spend.per_query is None else spend.per_query
        chosen = _for_k(chosen, k or 1, spend.target_recall)
        given.check_scorer(chosen)
        seed = self.seed if seed is None else as_count(seed, "seed", 0)
        run = _Run(
            searcher=self,
            method=chosen,
            texts=texts,
            k=n if k is None else k,
            min_score=min_score,
            calibration=self._calibration(chosen),
            pairs=pairs,
            allowed=_mask(filter, self.index),
            seed=seed,
            deadline=Deadline(spend.deadline, cancel),
            cancel=cancel,
            progress=progress,
            on_round=on_round,
            trace=trace,
            fallback=fallback,
        )
        truncated = getattr(self.scorer, "truncated", 0)
        at_once = m if spend.deadline is not None else max(1, _CELLS // self.index.n)
        for start in range(0, m, at_once):
            run.part(start, min(start + at_once, m))
        failed = run.failure is not None and not run.n_scored
        if failed and not (fallback and isinstance(run.failure, ScorerError)):
            raise cast(Exception, run.failure)
        return Results(
            queries=texts,
            query_ids=asked.ids,
            numbered=asked.numbered,
            hits=tuple(run.hits),
            method=str(chosen),
            budget=min(pairs, run.search.budget),
            n_calls=run.n_calls,
            n_scored=run.n_scored,
            seconds=time.perf_counter() - began,
            scoring_seconds=run.scoring_seconds,
            stopped_by=min(run.stops, key=_REASONS.index),
            errors=tuple(run.errors),
            n_failed=run.n_failed,
            n_backfilled=run.n_backfilled,
            truncated=getattr(self.scorer, "truncated", 0) - truncated,
            trace=tuple(run.picks) if trace else None,
            min_score=min_score,
            best_scores=tuple(run.best_scores),
            none_relevant=tuple(run.none_relevant) if run.calibration is not None else None,
        )

    async def asearch(self, queries: Texts, *args: Any, **options: Any) -> Results:
        """`search` in a worker thread; cancelling the task stops it at the next batch.

        Args:
            queries: As for `search`.
            args, options: All other arguments of `search`.

        Returns:
            What `search` returns.
        """
        cancel = options["cancel"] = options.get("cancel") or threading.Event()
        try:
            return await asyncio.to_thread(self.search, queries, *args, **options)
        except asyncio.CancelledError:
            cancel.set()
            raise

    def of_scorer(self) -> ItemIndex:
        """The index as it is now, which items may be added to meanwhile, with what belongs to the
        scorer; all of it where there is none."""
        if self.scorer is None:
            return self.index.snapshot()
        return self.index.for_scorer(self.scorer.fingerprint)

    def over(self, index: ItemIndex) -> Searcher:
        """The same searcher over another index.

        Args:
            index: That index.

        Returns:
            The searcher.
        """
        made = copy.copy(self)
        made.index, made._items = index, index.items
        made.fusion = open_fusion(made.of_scorer(), self._fuse, self.seed)
        return made

    def _now(self) -> Searcher:
        now = copy.copy(self)
        now.index = self.of_scorer()
        if now.index.items is not self._items:
            now.fusion = open_fusion(now.index, self._fuse, self.seed)
        return now

    def _calibration(self, chosen: Method) -> Calibration | None:
        """The index's, where it is of this search's scores."""
        if self.scorer is None or not chosen.calls or CALIBRATION not in self.index.artifacts:
            return None
        return open_calibration(self.index, self.fusion, self.scorer.fingerprint)

    def check_scorer(self, chosen: Method) -> None:
        """Refuse a method that cannot run without scores that another cross-encoder has made.

        Args:
            chosen: The method.

        Raises:
            InputError: The index has such scores of others alone, or the method needs a scorer and
                there is none.
        """
        if self.scorer is None:
            if chosen.calls:
                raise InputError(
                    f"{chosen.name} needs a scorer: give one, such as CrossEncoder(), the bundled "
                    "one"
                )
            return
        everything, own = self.index.artifacts, self.of_scorer()
        for name in set(chosen.required_artifacts(own)) & set(everything) - set(own.artifacts):
            mine = self.scorer.fingerprint or "one whose model is unknown (no fingerprint)"
            raise InputError(
                f"{name!r} in the index was made with scores of the cross-encoder "
                f"{everything[name].meta.get('fingerprint')}, but this search uses {mine}: "
                f"collect or fit with this one, too, or search with {chosen.fallback}"
            )


@dataclass(kw_only=True)
class _Run:
    """One search: its settings, then what it has found and spent so far, and what went wrong."""

    searcher: Searcher
    method: Method
    texts: tuple[str, ...]
    k: int
    min_score: float | None
    calibration: Calibration | None
    pairs: int
    allowed: BoolArray | None
    seed: int
    deadline: Deadline
    cancel: threading.Event | None
    progress: Progress | None
    on_round: OnRound | None
    trace: bool
    fallback: bool

    def __post_init__(self) -> None:
        self.hits: list[list[Hit]] = []
        self.picks: list[list[Hit]] = []
        self.best_scores: list[float | None] = []
        self.none_relevant: list[float | None] = []
        self.errors: list[str | None] = []
        self.stops: set[str] = set()
        self.n_calls = self.n_scored = self.n_failed = self.n_backfilled = self.told = 0
        self.scoring_seconds = 0.0
        self.failure: Exception | None = None  # the first error of the scorer
        self.broken: str | None = None  # why nothing is asked of the scorer any more
        self.in_a_row = 0  # queries that failed since a pair was scored
        self.copies = self._copies()
        self.allowed = self.copies.left_out(self.searcher.index.n, self.allowed)

    def part(self, start: int, stop: int) -> None:
        """Search the queries from `start` to `stop`, as many as fit into memory."""
        self.cells = (stop - start) * self.searcher.index.n  # of a product
        with one_thread(self.cells):
            self._begin(start, stop)
        stopped_by = self._drive()
        with one_thread(self.cells):
            self._end(stopped_by)

    def _begin(self, start: int, stop: int) -> None:
        """Plan the search of these queries."""
        index = self.searcher.index
        plan = planned(self.method, index, self.pairs, self.seed)
        if self.searcher.fusion is not None:
            plan = self.searcher.fusion.plan(plan)
        if plan.stop is not None and self.k > plan.stop.k:
            raise InputError(
                f"k is {self.k}, but target_recall of the method refers to the top {plan.stop.k}: "
                f"give the method k={self.k}, too"
            )
        self.asked = self.texts[start:stop]
        # Items that are drawn, or the same for all queries, answer none.
        self.retrieved = self.fallback and not isinstance(plan.retriever, ItemPriors | RandomItems)
        given: dict[str, Any] = {"allowed": self.allowed, "depth": self.k * self.retrieved}
        self.search: Search | DividedSearch
        if len(self.asked) > 1 and (self.deadline.limited or self.cancel is not None):
            left = self.deadline.left
            self.search = DividedSearch(plan, self.asked, index.n, left=left, **given)
            self.cells //= len(self.search.parts)
        else:
            self.search = Search(plan, Queries(self.asked), index.n, **given)
        self.failed: list[str | None] = [None] * (stop - start)
        self.unscored = np.zeros(stop - start, np.int64)  # pairs asked since the last scored one

    def _end(self, stopped_by: str | None) -> None:
        """Keep what these queries have found, and why they were stopped, if they were."""
        if self.broken is not None:
            self._fail(range(len(self.asked)), self.broken)
        if any(self.failed):
            stopped_by = stopped_by or "scorer"
        more = self.min_score is None and self.k > self.pairs and stopped_by != "store"
        more = more and (stopped_by is None or self.deadline.left() > 0)
        best, calibrated = self.search.filled(self.k) if more else self.search.best(self.k), None
        if self._too_late():
            stopped_by = stopped_by or self._stop() or "deadline"
        self.stops.add(stopped_by or ("target" if self.search.stopped.all() else "budget"))
        self.errors += self.failed
        best = self.copies.put_back(best, self.k)
        final = best.final
        if self.calibration is not None:
            context = self.search.best(CONTEXT)
            around = (context.final).astype(np.float64)
            of = np.where(np.isnan(final), best.approx, final).astype(np.float64)
            calibrated = self.calibration.probabilities(of, around)
            chances = self.calibration.none_relevant(around).tolist()
            self.none_relevant += [None if np.isnan(chance) else chance for chance in chances]
        first = np.fmax.reduce(final, axis=1, initial=-np.inf).tolist()
        self.best_scores += [score if np.isfinite(score) else None for score in first]
        if self.min_score is not None:
            best = replace(best, items=np.where(final >= self.min_score, best.items, NO_ITEM))
        items = self.searcher.index.items
        self.hits += self._fallen_back(hits_of(items, best, self.method.name, calibrated))
        if self.trace:
            self.picks += hits_of(items, self.search.picks(), self.method.name)
        self.n_scored += int(self.search.n_scored.sum())
        self.n_failed += self.search.n_failed
        self.n_backfilled += int(self.search.n_backfilled.sum())

    def _copies(self) -> EqualTexts:
        """Items that get the score of another one, whose text is the same."""
        items, scorer, none = self.searcher.index.items, self.searcher.scorer, np.zeros(0, np.int64)
        fits = self.allowed is None or self.allowed.shape == (len(items),)  # `Search` says if not
        reads = self.method.calls and getattr(scorer, "reads_texts", True)
        if not fits or not reads or isinstance(items.texts, Column):  # a database keeps its texts
            return EqualTexts(none, none)
        return EqualTexts.among(items.alike, self.allowed)

    def _too_late(self) -> bool:
        """Whether there was no time for some queries; their errors say so."""
        if not isinstance(self.search, DividedSearch):
            return False
        late = self.search.late
        for query in np.flatnonzero(late).tolist():
            said = "the time was up before this query was searched"
            self.failed[query] = self.failed[query] or said
        return bool(late.any())

    def _fallen_back(self, hits: list[list[Hit]]) -> list[list[Hit]]:
        """The hits, those of the first stage in the place of none."""
        if not self.retrieved or all(hits):
            return hits
        first, lacking = self.search.first(self.k), np.array([not own for own in hits])
        first = replace(first, items=np.where(lacking[:, None], first.items, NO_ITEM))
        others = hits_of(self.searcher.index.items, first, self.method.name)
        return [own or other for own, other in zip(hits, others, strict=True)]

    def _drive(self) -> str | None:
        """Ask and tell to the end; why it was stopped, if it was."""
        stopped_by = self._stop()
        while stopped_by is None and self.broken is None:
            began = time.perf_counter()
            try:
                with one_thread(self.cells):
                    pairs = self._ask()
            except StoreError as error:
                self.failure, self.broken = self.failure or error, str(error)
                return "store"
            if not len(pairs):
                return self._stop() if self.search.unfinished.any() else None
            choosing = time.perf_counter() - began
            stopped_by = self._stop() or self._score(pairs)
            if self.on_round is not None:
                self._tell(self.on_round)
            if stopped_by is None and self.search.round > 1 and self.search.unfinished.any():
                # The next round takes as long to choose, unless it looks at the clock itself.
                stopped_by = self._stop(choosing if isinstance(self.search, Search) else 0.0)
        return stopped_by

    def _tell(self, on_round: OnRound) -> None:
        """What was scored in the round that has ended."""
        latest = self.search.latest()
        on_round(self.search.round, hits_of(self.searcher.index.items, latest, self.method.name))

    def _ask(self) -> Pairs:
        """The next pairs, their texts read; those of a database without those that are empty."""
        items = self.searcher.index.items
        while len(pairs := self.search.ask()) and isinstance(items.texts, Column):
            asked = np.unique(pairs.item)  # read at once, not one by one
            empty = asked[[not text for text in items.texts.fetch(asked.tolist())]]
            if len(empty):
                count, first = counted(len(empty), "item"), items.ids[int(empty[0])]
                logger.warning("left out %s without a text, the first with the id %r", count, first)
            if len(kept := pairs.take(np.flatnonzero(~np.isin(pairs.item, empty)))):
                return kept
        return pairs

    def _stop(self, ahead: float = 0.0) -> str | None:
        """Why to stop now, or `ahead` seconds from now, if there is a reason."""
        if self.deadline.left() > ahead:
            return None
        return "cancelled" if self.cancel is not None and self.cancel.is_set() else "deadline"

    def _score(self, pairs: Pairs) -> str | None:
        """Tell the search the scores of a round's pairs; why to stop, if there is a reason.

        A query that fails is ended; the pairs of the others are asked again. Where it is not known
        which query is at fault, they are asked query by query. A query that has scores goes on if
        none of a round's pairs can be scored, unless `FAILURES_IN_A_ROW` pairs failed in a row.
        """
        waiting, stopped_by, before = [pairs], None, self.search.n_scored
        asked = np.bincount(pairs.query, minlength=len(self.asked))
        while waiting and stopped_by is None and self.broken is None:
            part = waiting.pop()
            told = np.zeros(len(part), np.bool_)
            try:
                stopped_by = self._stream(part, told)
            except Exception as error:
                rest = part.take(np.flatnonzero(~told))
                if isinstance(error, NothingScoredError):
                    # A round may be one pair, which says little of a query that has scores.
                    ends = (before == 0) | (self.unscored + asked >= FAILURES_IN_A_ROW)
                    rest = rest.take(np.flatnonzero(ends[rest.query]))
                    if not len(rest):
                        continue
                queries = np.unique(rest.query)
                at_fault = getattr(error, "query", None)
                if at_fault is None and len(queries) > 1:
                    waiting += [rest.take(np.flatnonzero(rest.query == q)) for q in queries[::-1]]
                    continue
                faulty = queries.tolist() if at_fault is None else [int(at_fault)]
                self._record(error, faulty, scored=bool(told.any()))
                if len(rest := rest.take(np.flatnonzero(~np.isin(rest.query, faulty)))):
                    waiting.append(rest)
        if stopped_by is None:
            scored = self.search.n_scored > before
            self.unscored = np.where(scored, 0, self.unscored + asked)
            for query in np.flatnonzero(self.unscored >= GIVE_UP_AFTER).tolist():
                count = self.unscored[query]
                self._fail([query], f"none of {count} pairs of this query could be scored")
        return stopped_by

    def _stream(self, pairs: Pairs, told: BoolArray) -> str | None:
        """Score pairs batch by batch; `told` (p,) is set where that is done."""
        scorer, items = self.searcher.scorer, self.searcher.index.items.texts
        assert scorer is not None  # only a method that makes no calls does without
        began, stopped_by = time.perf_counter(), None
        stream = scorer.score(pairs, self.asked, items, **self.deadline.rest())
        try:
            for positions, scores in stream:
                self.search.tell(pairs.take(positions), scores)
                told[positions] = True
                self.in_a_row = 0
                self.told += len(positions)
                if self.progress is not None:
                    self.progress(self.told, len(self.texts) * self.search.budget)
                if stopped_by := self._stop():
                    break
        finally:
            self.n_calls += getattr(stream, "computed", int(told.sum()))
            getattr(stream, "close", lambda: None)()
            self.scoring_seconds += time.perf_counter() - began
        return stopped_by or self._stop()

    def _record(self, error: Exception, queries: Sequence[int], *, scored: bool) -> None:
        """These queries failed, after pairs of the same stream were `scored` or not."""
        if not isinstance(error, CrossknnError):
            logger.debug("the scorer raised", exc_info=error)
            said = f"the scorer failed: {type(error).__name__}: {first_line(error)}"
            error, cause = ScorerError(said), error
            error.__cause__ = cause
        self.failure = self.failure or error
        self.in_a_row = 1 if scored else self.in_a_row + 1
        self._fail(queries, str(error))
        if self.in_a_row >= FAILURES_IN_A_ROW:
            self.broken = str(error)

    def _fail(self, queries: Iterable[int], sentence: str) -> None:
        """End these queries, unless they have ended."""
        for query in queries:
            if self.failed[query] is None and self.search.unfinished[query]:
                self.failed[query] = sentence
                self.search.end(query)


def _for_k(method: Method, k: int, target_recall: float | None) -> Method:
    """The method for this k, which ends a query at this share of its top k if there is a target."""
    if target_recall is None:
        return replace(method, k=k) if k > getattr(method, "k", k) else method  # type: ignore[call-arg]
    if not hasattr(method, "target_recall"):
        raise InputError(
            f"{method.name} cannot estimate its recall: use kriging, or leave target_recall out"
        )
    return replace(method, target_recall=target_recall, k=k)  # type: ignore[call-arg]


def _mask(filter: Filter | None, index: ItemIndex) -> BoolArray | None:
    """A mask (n,) of what is allowed, or a mask as it is."""
    alive = index.items.alive
    if filter is None:
        return alive
    if isinstance(filter, np.ndarray) and filter.dtype == np.bool_:
        allowed = filter
    elif isinstance(filter, Mapping):
        allowed = index.allowed(filter)
    elif isinstance(filter, Iterable) and not isinstance(filter, str):
        allowed = np.zeros(index.n, np.bool_)
        allowed[index.items.positions(filter)] = True
    else:
        raise InputError(f"the filter is {filter!r}; give conditions, a list of ids or a mask")
    if alive is not None and allowed.shape == alive.shape:
        allowed = allowed & alive
    return allowed
