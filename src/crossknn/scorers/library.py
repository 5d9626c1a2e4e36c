"""Score and encode with sentence-transformers models, and score with any object that has
`predict(pairs)`.

Models are loaded without running their code, and identified by a hash of their weights. Texts are
padded so that no score depends on the other pairs of the batch.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from crossknn.errors import InputError, needs_extra
from crossknn.models.folder import check_outputs, refusing
from crossknn.scorers.streaming import BatchedScorer, Call
from crossknn.scorers.token_models import check_finite
from crossknn.types import FloatArray, IntArray, Progress, States, as_count

LibraryKind: TypeAlias = Literal["SentenceTransformer", "CrossEncoder", "SparseEncoder"]
_PAIRS_AT_ONCE = 1024
_TEXTS_AT_ONCE = 4096
_YOURSELF = "load it with sentence-transformers yourself and pass the loaded model"
_ITEM_PROMPTS = ("document", "passage", "corpus")
_PROBES = [("red", "tree"), ("how are lists sorted", "sorted gives a new list of the items. " * 2)]
LARGEST_WINDOW = 2**20
_SAME = 1e-2
"""In bfloat16, scores may differ by this much between batches; padding on the wrong side changes
them far more."""


def open_library(kind: LibraryKind, source: str, what: str, **options: Any) -> Any:
    """Load the model in a folder with sentence-transformers, running no Python code from it; errors
    call it `what`."""
    with needs_extra(what):
        import sentence_transformers as library
    if "'trust_remote_code': True" in repr(options):  # at any depth
        raise InputError(
            f"{what} cannot be loaded with trust_remote_code: crossknn never runs Python code from "
            f"a model folder; {_YOURSELF}"
        )
    try:
        with refusing(f"cannot load {what}"):
            return getattr(library, kind)(source, **options)
    except InputError as error:
        if "trust_remote_code" in str(error.__cause__):
            raise InputError(f"{error}; {_YOURSELF}") from error.__cause__
        raise


def logits_options(model: Any, name: str, batch: int) -> dict[str, Any]:
    """Prepare a loaded cross-encoder so that no score depends on the batch, and return the keyword
    arguments with which its `predict` gives raw logits."""
    import torch

    check_outputs(model.num_labels, name)
    raw = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False, "batch_size": batch}
    last = list(model)[-1]
    word = getattr(last, "true_token_id", None)
    if word and word == last.false_token_id:
        raise InputError(
            f"the tokenizer of {name} has neither of the tokens whose logits give the score"
        )
    if word is None:
        choose_padding_side(model, lambda pairs: model.predict(pairs, **raw))
    else:  # the library reads the last token's logits, and pads on the left
        count_positions(model)
    return raw


def own_prompts(model: Any) -> tuple[str, str]:
    """The prompts that a bi-encoder's author puts before queries and before items, or "".
    `encode_document` does not find the item prompt: it takes the empty one that the library adds.
    """
    item = next((model.prompts[name] for name in _ITEM_PROMPTS if model.prompts.get(name)), "")
    return str(model.prompts.get("query") or ""), str(item)


def choose_padding_side(model: Any, run: Callable[[list[tuple[str, str]]], Any]) -> None:
    """Choose the padding side: right, or left if only that leaves scores unchanged (XLNet).

    `run` computes scores or vectors of pairs (p, ...) as one batch. On the correct side the scores
    of a pair do not change when a longer pair joins its batch.
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


def count_positions(model: Any) -> None:
    """Number a text's positions from its first token instead of from the padding on its left, so
    that scores do not depend on the longest text of the batch."""
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


def model_hash(model: Any, unread: str | None = None) -> str:
    """Compute a hash of a model's tokenizer and weights, except unused weights (`unread`)."""
    fast = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    # Every call changes truncation and padding; the length limit is hashed elsewhere.
    state = {"truncation": None, "padding": None}
    rules = json.dumps(json.loads(fast.to_str()) | state, sort_keys=True) if fast else ""
    return state_hash(model, rules, unread=unread)


