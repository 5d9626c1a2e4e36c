"""The ONNX folder format: tracing a torch module, checking it, and writing the files."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from crossknn.errors import InputError, MissingExtraError
from crossknn.models.hub import first_line

if TYPE_CHECKING:
    from crossknn.models.traceable import Traceable

Precision = Literal["float32", "int8"]
MANIFEST = "crossknn.json"
MODEL = "model.onnx"
ITEM_MODEL = "item.onnx"
QUERY_MODEL = "query.onnx"
COMPARE_MODEL = "compare.onnx"
TOKENIZER = "tokenizer.json"
DATA = ".data"
"""Behind the name of a graph: its weights, where they have a file of their own."""
LATE_GRAPHS = (QUERY_MODEL, COMPARE_MODEL)
"""Those every late-interaction model has."""
_ABOUT = ("name", "revision", "license", "content")
"""What a manifest says that no answer depends on."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17
TOLERANCE = 1e-3
LARGEST = 2**31 - 2**25
"""Bytes of weights inside a graph; ONNX ends at 2 GiB a file."""
PROBE = (
    ("how are [Ms] lists [Me] sorted", "sorted [ENT] returns a new list of the items in order."),
    ("[Ms] open [Me] a file", "The sea [ENT] was calm, and nothing at all happened until evening."),
    ("[Ms] mean [Me] of numbers", "statistics.mean [ENT]"),
)
"""Marked, so that an [EMB] head finds its places; to other models the marks are words."""
LONG = ("open a file", "The sea was calm, and nothing at all happened until evening. " * 20)
"""Longer than the usual windows of local attention."""


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


def write_folder(
    source: Traceable,
    folder: str | Path,
    *,
    precision: Precision,
    license: str,
    name: str | None = None,
    keep_float: tuple[str, ...] = (),
) -> Path:
    """Trace a model, check it against torch, quantize if asked, and write the folder; see
    `export_cross_encoder`. The manifest comes last: a half-written folder is not one."""
    from tokenizers import Tokenizer

    if precision not in ("float32", "int8"):
        raise InputError(f"precision {precision!r} is unknown: use 'float32' or 'int8'")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    fast = Tokenizer.from_str(source.tokenizer)
    fast.no_padding()
    fast.no_truncation()
    name = name or source.name
    digest, dimensions = hashlib.sha256(), 0
    second = (*PROBE, LONG) if source.long else PROBE
    for file, module in source.modules.items():
        output = "scores" if source.kind == "cross-encoder" else "vectors"
        traced = Graph(
            module=module.eval(),
            inputs={key: {0: "b", 1: "t"} for key in INPUTS},
            outputs={output: {0: "b"}},
            probes=[encode(fast, texts, source) for texts in (PROBE[:2], second)],
        )
        graph, expected = trace(traced, folder / file, name)
        dimensions = expected[0].shape[-1]
        if precision == "int8":
            from crossknn.models.quantize import quantize

            graph = quantize(graph, keep_float)
        digest.update(save_graph(graph, folder / file))
    settings: dict[str, object] = {
        "format": 1,
        "kind": source.kind,
        "name": name,
        "revision": digest.hexdigest()[:12],
        "precision": precision,
        "max_length": source.max_length,
        "pad_token_id": source.pad_token_id,
        "license": license,
    }
    if source.kind == "dual-encoder":
        settings["dimensions"] = dimensions
    settings |= source.settings
    fast.save(str(folder / TOKENIZER), pretty=False)
    write(folder / MANIFEST, (json.dumps(settings, indent=2) + "\n").encode())
    return folder


