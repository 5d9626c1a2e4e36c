"""Learn from use: fit kriging's prior to the scores that past searches left in an index.

Whenever the store has grown by a tenth, the prior is fitted again. Before that, the queries
searched since the last fit measure its quality: half of each query's scores predict the other half,
once with the prior and once without.

Axes: m queries, b scored items of a query.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import CrossknnError, InputError
from crossknn.files import LockedError, exclusive_lock
from crossknn.fitting.kriging import fit_prior, prior_of
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import running
from crossknn.methods.kriging import Kriging
from crossknn.methods.plan import Predictor
from crossknn.methods.prior import Prior, stored_prior
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import start_thread
from crossknn.scores.sparse import SparseScores
from crossknn.spec import Spec
from crossknn.types import FloatArray, IntArray, Observed, Progress, Queries

logger = logging.getLogger(__name__)

LEARNING = "learning"
"""Name of the artifact that keeps the history of fits."""

GROWTH = 0.1
"""Share by which the searched pairs in the store must grow before the next fit."""

FIRST_FIT = 30
"""Number of queries that must have been searched before the first fit."""

QUERIES, SCORES = 1_000, 100_000
"""Limits on the newest queries and scores that a fit reads, so that its memory and time do not grow
with the store."""

KEPT = 50
"""Maximum number of fits in the history."""

PATIENCE = 2.0
"""Seconds that a search of the command line waits for a fit, which then continues in the
background."""

LOW = 19
"""Priority of fits in the background, as Unix niceness."""

MEASURED, SCORED = 100, 20
"""A prior is measured on at most this many new queries, each with at least this many scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """A fit of kriging's prior, and a measurement of the previous prior's predictions.

    Args:
        queries, pairs: Number of queries and of scores that the prior was fitted to.
        stored: Number of scores of searched queries in the store at the time of the fit.
        newest: The store's integer for its latest text at that time.
        measured: Number of queries, searched since the fit before, that fit was measured on.
        explained: Share of the variance of these queries' scores that the fit before predicted
            from half of each query's scores; None if there was no fit or no such query.
        without: The same without a prior.
        previous: Whether the fit before was measured, on queries searched since; else, at the first
            fit, another one, made without the queries it was measured on.
    """

    queries: int
    pairs: int
    stored: int
    newest: int
    measured: int = 0
    explained: float | None = None
    without: float | None = None
    previous: bool = True

    @property
    def helps(self) -> float | None:
        """By which share (below 1) a prior makes the squared error of predictions smaller; None if
        that was not measured."""
        if self.explained is None or self.without is None or self.without >= 1:
            return None
        return 1 - (1 - self.explained) / (1 - self.without)


def history(index: ItemIndex) -> list[Learned]:
    """Return all fits of kriging's prior to searches of this index, the latest last, for the scorer
    of `ItemIndex.for_scorer`, or else the one fitted last."""
    kept = index.artifacts.get(LEARNING)
    return [] if kept is None else [Learned(**fit) for fit in kept.meta["fits"]]


def fit_from_store(
    index: ItemIndex,
    scorer: Scorer,
    *,
    retriever: str | Spec | None = None,
    progress: Progress | None = None,
) -> Prior:
    """Fit kriging's prior now to the index's scores by `scorer`, without scoring any pair.

    Queries scored with every item that are not anchors, as `compare` leaves them, are ground truth
    and left out. The report says how well the previous prior predicted the queries searched since.

    Args:
        index: The items, and the store of scores (`index.scores`).
        scorer: The cross-encoder whose scores are read.
        retriever, progress: See `crossknn.fitting.kriging.fit_prior`.
    """
    index = index.for_scorer(scorer.fingerprint)
    scores = searched_scores(index, scorer.fingerprint or "")
    return _fit(index, scores, retriever=retriever, progress=progress)


def learn(index: ItemIndex, scorer: Scorer) -> Learned | None:
    """Fit kriging's prior to past searches with a cross-encoder, if enough are new; else None.

    It is time when `FIRST_FIT` queries have been searched, and again whenever their scores have
    grown by a tenth. The prior keeps its retrievers. Searches that are already running finish with
    the old prior. `InputError` if it cannot be written, or items were added or removed meanwhile.
    """
    return _learn_if_due(index, _named(scorer))


def is_due(index: ItemIndex, scorer: Scorer) -> bool:
    """Whether the store has enough new scores by this cross-encoder to learn from."""
    return _is_due(index, _named(scorer))


