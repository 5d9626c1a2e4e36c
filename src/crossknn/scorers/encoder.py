"""Encoders: vectors of queries and of items, computed apart (dual encoders, bi-encoders)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from crossknn.errors import InputError, MissingExtraError
from crossknn.models.hub import first_line
from crossknn.scorers._encoded import check_finite
from crossknn.types import FloatArray, Progress

_WINDOW = 4096


@runtime_checkable
class Encoder(Protocol):
    """Vectors whose inner product of query and item says how well they fit.

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


class SentenceTransformerEncoder:
    """Encodes with any sentence-transformers bi-encoder: a loaded model, a folder or a hub name.

    `query_prefix` and `item_prefix` are put before the texts (the model's own query and document
    prompts are not used unless given here). Needs the torch extra.
    """

    def __init__(
        self,
        model: Any,
        *,
        batch: int = 64,
        query_prefix: str = "",
        item_prefix: str = "",
        **options: Any,
    ) -> None:
        """`options` go to `SentenceTransformer` if `model` is a folder or a name.

        Raises MissingExtraError without sentence-transformers, InputError for a model that
        cannot be loaded or is not a bi-encoder.
        """
        self._name = str(model) if isinstance(model, (str, Path)) else type(model).__name__
        if isinstance(model, (str, Path)):
            model = _load_sentence_transformer(str(model), options)
        if not hasattr(model, "encode"):
            raise InputError(
                f"{self._name} is not a bi-encoder: it has no encode(texts); cross-encoders "
                f"are opened with CrossEncoder"
            )
        self._model = model
        self._batch = batch
        self._prefixes = (query_prefix, item_prefix)
        self._lock = threading.Lock()

    @property
    def dimensions(self) -> int:
        """d, the length of a vector."""
        size = getattr(self._model, "get_embedding_dimension", None) or getattr(
            self._model, "get_sentence_embedding_dimension", None
        )
        found = size() if size else None
        return int(found) if found else self.encode_queries(["a"]).shape[1]

    @property
    def fingerprint(self) -> str | None:
        """Hash of the weights and the tokenizer, length limit, prefixes; None if unknown."""
        from crossknn.scorers.predict import weights_hash

        found = weights_hash(self._model)
        if found is None:
            return None
        limit = getattr(self._model, "max_seq_length", None)
        return f"bi-encoder:{found}|max_length={limit}|prefixes={list(self._prefixes)}"

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Texts (m) -> vectors (m, d) float32."""
        return self._encode(texts, self._prefixes[0], "query", None)

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        """Texts (n) -> vectors (n, d) float32."""
        return self._encode(texts, self._prefixes[1], "item", progress)

    def _encode(
        self, texts: Sequence[str], prefix: str, what: str, progress: Progress | None
    ) -> FloatArray:
        if not len(texts):
            return np.empty((0, self.dimensions), dtype=np.float32)
        parts: list[FloatArray] = []
        for start in range(0, len(texts), _WINDOW):
            window = [prefix + text for text in texts[start : start + _WINDOW]]
            with self._lock:
                vectors = self._model.encode(
                    window,
                    batch_size=self._batch,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                )
            parts.append(np.asarray(vectors, dtype=np.float32))
            if progress:
                progress(min(start + _WINDOW, len(texts)), len(texts))
        found = np.concatenate(parts)
        check_finite(found, texts, what, self._name)
        return found


def _load_sentence_transformer(name: str, options: dict[str, Any]) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError(f"the encoder {name}", "torch") from error
    try:
        return SentenceTransformer(name, **options)
    except Exception as error:
        raise InputError(f"cannot load the encoder {name}: {first_line(error)}") from error
