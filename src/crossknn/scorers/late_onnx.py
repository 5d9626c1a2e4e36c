"""Late-interaction models as ONNX graphs on CPUs: no torch is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crossknn.models.folder import COMPARE_MODEL, QUERY_MODEL
from crossknn.models.tokens import Row
from crossknn.scorers._folder import LATE_INTERACTION
from crossknn.scorers._session import open_session
from crossknn.scorers.late import EncodedLateInteraction
from crossknn.scorers.onnx import OnnxModel
from crossknn.types import BoolArray, FloatArray

_INPUTS = ("query", "query_mask", "items", "item_mask")


class OnnxLateInteraction(OnnxModel, EncodedLateInteraction):
    """Encodes and compares with the model folder `folder`; see `crossknn.models.export`.

    `threads` is the number of cores of one run (all by default); `tokens_per_run` the size of a
    batch of texts in tokens, padding included. May be used from many threads.
    """

    _kind = LATE_INTERACTION
    _output = "states"
    _n_texts = 1
    _first = QUERY_MODEL

    def __init__(
        self, folder: str | Path, *, threads: int | None = None, tokens_per_run: int = 512
    ) -> None:
        """Raises InputError if the folder is not a model of this kind in the ONNX folder format."""
        super().__init__(folder, threads=threads, tokens_per_run=tokens_per_run)
        self.kind, self.joint = self._manifest.head, self._manifest.joint
        self.dimensions = self._manifest.dimensions
        self._compare = open_session(
            self._manifest, threads, "scores", COMPARE_MODEL, frozenset(_INPUTS)
        )

    @property
    def fingerprint(self) -> str:
        """That of the model which was exported; of the files if they have changed since."""
        return self._manifest.weights or self._manifest.fingerprint(self.max_length)

    def _states(self, rows: Sequence[Row], queries: bool) -> tuple[FloatArray, BoolArray]:
        session = self._sessions[0 if queries else -1]
        values, mask = session.run(["states", "mask"], self._feeds(rows))
        return values, mask

    def _scores(
        self, query: FloatArray, query_mask: BoolArray, items: FloatArray, item_mask: BoolArray
    ) -> FloatArray:
        feeds = dict(zip(_INPUTS, (query, query_mask, items, item_mask), strict=True))
        with _memory_errors():
            scores: FloatArray = self._compare.run(["scores"], feeds)[0]
        return scores


@contextmanager
def _memory_errors() -> Iterator[None]:
    """ONNX Runtime's errors of a full memory as MemoryError."""
    try:
        yield
    except Exception as error:  # onnxruntime's own classes share no base
        if "allocate" not in str(error) and "bad_alloc" not in str(error):
            raise
        raise MemoryError from error
