"""Learn from use: fit kriging's prior to the scores that past searches left in an index, first when
there are enough (`FIRST_FIT`), then whenever the store has grown by a tenth."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from crossknn.errors import CrossknnError, InputError
from crossknn.files import LockedError, exclusive_lock
from crossknn.fitting.kriging import PER_ITEM, TEACHING_ANCHORS, fit_prior
from crossknn.fitting.multitask import FEWEST_SCORES
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import running
from crossknn.methods.prior import Prior, stored_prior
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import start_thread
from crossknn.scores.sparse import SparseScores
from crossknn.spec import Spec
from crossknn.types import IntArray, Progress

logger = logging.getLogger(__name__)

GROWTH = 0.1
"""Share by which the searched pairs in the store must grow before the next fit."""

FIRST_FIT = 30
"""Minimum number of searched queries with `FEWEST_SCORES` scores before the first fit."""

QUERIES, SCORES = 1_000, 100_000
"""Limits on the newest queries and scores that a fit reads, so that its memory and time do not grow
with the store."""

PATIENCE = 2.0
"""Seconds that a search of the command line waits for a fit, which then continues in the
background."""

LOW = 19
"""Priority of fits in the background, as Unix niceness."""


def fit_from_store(
    index: ItemIndex,
    scorer: Scorer,
    *,
    retriever: str | Spec | None = None,
    progress: Progress | None = None,
) -> Prior:
    """Fit kriging's prior now to the index's scores by `scorer`, with the options of `fit_prior`.
    Queries that were scored with every item for ground truth, as by `compare`, are left out."""
    fingerprint = _fingerprint(scorer)
    index = index.for_scorer(fingerprint)
    counts = index.scores.query_counts(fingerprint)[1]
    stored = int(counts[_searched(index, counts)].sum())
    scores = searched_scores(index, fingerprint)
    return fit_prior(index, scores, stored=stored, retriever=retriever, progress=progress)


def learn(index: ItemIndex, scorer: Scorer) -> Prior | None:
    """Fit kriging's prior to past searches with a cross-encoder; None if too few of them are new.
    Searches that are already running finish with the old prior."""
    return fit_from_store(index, scorer) if is_due(index, scorer) else None


def is_due(index: ItemIndex, scorer: Scorer) -> bool:
    """Whether the store has enough new scores by this cross-encoder to learn from."""
    fingerprint = _fingerprint(scorer)
    index = index.for_scorer(fingerprint)
    if not index.vectors or len(index.anchor_queries) >= TEACHING_ANCHORS:
        return False
    counts = index.scores.query_counts(fingerprint)[1]
    if len(counts) < FIRST_FIT:  # before any text is read
        return False
    searched, prior = counts[_searched(index, counts)], stored_prior(index)
    before = 0 if prior is None else prior.stored
    stored, enough = int(searched.sum()), int(np.sum(searched >= FEWEST_SCORES)) >= FIRST_FIT
    return enough and stored >= max(PER_ITEM * index.n, (1 + GROWTH) * before)


def _searched(index: ItemIndex, counts: IntArray) -> IntArray:
    """Positions of the queries that were not scored with every different text of the items."""
    items = index.items
    different = index.cache.get("different texts", (items,), lambda: len({*items.texts}))
    return np.flatnonzero(counts < different)


def searched_scores(index: ItemIndex, fingerprint: str) -> SparseScores:
    """Return a cross-encoder's stored scores of the newest queries (`QUERIES`, `SCORES`), without
    anchors, queries that were scored with every item, and pairs of equal texts."""
    ids, counts = index.scores.query_counts(fingerprint)
    searched = _searched(index, counts)[-QUERIES:]
    fitting = int((np.cumsum(counts[searched][::-1]) <= SCORES).sum())
    texts = index.scores.query_texts(ids[searched[-max(1, fitting) :]])
    scores = index.scores.sparse_scores(fingerprint, index.items.texts, sorted(texts))
    anchors = set(index.anchor_queries)
    anchored = np.array([text in anchors for text in scores.queries], np.bool_)
    dense = (np.diff(scores.by_query) == index.n) | anchored
    # How a document of the corpus scores with itself says nothing about other pairs.
    rows = {text: row for row, text in enumerate(scores.queries)}
    itself = np.array([rows.get(text, -1) for text in index.items.texts])
    return scores.take(~dense[scores.query] & (itself[scores.item] != scores.query))


def _fingerprint(scorer: Scorer) -> str:
    if scorer.fingerprint is None:
        raise InputError(
            "the scorer has no fingerprint, so no scores are stored to learn from: name its model"
        )
    return scorer.fingerprint


def learn_apart(folder: Path, fingerprint: str, patience: float = PATIENCE) -> bool:
    """Learn in a separate process, at low priority. Return whether it ended within `patience`
    seconds; otherwise it continues in the background. `InputError` if it failed."""
    command = [sys.executable, "-m", "crossknn.fitting.learning", str(folder), fingerprint]
    # The process must import the same crossknn.
    path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    apart = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _, errors = apart.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return False
    if apart.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["the fit was killed"]
        raise InputError(lines[-1])
    return True


def _apart(folder: str, fingerprint: str) -> None:
    """Learn in the process that `learn_apart` starts, unless another process already learns."""
    with suppress(AttributeError, OSError):
        os.nice(LOW)
    try:
        index = ItemIndex.load(folder)
        with exclusive_lock(Path(folder), "learning.part", what="what it learns"):
            learn(index, SimpleNamespace(fingerprint=fingerprint))
    except LockedError:
        return
    except CrossknnError as error:
        raise SystemExit(str(error)) from None


class Learner:
    """Learns from the searches of an index in the background, for services and notebooks,
    with a scorer that keeps its scores in the index's store:

        scorer = ck.StoredScorer(ck.CrossEncoder(), index.scores)
        searcher, learner = ck.Searcher(index, scorer), ck.Learner(index, scorer)
        results = searcher.search(query)
        learner.notice()
    """

    def __init__(self, index: ItemIndex, scorer: Scorer) -> None:
        is_due(index, scorer)  # refuses a scorer without a name
        self.index, self.scorer = index, scorer
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def notice(self) -> bool:
        """Start learning after a search, if it is time and no thread is learning yet; return
        whether it started."""
        with self._lock:
            learning = self._thread is not None and self._thread.is_alive()
            if learning or not is_due(self.index, self.scorer):
                return False
            self._thread = start_thread("crossknn-learn", self._learn)
            return True

    def wait(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds until the learning thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _learn(self) -> None:
        with suppress(AttributeError, OSError):  # only some systems have priorities of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW)
        try:
            with running():
                learn(self.index, self.scorer)
        except CrossknnError as error:
            logger.warning("nothing was learned from the searches: %s", error)


if __name__ == "__main__":
    _apart(*sys.argv[1:])
