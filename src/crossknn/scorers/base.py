"""What a scorer is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from crossknn.types import FloatArray, IntArray, Pairs


@runtime_checkable
class Scorer(Protocol):
    """Exact scores of (query, item) pairs: the only expensive thing in a search.

    `fingerprint` names everything a score depends on (model, revision, precision, length limit,
    template), or is None where that cannot be known; caches and indexes are keyed by it.
    A pair's score depends on the two texts and the fingerprint alone, never on its batch.
    """

    @property
    def fingerprint(self) -> str | None: ...

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Score `pairs`, whose positions point into `queries` and `items`, in a stream of batches.

        Yields (positions in `pairs` (b,), raw logits (b,) float32), in any order, each pair at
        most once. The caller may stop between batches, and the stream ends early, without an
        error, after `time_left` seconds or once `cancel` is set. A pair that cannot be scored is
        left out and logged as a warning; `ScorerError` is raised only if no pair can be scored at
        all (`NothingScoredError`), if the model or the endpoint fails as a whole, or if a score is
        NaN or infinite; its attribute `query` is the position of the query at fault, if it is one.
        A stream may have an attribute `computed`, the pairs it really computed so far, where these
        are fewer than it yields (a cache), and a method `close`.
        """
        ...
