"""What a Hugging Face folder holds, told from its files before anything is loaded.

Libraries load a bi-encoder, or a model without a classifier, as a cross-encoder with random
weights in its head, and go on.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from crossknn.errors import InputError

_HEADS = ("classifier", "score", "logits_proj", "classification_head")


def check_cross_encoder_folder(folder: Path, name: str) -> None:
    """Raises InputError, with the reason, unless `folder` holds a cross-encoder with one score."""
    config = _config(folder, name)
    if _is_bi_encoder(folder):
        raise InputError(
            f"{name} is a bi-encoder: it encodes texts one by one and cannot score a pair; open it "
            f"with DualEncoder, and give a cross-encoder here"
        )
    architecture = _architecture(config)
    if architecture.endswith("ForCausalLM"):
        return  # scored by the logits of two words; sentence-transformers knows how
    if not architecture.endswith("ForSequenceClassification"):
        raise InputError(
            f"{name} has no classification head ({architecture or 'no architecture'}), so that it "
            f"cannot score a pair: a fine-tuned cross-encoder is needed"
        )
    labels = config.get("id2label")
    # 2 is the library's default where the file says nothing.
    n_labels = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if n_labels != 1:
        raise InputError(
            f"{name} has {n_labels} outputs for a pair: it is a classifier, and none of its "
            f"outputs is a score; a cross-encoder with one output is needed"
        )
    names = _weight_names(folder, name)
    if names is not None and not any(_is_head(weight) for weight in names):
        raise InputError(
            f"{name} has no weights for its classification head, so that its scores would be "
            f"random: it was saved before it was fine-tuned"
        )


def check_dual_encoder_folder(folder: Path, name: str) -> None:
    """Raises InputError if `folder` is no model folder, or holds a cross-encoder."""
    if (folder / "modules.json").exists() and _is_bi_encoder(folder):
        return
    config = _config(folder, name)
    if _architecture(config).endswith("ForSequenceClassification"):
        raise InputError(
            f"{name} is a cross-encoder: it scores pairs and has no vectors for single texts; "
            f"open it with CrossEncoder, and give a dual encoder here"
        )


def _config(folder: Path, name: str) -> dict[str, Any]:
    for path in (folder / "config.json", folder / "0_Transformer" / "config.json"):
        if path.is_file():
            config = _json(path)
            return config if isinstance(config, dict) else {}
    if (folder / "modules.json").is_file():
        return {}
    raise InputError(f"{name} is not a model folder: it has neither crossknn.json nor config.json")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures") or [""]
    return str(names[0])


def _is_bi_encoder(folder: Path) -> bool:
    about = folder / "config_sentence_transformers.json"
    if about.is_file():
        kind = _json(about).get("model_type")
        if kind is not None:
            return kind in ("SentenceTransformer", "SparseEncoder")
    modules = folder / "modules.json"
    if not modules.is_file():
        return False
    kinds = [str(module.get("type", "")) for module in _json(modules)]
    return any("Pooling" in kind or "StaticEmbedding" in kind for kind in kinds)


def _weight_names(folder: Path, name: str) -> list[str] | None:
    """Names of the weights in the folder's safetensors files; None if it has no such files."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return list(_json(index).get("weight_map", {}))
    path = folder / "model.safetensors"
    if not path.is_file():
        if any(folder.glob("*.bin")) or any(folder.glob("*.safetensors")):
            return None
        raise InputError(f"{name} has no weights: model.safetensors is missing")
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        end = max((meta["data_offsets"][1] for meta in _tensors(header).values()), default=0)
    except (OSError, ValueError, struct.error, KeyError, OverflowError, MemoryError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from error
    if path.stat().st_size < 8 + length + end:
        raise InputError(f"{path} is truncated: download or copy it again")
    return list(_tensors(header))


def _tensors(header: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in header.items() if key != "__metadata__"}


def _is_head(weight: str) -> bool:
    parts = weight.split(".")
    return any(head in parts for head in _HEADS)
