"""Score with sentence-transformers models, and with any object that has `predict(pairs)`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.models import library
from crossknn.scorers.streaming import BatchedScorer, Call
from crossknn.scorers.token_models import check_finite
from crossknn.types import FloatArray, IntArray, Progress, as_count

_PAIRS_AT_ONCE = 1024
_TEXTS_AT_ONCE = 4096


class PredictScorer(BatchedScorer):
    """Scores with `model.predict(list of (query text, item text))`.

    A sentence-transformers `CrossEncoder` is made to return raw logits, whatever its activation.
    Scores of other objects are used unchanged, and stored only if `name` gives a fingerprint. Calls
    of `predict` never overlap, because models and tokenizers are not thread-safe. Raises InputError
    for a bi-encoder, or a model with more than one output.
    """

    def __init__(self, model: Any, *, batch: int = 32, name: str | None = None) -> None:
        shown = name or type(model).__name__
        super().__init__(shown)
        if not callable(getattr(model, "predict", None)):
            raise InputError(
                f"{shown} has no predict(pairs) and cannot score a pair: give a cross-encoder; "
                "bi-encoders, which encode single texts, are opened with DualEncoder"
            )
        self._model, self._batch, self._given = model, as_count(batch, "batch"), name
        self._turn = threading.Lock()
        module = sys.modules.get("sentence_transformers")
        self._is_library = module is not None and isinstance(model, module.CrossEncoder)
        self._options: dict[str, Any] = {}
        if self._is_library:
            self._options = library.logits_options(model, shown, self._batch)

    @cached_property
    def fingerprint(self) -> str | None:
        """Hash of the weights and the tokenizer, precision and length limit of a torch model."""
        if not self._is_library:
            return None if self._given is None else f"predict:{self._given}"
        model, about = self._model, library.settings(self._model)
        prompt = model.prompts.get(model.default_prompt_name)
        parts = f"max_length={model.max_seq_length}|prompt={prompt!r}|settings={about}"
        return f"cross-encoder:{library.model_hash(model)}|{parts}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        """Yield batches of pairs of similar length, which saves padding, roughly in the order of
        the call."""
        for window in call.slices(_PAIRS_AT_ONCE):
            lengths = [len(str(query)) + len(str(item)) for query, item in call.texts(window)]
            call.costs[window] = lengths
            order = window[np.argsort(lengths, kind="stable")]
            yield from (order[at : at + self._batch] for at in range(0, len(order), self._batch))

    def _run(self, call: Call, positions: IntArray) -> object:
        with self._turn:
            return self._model.predict(call.texts(positions), **self._options)


class SentenceTransformerEncoder:
    """Encodes with a sentence-transformers bi-encoder: a loaded model, a folder or a hub name.

    Queries and items get the prompts in the model's configuration; `query_prefix` and `item_prefix`
    replace them ("" for none). `options` go to `SentenceTransformer` when it opens a folder or
    name. No code from the model is run. Raises InputError if the model cannot be loaded or is not a
    bi-encoder.
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
        self._name = str(model) if isinstance(model, (str, Path)) else type(model).__name__
        if isinstance(model, (str, Path)):
            what = f"the encoder {model}"
            model = library.open_library("SentenceTransformer", str(model), what, **options)
        if not hasattr(model, "encode_query"):
            raise InputError(
                f"{self._name} is not a bi-encoder of sentence-transformers: open a "
                "cross-encoder with CrossEncoder"
            )
        self._pools = library.pools_tokens(model)
        if self._pools and model.tokenizer is not None:
            # With padding on the left, a vector would depend on the longest text of its batch.
            model.tokenizer.padding_side = "right"
        elif getattr(getattr(model, "tokenizer", None), "padding_side", "right") == "left":
            items = lambda pairs: model.encode([item for _, item in pairs])  # noqa: E731
            library.choose_padding_side(model, items)
        self._model, self._batch, self._turn = model, batch, threading.Lock()
        given, own = (query_prefix, item_prefix), library.own_prompts(model)
        self._prefixes = [a if a is not None else b for a, b in zip(given, own, strict=True)]

    @property
    def dimensions(self) -> int:
        """d, the length of a vector."""
        return int(self._model.get_embedding_dimension() or self.encode_queries(["a"]).shape[1])

    @property
    def fingerprint(self) -> str | None:
        """Hash of weights and tokenizer, length limit, prefixes and settings."""
        weights = library.model_hash(self._model, unread=".pooler." if self._pools else None)
        limit, about = self._model.max_seq_length, library.settings(self._model)
        return f"bi-encoder:{weights}|max_length={limit}|prefixes={self._prefixes}|settings={about}"

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Texts (m) -> vectors (m, d) float32."""
        return self._encode(texts, "query", self._model.encode_query, None)

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        """Texts (n) -> vectors (n, d) float32."""
        return self._encode(texts, "item", self._model.encode_document, progress)

    def _encode(
        self, texts: Sequence[str], what: str, encode: Any, progress: Progress | None
    ) -> FloatArray:
        """Encode with `encode_query` or `encode_document`, which choose the tower of a two-tower
        model and keep the prompt out of pooling where the model does."""
        if not len(texts):
            return np.empty((0, self.dimensions), dtype=np.float32)
        batches: list[FloatArray] = []
        how = {"batch_size": self._batch, "show_progress_bar": False}
        prompt = self._prefixes[0 if what == "query" else 1]
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            window = list(texts[start : start + _TEXTS_AT_ONCE])
            with self._turn:
                batches.append(np.asarray(encode(window, prompt=prompt, **how), dtype=np.float32))
            if progress:
                progress(start + len(window), len(texts))
        vectors = np.concatenate(batches)
        check_finite(vectors, texts, what, self._name)
        return vectors
