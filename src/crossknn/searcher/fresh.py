"""Searchers of long-lived processes, over indexes that other processes change."""

from __future__ import annotations

import logging
import threading

from crossknn.errors import CrossknnError
from crossknn.searcher.searcher import Searcher

logger = logging.getLogger(__name__)


class FreshSearcher:
    """A searcher that opens its index again once another process has changed the folder.

    It looks at the folder before each search, which takes microseconds. Where the index was removed
    or is damaged now, `problem` says so, and searches go on over what was opened before. An index
    in memory or over a database is never opened again.
    """

    def __init__(self, searcher: Searcher) -> None:
        self.opened, self.problem = searcher, ""
        """The searcher as it was opened last, and why it could not be opened since."""
        self._stamp = searcher.index.stamp or searcher.index.stamp_now()
        self._lock = threading.Lock()

    def now(self) -> Searcher:
        """The searcher over the index as it is now; as it was, while another thread opens it."""
        if self._lock.acquire(blocking=False):
            try:
                self._open_if_changed()
            finally:
                self._lock.release()
        return self.opened

    def _open_if_changed(self) -> None:
        index = self.opened.index
        if index.folder is None or index.database is not None:
            return
        if (stamp := index.stamp_now()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self.opened, self.problem = self.opened.over(index.reloaded()), ""
        except CrossknnError as error:
            self.problem = f"{error}; searches go on over the index as it was"
            logger.warning("%s", self.problem)
        else:
            logger.info("the index %s was changed, and is opened again", index.folder)
