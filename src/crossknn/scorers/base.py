"""The two protocols that every model implements: a scorer and an encoder."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from crossknn.types import FloatArray, IntArray, Pairs, Progress


@runtime_checkable
class Scorer(Protocol):
    """Gives exact scores of (query, item) pairs: a cross-encoder, the expensive part of a search. A
    pair's score must depend on its two texts alone, not on the other pairs of its batch."""

    @property
    def fingerprint(self) -> str | None:
        """A text that changes whenever scores may change; scores are stored under it. It names
        model, revision, precision, length limit and template. None if the model is unknown."""

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Score pairs, batch by batch; a pair that cannot be scored is left out and logged.

        The caller may stop between batches. The iterator may have a method `close`, and an
        attribute `computed`: the number of pairs computed so far, not counting those from a cache.

        Args:
            pairs: p pairs of positions in `queries` and `items`.
            queries, items: Texts.
            time_left: Time limit in seconds, after which the iterator ends without an error.
            cancel: An event that ends the iterator once it is set.

        Yields:
            (positions in `pairs` (b,), raw logits (b,) float32) of a batch, in any order.

        Raises:
            NothingScoredError: No pair can be scored.
            ScorerError: The model or the endpoint fails as a whole, or a score is NaN or infinite.
                Its attribute `query` is the position of the query that caused it, if known.
        """


class Wrapper:
    """A scorer that lets another one score, and reports what that one counts and measures."""

    scorer: Scorer

    def __getattr__(self, name: str) -> Any:
        if name in ("truncated", "spent", "pace", "rounds"):
            return getattr(self.scorer, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


@runtime_checkable
class Encoder(Protocol):
    """A dual encoder: the inner product of a query's and an item's vector estimates relevance."""

    @property
    def fingerprint(self) -> str | None:
        """A text that changes whenever vectors may change; None if the model is unknown."""

    @property
    def dimensions(self) -> int:
        """Number of dimensions d of the vectors."""

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Vectors (m, d) float32 of queries."""

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        """Vectors (n, d) float32 of items; `progress` is called with (items encoded so far, n)."""
