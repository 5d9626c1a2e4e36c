"""Open a model from its folder, URL or hub name; by default the bundled model.

A folder's kind is determined from its files before anything is loaded: libraries would load a
bi-encoder, or a model without a classifier, as a cross-encoder with random weights.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from crossknn.data.passages import BUNDLED, tokenizer_of
from crossknn.errors import TRAIN, InputError, nearest, needs_extra
from crossknn.models.folder import (
    KINDS,
    MANIFEST,
    bundled_folder,
    check_cross_encoder,
    check_dual_encoder,
    check_not_onnx,
    check_sparse_encoder,
    model_folder,
    read_manifest,
)
from crossknn.scorers.base import Encoder, Scorer
from crossknn.scorers.http import HttpScorer
from crossknn.scorers.library import (
    LARGEST_WINDOW,
    PredictScorer,
    SentenceTransformerEncoder,
    SparseTextEncoder,
    open_library,
)
from crossknn.scorers.llm import LLMScorer
from crossknn.scorers.plain import CallableScorer, MatrixScorer
from crossknn.scorers.token_models import (
    LateInteractionScorer,
    OnnxModel,
    TokenEncoder,
    TokenScorer,
)

LLM = "llm:"
"""Prefix of a language model's URL."""
SHORT_QUERY = 16
"""Number of tokens of a short query."""
PathOrName: TypeAlias = str | Path | None

_OWN: dict[str, tuple[Any, str, str]] = {
    "cross-encoder": (TokenScorer, "cross_encoder", "CrossEncoderModel"),
    "dual-encoder": (TokenEncoder, "dual_encoder", "DualEncoderModel"),
    "late-interaction": (LateInteractionScorer, "late", "LateInteractionModel"),
}
"""For each of crossknn's own model kinds: the class that scores or encodes with it, and the module
and class in `crossknn_train` that load a checkpoint."""


def CrossEncoder(  # noqa: N802
    path_or_name: PathOrName = None, *, cores: int | None = None, **options: Any
) -> Scorer:
    """Open a cross-encoder as a `Scorer`, which many threads may share; no code from a model's
    folder is run. Raises InputError unless it is a cross-encoder with one score per pair.

    Args:
        path_or_name: None or "bundled", the small model of the package; the folder of a model
            exported to ONNX, or trained with crossknn-train; a Hugging Face or
            sentence-transformers folder or hub name; the URL of a `/rerank` endpoint; `llm:` and
            the URL of a language model's server (`LLMScorer`).
        cores: How many cores an ONNX model may use; other models ignore it.
        options: Keyword arguments of what opens the model: `OnnxModel`, `HttpScorer`, or
            sentence-transformers' `CrossEncoder`, with the `batch` of `PredictScorer`.
    """
    if is_url(path_or_name):
        kind: Any = LLMScorer if path_or_name.startswith(LLM) else HttpScorer
        _check_options(kind, options)
        return kind(path_or_name.removeprefix(LLM), **options)
    folder, own = _open_own(path_or_name, "cross-encoder", options, cores)
    if own is not None:
        return own
    check_cross_encoder(folder, str(path_or_name))
    batch = {"batch": options.pop("batch")} if "batch" in options else {}
    what = f"the cross-encoder {path_or_name}"
    model = open_library("CrossEncoder", str(folder), what, **options)
    return PredictScorer(model, name=str(path_or_name), **batch)


def is_url(name: PathOrName) -> TypeGuard[str]:
    """Whether a scorer's name is the URL of an endpoint."""
    return isinstance(name, str) and name.startswith(("http://", "https://", LLM))


def DualEncoder(path_or_name: PathOrName = None, **options: Any) -> Encoder:  # noqa: N802
    """Open a dual encoder (bi-encoder) as an `Encoder`. Raises InputError for any other model.

    Args:
        path_or_name: As for `CrossEncoder`, but no URL.
        options: Keyword arguments of `OnnxModel` or `SentenceTransformerEncoder`.
    """
    folder, own = _open_own(path_or_name, "dual-encoder", options)
    if own is not None:
        return own
    check_dual_encoder(folder, str(path_or_name))
    return SentenceTransformerEncoder(folder, **options)


def as_sparse_encoder(model: Any) -> SparseTextEncoder:
    """Open a sparse encoder (SPLADE) from its folder, its hub name, or sentence-transformers'
    loaded `SparseEncoder`."""
    if isinstance(model, str | Path):
        name, model = str(model), model_folder(model)
        check_sparse_encoder(model, name)
    return SparseTextEncoder(model)


def LateInteraction(path_or_name: str | Path, **options: Any) -> LateInteractionScorer:  # noqa: N802
    """Open a late-interaction model (CMC, Poly-encoder, Sum-of-max, Deformer, MixEncoder) from the
    folder in which crossknn-train trained or exported it; `options` go to the class that loads it.
    """
    _, own = _open_own(path_or_name, "late-interaction", options)
    if own is None:
        raise InputError(
            f"{path_or_name} is not a late-interaction model: it has neither {MANIFEST} nor "
            f"late_interaction.json; train one with  crossknn-train run cmc"
        )
    return own


