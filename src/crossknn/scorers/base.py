"""What a scorer and an encoder are: the two protocols behind which every model stands."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from crossknn.types import FloatArray, IntArray, Pairs, Progress


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

        Args:
            time_left: seconds after which the stream ends early, without an error.
            cancel: ends the stream early, too, once it is set.

        Yields (positions in `pairs` (b,), raw logits (b,) float32), in any order, each pair at
        most once; the caller may stop between batches. A pair that cannot be scored is left out
        and logged as a warning. A stream may have an attribute `computed`, the pairs it really
        computed so far, where these are fewer than it yields (a cache), and a method `close`.

        Raises:
            NothingScoredError: no pair can be scored.
            ScorerError: the model or the endpoint fails as a whole, or a score is NaN or infinite;
                its attribute `query` is the position of the query at fault, if it is one.
        """
        ...


@runtime_checkable
class Encoder(Protocol):
    """Encodes queries and items as vectors whose inner product estimates relevance.

    `fingerprint` names everything a vector depends on, or is None where that cannot be known.
    """

    @property
    def fingerprint(self) -> str | None: ...

    @property
    def dimensions(self) -> int: ...

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Texts (m) -> vectors (m, d) float32."""
        ...

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        """Texts (n) -> vectors (n, d) float32."""
        ...