def trace(graph: Graph, path: Path, name: str) -> tuple[Any, list[Any]]:
    """The ONNX graph of a module, equal to torch's within `TOLERANCE`, and the second probe's
    outputs. Raises InputError if it is not equal."""
    torch = import_torch()
    import onnx

    names, outputs = list(graph.inputs), list(graph.outputs)
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
                    output_names=outputs,
                    dynamic_axes={**graph.inputs, **graph.outputs},
                    opset_version=OPSET,
                    dynamo=False,
                )
            except RuntimeError as error:  # an operator or a form that ONNX has not
                raise InputError(
                    f"{name} cannot be traced to ONNX ({first_line(error)}): this architecture is "
                    "not supported"
                ) from error
            found = graph.module(*second)
        expected = [t.float().numpy() for t in (found if isinstance(found, tuple) else (found,))]
        computed = run_all(part, graph.probes[1])
        traced = onnx.load(part)
    known = {value.name for value in traced.graph.input}
    for key in (key for key in names if key not in known):  # token types, where there are none
        probe = graph.probes[0][key]
        kind = onnx.helper.np_dtype_to_tensor_dtype(probe.dtype)
        axes = [graph.inputs[key].get(axis, size) for axis, size in enumerate(probe.shape)]
        traced.graph.input.append(onnx.helper.make_tensor_value_info(key, kind, axes))
    for mine, theirs in zip(computed, expected, strict=True):
        same = mine == theirs  # infinities too
        difference = float(np.abs(np.where(same, 0, mine) - np.where(same, 0, theirs)).max())
        known = np.abs(theirs[np.isfinite(theirs)])
        if not difference <= TOLERANCE * max(1.0, float(known.max(initial=0.0))):
            raise InputError(
                f"the ONNX graph of {name} differs from torch by {difference:.2g}: "
                "this architecture is not supported"
            )
    return traced, expected


def encode(tokenizer: Any, texts: Sequence[tuple[str, str]], source: Traceable) -> dict[str, Any]:
    """Token arrays of pairs (the second texts alone for a dual encoder), each (b, t) int64, item
    cut first."""
    paired, pad = source.kind == "cross-encoder", source.pad_token_id
    tokenizer.enable_truncation(source.max_length, strategy="longest_first")
    rows = tokenizer.encode_batch([pair if paired else pair[1] for pair in texts])
    tokenizer.no_truncation()
    width = max(len(row.ids) for row in rows)
    arrays = {
        key: np.full((len(rows), width), pad if key == "input_ids" else 0, dtype=np.int64)
        for key in INPUTS
    }
    for position, row in enumerate(rows):
        arrays["input_ids"][position, : len(row.ids)] = row.ids
        arrays["attention_mask"][position, : len(row.ids)] = 1
        arrays["token_type_ids"][position, : len(row.ids)] = row.type_ids
    return arrays


def run(model: Any, batch: Mapping[str, Any]) -> Any:
    """The first output of an `onnx.ModelProto` on arrays by name."""
    return run_all(model, batch)[0]


def run_all(model: Any, batch: Mapping[str, Any]) -> list[Any]:
    """The outputs of an `onnx.ModelProto`, or of a file, on arrays by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model if isinstance(model, str) else model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    names = {value.name for value in session.get_inputs()}
    found: list[Any] = session.run(None, {k: v for k, v in batch.items() if k in names})
    return found


def import_torch() -> Any:
    try:
        import onnx  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("exporting a model", "torch") from error
    return torch


def write(path: Path, content: bytes) -> None:
    """A file that is there whole, or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)


def save_graph(graph: Any, path: Path) -> bytes:
    """Write a graph, and its weights beside it if they are more than one file may hold.

    Returns what tells it from others.
    """
    import onnx

    data = path.with_name(path.name + DATA)
    data.unlink(missing_ok=True)
    if sum(len(weight.raw_data) for weight in graph.graph.initializer) <= LARGEST:
        content: bytes = graph.SerializeToString(deterministic=True)
        write(path, content)
        return content
    onnx.save_model(graph, str(path), save_as_external_data=True, location=data.name)
    return content_hash(path, data).encode()


def late_content(folder: Path, settings: Mapping[str, Any]) -> str:
    """A hash of the graphs and the tokenizer of a late-interaction model, and of its settings."""
    files = (*LATE_GRAPHS, ITEM_MODEL, TOKENIZER)
    content = content_hash(*(folder / file for file in files if (folder / file).exists()))
    told = {key: value for key, value in settings.items() if key not in _ABOUT}
    text = content + json.dumps(told, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def content_hash(*paths: Path) -> str:
    """A hash of files' contents: a model changed in place must not be taken for what it was."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
