"""What can be exported: torch models of several makers, each as modules with the ONNX contract.

Axes: b texts, pairs or lists, c candidates, t tokens or states of a text, d dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.models.backbone import has_token_types, position_limit, states_at
from crossknn.models.base import TorchModel, weights_hash
from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.models.folder import COMPARE_MODEL, INPUTS, ITEM_MODEL, MODEL, QUERY_MODEL
from crossknn.models.late.model import LateInteractionModel
from crossknn.models.library import (
    SCORING,
    check_cross_encoder,
    check_outputs,
    model_folder,
    open_library,
    own_prompts,
    reads_messages,
)
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window, padded
from crossknn.types import Pairs

Kind = Literal["cross-encoder", "dual-encoder", "late-interaction"]
Prefixes = tuple[str | None, str | None]
OWN: dict[str, type[TorchModel]] = {
    "cross-encoder": CrossEncoderModel,
    "dual-encoder": DualEncoderModel,
    "late-interaction": LateInteractionModel,
}
"""The models of ours by kind."""
PROBES = (
    ("how are [Ms] lists [Me] sorted", "sorted [ENT] returns a new list of the items in order."),
    ("[Ms] open [Me] a file", "The sea [ENT] was calm, and nothing at all happened until evening."),
    ("[Ms] mean [Me] of numbers", "statistics.mean [ENT]"),
)
"""Marked, so that an [EMB] head finds its places; to other models the marks are words."""
LONG = (
    "[Ms] open [Me] a file",
    "The sea [ENT] was calm, and nothing happened until evening. " * 20,
)
"""Longer than the usual windows of local attention."""
_N_LISTED = 300
"""Candidates of the lists that a graph is checked on: more rows than CMC reads at once."""
_LAYERS = {"Pooling", "Dense", "Normalize", "LayerNorm", "Dropout"}
_IN_TORCH = "it cannot be exported to ONNX, only used in torch"


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A torch module to be traced.

    inputs, outputs: name -> letters of the axes that are free, by place. probes: two batches of
    inputs by name; the module is traced on the first and checked on the second.
    """

    module: Any
    inputs: Mapping[str, Mapping[int, str]]
    outputs: Mapping[str, Mapping[int, str]]
    probes: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Exportable:
    """A model ready to be traced: graphs by file name, how its texts are read, and what its
    manifest holds beyond that."""

    kind: Kind
    name: str
    encoding: Encoding
    graphs: Mapping[str, Graph]
    settings: Mapping[str, object] = field(default_factory=dict)


def own_model(
    model: TorchModel, kind: Kind, name: str, max_length: int | None, prefixes: Prefixes
) -> Exportable:
    """A model of ours, on the CPU and without dropout."""
    config, window = model.config, model.config.window
    if max_length is not None and max_length < window.max_length:
        window = Window(max_length=max_length)
    texts = [prefix or "" for prefix in prefixes]
    encoding = Encoding(model.tokenizer, window, *texts, marked=config.marked)
    settings: dict[str, object] = {"marked": config.marked}
    outputs = _OUTPUTS[kind]
    graphs: dict[str, Graph] = {}
    if isinstance(model, CrossEncoderModel):
        graphs[MODEL] = _of_tokens(model, encoding, "pairs", outputs)
    elif isinstance(model, DualEncoderModel):
        graphs[MODEL] = _of_tokens(model.query, encoding, "queries", outputs)
        if not config.shared:
            graphs[ITEM_MODEL] = _of_tokens(model.item, encoding, "items", outputs)
    elif isinstance(model, LateInteractionModel):
        graphs = _late_graphs(model)
        settings |= {
            "head": config.head,
            "joint": model.head.joint,
            "dimensions": model.dimensions,
            "weights": f"{config.head}:{weights_hash(model)}",
        }
    return Exportable(kind=kind, name=name, encoding=encoding, graphs=graphs, settings=settings)


class _LateEncoder(nn.Module):  # type: ignore[misc]
    """Token arrays (b, t) three times -> states (b, t', d) and their mask (b, t')."""

    def __init__(self, model: LateInteractionModel, *, queries: bool) -> None:
        super().__init__()
        self.tower = model.query if queries else model.item
        self.head, self.queries = model.head, queries

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        of = self.head.of_queries if self.queries else self.head.of_items
        result: tuple[Tensor, Tensor] = of(*self.tower(input_ids, attention_mask, token_type_ids))
        return result