def _named(scorer: Scorer) -> str:
    """The fingerprint, without which nothing was stored."""
    if scorer.fingerprint is None:
        raise InputError(
            "the scorer has no fingerprint, so no scores are stored to learn from: name its model"
        )
    return scorer.fingerprint


def _learn_if_due(index: ItemIndex, fingerprint: str) -> Learned | None:
    index = index.for_scorer(fingerprint)
    if not _is_due(index, fingerprint):
        return None
    _fit(index, searched_scores(index, fingerprint))
    return history(index)[-1]


def _is_due(index: ItemIndex, fingerprint: str) -> bool:
    if not index.vectors:
        return False
    counts = index.scores.query_counts(fingerprint)[1]
    fits = history(index.for_scorer(fingerprint))
    if len(counts) < FIRST_FIT:  # then no text is read
        return False
    searched = _searched(index, counts)
    before = fits[-1].stored if fits else 0
    return len(searched) >= FIRST_FIT and int(searched.sum()) >= (1 + GROWTH) * before


def _searched(index: ItemIndex, counts: IntArray) -> IntArray:
    """Select the scored queries that were not scored with every item."""
    return counts[counts < _different(index)]


def _different(index: ItemIndex) -> int:
    """Return the number of different texts among the items."""
    items = index.items
    return index.cache.get("different texts", (items,), lambda: len({*items.texts}))


def searched_scores(index: ItemIndex, fingerprint: str) -> SparseScores:
    """The store's scores by a cross-encoder of the newest queries (`QUERIES`, `SCORES`), but for
    those of anchors, of queries that were scored with every item, and of queries with an item of
    the same text."""
    ids, counts = index.scores.query_counts(fingerprint)
    searched = np.flatnonzero(counts < _different(index))[-QUERIES:]
    fitting = int((np.cumsum(counts[searched][::-1]) <= SCORES).sum())
    texts = index.scores.query_texts(ids[searched[-max(1, fitting) :]])
    known = index.scores.sparse_scores(fingerprint, index.items.texts, sorted(texts))
    anchors = set(index.anchor_queries)
    anchored = np.array([text in anchors for text in known.queries], np.bool_)
    dense = (np.diff(known.by_query) == index.n) | anchored
    kept = ~dense[known.query]
    # A query that is a document of the corpus says of itself what it says of no other item.
    asked = {text: row for row, text in enumerate(known.queries)}
    itself = {(asked[t], i) for i, t in enumerate(index.items.texts) if t in asked}
    if itself:
        pairs = zip(known.query.tolist(), known.item.tolist(), strict=True)
        kept &= ~np.array([pair in itself for pair in pairs], np.bool_)
    return known.take(kept)


def _fit(
    index: ItemIndex,
    scores: SparseScores,
    retriever: str | Spec | None = None,
    progress: Progress | None = None,
) -> Prior:
    """Measure the current prior, fit a new one, and record both."""
    store, fits, fingerprint = index.scores, history(index), scores.fingerprint or ""
    ids, counts = store.query_counts(fingerprint)
    stored, newest = int(_searched(index, counts).sum()), int(ids.max(initial=0))
    worth, before = dict[str, Any](), stored_prior(index)
    if fits and before is not None:
        new = set(store.query_texts(ids[ids > fits[-1].newest]))
        worth = measure(index, scores, new, before)
    elif not fits and len(scores):
        worth = _first_measured(index, scores, retriever)
    prior = fit_prior(index, scores, retriever=retriever, progress=progress)
    learned = Learned(
        queries=prior.queries, pairs=prior.pairs, stored=stored, newest=newest, **worth
    )
    kept = {"fingerprint": fingerprint, "fits": [asdict(fit) for fit in (*fits, learned)[-KEPT:]]}
    index.put_artifact(LEARNING, kept, {})
    return prior


def _first_measured(
    index: ItemIndex, scores: SparseScores, retriever: str | Spec | None
) -> dict[str, Any]:
    """Measure a prior fitted without every fifth query on those queries; see `Learned`."""
    chosen = scores.scored_queries[: 2 * MEASURED]
    if len(chosen) < FIRST_FIT:
        return {}
    scores = scores.take(np.isin(scores.query, chosen))
    left_out = chosen[::5]
    out = np.isin(scores.query, left_out)
    prior = prior_of(index, scores.take(~out), retriever=retriever)
    queries = {scores.queries[row] for row in left_out.tolist()}
    worth = measure(index, scores.take(out), queries, prior)
    return worth and worth | {"previous": False}


