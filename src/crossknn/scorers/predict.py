"""Any object with `predict(pairs)`, sentence-transformers cross-encoders above all."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.models.library import reads_messages, settings
from crossknn.models.tokens import CHARACTERS_PER_TOKEN
from crossknn.scorers.deadline import Deadline, Speed
from crossknn.scorers.robust import stream, windowed_batches
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

_SAMPLED = 4096
_SPECIAL = 8


class PredictScorer:
    """Scores with `model.predict(list of (query text, item text))`.

    A sentence-transformers `CrossEncoder` is made to give raw logits, whatever activation it was
    saved with. Other objects are taken at their word, and have a fingerprint only if `name` is
    given. One call of `predict` at a time: models and their tokenizers are not thread-safe.
    """

    def __init__(self, model: Any, *, batch: int = 32, name: str | None = None) -> None:
        """Raises InputError for a bi-encoder and for a model with other than one output."""
        kind = type(model).__name__
        if not callable(getattr(model, "predict", None)):
            if callable(getattr(model, "encode", None)):
                raise InputError(
                    f"{name or kind} is a bi-encoder: it encodes texts one by one and cannot "
                    f"score a pair; open it with DualEncoder, and give a cross-encoder here"
                )
            raise InputError(f"{name or kind} has no predict(pairs) and cannot score")
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}")
        self._model = model
        self._batch = batch
        self._name = name
        self._is_sentence_transformers = is_sentence_transformers(model)
        self._lock = threading.Lock()
        self._speed = Speed()
        self._truncated = 0
        if self._is_sentence_transformers and model.num_labels != 1:
            raise InputError(
                f"{name or kind} has {model.num_labels} outputs for a pair: it is a classifier, "
                f"and none of its outputs is a score; a cross-encoder with one output is needed"
            )
        last = list(model)[-1] if self._is_sentence_transformers else None
        words = [getattr(last, name, None) for name in ("true_token_id", "false_token_id")]
        if words[0] is not None and words[0] == words[1]:
            raise InputError(
                f"{name or kind} is scored by the logits of two words, and its tokenizer knows "
                f"neither ('yes' and 'no' by default): its folder has to name them (modules.json)"
            )

    @property
    def name(self) -> str:
        """What messages call the model."""
        return self._name or type(self._model).__name__

    @cached_property
    def fingerprint(self) -> str | None:
        """Hash of the weights and the tokenizer, precision and length limit of a torch model."""
        if not self._is_sentence_transformers:
            return None if self._name is None else f"predict:{self._name}"
        limit = getattr(self._model, "max_seq_length", None)
        named = getattr(self._model, "default_prompt_name", None)
        extra = f"|prompt={self._prompt!r}" if named else ""
        if found := settings(self._model):
            extra += f"|settings={found}"
        return f"cross-encoder:{weights_hash(self._model)}|max_length={limit}{extra}"

    @property
    def truncated(self) -> int:
        """Pairs longer than a sentence-transformers model reads, so far; 0 for other objects."""
        return self._truncated

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions (b,), raw scores (b,) float32), by text length within windows.

        Pairs that had to be cut are counted in `truncated` and logged (info).
        """
        cut = 0
        limit = getattr(self._model, "max_seq_length", None)
        most = CHARACTERS_PER_TOKEN * limit if self._is_sentence_transformers and limit else None
        n_chars = [
            len(str(queries[q])[:most]) + len(str(items[i])[:most]) for q, i in _zipped(pairs)
        ]

        def run(positions: IntArray) -> object:
            nonlocal cut
            texts = [
                (queries[q][:most], items[i][:most]) for q, i in _zipped(pairs.take(positions))
            ]
            with self._lock:
                answer = self._predict(texts)
                cut += self._count_too_long(texts)
            return answer

        batches = windowed_batches(pairs, n_chars, self._batch)
        try:
            yield from stream(
                pairs,
                queries,
                items,
                batches,
                run,
                who=f"the model {self.name}",
                deadline=Deadline(time_left, cancel),
                speed=self._speed,
                units=lambda position: float(n_chars[position]),
            )
        finally:
            if cut:
                with self._lock:
                    self._truncated += cut
                limit = self._model.max_seq_length
                logger.info("%s cut %d of %d pairs to %d tokens", self.name, cut, len(pairs), limit)

    def _predict(self, texts: list[tuple[str, str]]) -> object:
        if not self._is_sentence_transformers:
            return self._model.predict(texts)
        import torch

        return self._model.predict(
            texts,
            batch_size=len(texts),
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )

    @property
    def _prompt(self) -> str | None:
        """What a sentence-transformers model puts before the query by default."""
        prompts = getattr(self._model, "prompts", None) or {}
        found: str | None = prompts.get(getattr(self._model, "default_prompt_name", None))
        return found

    @cached_property
    def _around(self) -> int:
        """Tokens that a model puts around the two texts of a pair, at most."""
        return _SPECIAL + (self._lengths([("", "")])[0] if self._wraps else 0)

    @property
    def _wraps(self) -> bool:
        return bool(self._prompt) or reads_messages(self._model)

    def _lengths(self, texts: list[tuple[str, str]]) -> list[int]:
        """Tokens of each pair before anything is cut."""
        if self._wraps:
            whole = {"text": {"truncation": False, "verbose": False}}
            made = self._model.preprocess(texts, prompt=self._prompt, processing_kwargs=whole)
            return [int(count) for count in made["attention_mask"].sum(1)]
        left, right = zip(*texts, strict=True)
        rows = self._model.tokenizer(list(left), list(right), truncation=False, verbose=False)
        return [len(ids) for ids in rows["input_ids"]]

    def _count_too_long(self, texts: list[tuple[str, str]]) -> int:
        """How many pairs lose tokens, which the library does not say."""
        limit = getattr(self._model, "max_seq_length", None)
        if not self._is_sentence_transformers or limit is None or self._model.tokenizer is None:
            return 0
        # No tokenizer makes more tokens than bytes: most pairs need not be looked at.
        long = [t for t in texts if sum(len(s.encode()) for s in t) + self._around > limit]
        return sum(count > limit for count in self._lengths(long)) if long else 0


def _zipped(pairs: Pairs) -> Iterator[tuple[int, int]]:
    return zip(pairs.query.tolist(), pairs.item.tolist(), strict=True)


def is_sentence_transformers(model: object) -> bool:
    """Whether `model` is a sentence-transformers cross-encoder; does not import the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.CrossEncoder)


def weights_hash(model: Any, unread: str | None = None) -> str | None:
    """Hash of a torch model's weights (a sample of each), their dtype, and its tokenizer.

    Weights whose name contains `unread` are left out. None for what is not a torch model.
    """
    if not hasattr(model, "state_dict"):
        return None
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        if unread is not None and unread in name:
            continue
        flat = tensor.detach().reshape(-1)
        # A fine-tuned model differs nearly everywhere, so that an even sample tells it apart.
        sample = flat[:: max(1, len(flat) // _SAMPLED)].to("cpu", torch.float64)
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(np.ascontiguousarray(sample.numpy()).tobytes())
    fast = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    if fast is not None:
        # Truncation and padding are state that every call changes; the limit is known elsewhere.
        rules = {**json.loads(fast.to_str()), "truncation": None, "padding": None}
        digest.update(json.dumps(rules, sort_keys=True).encode())
    return digest.hexdigest()