def state_hash(module: Any, *texts: str, unread: str | None = None) -> str:
    """Hash of texts and a torch module's weights, except those whose name contains `unread`."""
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


def settings(model: Any) -> str:
    """The settings that affect scores besides weights, tokenizer and prompts, as JSON: those of
    modules, the length that vectors are cut to, the chat template."""
    modules = [(type(module).__name__, module.get_config_dict()) for module in model]
    size, template = getattr(model, "truncate_dim", None), None
    if "message" in (getattr(model[0], "modality_config", None) or ()):
        template = model.tokenizer.chat_template
    return json.dumps([modules, size, template], default=lambda value: type(value).__name__)


class PredictScorer(BatchedScorer):
    """Scores with `model.predict(list of (query text, item text))`.

    A sentence-transformers `CrossEncoder` is made to return raw logits, whatever its activation.
    Scores of other objects are used unchanged, and stored only if `name` gives a fingerprint. Calls
    of `predict` never overlap: models and tokenizers are not thread-safe.
    """

    def __init__(self, model: Any, *, batch: int = 32, name: str | None = None) -> None:
        shown = name or type(model).__name__
        super().__init__(shown)
        if not callable(getattr(model, "predict", None)):
            raise InputError(
                f"{shown} has no predict(pairs) and cannot score a pair: give a cross-encoder; "
                "bi-encoders, which encode single texts, are opened with DualEncoder"
            )
        self._model, self.largest, self._given = model, as_count(batch, "batch"), name
        self._turn, self.tokenizer = threading.Lock(), getattr(model, "tokenizer", None)
        self.max_length: int = getattr(model, "max_seq_length", None) or LARGEST_WINDOW
        module = sys.modules.get("sentence_transformers")
        self._is_library = module is not None and isinstance(model, module.CrossEncoder)
        self._options: dict[str, Any] = {}
        if self._is_library:
            self._options = logits_options(model, shown, self.largest)

    @cached_property
    def fingerprint(self) -> str | None:
        """Hash of the weights and the tokenizer, precision and length limit of a torch model."""
        if not self._is_library:
            return None if self._given is None else f"predict:{self._given}"
        model, about = self._model, settings(self._model)
        prompt = model.prompts.get(model.default_prompt_name)
        parts = f"max_length={model.max_seq_length}|prompt={prompt!r}|settings={about}"
        return f"cross-encoder:{model_hash(model)}|{parts}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        """Yield batches of pairs of similar length, which saves padding, roughly in the order of
        the call."""
        for window in call.slices(_PAIRS_AT_ONCE):
            lengths = [len(str(query)) + len(str(item)) for query, item in call.texts(window)]
            call.costs[window] = lengths
            order = window[np.argsort(lengths, kind="stable")]
            yield from (order[at : at + self.largest] for at in range(0, len(order), self.largest))

    def _run(self, call: Call, positions: IntArray) -> object:
        with self._turn:
            return self._model.predict(call.texts(positions), **self._options)


class SentenceTransformerEncoder:
    """Encodes with a sentence-transformers bi-encoder: a loaded model, a folder or a hub name,
    which is opened with `options`, running no code from it.

    Queries and items get the prompts in the model's configuration; `query_prefix` and `item_prefix`
    replace them ("" for none).
    """

    kind: ClassVar[LibraryKind] = "SentenceTransformer"

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
            model = open_library(self.kind, str(model), what, **options)
        self._check(model)
        # If vectors are pooled from token vectors, BERT's own pooler, which the library may have
        # initialized at random, is not used.
        self._pools = getattr(model[0], "module_output_name", None) == "token_embeddings"
        if self._pools and model.tokenizer is not None:
            # With padding on the left, a vector would depend on the longest text of its batch.
            model.tokenizer.padding_side = "right"
        elif getattr(getattr(model, "tokenizer", None), "padding_side", "right") == "left":
            items = lambda pairs: model.encode([item for _, item in pairs])  # noqa: E731
            choose_padding_side(model, items)
        self._model, self._batch, self._turn = model, batch, threading.Lock()
        given, own = (query_prefix, item_prefix), own_prompts(model)
        self._prefixes = [a if a is not None else b for a, b in zip(given, own, strict=True)]

    def _check(self, model: Any) -> None:
        if not hasattr(model, "encode_query"):
            raise InputError(
                f"{self._name} is not a bi-encoder of sentence-transformers: open a "
                "cross-encoder with CrossEncoder"
            )
        if hasattr(model, "max_active_dims"):
            raise InputError(f"{self._name} is a sparse encoder: give it as sparse=")

    @property
    def dimensions(self) -> int:
        """d, the length of a vector."""
        return int(self._model.get_embedding_dimension() or self.encode_queries(["a"]).shape[1])

    @property
    def fingerprint(self) -> str | None:
        """Hash of weights and tokenizer, length limit, prefixes and settings."""
        weights = model_hash(self._model, unread=".pooler." if self._pools else None)
        limit, about = self._model.max_seq_length, settings(self._model)
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
        if not len(texts):
            return np.empty((0, self.dimensions), dtype=np.float32)
        made = self._windows(texts, what, encode, progress)
        vectors = np.concatenate([np.asarray(window, np.float32) for window in made])
        check_finite(vectors, texts, what, self._name)
        return vectors

    def _windows(
        self, texts: Sequence[str], what: str, encode: Any, progress: Progress | None
    ) -> Iterator[Any]:
        """Yield the model's vectors of a few thousand texts at a time."""
        how = {"batch_size": self._batch, "show_progress_bar": False}
        prompt = self._prefixes[0 if what == "query" else 1]
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            window = list(texts[start : start + _TEXTS_AT_ONCE])
            with self._turn:
                made = encode(window, prompt=prompt, **how)
            yield made
            if progress:
                progress(start + len(window), len(texts))


