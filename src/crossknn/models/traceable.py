"""What can be exported: torch models of several makers, each as a module with the ONNX contract."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.backbone import position_limit
from crossknn.models.cross_encoder import SETTINGS as CROSS_ENCODER
from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.models.dual_encoder import SETTINGS as DUAL_ENCODER
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.models.folder import ITEM_MODEL, PROBE
from crossknn.models.hub import first_line
from crossknn.models.library import open_library, own_prompts, reads_messages
from crossknn.models.partial import partial
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window
from crossknn.models.weights import SCORING, module_kinds
from crossknn.types import Pairs

_EXPORTED = {"Pooling", "Dense", "Normalize", "LayerNorm", "Dropout"}
_IN_TORCH = "it cannot be exported to ONNX, only used in torch"


@dataclass(frozen=True, kw_only=True)
class Traceable:
    """A model ready to be traced.

    modules: file name -> module from (input_ids, attention_mask, token_type_ids), (b, t) each, to
    scores (b,) or vectors (b, d). tokenizer: the content of a tokenizer.json. settings: what the
    folder's manifest holds beyond the rest. long: whether the graph is compared on a long text too,
    as attention may have a window.
    """

    kind: Literal["cross-encoder", "dual-encoder"]
    name: str
    modules: dict[str, nn.Module]
    tokenizer: str
    max_length: int
    pad_token_id: int
    settings: Mapping[str, object] = field(default_factory=dict)
    long: bool = False


def cross_encoder(model: str | Path | Any, max_length: int | None) -> Traceable:
    """A folder or hub name, a `CrossEncoderModel`, or a sentence-transformers `CrossEncoder`.

    Raises InputError if it has not exactly one label or no trained head, and for a causal language
    model.
    """
    if isinstance(model, (str, Path)) and (Path(model) / CROSS_ENCODER).is_file():
        return _own_cross_encoder(
            CrossEncoderModel.from_pretrained(model), Path(model).name, max_length
        )
    if isinstance(model, CrossEncoderModel):
        return _own_cross_encoder(model, type(model).__name__, max_length)
    if isinstance(model, (str, Path)):
        source, kinds = str(model), module_kinds(Path(model))
    else:
        source, kinds = "cross-encoder", [type(module).__name__ for module in model]
    if kinds and kinds[-1] in SCORING:
        raise InputError(f"{source} is made of {', '.join(kinds)}: {_IN_TORCH}")
    if isinstance(model, (str, Path)):
        _check_head(source)
    else:
        _one_label(model.config, source)
    library = _library("CrossEncoder", model, source)
    loaded, tokenizer = library.model, library.tokenizer
    if reads_messages(library):
        raise InputError(f"{source} reads pairs through a chat template: {_IN_TORCH}")
    typed = _has_token_types(loaded.config, tokenizer)
    prompt = library.prompts.get(library.default_prompt_name) or ""
    made = Traceable(
        kind="cross-encoder",
        name=Path(source).name,
        modules={"model.onnx": (partial(loaded) if typed else None) or _Logits(loaded, typed)},
        tokenizer=tokenizer.backend_tokenizer.to_str(),
        max_length=min(max_length or 10**9, _limit(loaded.config, tokenizer)),
        pad_token_id=int(tokenizer.pad_token_id or 0),
        settings=_prefixes(prompt, None),
        long=True,
    )
    _check_tokens(library, made, source, prompt, "")
    return made


def dual_encoder(
    model: str | Path | Any,
    max_length: int | None,
    query_prefix: str | None = None,
    item_prefix: str | None = None,
) -> Traceable:
    """A folder or hub name, a `DualEncoderModel`, or a `SentenceTransformer`.

    Prefixes that are None are the model's own. Raises InputError for layers, prompts or tokens
    that a graph of token ids cannot have.
    """
    given = (query_prefix, item_prefix)
    if isinstance(model, (str, Path)) and (Path(model) / DUAL_ENCODER).is_file():
        return _own_dual_encoder(DualEncoderModel.from_pretrained(model), Path(model).name, given)
    if isinstance(model, DualEncoderModel):
        return _own_dual_encoder(model, type(model).__name__, given)
    source = str(model) if isinstance(model, (str, Path)) else "dual-encoder"
    library = _library("SentenceTransformer", model, source)
    kinds = [type(module).__name__ for module in library]
    if kinds[0] != "Transformer" or "Pooling" not in kinds or {*kinds[1:]} - _EXPORTED:
        raise InputError(
            f"{source} is made of {', '.join(kinds)}: only Transformer, Pooling, Dense and "
            "Normalize can be exported"
        )
    own = own_prompts(library)
    query, item = (a if a is not None else b for a, b in zip(given, own, strict=True))
    if (query or item) and not all(getattr(module, "include_prompt", True) for module in library):
        raise InputError(
            f"{source} leaves its prompt out of the pooling (include_prompt is false): {_IN_TORCH}"
        )
    config, tokenizer = library[0].auto_model.config, library.tokenizer
    made = Traceable(
        kind="dual-encoder",
        name=Path(source).name,
        modules={"model.onnx": _Vectors(library)},
        tokenizer=tokenizer.backend_tokenizer.to_str(),
        max_length=min(
            max_length or 10**9, int(library.max_seq_length or 512), _limit(config, tokenizer)
        ),
        pad_token_id=int(tokenizer.pad_token_id or 0),
        settings=_prefixes(query, item),
        long=True,
    )
    _check_tokens(library, made, source, query, item)
    return made


def _prefixes(query: str | None, item: str | None) -> dict[str, object]:
    found = {"query_prefix": query, "item_prefix": item}
    return {name: text for name, text in found.items() if text}


def _library(kind: Any, model: Any, source: str) -> Any:
    """A sentence-transformers model for tracing, in float32 on the CPU; a loaded one is copied."""
    if isinstance(model, (str, Path)):
        loaded = open_library(kind, source, source, device="cpu")
    else:
        loaded = copy.deepcopy(model)
    loaded = loaded.float().cpu()
    loaded[0].auto_model.set_attn_implementation("eager")
    return loaded


def _check_tokens(library: Any, made: Traceable, source: str, query: str, item: str) -> None:
    """Raises InputError unless a tokenizer.json and prefixes give the token ids of the library,
    which may use a chat template, or lengths of its own for queries and for items."""
    window = Window(max_length=made.max_length)
    tokenizer = Tokenizer(FastTokenizer.from_str(made.tokenizer))
    encoding = Encoding(tokenizer, window, query, item, marked=False)
    long = [("sea " * made.max_length,) * 2] if made.max_length == library.max_seq_length else []
    queries, items = zip(*PROBE, *long, strict=True)
    if made.kind == "cross-encoder":
        each = np.arange(len(items))
        rows = encoding.pairs(Pairs(each, each), queries, items)
        found = [library.preprocess([*zip(queries, items, strict=True)], prompt=query)]
    else:
        rows = encoding.texts(queries, queries=True) + encoding.texts(items, queries=False)
        found = [
            library.preprocess(list(queries), prompt=query, task="query"),
            library.preprocess(list(items), prompt=item, task="document"),
        ]
    theirs = [
        ids[mask.bool()].tolist()
        for batch in found
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    if [row.ids.tolist() for row in rows if isinstance(row, Row)] != theirs:
        raise InputError(
            f"{source} does not read its texts as its tokenizer.json says (a chat template, or "
            f"limits of its own for queries and items): {_IN_TORCH}"
        )


def _own_cross_encoder(model: CrossEncoderModel, name: str, max_length: int | None) -> Traceable:
    model.encoder.set_attn_implementation("eager")
    window = model.config.window
    settings: dict[str, object] = {}
    if window.query_length is not None and window.item_length is not None:
        settings = {"query_length": window.query_length, "item_length": window.item_length}
    return Traceable(
        kind="cross-encoder",
        name=name,
        modules={"model.onnx": partial(model) or model},
        tokenizer=model.fast_tokenizer.to_str(),
        max_length=min(max_length or window.max_length, window.max_length),
        pad_token_id=model.tokenizer.padding,
        settings=settings | {"marked": model.config.marked},
    )


def _own_dual_encoder(
    model: DualEncoderModel, name: str, prefixes: tuple[str | None, str | None]
) -> Traceable:
    towers: dict[str, nn.Module] = {"model.onnx": model.query}
    if not model.config.shared:
        towers[ITEM_MODEL] = model.item
    for tower in towers.values():
        tower.encoder.set_attn_implementation("eager")
    window = model.config.window
    return Traceable(
        kind="dual-encoder",
        name=name,
        modules=towers,
        tokenizer=model.fast_tokenizer.to_str(),
        max_length=window.max_length,
        pad_token_id=model.tokenizer.padding,
        settings={
            "query_length": window.query_length,
            "item_length": window.item_length,
            "marked": model.config.marked,
            **_prefixes(*prefixes),
        },
    )


class _Vectors(nn.Module):  # type: ignore[misc]
    """Vectors of a sentence-transformers model by its own modules: (b, t) three times -> (b, d)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.typed = _has_token_types(model[0].auto_model.config, model.tokenizer)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.typed:
            features["token_type_ids"] = token_type_ids
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return vectors[:, : self.model.truncate_dim]


