"""A cross-encoder and a dual encoder as ONNX graphs on CPUs: the default scorer and encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from crossknn.errors import InputError
from crossknn.models.folder import ITEM_MODEL, MODEL, TOKENIZER
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window, padded
from crossknn.scorers._encoded import EncodedCrossEncoder, EncodedDualEncoder, EncodedModel
from crossknn.scorers._folder import read_manifest
from crossknn.scorers._session import checked_max_length, open_session
from crossknn.types import FloatArray, IntArray


class OnnxModel(EncodedModel):
    """A model folder, opened: manifest, tokenizer, session, and limits."""

    _kind: ClassVar[str]
    _output: ClassVar[str]
    _n_texts: ClassVar[int]
    _first: ClassVar[str] = MODEL

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int | None = None,
        max_length: int | None = None,
        tokens_per_run: int = 512,
    ) -> None:
        """Raises InputError if the folder is not a model of this kind in the ONNX folder format."""
        for name, value in (("tokens_per_run", tokens_per_run), ("threads", threads)):
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"{name} must be a whole number of 1 or more, got {value!r}")
        self._manifest = read_manifest(folder, self._kind)
        tokenizer = Tokenizer.load(self._manifest.folder / TOKENIZER)
        template = tokenizer.single if self._n_texts == 1 else tokenizer.pair
        limit = checked_max_length(self._manifest, max_length, template.n_special + self._n_texts)
        halves = self._manifest.halves if limit == self._manifest.max_length else {}
        encoding = Encoding(
            tokenizer,
            Window(max_length=limit, **halves),
            self._manifest.query_prefix,
            self._manifest.item_prefix,
            marked=self._manifest.marked,
        )
        super().__init__(self._manifest.name, encoding, tokens_per_run)
        files = [self._first]
        files += [ITEM_MODEL] if (self._manifest.folder / ITEM_MODEL).exists() else []
        self._sessions = [
            open_session(self._manifest, threads, self._output, file) for file in files
        ]

    @property
    def fingerprint(self) -> str:
        """Name, revision, hash of the files, precision, length limit and prefixes."""
        return self._manifest.fingerprint(self.max_length)

    def _run(self, session: Any, rows: Sequence[Row]) -> Any:
        return session.run([self._output], self._feeds(rows))[0]

    def _feeds(self, rows: Sequence[Row]) -> dict[str, IntArray]:
        return padded(rows, self._manifest.pad_token_id, self.max_length)


class OnnxCrossEncoder(OnnxModel, EncodedCrossEncoder):
    """Scores with the model folder `folder` (`model.onnx`, `tokenizer.json`, `crossknn.json`).

    `threads` is the number of cores of one run (all by default); `max_length` a smaller limit
    than the model's own; `tokens_per_run` the size of a batch in tokens, padding included.

    A pair longer than the limit loses tokens of its longer text first, as in training: a query
    of up to half the limit stays whole. Such pairs are counted in `truncated`.
    May be used from many threads.
    """

    _kind = "cross-encoder"
    _output = "scores"
    _n_texts = 2

    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        scores: FloatArray = self._run(self._sessions[0], rows)
        return scores


class OnnxDualEncoder(OnnxModel, EncodedDualEncoder):
    """Encodes with the dual encoder in the model folder `folder`; options as `OnnxCrossEncoder`.

    Longer texts lose their end and are counted in `truncated`. May be used from many threads.
    """

    _kind = "dual-encoder"
    _output = "vectors"
    _n_texts = 1

    @property
    def dimensions(self) -> int:
        """d, the length of a vector."""
        return self._manifest.dimensions

    def _vectors(self, rows: Sequence[Row], queries: bool) -> FloatArray:
        session = self._sessions[0 if queries else -1]  # one tower, or the item's is the second
        vectors: FloatArray = self._run(session, rows)
        return vectors
