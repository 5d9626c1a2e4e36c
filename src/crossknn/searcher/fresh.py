"""Searchers of long-lived processes, over indexes that other processes change."""

from __future__ import annotations

import logging
import threading

from crossknn.errors import CrossknnError
from crossknn.searcher.searcher import Searcher

logger = logging.getLogger(__name__)


class FreshSearcher:
    """A searcher over an index in a folder, made anew once another process has changed the index.

    It looks at the folder before each search, which takes microseconds. `problem` says why an index
    that was removed, or is damaged now, cannot be opened; searches go on over what was opened
    before. An index in memory or over a database is its own.
    """

    def __init__(self, searcher: Searcher) -> None:
        self._searcher, self.problem = searcher, ""
        self._seen = searcher.index.stamp or searcher.index.stamp_now()
        self._lock = threading.Lock()

    @property
    def opened(self) -> Searcher:
        """The searcher as it was opened last."""
        return self._searcher

    def now(self) -> Searcher:
        """The searcher over the index as it is now; as it was, while another thread opens it."""
        if self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._searcher

    def _look(self) -> None:
        index = self._searcher.index
        if index.folder is None or index.database is not None:
            return
        stamp = index.stamp_now()
        if stamp == self._seen:
            return
        try:
            self._searcher = self._searcher.over(index.reloaded())
        except CrossknnError as error:
            self.problem = f"{error}; searches go on over the index as it was"
            logger.warning("%s", self.problem)
        else:
            self.problem = ""
            logger.info("the index %s was changed, and is opened again", index.folder)
        self._seen = stamp
