"""Export models to ONNX folders (docs/reference/formats.md), which crossknn runs without torch.

Axes: b texts, pairs or queries, c candidates, t tokens or states of a text, d dimensions.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import onnx
import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import nn

from crossknn.errors import InputError, first_line
from crossknn.files import write_file
from crossknn.models.folder import (
    COMPARE_MODEL,
    COMPARED,
    DATA,
    FORMAT,
    GRAPHS,
    INPUTS,
    ITEM_MODEL,
    KINDS,
    MANIFEST,
    MODEL,
    QUERY_MODEL,
    TOKENIZER,
    check_cross_encoder,
    check_files,
    content_hash,
    model_folder,
)
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window, checked_rows, padded
from crossknn.scorers.library import open_library, own_prompts
from crossknn.types import Pairs
from crossknn_train.models.backbone import has_token_types, position_limit, read_first_token
from crossknn_train.models.base import TorchModel, filling
from crossknn_train.models.cross_encoder import CrossEncoderModel
from crossknn_train.models.dual_encoder import DualEncoderModel
from crossknn_train.models.late import LateInteractionModel
from crossknn_train.quantize import quantize

Kind = Literal["cross-encoder", "dual-encoder", "late-interaction"]
Arrays: TypeAlias = dict[str, Any]
Axes: TypeAlias = Mapping[str, Mapping[int, str]]

Precision = Literal["float32", "int8", "int8-weights"]
OPSET = 17
TOLERANCE = 1e-3
LARGEST = 2**31 - 2**25
"""Maximum bytes of weights inside a graph; ONNX allows 2 GiB per file."""
PROBES = (
    ("how are [Ms] lists [Me] sorted", "sorted [ENT] returns a new list of the items in order."),
    ("[Ms] open [Me] a file", "The sea [ENT] was calm, and nothing at all happened until evening."),
    ("[Ms] mean [Me] of numbers", "statistics.mean [ENT]"),
    ("[Ms] snow [Me] " + "It rained. " * 80, "The sea [ENT] was calm. " + "Snow fell. " * 80),
)
"""Texts on which a graph is checked. They contain marks, which an [EMB] head needs; other models
read marks as words. The last pair is longer than usual windows of local attention."""
_N_LISTED = 300
"""Number of candidates per query in checks of a graph, more than one `CHUNK` of CMC."""
_OWN: dict[str, type[TorchModel]] = {
    "cross-encoder": CrossEncoderModel,
    "dual-encoder": DualEncoderModel,
    "late-interaction": LateInteractionModel,
}
_OUTPUTS: dict[str, Axes] = {
    "cross-encoder": {"scores": {0: "b"}},
    "dual-encoder": {"vectors": {0: "b"}},
    "late-interaction": {"states": {0: "b", 1: "t_out"}, "mask": {0: "b", 1: "t_out"}},
}
"""Outputs of graphs that read tokens, and which of their axes are dynamic."""
_TOKENS = {name: {0: "b", 1: "t"} for name in INPUTS}
_REFUSED = (
    "{} cannot be exported to ONNX, only used in torch: {}. A graph reads token ids only: it "
    "cannot apply a chat template, keep a prompt out of pooling, or have its own length limit "
    "for queries"
)


class Graph(NamedTuple):
    """A torch module to export, with example inputs for tracing and test inputs (`given`)."""

    module: nn.Module
    inputs: Axes
    outputs: Axes
    example: Arrays
    given: Arrays
    expected: Sequence[Any]


Exportable: TypeAlias = tuple[Encoding, dict[str, Graph], dict[str, object]]
"""How texts are tokenized, the graphs by file name, and further fields of the manifest."""


def export_model(
    model: str | Path,
    folder: str | Path,
    kind: Kind = "cross-encoder",
    *,
    precision: Precision = "float32",
    max_length: int | None = None,
    license: str = "see the model's own card",
) -> Path:
    """Write a model and its head as an ONNX folder, and return the path of the folder; InputError
    if outputs of an exported graph differ from torch's.

    Args:
        model: Folder of a model trained by crossknn-train; or folder or hub name of a
            sentence-transformers bi-encoder, whose prompts are kept, or one-label cross-encoder.
        folder: Folder to write; files of the same names are replaced.
        kind: "late-interaction" includes CMC.
        precision: "int8" quantizes linear layers and embedding tables (`crossknn_train.quantize`),
            "int8-weights" only their weights: the file is as small, its scores are nearer to the
            model's, and it is as fast as in float32.
        max_length: Maximum tokens of an input; by default the model's own limit.
        license: The licence to record in the manifest.
    """
    if precision not in get_args(Precision):
        raise InputError(f"the precision {precision!r} is unknown: use {get_args(Precision)}")
    if kind == "late-interaction" and (precision != "float32" or max_length is not None):
        raise InputError(
            "--precision and --max-length do not apply to a late-interaction model: leave them out"
        )
    encoding, graphs, settings = _exportable(model, kind, max_length)
    prefixes = zip(("query_prefix", "item_prefix"), encoding.prefixes, strict=True)
    lengths = {key: length for key, length in asdict(encoding.window).items() if length is not None}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "kind": kind,
        "name": Path(model).name,
        "precision": precision,
        "pad_token_id": encoding.tokenizer.padding,
        "license": license,
        **lengths,
        **{key: text for key, text in prefixes if text},
        **settings,
    }
    _write(Path(folder), graphs, encoding, manifest)
    return Path(folder)


def _exportable(model: str | Path, kind: Kind, max_length: int | None) -> Exportable:
    own, source = _OWN[kind], Path(model)
    check_files(source)
    for file, other in KINDS.items():
        if file != own.SETTINGS and (source / file).is_file():
            raise InputError(f"{model} is a {other} and cannot be exported as a {kind} (--kind)")
    if (source / own.SETTINGS).is_file() or kind == "late-interaction":
        return _own_model(own.from_pretrained(source), kind, max_length)
    return _library_model(str(model), kind, max_length)


def _write(
    folder: Path,
    graphs: Mapping[str, Graph],
    encoding: Encoding,
    manifest: dict[str, Any],
) -> None:
    """Write graphs, tokenizer and, last, the manifest: a folder without it is not a model."""
    with filling(folder) as written:
        for file in (MANIFEST, *GRAPHS, *(graph + DATA for graph in GRAPHS)):  # of a previous model
            (folder / file).unlink(missing_ok=True)
        for file, graph in graphs.items():
            traced = _trace(graph, written / file, manifest["name"])
            if manifest["kind"] == "dual-encoder":
                manifest["dimensions"] = graph.expected[0].shape[-1]
            if manifest["precision"] != "float32":
                traced = quantize(traced, only_weights=manifest["precision"] == "int8-weights")
            _save(traced, written / file)
        encoding.tokenizer.fast.save(str(written / TOKENIZER), pretty=False)
    is_late = manifest["kind"] == "late-interaction"
    manifest["content"] = content_hash(folder, manifest if is_late else None)
    manifest["revision"] = manifest["content"][:12]
    write_file(folder, MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


# Models of crossknn-train


def _own_model(model: Any, kind: Kind, max_length: int | None) -> Exportable:
    window = model.encoding.window
    if max_length is not None and max_length < window.max_length:
        window = Window(max_length=max_length)
    encoding = Encoding(model.tokenizer, window, marked=model.config.marked)
    for encoder in model.encoders:
        encoder.set_attn_implementation("eager")
    settings: dict[str, object] = {"marked": model.config.marked}
    if kind == "cross-encoder":
        if model.config.head == "cls":
            read_first_token(model.encoder)
        return encoding, {MODEL: _reader(model, encoding, kind, "pairs")}, settings
    if kind == "dual-encoder":
        graphs = {MODEL: _reader(model.query, encoding, kind, "queries")}
        if not model.config.shared:
            graphs[ITEM_MODEL] = _reader(model.item, encoding, kind, "items")
        return encoding, graphs, settings
    settings |= {
        "head": model.config.head,
        "joint": model.joint,
        "dimensions": model.dimensions,
        "weights": model.fingerprint,
    }
    return encoding, _late_graphs(model, encoding), settings


class _Reading(nn.Module):  # type: ignore[misc]
    """Wraps a function of three token arrays (b, t) as a module with a model's weights."""

    def __init__(self, model: nn.Module, read: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.read = model, read

    def forward(self, *arrays: torch.Tensor) -> Any:
        return self.read(*arrays)


def _late_graphs(model: LateInteractionModel, encoding: Encoding) -> dict[str, Graph]:
    """Make the graphs of the query tower, the head and, unless it is shared, the item tower."""
    head = model.head
    query = _Reading(model, lambda *arrays: head.of_queries(*model.query(*arrays)))
    item = _Reading(model, lambda *arrays: head.of_items(*model.item(*arrays)))
    graphs = {
        QUERY_MODEL: _reader(query, encoding, "late-interaction", "queries"),
        ITEM_MODEL: _reader(item, encoding, "late-interaction", "items"),
    }
    states = [array for graph in graphs.values() for array in graph.expected]
    if model.config.shared and head.query_reads == head.item_reads:
        del graphs[ITEM_MODEL]
    text, lists = {0: "b", 1: "t_q"}, {0: "b", 1: "c", 2: "t_i"}
    axes = dict(zip(COMPARED, (text, text, lists, lists), strict=True))
    example, listed = (_lists(states, *sizes) for sizes in ((2, 5), (3, _N_LISTED)))
    scores, expected = {"scores": {0: "b", 1: "c"}}, _outputs(head, listed)
    graphs[COMPARE_MODEL] = Graph(head, axes, scores, example, listed, expected)
    return graphs


def _lists(states: Sequence[Any], count: int, n_listed: int) -> Arrays:
    """Draw states of `count` queries and of `n_listed` candidates per query, some padding."""
    query, query_mask, items, mask = states
    drawn = np.random.default_rng(n_listed).integers(len(items), size=(count, n_listed))
    item_mask = mask[drawn].astype(bool)
    item_mask[:, 1::10] = False
    lists = query[:count], query_mask[:count].astype(bool), items[drawn], item_mask
    return dict(zip(COMPARED, lists, strict=True))


def _reader(
    module: nn.Module, encoding: Encoding, kind: Kind, what: str, expected: Any = None
) -> Graph:
    """Make the graph of a module that reads tokens of pairs, queries or items."""
    example, given = (_token_arrays(encoding, probes, what) for probes in (PROBES[:2], PROBES))
    module.eval()
    expected = _outputs(module, given) if expected is None else [expected]
    return Graph(module, _TOKENS, _OUTPUTS[kind], example, given, expected)


def _outputs(module: nn.Module, arrays: Arrays) -> list[Any]:
    """Return the outputs of a module in torch, as arrays."""
    with torch.inference_mode():
        outputs = module(*map(torch.from_numpy, arrays.values()))
    return [t.float().numpy() for t in (outputs if isinstance(outputs, tuple) else (outputs,))]


def _token_arrays(encoding: Encoding, texts: Sequence[tuple[str, str]], what: str) -> Arrays:
    """Return token arrays (b, t) for "pairs", "queries", "items" or "texts" (both)."""
    queries, items = zip(*texts, strict=True)
    rows: list[Row | InputError] = []
    if what == "pairs":
        each = np.arange(len(texts))
        rows = encoding.pairs(Pairs(each, each), queries, items)
    if what in ("queries", "texts"):
        rows += encoding.texts(queries, queries=True)
    if what in ("items", "texts"):
        rows += encoding.texts(items, queries=False)
    return padded(checked_rows(rows), encoding.tokenizer.padding, encoding.window.max_length)


# Models of sentence-transformers and Hugging Face


def _library_model(source: str, kind: Kind, max_length: int | None) -> Exportable:
    is_cross = kind == "cross-encoder"
    if is_cross:
        check_cross_encoder(model_folder(source), source)
    loader: Any = "CrossEncoder" if is_cross else "SentenceTransformer"
    library = open_library(loader, source, source, device="cpu").float()
    try:
        inner, words = library[0].auto_model, library.tokenizer.backend_tokenizer
    except AttributeError as error:
        raise InputError(_REFUSED.format(source, "it has no fast tokenizer")) from error
    inner.set_attn_implementation("eager")
    limits = (position_limit(inner.config), library.max_seq_length, max_length)
    library.max_seq_length = min(int(limit) for limit in limits if limit)
    is_typed = has_token_types(inner.config) and (
        "token_type_ids" in library.tokenizer.model_input_names
    )
    options: dict[str, Any] = {"show_progress_bar": False}
    answers: list[tuple[Any, Sequence[Any]]]
    queries, items = zip(*PROBES, strict=True)
    if is_cross:
        prompts = library.prompts.get(library.default_prompt_name) or "", ""
        options["activation_fn"] = nn.Identity()
        answers = [(library.predict, PROBES)]
    else:
        prompts = own_prompts(library)
        answers = [(library.encode_query, queries), (library.encode_document, items)]
    tokenizer = Tokenizer(FastTokenizer.from_str(words.to_str()))
    window = Window(max_length=library.max_seq_length)
    encoding = Encoding(tokenizer, window, *prompts, marked=False)
    # Encode one by one: padding on the left would shift positions.
    expected = [
        answer([text], prompt=prompt, **options)
        for (answer, given), prompt in zip(answers, prompts, strict=False)
        for text in given
    ]

    def read(*arrays: torch.Tensor) -> Any:
        outputs = library(dict(zip(INPUTS if is_typed else INPUTS[:2], arrays, strict=False)))
        return outputs["scores"][:, 0] if is_cross else outputs["sentence_embedding"]

    if is_cross:
        read_first_token(inner.base_model)
    module, what = _Reading(library, read), "pairs" if is_cross else "texts"
    return encoding, {MODEL: _reader(module, encoding, kind, what, np.concatenate(expected))}, {}


# Graphs


def _trace(graph: Graph, path: Path, name: str) -> Any:
    """Trace a module to an ONNX graph; InputError if tracing fails or changes its outputs."""
    example = tuple(map(torch.from_numpy, graph.example.values()))
    # Use a folder: torch writes the weights of a large model to separate files.
    with TemporaryDirectory(dir=path.parent) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unchecked = str(Path(scratch) / path.name)
        try:
            with torch.inference_mode():
                torch.onnx.export(
                    graph.module,
                    example,
                    unchecked,
                    opset_version=OPSET,
                    dynamo=False,
                    input_names=list(graph.inputs),
                    output_names=list(graph.outputs),
                    dynamic_axes={**graph.inputs, **graph.outputs},
                )
        except RuntimeError as error:  # an operator or a shape that ONNX lacks
            raise InputError(_REFUSED.format(name, first_line(error))) from error
        _check(graph, unchecked, name)
        traced = onnx.load(unchecked)
    traced_inputs = {value.name for value in traced.graph.input}
    for key in graph.inputs.keys() - traced_inputs:  # token types that the model does not read
        info = onnx.helper.make_tensor_value_info(key, onnx.TensorProto.INT64, ["b", "t"])
        traced.graph.input.append(info)
    return traced


def _check(graph: Graph, path: str, name: str) -> None:
    """Raise InputError if outputs of an ONNX file differ from the expected ones."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    answers = session.run(None, {k: v for k, v in graph.given.items() if k in names})
    for answer, expected in zip(answers, graph.expected, strict=True):
        size = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
        near = {"rtol": 0, "atol": TOLERANCE * size}
        if answer.shape != expected.shape or not np.allclose(answer, expected, **near):
            raise InputError(_REFUSED.format(name, "the graph's outputs differ from the model's"))


def _save(graph: Any, path: Path) -> None:
    """Write a graph; weights too large for the graph go to a separate file."""
    if sum(len(weight.raw_data) for weight in graph.graph.initializer) <= LARGEST:
        write_file(path.parent, path.name, graph.SerializeToString(deterministic=True))
    else:
        onnx.save_model(graph, str(path), save_as_external_data=True, location=path.name + DATA)