class _Logits(nn.Module):  # type: ignore[misc]
    """The one logit of a sequence-classification model."""

    def __init__(self, inner: Any, typed: bool) -> None:
        super().__init__()
        self.inner = inner
        self.typed = typed

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        kinds = {"token_type_ids": token_type_ids} if self.typed else {}
        logits: Tensor = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, **kinds
        ).logits
        return logits[:, 0]


def _has_token_types(config: Any, tokenizer: Any) -> bool:
    """Whether the library gives the model token types, and there are several."""
    several = int(getattr(config, "type_vocab_size", 0) or 0) > 1
    return several and "token_type_ids" in tokenizer.model_input_names


def _check_head(source: str) -> None:
    """Raises InputError unless a folder or hub name has weights of a head with one label."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot load {source}: {first_line(error)}") from error
    _one_label(config, source)
    _, report = AutoModelForSequenceClassification.from_pretrained(
        source, output_loading_info=True, trust_remote_code=False
    )
    missing = sorted(key for key in report["missing_keys"] if "position_ids" not in key)
    if missing:
        raise InputError(
            f"{source} has no trained classification head ({missing[0]} is missing): "
            "pass a cross-encoder, not an encoder or an [EMB] checkpoint"
        )


def _one_label(config: Any, source: str) -> None:
    made_of = [str(name) for name in getattr(config, "architectures", None) or ()]
    if made_of and made_of[0].endswith("ForCausalLM"):
        raise InputError(
            f"{source} is a {made_of[0]}, scored by the logits of two words: {_IN_TORCH}"
        )
    if made_of and not any(name.endswith("ForSequenceClassification") for name in made_of):
        raise InputError(
            f"{source} is a {made_of[0]}, which has no classification head: pass a cross-encoder"
        )
    if int(config.num_labels) != 1:
        raise InputError(
            f"{source} has {config.num_labels} labels: crossknn needs one raw score per pair "
            "(num_labels=1)"
        )


def _limit(config: Any, tokenizer: Any) -> int:
    return min(position_limit(config), int(min(tokenizer.model_max_length, 10**6)))
