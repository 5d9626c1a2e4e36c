"""When one call of a scorer has to end, and how many pairs still fit into the time that is left."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypedDict

POLL = 0.02
"""Seconds between two looks at a deadline by a thread that waits."""

FIRST_PAIRS = 4
"""Pairs of the first batch under a deadline, while nothing is known of the scorer's speed."""

MARGIN = 1.5
"""A batch is expected to take so many times as long as the speed measured so far says."""


class Rest(TypedDict):
    """How long a scorer may take: `Scorer.score`."""

    time_left: float | None
    cancel: threading.Event | None


class Deadline:
    """The end of one call: after `time_left` seconds, once `cancel` is set, or once it is ended.

    Threads that work for the call register what interrupts them (`interrupt`); it is called when
    the deadline ends, and by `check` once its own time is over.
    """

    def __init__(
        self, time_left: float | None = None, cancel: threading.Event | None = None
    ) -> None:
        self._at = math.inf if time_left is None else time.monotonic() + time_left
        self._cancel = cancel
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._interrupts: dict[object, tuple[float, Callable[[], object]]] = {}

    @property
    def limited(self) -> bool:
        """Whether it ends by itself."""
        return self._at < math.inf

    def left(self) -> float:
        """Seconds left: infinity without a limit, 0 or less when it is over."""
        if self._ended.is_set() or (self._cancel is not None and self._cancel.is_set()):
            return 0.0
        return self._at - time.monotonic()

    def rest(self) -> Rest:
        """What is left of it, as keywords for `Scorer.score`."""
        left = self.left()
        return {"time_left": None if left == math.inf else max(left, 0.0), "cancel": self._cancel}

    def over(self) -> bool:
        """Whether the call has to end now."""
        return self.left() <= 0

    def pause(self) -> float:
        """Seconds for which a thread may block before it looks again."""
        return max(0.0, min(POLL, self.left()))

    def sleep(self, seconds: float) -> bool:
        """Wait so long; False as soon as the call has to end."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0 and not self.over():
            self._ended.wait(min(rest, self.pause()))
        return not self.over()

    def interrupt(self, key: object, call: Callable[[], object], seconds: float) -> None:
        """Have `call` called after so many seconds, or when the deadline ends; see `forget`."""
        with self._lock:
            self._interrupts[key] = (time.monotonic() + seconds, call)
        if self.over():
            self.end()

    def forget(self, key: object) -> None:
        """Nothing needs to be interrupted for `key` any more."""
        with self._lock:
            self._interrupts.pop(key, None)

    def check(self) -> None:
        """Interrupt whatever has taken longer than it may."""
        now = time.monotonic()
        self._call([key for key, (until, _) in self._interrupts.copy().items() if until <= now])

    def end(self) -> None:
        """End the call, and interrupt all that works for it."""
        self._ended.set()
        self._call(list(self._interrupts))

    def _call(self, keys: list[object]) -> None:
        for key in keys:
            with self._lock:
                found = self._interrupts.pop(key, None)
            if found is not None:
                found[1]()


class Speed:
    """Seconds that a scorer needs for a unit of work, as measured so far."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def note(self, units: float, seconds: float) -> None:
        """So much work took so long."""
        if units > 0:
            known = self._seconds
            new = seconds / units
            self._seconds = new if known is None else 0.7 * known + 0.3 * new

    def fit(self, units: list[float], left: float) -> int:
        """How many of the first pairs, which cost these `units` each, fit into `left` seconds.

        At least one: a slow scorer is given a single pair rather than none.
        """
        if self._seconds is None:
            return FIRST_PAIRS
        room, count = left / (self._seconds * MARGIN), 0
        while count < len(units) and units[count] <= room:
            room -= units[count]
            count += 1
        return max(count, 1)
