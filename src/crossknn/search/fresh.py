"""A searcher over an index folder that other processes change."""

from __future__ import annotations

import logging
import threading

from crossknn.errors import CrossknnError
from crossknn.search.searcher import Searcher

logger = logging.getLogger(__name__)


class FreshSearcher:
    """Opens an index again if another process has changed its folder, which is checked before each
    search. If the index was removed or damaged, `problem` describes the error and searches continue
    with the index opened last."""

    def __init__(self, searcher: Searcher) -> None:
        self.opened, self.problem = searcher, ""
        """The searcher opened last, and the error of a later attempt to open the index."""
        self._stamp = searcher.index.stamp or searcher.index.stamp_now()
        self._lock = threading.Lock()

    def now(self) -> Searcher:
        """Return a searcher over the current index, or over the previous version while another
        thread opens the current index."""
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
            self.opened, self.problem = self.opened.reopened(index.reloaded()), ""
        except CrossknnError as error:
            self.problem = f"{error}; searches continue with the previous version of the index"
            logger.warning("%s", self.problem)
        else:
            logger.info("the index %s has changed and is opened again", index.folder)