def measure(
    index: ItemIndex, scores: SparseScores, queries: Collection[str], prior: Prior
) -> dict[str, Any]:
    """Measure a prior on `queries`, which it was not fitted to; see `Learned`."""
    chosen = list[tuple[str, IntArray, FloatArray]]()
    for row in scores.scored_queries.tolist():
        part = slice(scores.by_query[row], scores.by_query[row + 1])
        if scores.queries[row] in queries and part.stop - part.start >= SCORED:
            chosen.append((scores.queries[row], scores.item[part], scores.score[part]))
    if not chosen:
        return {}
    rng, total = np.random.default_rng(0), 0.0
    if len(chosen) > MEASURED:
        chosen = [chosen[c] for c in rng.choice(len(chosen), MEASURED, replace=False)]
    predictors = {
        "explained": Kriging().plan_with(prior, index, SCORED, 0).predictor,
        "without": Kriging(use_anchors=False).plan(index, SCORED, 0).predictor,
    }
    left = dict.fromkeys(predictors, 0.0)
    for query, items, exact in chosen:
        known, rest = np.array_split(rng.permutation(len(items)), 2)
        observed = Observed(items[None, known], exact[None, known], np.array([len(known)]))
        total += float(np.square(exact[rest] - exact[known].mean()).sum())
        for name, predictor in predictors.items():
            error = exact[rest] - _predicted(predictor, query, observed, items[rest])
            left[name] += float(np.square(error).sum())
    shares = {name: round(1 - error / (total or 1.0), 4) for name, error in left.items()}
    return {"measured": len(chosen), **shares}


def _predicted(
    predictor: Predictor[Any], query: str, observed: Observed, items: IntArray
) -> FloatArray:
    """Predict scores (b,) of `items` (b,) for `query`, given its `observed` scores."""
    state = predictor.update(predictor.start(Queries((query,))), observed)
    return predictor.predict(state, items[None]).mean[0]


def learn_apart(folder: Path, fingerprint: str, patience: float = PATIENCE) -> bool:
    """`learn` in a process of its own, at low priority; whether it has ended within `patience`
    seconds, after which it goes on by itself. `InputError` says why it has learned nothing.

    Args:
        folder: The folder of the index.
        fingerprint: The cross-encoder's, which the process need not open.
        patience: Seconds to wait for it.
    """
    command = [sys.executable, "-m", "crossknn.fitting.learning", str(folder), fingerprint]
    # This crossknn, wherever it was imported from.
    path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    silent: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    apart = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))},
        start_new_session=True,
        **silent,
    )
    try:
        _, said = apart.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return False
    if apart.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or ["it was ended"]
        raise InputError(lines[-1])
    return True


def _apart(folder: str, fingerprint: str) -> None:
    """Learn in the process that `learn_apart` starts; do nothing if another process already
    learns."""
    with suppress(AttributeError, OSError):
        os.nice(LOW)
    try:
        index = ItemIndex.load(folder)
        with exclusive_lock(Path(folder), "learning.part", what="what it learns"):
            _learn_if_due(index, fingerprint)
    except LockedError:
        return
    except CrossknnError as error:
        raise SystemExit(str(error)) from None


class Learner:
    """Learns from the searches of an index in the background, for services and notebooks:

        scorer = ck.StoredScorer(ck.CrossEncoder(), index.scores)
        searcher, learner = ck.Searcher(index, scorer), ck.Learner(index, scorer)
        results = searcher.search(query)
        learner.notice()

    Args:
        index: What is searched.
        scorer: A scorer that keeps its scores in the index's store, and so has a fingerprint.
    """

    def __init__(self, index: ItemIndex, scorer: Scorer) -> None:
        _named(scorer)  # or it is refused at once
        self.index, self.scorer = index, scorer
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def notice(self) -> bool:
        """Start learning after a search, if it is time and no thread is learning yet; return
        whether it started."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return False
            if not is_due(self.index, self.scorer):
                return False
            self._thread = start_thread("crossknn-learn", self._learn)
            return True

    def wait(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds until the learning thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _learn(self) -> None:
        with suppress(AttributeError, OSError):  # where a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW)
        try:
            with running():
                learn(self.index, self.scorer)
        except CrossknnError as error:
            logger.warning("nothing was learned from the searches: %s", error)


if __name__ == "__main__":
    _apart(*sys.argv[1:])
