"""Models as ONNX folders that the base install can run (needs the extra `torch`).

A folder holds `model.onnx` (inputs `input_ids`, `attention_mask`, `token_type_ids`, int64 (b, t);
one output, `scores` (b,) raw logits or `vectors` (b, d)), `item.onnx` if a dual encoder has an item
tower of its own, `tokenizer.json`, `crossknn.json` and, if one was written, a model card.

That of a late-interaction model holds `query.onnx` (the same inputs; outputs `states` (b, t', d)
and `mask` (b, t')), `item.onnx` if it differs, and `compare.onnx`: `query` (b, t_q, d),
`query_mask`, `items` (b, c, t_i, d), `item_mask` -> `scores` (b, c), for any c.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crossknn.models.folder import Precision, import_torch, write_folder
from crossknn.models.saved import check_kind

__all__ = [
    "FFN_OUTPUT",
    "export_cross_encoder",
    "export_dual_encoder",
    "export_late_interaction",
]

FFN_OUTPUT = (*(f"layer.{depth}/output/dense" for depth in range(64)), "bert/output/dense_1")
"""The layers after GELU, whose activations have the longest tails; the last is the last layer's in
a graph that computes it only where it is read (`crossknn.models.partial`)."""


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
    """Write a cross-encoder as an ONNX folder, its head in the graph, and return its path.

    Args:
        model: a cross-encoder of ours (a `CrossEncoderModel` or its folder), a one-label
            sequence-classification folder (Hugging Face or sentence-transformers), or a
            `sentence_transformers.CrossEncoder`. folder: where to write; files of the same names
            are replaced. precision: "int8" quantizes linear layers and embedding tables
            (`crossknn.models.quantize`) but those whose weight's name contains one of
            `keep_float`: by default the outputs of the feed-forward blocks, which keeps the
            ranking of the top items. max_length: tokens of a pair; by default the model's own
            limit. name: what the model is called; by default the folder's name. license: the
            licence to record.

    Raises:
        InputError: if the model is of another kind, has not exactly one label, has no trained
            head, or its graph disagrees with torch. MissingExtraError: without the extra `torch`.
    """
    check_kind(model, "cross_encoder.json")
    import_torch()
    from crossknn.models import traceable

    return write_folder(
        traceable.cross_encoder(model, max_length),
        folder,
        precision=precision,
        name=name,
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
    query_prefix: str | None = None,
    item_prefix: str | None = None,
) -> Path:
    """Write a dual encoder as an ONNX folder and return its path.

    Args:
        model: a dual encoder trained here (a `DualEncoderModel` or its folder), a
            sentence-transformers folder, or a `SentenceTransformer`. Its pooling, dense and
            normalization layers are in the graph.
        query_prefix, item_prefix: texts to put before queries and items, as the model was trained;
            by default the prompts of the model's own configuration, "" for none.
        folder, precision, max_length, name, license: as in `export_cross_encoder`.

    Raises:
        InputError: if the model is of another kind, has other layers, reads texts through a chat
            template, leaves its prompt out of the pooling, or if the graph disagrees with torch.
            MissingExtraError: without the extra `torch`.
    """
    check_kind(model, "dual_encoder.json")
    import_torch()
    from crossknn.models import traceable

    return write_folder(
        traceable.dual_encoder(model, max_length, query_prefix, item_prefix),
        folder,
        precision=precision,
        name=name,
        license=license,
    )


def export_late_interaction(
    model: str | Path | Any,
    folder: str | Path,
    *,
    name: str | None = None,
    license: str = "see the model's own card",
) -> Path:
    """Write a late-interaction model (CMC and its rivals) as an ONNX folder and return its path.

    It keeps the model's fingerprint: an index encoded by either serves both.

    Args:
        model: a `LateInteractionModel` or its folder. folder, name, license: as in
            `export_cross_encoder`.

    Raises:
        InputError: if the folder holds no such model, or a graph disagrees with torch.
            MissingExtraError: without the extra `torch`.
    """
    check_kind(model, "late_interaction.json")
    import_torch()
    from crossknn.models.late_export import write_late_folder
    from crossknn.models.late_interaction.base import LateInteractionModel

    if isinstance(model, (str, Path)):
        name = name or Path(model).name
        model = LateInteractionModel.from_pretrained(model)
    return write_late_folder(model, Path(folder), name or model.config.kind, license)
