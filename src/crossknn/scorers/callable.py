"""A plain Python function as the cross-encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from crossknn.errors import InputError
from crossknn.scorers.streaming import BatchedScorer, Call
from crossknn.types import IntArray, as_count


class CallableScorer(BatchedScorer):
    """Scores with `fn`: a list of (query text, item text) -> one number per pair.

    A pair on which `fn` raises is left out; a wrong number of scores is a ScorerError. A call of
    `fn` is never interrupted: with little time left, batches shrink.

    Args:
        name: your promise that the function's scores belong to this name; without one there is
            no fingerprint, so that nothing is cached under a function that may change.
        batch: pairs of one call of `fn`, at most.

    Raises:
        InputError: `fn` is not callable, or an option is not what it has to be.
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
        shown = name or str(getattr(fn, "__name__", type(fn).__name__))
        super().__init__(shown, "the scorer {!r}")
        self._fn, self._batch = fn, as_count(batch, "batch")
        self.fingerprint = None if name is None else f"callable:{name}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        return call.slices(self._batch)

    def _run(self, call: Call, positions: IntArray) -> object:
        return self._fn(call.texts(positions))