class SparseTextEncoder(SentenceTransformerEncoder):
    """Encodes with a `SparseEncoder` of sentence-transformers (SPLADE): states of a text are rows
    (dimension, weight), one for each number of its vector that is not 0."""

    kind = "SparseEncoder"

    def _check(self, model: Any) -> None:
        if not hasattr(model, "max_active_dims"):
            raise InputError(f"{self._name} is not a SparseEncoder of sentence-transformers")
        if model.similarity_fn_name not in ("dot", "cosine"):
            raise InputError(
                f"{self._name} compares vectors by {model.similarity_fn_name}: an index compares "
                "sparse vectors by dot or cosine"
            )
        model.encode_query(["a"])  # the library learns the number of dimensions from a first text

    @property
    def fingerprint(self) -> str:
        """Hash of weights and tokenizer, and the settings that vectors depend on."""
        model = self._model
        about = f"active={model.max_active_dims}|similarity={model.similarity_fn_name}"
        return f"sparse-{super().fingerprint}|{about}"

    def _encode(
        self, texts: Sequence[str], what: str, encode: Any, progress: Progress | None
    ) -> Any:
        rows, starts = [np.empty((0, 2), np.float32)], [np.zeros(1, np.int64)]
        squares: list[FloatArray] = [np.empty(0)]
        for window in self._windows(texts, what, encode, progress):
            vectors = window.cpu().coalesce()
            weight = vectors.values().float().numpy()
            text, dimension = vectors.indices().numpy()[:, weight != 0]
            weight = weight[weight != 0]
            squares.append(np.bincount(text, weight**2, len(vectors)).astype(np.float64))
            if self._model.similarity_fn_name == "cosine":
                weight = weight / np.sqrt(squares[-1])[text]
            rows.append(np.column_stack([dimension, weight]).astype(np.float32))
            starts.append(np.bincount(text, minlength=len(vectors)).astype(np.int64))
        check_finite(np.concatenate(squares)[:, None], texts, what, self._name)
        return States(np.concatenate(rows), np.cumsum(np.concatenate(starts)))
