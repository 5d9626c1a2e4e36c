"""Models of sentence-transformers, and any object with `predict(pairs)`."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.models.folder import check_outputs, open_library, own_prompts, settings
from crossknn.scorers.streaming import BatchedScorer, Call
from crossknn.scorers.token_models import check_finite
from crossknn.types import FloatArray, IntArray, Progress, as_count

_PAIRS_AT_ONCE = 1024
_TEXTS_AT_ONCE = 4096
_PROBES = [("red", "tree"), ("how are lists sorted", "sorted gives a new list of the items. " * 2)]
_SAME = 1e-2
"""So much of a score may differ in a batch, in bfloat16; a wrong side moves it by far more."""


class PredictScorer(BatchedScorer):
    """Scores with `model.predict(list of (query text, item text))`.

    A sentence-transformers `CrossEncoder` is made to give raw logits, whatever activation it was
    saved with. Other objects are taken at their word, and have a fingerprint only if `name` is
    given. One call of `predict` at a time: models and their tokenizers are not thread-safe.

    Raises:
        InputError: a bi-encoder, or a model with other than one output.
    """

    def __init__(self, model: Any, *, batch: int = 32, name: str | None = None) -> None:
        shown = name or type(model).__name__
        super().__init__(shown)
        if not callable(getattr(model, "predict", None)):
            raise InputError(
                f"{shown} has no predict(pairs) and cannot score a pair: give a cross-encoder "
                f"here; bi-encoders, which encode single texts, are opened with DualEncoder"
            )
        self._model, self._batch, self._given = model, as_count(batch, "batch"), name
        self._turn = threading.Lock()
        library = sys.modules.get("sentence_transformers")
        self._is_library = library is not None and isinstance(model, library.CrossEncoder)
        self._options: dict[str, Any] = {}
        if self._is_library:
            import torch

            raw = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
            self._options = {"batch_size": self._batch, **raw}
            check_outputs(model.num_labels, self.name)
            last = list(model)[-1]
            word = getattr(last, "true_token_id", None)
            if word and word == last.false_token_id:
                raise InputError(
                    f"the tokenizer of {shown} has neither of the tokens whose logits give the "
                    "score"
                )
            if word is None:
                _pad(model, lambda pairs: model.predict(pairs, **self._options))
            else:  # the library reads the last token's logits, and pads on the left
                _count_positions(model)

    @cached_property
    def fingerprint(self) -> str | None:
        """Hash of the weights and the tokenizer, precision and length limit of a torch model."""
        if not self._is_library:
            return None if self._given is None else f"predict:{self._given}"
        model = self._model
        prompt = model.prompts.get(model.default_prompt_name)
        parts = f"max_length={model.max_seq_length}|prompt={prompt!r}|settings={settings(model)}"
        return f"cross-encoder:{_weights_hash(model)}|{parts}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        """Pairs of similar length together, which saves padding, roughly in the order asked for."""
        for window in call.slices(_PAIRS_AT_ONCE):
            lengths = [len(str(query)) + len(str(item)) for query, item in call.texts(window)]
            call.costs[window] = lengths
            order = window[np.argsort(lengths, kind="stable")]
            yield from (order[at : at + self._batch] for at in range(0, len(order), self._batch))

    def _run(self, call: Call, positions: IntArray) -> object:
        with self._turn:
            return self._model.predict(call.texts(positions), **self._options)


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
        if not hasattr(model, "encode_query"):
            raise InputError(
                f"{self._name} is not a bi-encoder of sentence-transformers; cross-encoders are "
                f"opened with CrossEncoder"
            )
        if _pools(model) and model.tokenizer is not None:
            # Padding on the left would make a vector depend on the longest text of its batch.
            model.tokenizer.padding_side = "right"
        elif getattr(getattr(model, "tokenizer", None), "padding_side", "right") == "left":
            _pad(model, lambda pairs: model.encode([item for _, item in pairs]))
        self._model, self._batch, self._turn = model, batch, threading.Lock()
        given, own = (query_prefix, item_prefix), own_prompts(model)
        self._prefixes = [a if a is not None else b for a, b in zip(given, own, strict=True)]

    @property
    def dimensions(self) -> int:
        """d, the length of a vector."""
        return int(self._model.get_embedding_dimension() or self.encode_queries(["a"]).shape[1])

    @property
    def fingerprint(self) -> str | None:
        """Hash of weights and tokenizer, length limit, prefixes and settings."""
        found = _weights_hash(self._model, unread=".pooler." if _pools(self._model) else None)
        limit, about = self._model.max_seq_length, settings(self._model)
        parts = f"max_length={limit}|prefixes={self._prefixes}|settings={about}"
        return f"bi-encoder:{found}|{parts}"

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Texts (m) -> vectors (m, d) float32."""
        return self._encode(texts, "query", self._model.encode_query, None)

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        """Texts (n) -> vectors (n, d) float32."""
        return self._encode(texts, "item", self._model.encode_document, progress)

    def _encode(
        self, texts: Sequence[str], what: str, encode: Any, progress: Progress | None
    ) -> FloatArray:
        """With one of the library's two methods, which choose the side of a model whose sides
        differ, and leave the prompt out of the pooling where the model does."""
        if not len(texts):
            return np.empty((0, self.dimensions), dtype=np.float32)
        parts: list[FloatArray] = []
        prompt = self._prefixes[0 if what == "query" else 1]
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            window = list(texts[start : start + _TEXTS_AT_ONCE])
            with self._turn:
                vectors = encode(
                    window, batch_size=self._batch, show_progress_bar=False, prompt=prompt
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
    return getattr(model[0], "module_output_name", None) == "token_embeddings"


def _pad(model: Any, run: Callable[[list[tuple[str, str]]], Any]) -> None:
    """Let a model's texts be padded on the right, where most models number positions and read
    [CLS] as if there were no padding; on the left if it gives other scores so (XLNet).

    Args:
        model: Of the library.
        run: Scores of pairs (p, ...) as a batch, with which the sides are compared.
    """
    tokenizer, moved = model.tokenizer, dict[str, float]()
    if not hasattr(tokenizer, "padding_side"):
        return
    given = tokenizer.padding_side
    try:
        for side in ("right", "left"):
            tokenizer.padding_side = side
            alone = np.asarray(run(_PROBES[:1]), np.float64)[0]
            moved[side] = float(np.abs(np.asarray(run(_PROBES), np.float64)[0] - alone).max())
            if moved[side] <= _SAME * (1 + float(np.abs(alone).max())):
                return
        tokenizer.padding_side = min(moved, key=lambda side: moved[side])
    except Exception:  # a model that cannot score says why when it is asked to
        tokenizer.padding_side = given


def _count_positions(model: Any) -> None:
    """Number a text's positions from its first token, not from the padding on its left: learned
    positions would else say how long the longest text of its batch is."""
    first, inner = model[0], getattr(model[0], "auto_model", None)
    if inner is None or "position_ids" not in signature(inner.forward).parameters:
        return
    config = inner.config.get_text_config()
    if any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta")):
        return  # rotary positions only count from one token to the other

    def positions(_: Any, given: tuple[dict[str, Any], ...]) -> None:
        mask = given[0].get("attention_mask")
        if mask is not None and mask.dim() == 2:
            given[0].setdefault("position_ids", (mask.long().cumsum(1) - 1).clamp(min=0))

    first.register_forward_pre_hook(positions)  # the library calls the model's own `forward`


def _weights_hash(model: Any, unread: str | None = None) -> str:
    """Hash of a model's tokenizer and weights but those whose name contains `unread`."""
    fast = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    # Truncation and padding are state that every call changes; the limit is known elsewhere.
    state = {"truncation": None, "padding": None}
    rules = json.dumps(json.loads(fast.to_str()) | state, sort_keys=True) if fast else ""
    return state_hash(model, rules, unread=unread)


def state_hash(module: Any, *texts: str, unread: str | None = None) -> str:
    """Hash of every weight of a module, whose name does not contain `unread`, and of texts."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        if unread is None or unread not in name:
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            flat = tensor.detach().cpu().reshape(-1).contiguous()
            digest.update(flat.view(torch.uint8).numpy())
    for text in texts:
        digest.update(text.encode())
    return digest.hexdigest()
