"""A plain Python function as the cross-encoder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from crossknn.checks import as_count
from crossknn.errors import InputError
from crossknn.scorers.deadline import Deadline, Speed
from crossknn.scorers.robust import stream
from crossknn.types import FloatArray, IntArray, Pairs


class CallableScorer:
    """Scores with `fn`: a list of (query text, item text) -> one number per pair.

    `name` is the user's promise that the function's scores belong to it; without one there is
    no fingerprint, so that nothing is cached under a function that may change. A pair on which
    `fn` raises is left out; a wrong number of scores is a ScorerError.
    """

    def __init__(
        self,
        fn: Callable[[list[tuple[str, str]]], object],
        name: str | None = None,
        *,
        batch: int = 64,
    ) -> None:
        if not callable(fn):
            raise InputError(f"a scoring function must be callable, got {type(fn).__name__}")
        if name is not None and not isinstance(name, str):
            raise InputError(f"the name of a scoring function must be a text, got {name!r}")
        self._fn = fn
        self._name = name
        self._batch = as_count(batch, "batch")
        self._speed = Speed()

    @property
    def name(self) -> str:
        """What messages call the function."""
        return self._name or str(getattr(self._fn, "__name__", type(self._fn).__name__))

    @property
    def fingerprint(self) -> str | None:
        """`callable:<name>`, or None without a name."""
        return None if self._name is None else f"callable:{self._name}"

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions (b,), scores (b,) float32), in the order of `pairs`.

        A call of `fn` is never interrupted: with little `time_left`, batches shrink.
        """

        def run(positions: IntArray) -> object:
            chosen = pairs.take(positions)
            texts = [(queries[q], items[i]) for q, i in zip(chosen.query, chosen.item, strict=True)]
            return self._fn(texts)

        order = np.arange(len(pairs), dtype=np.int64)
        batches = (order[s : s + self._batch] for s in range(0, len(pairs), self._batch))
        return stream(
            pairs,
            queries,
            items,
            batches,
            run,
            who=f"the scorer {self.name!r}",
            deadline=Deadline(time_left, cancel),
            speed=self._speed,
        )
