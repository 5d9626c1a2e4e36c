"""Cross-encoders and dual encoders as ONNX folders that the base install can run (needs the extra
`torch`).

A folder holds `model.onnx` (inputs `input_ids`, `attention_mask`, `token_type_ids`, int64 (b, t);
one output, `scores` (b,) raw logits or `vectors` (b, d) of unit length), `tokenizer.json`,
`crossknn.json` and, if one was written, a model card.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.models.folder import Precision, import_torch, write_folder

__all__ = ["FFN_OUTPUT", "export_cross_encoder", "export_dual_encoder"]

FFN_OUTPUT = tuple(f"layer.{depth}/output/dense" for depth in range(64))
"""The layers after GELU, whose activations have the longest tails."""


def export_cross_encoder(
    model: str | Path | Any,
    folder: str | Path,
    precision: Precision = "float32",
    *,
    max_length: int | None = None,
    name: str | None = None,
    license: str = "see the model's own card",
    keep_float: tuple[str, ...] = FFN_OUTPUT,
) -> Path:
    """Write a one-label sequence-classification model as an ONNX folder and return its path.

    Args:
        model: a folder (Hugging Face or sentence-transformers) or a
            `sentence_transformers.CrossEncoder`. folder: where to write; files of the same names
            are replaced. precision: "int8" quantizes linear layers and embedding tables
            (`crossknn.models.quantize`) but those whose weight's name contains one of
            `keep_float`: by default the outputs of the feed-forward blocks, which keeps the
            ranking of the top items. max_length: tokens of a pair; by default the model's own
            limit. name: what the model is called; by default the folder's name. license: the
            licence to record.

    Raises:
        InputError: if the model has not exactly one label, has no trained head, or its graph
            disagrees with torch. MissingExtraError: without the extra `torch`.
    """
    torch = import_torch()
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

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
    torch = import_torch()
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
