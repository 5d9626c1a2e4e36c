"""Encoders: vectors of queries and of items, computed apart (dual encoders, bi-encoders)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from crossknn.errors import InputError
from crossknn.models.library import open_library, own_prompts, settings
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

    Queries and items are encoded as the model's author meant them, with the prompts of its
    configuration; `query_prefix` and `item_prefix` replace those, "" switches them off. Loading
    runs no code from the model's folder. Needs the torch extra.
    """

    def __init__(
        self,
        model: Any,
        *,
        batch: int = 64,
        query_prefix: str | None = None,
        item_prefix: str | None = None,
        **options: Any,
    ) -> None:
        """`options` go to `SentenceTransformer` if `model` is a folder or a name.

        Raises MissingExtraError without sentence-transformers, InputError for a model that
        cannot be loaded or is not a bi-encoder.
        """
        self._name = str(model) if isinstance(model, (str, Path)) else type(model).__name__
        if isinstance(model, (str, Path)):
            what = f"the encoder {model}"
            model = open_library("SentenceTransformer", str(model), what, **options)
        if not hasattr(model, "encode"):
            raise InputError(
                f"{self._name} is not a bi-encoder: it has no encode(texts); cross-encoders "
                f"are opened with CrossEncoder"
            )
        if _pools(model) and model.tokenizer is not None:
            # Padding on the left moves the positions of a text's tokens, by as many as the longest
            # text of its batch has more; the library's pooling finds the last token on either side.
            model.tokenizer.padding_side = "right"
        self._model = model
        self._batch = batch
        given, own = (query_prefix, item_prefix), own_prompts(model)
        self._prefixes = [a if a is not None else b for a, b in zip(given, own, strict=True)]
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
        """Hash of weights and tokenizer, length limit, prefixes and settings; None if unknown."""
        from crossknn.scorers.predict import weights_hash

        found = weights_hash(self._model, unread=".pooler." if _pools(self._model) else None)
        if found is None:
            return None
        limit = getattr(self._model, "max_seq_length", None)
        parts = f"max_length={limit}|prefixes={self._prefixes}|settings={settings(self._model)}"
        return f"bi-encoder:{found}|{parts}"

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
        # The library's two methods also choose the side of a model whose sides differ, and leave
        # the prompt out of the pooling where the model does.
        name = "encode_query" if what == "query" else "encode_document"
        plain = not hasattr(self._model, name)
        encode = self._model.encode if plain else getattr(self._model, name)
        parts: list[FloatArray] = []
        for start in range(0, len(texts), _WINDOW):
            window = list(texts[start : start + _WINDOW])
            with self._lock:
                vectors = encode(
                    [prefix + text for text in window] if plain else window,
                    batch_size=self._batch,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                    **({} if plain else {"prompt": prefix}),
                )
            parts.append(np.asarray(vectors, dtype=np.float32))
            if progress:
                progress(min(start + _WINDOW, len(texts)), len(texts))
        found = np.concatenate(parts)
        check_finite(found, texts, what, self._name)
        return found


def _pools(model: Any) -> bool:
    """Whether vectors come from the tokens' states: a BERT's own pooler, which the library fills
    with random numbers where a folder has none, is then not read."""
    first = next(iter(model), None) if hasattr(model, "__iter__") else None
    return getattr(first, "module_output_name", None) == "token_embeddings"