def _late_graphs(model: LateInteractionModel) -> dict[str, Graph]:
    """The towers and the head; the item's tower only if it is not the query's."""
    encoding, head = model.encoding, model.head
    graphs, states = {}, []
    for file, what in ((QUERY_MODEL, "queries"), (ITEM_MODEL, "items")):
        encoder = _LateEncoder(model, queries=what == "queries").eval()
        graphs[file] = _of_tokens(encoder, encoding, what, _OUTPUTS["late-interaction"])
        short = _token_arrays(encoding, PROBES, what)
        with torch.inference_mode():
            states += encoder(*map(torch.from_numpy, short.values()))
    if model.config.shared and head.query_reads == head.item_reads:
        del graphs[ITEM_MODEL]
    arrays = [tensor.numpy() for tensor in states]
    text, lists = {0: "b", 1: "t_q"}, {0: "b", 1: "c", 2: "t_i"}
    graphs[COMPARE_MODEL] = Graph(
        module=head,
        inputs={"query": text, "query_mask": text, "items": lists, "item_mask": lists},
        outputs={"scores": {0: "b", 1: "c"}},
        probes=[_lists(arrays, count, n_listed) for count, n_listed in ((2, 5), (3, _N_LISTED))],
    )
    return graphs


def _lists(arrays: Sequence[Any], count: int, n_listed: int) -> dict[str, Any]:
    """States of `count` queries and of `n_listed` items drawn for each, a tenth of them padding."""
    query, query_mask, states, mask = arrays
    rng = np.random.default_rng(n_listed)
    drawn = rng.integers(len(states), size=(count, n_listed))
    items = states[drawn] + 0.1 * rng.standard_normal((count, n_listed, *states.shape[1:]))
    item_mask = mask[drawn]
    item_mask[:, rng.permutation(n_listed)[: max(1, n_listed // 10)]] = False
    return {
        "query": query[:count],
        "query_mask": query_mask[:count],
        "items": (items * item_mask[..., None]).astype(np.float32),
        "item_mask": item_mask,
    }


_TOKENS = {name: {0: "b", 1: "t"} for name in INPUTS}
_OUTPUTS = {
    "cross-encoder": {"scores": {0: "b"}},
    "dual-encoder": {"vectors": {0: "b"}},
    "late-interaction": {"states": {0: "b", 1: "t_out"}, "mask": {0: "b", 1: "t_out"}},
}
"""What the graphs that read tokens give, by the kind of model."""


def _of_tokens(
    module: nn.Module,
    encoding: Encoding,
    what: str,
    outputs: Mapping[str, Mapping[int, str]],
) -> Graph:
    probes = [_token_arrays(encoding, probes, what) for probes in (PROBES[:2], (*PROBES, LONG))]
    return Graph(module=module.eval(), inputs=_TOKENS, outputs=outputs, probes=probes)


def _token_arrays(
    encoding: Encoding, texts: Sequence[tuple[str, str]], what: str
) -> dict[str, Any]:
    """Token arrays (b, t) by name of the pairs, of the queries or of the items among `texts`."""
    queries, items = zip(*texts, strict=True)
    if what == "pairs":
        each = np.arange(len(texts))
        found = encoding.pairs(Pairs(each, each), queries, items)
    else:
        is_query = what == "queries"
        found = encoding.texts(queries if is_query else items, queries=is_query)
    rows: list[Row] = []
    for row in found:
        if isinstance(row, InputError):
            raise row
        rows.append(row)
    return dict(padded(rows, encoding.tokenizer.padding, encoding.window.max_length))


# Models of sentence-transformers and Hugging Face


def library_model(
    model: str | Path | Any,
    kind: Kind,
    name: str | None,
    max_length: int | None,
    prefixes: Prefixes,
) -> Exportable:
    """A folder or hub name, or a `CrossEncoder` or `SentenceTransformer` of sentence-transformers.

    Prefixes that are None are a dual encoder's own. Raises InputError for a cross-encoder without
    exactly one label and a trained head, and for layers, prompts or tokens that a graph of token
    ids cannot have.
    """
    is_name, is_cross = isinstance(model, (str, Path)), kind == "cross-encoder"
    source = str(model) if is_name else kind
    if is_name and is_cross:
        check_cross_encoder(model_folder(model), source)
    if is_name:
        what: Any = "CrossEncoder" if is_cross else "SentenceTransformer"
        library = open_library(what, source, source, device="cpu")
    else:
        library = copy.deepcopy(model)
    kinds = [type(module).__name__ for module in library]
    if is_cross and kinds[-1] in SCORING:
        raise InputError(f"{source} is made of {', '.join(kinds)}: {_IN_TORCH}")
    if is_cross:
        check_outputs(library.num_labels, source)
    library = library.float().cpu()
    inner, tokenizer = library[0].auto_model, library.tokenizer
    inner.set_attn_implementation("eager")
    limit = min(position_limit(inner.config), int(min(tokenizer.model_max_length, 10**6)))
    is_typed = has_token_types(inner.config) and "token_type_ids" in tokenizer.model_input_names
    if is_cross:
        if reads_messages(library):
            raise InputError(f"{source} reads pairs through a chat template: {_IN_TORCH}")
        texts = library.prompts.get(library.default_prompt_name) or "", ""
        module: nn.Module = _Logits(inner, is_typed)
    else:
        texts = _dual_encoder_prefixes(library, source, prefixes)
        module, limit = _Vectors(library, is_typed), min(limit, int(library.max_seq_length or 512))
    encoding = _checked_encoding(library, source, min(max_length or 10**9, limit), texts, is_cross)
    graph = _of_tokens(module, encoding, "pairs" if is_cross else "items", _OUTPUTS[kind])
    name = name or Path(source).name
    return Exportable(kind=kind, name=name, encoding=encoding, graphs={MODEL: graph})


def _dual_encoder_prefixes(library: Any, source: str, prefixes: Prefixes) -> tuple[str, str]:
    """What goes before queries and items; InputError for a model that cannot be exported."""
    kinds = [type(module).__name__ for module in library]
    if kinds[0] != "Transformer" or "Pooling" not in kinds or {*kinds[1:]} - _LAYERS:
        raise InputError(
            f"{source} is made of {', '.join(kinds)}: only Transformer, Pooling, Dense and "
            "Normalize can be exported"
        )
    own = own_prompts(library)
    query, item = (a if a is not None else b for a, b in zip(prefixes, own, strict=True))
    if (query or item) and not all(getattr(module, "include_prompt", True) for module in library):
        raise InputError(
            f"{source} leaves its prompt out of the pooling (include_prompt is false): {_IN_TORCH}"
        )
    return query, item


def _checked_encoding(
    library: Any, source: str, limit: int, prefixes: tuple[str, str], is_cross: bool
) -> Encoding:
    """How the model's texts are read. Raises InputError unless a tokenizer.json and prefixes give
    the token ids of the library, which may use a chat template, or lengths of its own for queries
    and for items."""
    tokenizer = Tokenizer(FastTokenizer.from_str(library.tokenizer.backend_tokenizer.to_str()))
    encoding = Encoding(tokenizer, Window(max_length=limit), *prefixes, marked=False)
    long = [("sea " * limit,) * 2] if limit == library.max_seq_length else []
    queries, items = zip(*PROBES, *long, strict=True)
    if is_cross:
        each = np.arange(len(items))
        rows = encoding.pairs(Pairs(each, each), queries, items)
        batches = [library.preprocess([*zip(queries, items, strict=True)], prompt=prefixes[0])]
    else:
        rows = encoding.texts(queries, queries=True) + encoding.texts(items, queries=False)
        batches = [
            library.preprocess(list(texts), prompt=prefix, task=task)
            for texts, prefix, task in zip(
                (queries, items), prefixes, ("query", "document"), strict=True
            )
        ]
    theirs = [
        ids[mask.bool()].tolist()
        for batch in batches
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    if [row.ids.tolist() for row in rows if isinstance(row, Row)] != theirs:
        raise InputError(
            f"{source} does not read its texts as its tokenizer.json says (a chat template, or "
            f"limits of its own for queries and items): {_IN_TORCH}"
        )
    return encoding


class _Vectors(nn.Module):  # type: ignore[misc]
    """Vectors of a sentence-transformers model by its own modules: (b, t) three times -> (b, d)."""

    def __init__(self, model: Any, is_typed: bool) -> None:
        super().__init__()
        self.model = model
        self.is_typed = is_typed

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.is_typed:
            features["token_type_ids"] = token_type_ids
        vectors: Tensor = self.model(features)["sentence_embedding"]
        return vectors[:, : self.model.truncate_dim]


class _Logits(nn.Module):  # type: ignore[misc]
    """The one logit of a sequence-classification model: (b, t) three times -> (b,)."""

    def __init__(self, inner: Any, is_typed: bool) -> None:
        super().__init__()
        self.inner = inner
        self.is_typed = is_typed

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        if self.is_typed and type(self.inner).__name__ == "BertForSequenceClassification":
            first, bert = torch.zeros_like(input_ids[:, :1]), self.inner.bert
            read = states_at(bert, first, input_ids, attention_mask, token_type_ids)
            pooled = bert.pooler(read)
            logits: Tensor = self.inner.classifier(pooled)
        else:
            types = {"token_type_ids": token_type_ids} if self.is_typed else {}
            given = {"input_ids": input_ids, "attention_mask": attention_mask, **types}
            logits = self.inner(**given).logits
        return logits[:, 0]
