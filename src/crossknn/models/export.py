"""Cross-encoders and dual encoders as ONNX folders that the base install can run (needs the extra
`torch`).

A folder holds `model.onnx` (inputs `input_ids`, `attention_mask`, `token_type_ids`, int64 (b, t);
one output, `scores` (b,) raw logits or `vectors` (b, d) of unit length), `tokenizer.json`,
`crossknn.json` and, if one was written, a model card.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from crossknn.errors import InputError, MissingExtraError

__all__ = ["FFN_OUTPUT", "export_cross_encoder", "export_dual_encoder", "write_folder"]

Precision = Literal["float32", "int8"]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17
TOLERANCE = 1e-3
FFN_OUTPUT = tuple(f"layer.{depth}/output/dense" for depth in range(64))
_PROBE = (
    ("how are lists sorted", "sorted(iterable) returns a new list of the items in order."),
    ("open a file", "The sea was calm that day, and nothing at all happened until the evening."),
    ("mean of numbers", "statistics.mean"),
)


def export_cross_encoder(
    model: str | Path | Any,
    folder: str | Path,
    precision: Precision = "float32",
    *,
    max_length: int | None = None,
    name: str | None = None,
    license: str = "see the model's own card",
    keep_float: tuple[str, ...] = (),
) -> Path:
    """Write a one-label sequence-classification model as an ONNX folder and return its path.

    Args:
        model: a folder (Hugging Face or sentence-transformers) or a
            `sentence_transformers.CrossEncoder`. folder: where to write; files of the same names
            are replaced. precision: "int8" quantizes linear layers and embedding tables
            (`crossknn.models.quantize`). max_length: tokens of a pair; by default the model's own
            limit. name: what the model is called; by default the folder's name. license: the
            licence to record.

    Raises:
        InputError: if the model has not exactly one label, has no trained head, or its graph
            disagrees with torch. MissingExtraError: without the extra `torch`.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    torch = _torch()
    if isinstance(model, (str, Path)):
        source = str(model)
        config = AutoConfig.from_pretrained(source)
        _one_label(config, source)
        loaded, report = AutoModelForSequenceClassification.from_pretrained(
            source, output_loading_info=True, attn_implementation="eager"
        )
        missing = sorted(key for key in report["missing_keys"] if "position_ids" not in key)
        if missing:
            raise InputError(
                f"{source} has no trained classification head ({missing[0]} is missing): "
                "pass a cross-encoder, not an encoder or an [EMB] checkpoint"
            )
        tokenizer = AutoTokenizer.from_pretrained(source, use_fast=True)
    else:
        loaded, tokenizer, source = model.model, model.tokenizer, "cross-encoder"
        _one_label(loaded.config, source)

    class Logits(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = loaded

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.inner(
                **_arguments(loaded, input_ids, attention_mask, token_type_ids)
            ).logits[:, 0]

    limit = min(max_length or 10**9, _limit(loaded.config, tokenizer))
    return write_folder(
        Logits(),
        tokenizer.backend_tokenizer.to_str(),
        folder,
        kind="cross-encoder",
        precision=precision,
        name=name or Path(source).name,
        max_length=limit,
        pad_token_id=int(tokenizer.pad_token_id or 0),
        license=license,
        keep_float=keep_float,
    )


def export_dual_encoder(
    model: str | Path | Any,
    folder: str | Path,
    precision: Precision = "float32",
    *,
    max_length: int | None = None,
    name: str | None = None,
    license: str = "see the model's own card",
    query_prefix: str = "",
    item_prefix: str = "",
) -> Path:
    """Write a mean-pooling sentence-transformers bi-encoder as an ONNX folder and return its path.

    Args:
        model: a sentence-transformers folder or a `SentenceTransformer`.
        query_prefix, item_prefix: texts to put before queries and items, as the model was trained.
        folder, precision, max_length, name, license: as in `export_cross_encoder`.

    Raises:
        InputError: if the model does not pool by the mean, has layers after pooling, or its graph
            disagrees with torch. MissingExtraError: without the extra `torch`.
    """
    torch = _torch()
    from sentence_transformers import SentenceTransformer

    from crossknn.models.interaction import masked_mean

    source = str(model) if isinstance(model, (str, Path)) else "dual-encoder"
    loaded = SentenceTransformer(source, device="cpu") if isinstance(model, (str, Path)) else model
    kinds = [type(module).__name__ for module in loaded]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Normalize"}:
        raise InputError(
            f"{source} is made of {', '.join(kinds)}: only Transformer, Pooling and Normalize "
            "can be exported"
        )
    if getattr(loaded[1], "pooling_mode", None) not in (
        "mean",
        ("mean",),
        ["mean"],
    ) and not getattr(loaded[1], "pooling_mode_mean_tokens", False):
        raise InputError(
            f"{source} does not pool by the mean of its tokens: other poolings are not supported"
        )
    encoder, tokenizer = loaded[0].auto_model, loaded.tokenizer
    encoder.set_attn_implementation("eager")

    class Vectors(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            states = self.inner(
                **_arguments(encoder, input_ids, attention_mask, token_type_ids)
            ).last_hidden_state
            return torch.nn.functional.normalize(
                masked_mean(states, attention_mask.float()), dim=-1
            )

    limit = min(
        max_length or 10**9, int(loaded.max_seq_length or 512), _limit(encoder.config, tokenizer)
    )
    return write_folder(
        Vectors(),
        tokenizer.backend_tokenizer.to_str(),
        folder,
        kind="dual-encoder",
        precision=precision,
        name=name or Path(source).name,
        max_length=limit,
        pad_token_id=int(tokenizer.pad_token_id or 0),
        license=license,
        extra={"query_prefix": query_prefix, "item_prefix": item_prefix},
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
    torch = _torch()
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


def _torch() -> Any:
    try:
        import onnx  # noqa: F401
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("exporting a model", "torch") from error
    return torch


def _one_label(config: Any, source: str) -> None:
    made_of = [str(name) for name in getattr(config, "architectures", None) or ()]
    if made_of and not any(name.endswith("ForSequenceClassification") for name in made_of):
        raise InputError(
            f"{source} is a {made_of[0]}, which has no classification head: pass a cross-encoder"
        )
    if int(config.num_labels) != 1:
        raise InputError(
            f"{source} has {config.num_labels} labels: crossknn needs one raw score per pair "
            "(num_labels=1)"
        )


def _arguments(model: Any, ids: Any, mask: Any, kinds: Any) -> dict[str, Any]:
    """Call arguments with an additive mask (b, 1, 1, t), and token types only where the model has
    several."""
    arguments = {"input_ids": ids, "attention_mask": (1.0 - mask[:, None, None, :].float()) * -1e9}
    if int(getattr(model.config, "type_vocab_size", 0) or 0) > 1:
        arguments["token_type_ids"] = kinds
    return arguments


def _limit(config: Any, tokenizer: Any) -> int:
    positions = int(getattr(config, "max_position_embeddings", 512) or 512)
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):
        positions -= 2
    return min(positions, int(min(tokenizer.model_max_length, 10**6)))


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