def as_scorer(what: Any = None, **options: Any) -> Scorer:
    """Make a scorer from a scorer, path, name, model, function or matrix."""
    if what is None or isinstance(what, (str, Path)):
        return CrossEncoder(what, **options)
    if isinstance(what, type):
        raise InputError(f"{what.__name__} is a class: give an instance, {what.__name__}(...)")
    if isinstance(what, Scorer):
        return what
    # Models of transformers read token ids, unless their class has a `predict` of its own.
    made_by = {base.__module__.split(".")[0] for base in type(what).__mro__}
    own = getattr(getattr(type(what), "predict", None), "__module__", "transformers")
    if made_by & {"transformers", "peft"} and own.split(".")[0] == "transformers":
        raise InputError(
            f"a {type(what).__name__} of Hugging Face's transformers scores no pairs of texts: "
            "give the model's folder or name, which has its tokenizer too, or a function of pairs"
        )
    if getattr(what, "ndim", None) == 2 and hasattr(what, "dtype"):
        return MatrixScorer(what, **options)
    if hasattr(what, "predict") or hasattr(what, "encode"):
        return PredictScorer(what, **options)
    if callable(what):
        return CallableScorer(what, **options)
    raise InputError(
        f"cannot score with {type(what).__name__}: give a cross-encoder, its folder, name or URL, "
        f"an object with predict(pairs), a function, or a matrix of scores"
    )


class Reading(NamedTuple):
    """How a cross-encoder reads an item: the content of its `tokenizer.json` (or "bundled"), and
    the `room` in tokens beside a short query; `name` is for messages."""

    name: str
    tokenizer: str
    room: int


def reading_of(scorer: Any = None) -> Reading:
    """Return how a cross-encoder, or the one with this folder or name, reads an item; the bundled
    one, which is the default, is not opened for it."""
    if isinstance(scorer, str | None) and scorer in (None, BUNDLED):
        manifest = read_manifest(bundled_folder("cross-encoder"), "cross-encoder")
        fast, length = tokenizer_of(BUNDLED), manifest["max_length"]
        return Reading("the bundled cross-encoder", BUNDLED, _room(fast, length))
    opened: Any = as_scorer(scorer)
    opened = getattr(opened, "scorer", opened)  # of a StoredScorer
    name = f"the cross-encoder {getattr(opened, 'name', type(opened).__name__)}"
    if isinstance(opened, TokenScorer):
        encoding = opened.runtime.encoding
        fast, window = encoding.tokenizer.fast, encoding.window
        room = _room(fast, window.max_length)
        if window.item_length is not None:
            room = window.item_length - 1
        return Reading(name, fast.to_str(), room)
    fast = getattr(getattr(opened, "tokenizer", None), "backend_tokenizer", None)
    if fast is None:  # of an endpoint or a function, only its author knows what it reads
        return Reading(name, BUNDLED, LARGEST_WINDOW)
    return Reading(name, fast.to_str(), _room(fast, opened.max_length))


def _room(tokenizer: Any, length: int) -> int:
    return length - tokenizer.num_special_tokens_to_add(True) - min(SHORT_QUERY, length // 4)


def _open_own(
    path_or_name: PathOrName, kind: str, options: dict[str, Any], cores: int | None = None
) -> tuple[Path, Any]:
    """The folder of a model, and the opened model if its format is crossknn's own, or None."""
    if path_or_name is None or path_or_name == "bundled":
        path_or_name = bundled_folder(kind)
    folder = model_folder(path_or_name, options.pop("revision", None))
    settings = f"{kind.replace('-', '_')}.json"
    for other, name in KINDS.items():
        if other != settings and (folder / other).exists():
            raise InputError(f"{path_or_name} is a {name}, but a {KINDS[settings]} is needed")
    scorer, module, name = _OWN[kind]
    if (folder / MANIFEST).exists():
        options = options if cores is None else {"threads": cores} | options
        _check_options(OnnxModel, options)
        return folder, scorer(OnnxModel(folder, kind, **options))
    if not (folder / settings).exists():
        if "backend" not in options:
            check_not_onnx(folder, str(path_or_name))
        return folder, None
    # Only here does crossknn import crossknn_train: for checkpoints that were not exported to ONNX.
    with needs_extra(f"{path_or_name}, a {KINDS[settings]} not exported to ONNX,", TRAIN):
        model = getattr(import_module(f"crossknn_train.models.{module}"), name)
    _check_options(model.from_pretrained, options)
    return folder, scorer(model.from_pretrained(folder, **{"device": None} | options))


def _check_options(make: Any, options: dict[str, Any]) -> None:
    names = [p.name for p in signature(make).parameters.values() if p.default is not p.empty]
    for name in options:
        if name not in names:
            raise InputError(f"{make.__qualname__} has no option {name!r}: {nearest(name, names)}")
