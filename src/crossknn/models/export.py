"""Models as ONNX folders that the base install can run (needs the extra `torch`).

A folder holds `model.onnx` (inputs `input_ids`, `attention_mask`, `token_type_ids`, int64 (b, t);
one output, `scores` (b,) raw logits or `vectors` (b, d)), `item.onnx` if a dual encoder has an item
tower of its own, `tokenizer.json`, `crossknn.json` and, if one was written, a model card.

That of a late-interaction model holds `query.onnx` (the same inputs; outputs `states` (b, t', d)
and `mask` (b, t')), `item.onnx` if it differs, and `compare.onnx`: `query` (b, t_q, d),
`query_mask`, `items` (b, c, t_i, d), `item_mask` -> `scores` (b, c), for any c.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from crossknn.errors import InputError, MissingExtraError
from crossknn.files import write_file
from crossknn.models.folder import (
    COMPARE_MODEL,
    DATA,
    ITEM_MODEL,
    KINDS,
    MANIFEST,
    MODEL,
    QUERY_MODEL,
    TOKENIZER,
    content_hash,
    late_content,
)
from crossknn.models.library import first_line

if TYPE_CHECKING:
    from crossknn.models.exportable import Exportable, Graph, Kind

FFN_OUTPUT = (*(f"layer.{depth}/output/dense" for depth in range(64)), "/output/dense_1")
"""The layers after GELU, whose activations have the longest tails; the last is the last layer's in
a graph that computes it only where it is read (`PartialModel`)."""
OPSET = 17
TOLERANCE = 1e-3
LARGEST = 2**31 - 2**25
"""Bytes of weights inside a graph; ONNX ends at 2 GiB a file."""
_GRAPHS = (MODEL, ITEM_MODEL, QUERY_MODEL, COMPARE_MODEL)


def export_model(
    model: str | Path | Any,
    folder: str | Path,
    kind: Kind = "cross-encoder",
    *,
    precision: Literal["float32", "int8"] = "float32",
    max_length: int | None = None,
    name: str | None = None,
    license: str = "see the model's own card",
    query_prefix: str | None = None,
    item_prefix: str | None = None,
    keep_float: tuple[str, ...] = FFN_OUTPUT,
) -> Path:
    """Write a model as an ONNX folder, its head in the graph, and return its path.

    Args:
        model: a model trained here or its folder; for a cross-encoder also a one-label
            sequence-classification folder (Hugging Face or sentence-transformers) or a
            `sentence_transformers.CrossEncoder`, for a dual encoder a sentence-transformers folder
            or a `SentenceTransformer`, whose pooling, dense and normalization layers are in the
            graph. A late-interaction model keeps its fingerprint: an index encoded by either
            serves both.
        folder: where to write; files of the same names are replaced.
        kind: "cross-encoder", "dual-encoder" or "late-interaction" (CMC and its rivals).
        precision: "int8" quantizes linear layers and embedding tables (`crossknn.models.quantize`)
            but those whose weight's name contains one of `keep_float`: by default the outputs of
            the feed-forward blocks, which keeps the ranking of the top items.
        max_length: tokens of an input; by default the model's own limit.
        name: what the model is called; by default the folder's name. license: the licence to
            record.
        query_prefix, item_prefix: of a dual encoder: texts to put before queries and items, as it
            was trained; by default the prompts of its own configuration, "" for none.

    Raises:
        InputError: if the model is of another kind, has not exactly one label, no trained head or
            other layers, reads texts through a chat template, leaves its prompt out of the pooling,
            or if a graph disagrees with torch.
        MissingExtraError: without the extra `torch`.
    """
    if precision not in ("float32", "int8"):
        raise InputError(f"precision {precision!r} is unknown: use 'float32' or 'int8'")
    if kind == "late-interaction" and (precision != "float32" or max_length is not None):
        raise InputError(
            "a late-interaction model is exported as it is: leave out --precision and --max-length"
        )
    try:
        import onnx  # noqa: F401
        import torch  # noqa: F401

        from crossknn.models import exportable
    except ImportError as error:
        raise MissingExtraError("exporting a model", "torch") from error
    own = exportable.OWN[kind]
    check_kind(model, own.SETTINGS)
    prefixes = (query_prefix, item_prefix)
    is_name = isinstance(model, (str, Path))
    if is_name and ((Path(model) / own.SETTINGS).is_file() or kind == "late-interaction"):
        model, name = own.from_pretrained(model), name or Path(model).name
    if isinstance(model, own):
        with _ready(model):
            source = exportable.own_model(
                model, kind, name or type(model).__name__, max_length, prefixes
            )
            return _write(source, Path(folder), precision, license, keep_float)
    source = exportable.library_model(model, kind, name, max_length, prefixes)
    return _write(source, Path(folder), precision, license, keep_float)


def check_kind(model: object, settings: str) -> None:
    """Raises InputError if `model` is the folder of a model of ours, and its settings are in
    another file than `settings`."""
    for other, kind in KINDS.items() if isinstance(model, (str, Path)) else ():
        if other != settings and (Path(str(model)) / other).is_file():
            raise InputError(f"{model} is a {kind}, not a {KINDS[settings]} (--kind says which)")


@contextmanager
def _ready(model: Any) -> Iterator[None]:
    """A model of ours is on the CPU, without dropout and traceable meanwhile."""
    device, training = model.device, model.training
    encoders = {id(encoder): encoder for encoder in model.encoders()}.values()
    attentions = [encoder.config._attn_implementation for encoder in encoders]
    model.cpu().eval()
    for encoder in encoders:
        encoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        for encoder, attention in zip(encoders, attentions, strict=True):
            encoder.set_attn_implementation(attention)
        model.to(device).train(training)


def _write(
    source: Exportable,
    folder: Path,
    precision: str,
    license: str,
    keep_float: tuple[str, ...],
) -> Path:
    """Trace, check, quantize and write a model; the manifest comes last: a half-written folder is
    not one."""
    from crossknn.models.quantize import quantize

    folder.mkdir(parents=True, exist_ok=True)
    for file in (MANIFEST, *_GRAPHS):  # of a model that was here before
        (folder / file).unlink(missing_ok=True)
        (folder / (file + DATA)).unlink(missing_ok=True)
    settings: dict[str, Any] = {
        "format": 1,
        "kind": source.kind,
        "name": source.name,
        "precision": precision,
        "pad_token_id": source.encoding.tokenizer.padding,
        "license": license,
        "max_length": source.encoding.window.max_length,
    }
    for file, graph in source.graphs.items():
        traced, outputs = _trace(graph, folder / file, source.name)
        if source.kind == "dual-encoder":
            settings["dimensions"] = outputs[0].shape[-1]
        _save(quantize(traced, keep_float) if precision == "int8" else traced, folder / file)
    source.encoding.tokenizer.fast.save(str(folder / TOKENIZER), pretty=False)
    window = source.encoding.window
    if window.query_length is not None:
        settings |= {"query_length": window.query_length, "item_length": window.item_length}
    prefixes = zip(("query_prefix", "item_prefix"), source.encoding.prefixes, strict=True)
    settings |= {key: text for key, text in prefixes if text} | dict(source.settings)
    if source.kind == "late-interaction":
        settings["content"] = late_content(folder, settings)
    else:
        settings["content"] = content_hash(*(folder / file for file in (*source.graphs, TOKENIZER)))
    settings["revision"] = settings["content"][:12]
    write_file(folder / MANIFEST, (json.dumps(settings, indent=2) + "\n").encode())
    return folder


def _trace(graph: Graph, path: Path, name: str) -> tuple[Any, list[Any]]:
    """The ONNX graph of a module, equal to torch's within `TOLERANCE`, and the second probe's
    outputs. Raises InputError if it is not equal."""
    import onnx
    import torch

    names = list(graph.inputs)
    first, second = (tuple(torch.from_numpy(probe[key]) for key in names) for probe in graph.probes)
    # A folder: torch writes the weights of a large model to files of their own.
    with TemporaryDirectory(dir=path.parent) as scratch:
        part = str(Path(scratch) / path.name)
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            try:
                torch.onnx.export(
                    graph.module,
                    first,
                    part,
                    input_names=names,
                    output_names=list(graph.outputs),
                    dynamic_axes={**graph.inputs, **graph.outputs},
                    opset_version=OPSET,
                    dynamo=False,
                )
            except RuntimeError as error:  # an operator or a form that ONNX has not
                raise InputError(
                    f"{name} cannot be traced to ONNX ({first_line(error)}): this architecture is "
                    "not supported"
                ) from error
            outputs = graph.module(*second)
        computed = _run(part, graph.probes[1])
        traced = onnx.load(part)
    expected = [t.float().numpy() for t in (outputs if isinstance(outputs, tuple) else (outputs,))]
    known = {value.name for value in traced.graph.input}
    for key in (key for key in names if key not in known):  # token types, where there are none
        probe = graph.probes[0][key]
        kind = onnx.helper.np_dtype_to_tensor_dtype(probe.dtype)
        axes = [graph.inputs[key].get(axis, size) for axis, size in enumerate(probe.shape)]
        traced.graph.input.append(onnx.helper.make_tensor_value_info(key, kind, axes))
    for mine, theirs in zip(computed, expected, strict=True):
        same = mine == theirs  # infinities too
        difference = float(np.abs(np.where(same, 0, mine) - np.where(same, 0, theirs)).max())
        finite = np.abs(theirs[np.isfinite(theirs)])
        if not difference <= TOLERANCE * max(1.0, float(finite.max(initial=0.0))):
            raise InputError(
                f"the ONNX graph of {name} differs from torch by {difference:.2g}: "
                "this architecture is not supported"
            )
    return traced, expected


def _run(path: str, batch: Mapping[str, Any]) -> list[Any]:
    """The outputs of an ONNX file on arrays by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")  # as scorers open it
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    outputs: list[Any] = session.run(None, {k: v for k, v in batch.items() if k in names})
    return outputs


def _save(graph: Any, path: Path) -> None:
    """Write a graph, and its weights beside it if they are more than one file may hold."""
    import onnx

    if sum(len(weight.raw_data) for weight in graph.graph.initializer) <= LARGEST:
        write_file(path, graph.SerializeToString(deterministic=True))
    else:
        onnx.save_model(graph, str(path), save_as_external_data=True, location=path.name + DATA)
