"""The two protocols that every model implements, a scorer and an encoder, and scorers' prices."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from crossknn.errors import InputError
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


class Count:
    """A sum over all threads and copies of a scorer."""

    def __init__(self) -> None:
        self.total, self._lock = 0, threading.Lock()

    def add(self, count: int) -> None:
        """Add a number."""
        with self._lock:
            self.total += count


def checked_price(price: Any) -> float:
    """Return a price of 0 or more; raise InputError for anything else."""
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    if not is_number or not 0 <= price < math.inf:
        raise InputError(f"the price is {price!r:.80}: give a number of 0 or more")
    return float(price)


class Priced:
    """A scorer whose pairs may have a price, which is money for a thousand of them."""

    def _set_price(self, price: float | None) -> None:
        self._price, self._scored = None if price is None else checked_price(price), Count()

    @property
    def spent(self) -> float | None:
        """Money for all pairs so far; None if no price was given."""
        return None if self._price is None else self._price * self._scored.total / 1000


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
