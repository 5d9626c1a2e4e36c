"""Models of sentence-transformers, and any object with `predict(pairs)` or `encode(texts)`."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.models.folder import check_outputs, open_library, own_prompts, settings
from crossknn.models.tokens import CHARACTERS_PER_TOKEN
from crossknn.scorers.streaming import BatchedScorer, Call
from crossknn.scorers.token_models import check_finite
from crossknn.types import FloatArray, IntArray, Progress, as_count

_SPECIAL = 8
_TEXTS_AT_ONCE = 4096


class PredictScorer(BatchedScorer):
    """Scores with `model.predict(list of (query text, item text))`.

    A sentence-transformers `CrossEncoder` is made to give raw logits, whatever activation it was
    saved with, and its pairs that had to be cut are counted in `truncated`. Other objects are taken
    at their word, and have a fingerprint only if `name` is given. One call of `predict` at a time:
    models and their tokenizers are not thread-safe.

    Raises:
        InputError: a bi-encoder, or a model with other than one output.
    """

    def __init__(self, model: Any, *, batch: int = 32, name: str | None = None) -> None:
        shown = name or type(model).__name__
        super().__init__(shown)
        if not callable(getattr(model, "predict", None)):
            if callable(getattr(model, "encode", None)):
                raise InputError(
                    f"{shown} is a bi-encoder: it encodes texts one by one and cannot "
                    f"score a pair; open it with DualEncoder, and give a cross-encoder here"
                )
            raise InputError(f"{shown} has no predict(pairs) and cannot score")
        self._model, self._batch, self._given = model, as_count(batch, "batch"), name
        self._turn = threading.Lock()
        library = sys.modules.get("sentence_transformers")
        self._is_library = library is not None and isinstance(model, library.CrossEncoder)
        if self._is_library:
            self._check_outputs()
            self.max_length = getattr(model, "max_seq_length", None)

    def _check_outputs(self) -> None:
        check_outputs(self._model.num_labels, self.name)
        last = list(self._model)[-1]
        words = [getattr(last, name, None) for name in ("true_token_id", "false_token_id")]
        if words[0] is not None and words[0] == words[1]:
            raise InputError(
                f"{self.name} is scored by the logits of two words, and its tokenizer knows "
                f"neither ('yes' and 'no' by default): its folder has to name them (modules.json)"
            )

    @cached_property
    def fingerprint(self) -> str | None:
        """Hash of the weights and the tokenizer, precision and length limit of a torch model."""
        if not self._is_library:
            return None if self._given is None else f"predict:{self._given}"
        extra = f"|prompt={self._prompt!r}" if self._model.default_prompt_name else ""
        if found := settings(self._model):
            extra += f"|settings={found}"
        return f"cross-encoder:{_weights_hash(self._model)}|max_length={self.max_length}{extra}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        lengths = [
            sum(min(len(str(text)), self._most) for text in pair)
            for pair in call.texts(np.arange(len(call.pairs)))
        ]
        call.costs = np.array(lengths, dtype=np.float32)
        return call.by_cost(self._batch)

    def _run(self, call: Call, positions: IntArray) -> object:
        texts = [(query[: self._most], item[: self._most]) for query, item in call.texts(positions)]
        with self._turn:
            if not self._is_library:
                return self._model.predict(texts)
            import torch

            answer = self._model.predict(
                texts,
                batch_size=len(texts),
                activation_fn=torch.nn.Identity(),
                show_progress_bar=False,
            )
            call.n_cut += self._count_too_long(texts)
        return answer

    @property
    def _most(self) -> int:
        """Characters of a text that a model can read, at most."""
        return CHARACTERS_PER_TOKEN * self.max_length if self.max_length else sys.maxsize

    @property
    def _prompt(self) -> str | None:
        """What a sentence-transformers model puts before the query by default."""
        prompts = self._model.prompts or {}
        found: str | None = prompts.get(self._model.default_prompt_name)
        return found

    @cached_property
    def _around(self) -> int:
        """Tokens that a model puts around the two texts of a pair, at most."""
        return _SPECIAL + self._lengths([("", "")])[0]

    def _lengths(self, texts: list[tuple[str, str]]) -> list[int]:
        """Tokens of each pair before anything is cut."""
        whole = {"text": {"truncation": False, "verbose": False}}
        made = self._model.preprocess(texts, prompt=self._prompt, processing_kwargs=whole)
        return [int(count) for count in made["attention_mask"].sum(1)]

    def _count_too_long(self, texts: list[tuple[str, str]]) -> int:
        """How many pairs lose tokens, which the library does not say."""
        limit = self.max_length
        if limit is None or self._model.tokenizer is None:
            return 0
        # No tokenizer makes more tokens than bytes: most pairs need not be looked at.
        long = [t for t in texts if sum(len(s.encode()) for s in t) + self._around > limit]
        return sum(count > limit for count in self._lengths(long)) if long else 0


class SentenceTransformerEncoder:
    """Encodes with any sentence-transformers bi-encoder: a loaded model, a folder or a hub name.

    Queries and items are encoded as the model's author meant them, with the prompts of its
    configuration. Loading runs no code from the model's folder. Needs the torch extra.

    Args:
        query_prefix, item_prefix: replace the model's own prompts; "" switches them off.
        options: go to `SentenceTransformer` if `model` is a folder or a name.

    Raises:
        InputError: the model cannot be loaded or is not a bi-encoder.
        MissingExtraError: sentence-transformers is not installed.
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
        self._model, self._batch, self._turn = model, batch, threading.Lock()
        given, own = (query_prefix, item_prefix), own_prompts(model)
        self._prefixes = [a if a is not None else b for a, b in zip(given, own, strict=True)]

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
        found = _weights_hash(self._model, unread=".pooler." if _pools(self._model) else None)
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
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            window = list(texts[start : start + _TEXTS_AT_ONCE])
            with self._turn:
                vectors = encode(
                    [prefix + text for text in window] if plain else window,
                    batch_size=self._batch,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                    **({} if plain else {"prompt": prefix}),
                )
            parts.append(np.asarray(vectors, dtype=np.float32))
            if progress:
                progress(start + len(window), len(texts))
        found = np.concatenate(parts)
        check_finite(found, texts, what, self._name)
        return found


def _pools(model: Any) -> bool:
    """Whether vectors come from the tokens' states: a BERT's own pooler, which the library fills
    with random numbers where a folder has none, is then not read."""
    first = next(iter(model), None) if hasattr(model, "__iter__") else None
    return getattr(first, "module_output_name", None) == "token_embeddings"


def _weights_hash(model: Any, unread: str | None = None) -> str | None:
    """Hash of a torch model's weights, but those whose name contains `unread`, and its tokenizer.

    None for what is not a torch model.
    """
    if not hasattr(model, "state_dict"):
        return None
    from crossknn.models.base import state_hash

    fast = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    # Truncation and padding are state that every call changes; the limit is known elsewhere.
    state = {"truncation": None, "padding": None}
    rules = json.dumps(json.loads(fast.to_str()) | state, sort_keys=True) if fast else ""
    return state_hash(model, rules, unread=unread)
