"""The ONNX folder format: tracing a torch module, checking it, and writing the files."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from crossknn.errors import InputError, MissingExtraError

Precision = Literal["float32", "int8"]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17
TOLERANCE = 1e-3
_PROBE = (
    ("how are lists sorted", "sorted(iterable) returns a new list of the items in order."),
    ("open a file", "The sea was calm that day, and nothing at all happened until the evening."),
    ("mean of numbers", "statistics.mean"),
)


def write_folder(
    module: Any,
    tokenizer: str,
    folder: str | Path,
    *,
    kind: Literal["cross-encoder", "dual-encoder"],
    precision: Precision,
    name: str,
    max_length: int,
    pad_token_id: int,
    license: str,
    extra: dict[str, object] | None = None,
    keep_float: tuple[str, ...] = (),
) -> Path:
    """Trace a torch module, check it against torch, quantize if asked, and write the folder; see
    `export_cross_encoder`.

    `module` maps (input_ids, attention_mask, token_type_ids), (b, t) each, to scores (b,) or unit
    vectors (b, d).
    """
    torch = import_torch()
    import onnx
    from tokenizers import Tokenizer

    if precision not in ("float32", "int8"):
        raise InputError(f"precision {precision!r} is unknown: use 'float32' or 'int8'")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fast = Tokenizer.from_str(tokenizer)
    fast.no_padding()
    fast.no_truncation()
    output = "scores" if kind == "cross-encoder" else "vectors"
    module = module.eval()
    part = folder / "model.onnx.part"
    sample = encode(fast, _PROBE[:2], kind, max_length, pad_token_id)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(sample[key]) for key in INPUTS),
            str(part),
            input_names=list(INPUTS),
            output_names=[output],
            dynamic_axes={key: {0: "b", 1: "t"} for key in INPUTS} | {output: {0: "b"}},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(str(part))
    part.unlink()
    batch = encode(fast, _PROBE, kind, max_length, pad_token_id)
    with torch.inference_mode():
        expected = module(*(torch.from_numpy(batch[key]) for key in INPUTS)).float().numpy()
    difference = float(np.abs(run(model, batch) - expected).max())
    if difference > TOLERANCE:
        raise InputError(
            f"the ONNX graph of {name} differs from torch by {difference:.2g}: "
            "this architecture is not supported"
        )
    if precision == "int8":
        from crossknn.models.quantize import quantize

        model = quantize(model, keep_float)
    content = model.SerializeToString(deterministic=True)
    settings: dict[str, object] = {
        "format": 1,
        "kind": kind,
        "name": name,
        "revision": hashlib.sha256(content).hexdigest()[:12],
        "precision": precision,
        "max_length": max_length,
        "pad_token_id": pad_token_id,
        "license": license,
    }
    if kind == "dual-encoder":
        settings["dimensions"] = int(expected.shape[1])
    settings |= {key: value for key, value in (extra or {}).items() if value != ""}
    fast.save(str(folder / "tokenizer.json"), pretty=False)
    _write(folder / "model.onnx", content)
    _write(folder / "crossknn.json", (json.dumps(settings, indent=2) + "\n").encode())
    return folder


def encode(
    tokenizer: Any, texts: Sequence[tuple[str, str]], kind: str, max_length: int, pad: int
) -> dict[str, Any]:
    """Token arrays of pairs (the second texts alone for a dual encoder), each (b, t) int64, item
    cut first."""
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    rows = tokenizer.encode_batch([pair if kind == "cross-encoder" else pair[1] for pair in texts])
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


def run(model: Any, batch: dict[str, Any]) -> Any:
    """The one output of an `onnx.ModelProto` on token arrays."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = {value.name for value in session.get_inputs()}
    return session.run(None, {key: value for key, value in batch.items() if key in names})[0]


def import_torch() -> Any:
    try:
        import onnx  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("exporting a model", "torch") from error
    return torch


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
