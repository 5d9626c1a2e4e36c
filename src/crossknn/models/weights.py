"""Which weights a Hugging Face folder has, told from its files without loading any."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.models.pickles import read_checkpoint, tensors_of

_HEADS = ("classifier", "score", "logits_proj", "classification_head")
SCORING = ("LogitScore", "Dense")
"""The modules of sentence-transformers that make a score of what comes before them."""


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises InputError if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def weight_names(folder: Path, name: str) -> list[str] | None:
    """Names of the weights in a folder's files; None if those have names of their own.

    Raises InputError if there are none, or if a file is damaged.
    """
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            return list(read_json(folder / index).get("weight_map", {}))
    if (folder / "model.safetensors").is_file():
        return _safetensors_names(folder / "model.safetensors")
    if (folder / "pytorch_model.bin").is_file():
        return list(tensors_of(read_checkpoint(folder / "pytorch_model.bin").content))
    if any(folder.glob("*.bin")) or any(folder.glob("*.safetensors")):
        return None
    raise InputError(f"{name} has no weights: model.safetensors is missing")


def has_head(names: Iterable[str]) -> bool:
    """Whether a classification head is among these weights."""
    return any(head in name.split(".") for name in names for head in _HEADS)


def is_bi_encoder(folder: Path) -> bool:
    """Whether a folder is a sentence-transformers model that encodes texts one by one."""
    about = folder / "config_sentence_transformers.json"
    if about.is_file():
        kind = read_json(about).get("model_type")
        if kind is not None:
            return kind in ("SentenceTransformer", "SparseEncoder")
    return any("Pooling" in kind or "StaticEmbedding" in kind for kind in module_kinds(folder))


def module_kinds(folder: Path) -> list[str]:
    """Names of the modules of a sentence-transformers folder, in order; none of another folder."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    return [str(module.get("type", "")).split(".")[-1] for module in read_json(path)]


def _safetensors_names(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        found = {key: value for key, value in header.items() if key != "__metadata__"}
        end = max((value["data_offsets"][1] for value in found.values()), default=0)
    except (OSError, ValueError, struct.error, KeyError, OverflowError, MemoryError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}") from error
    if path.stat().st_size < 8 + length + end:
        raise InputError(f"{path} is truncated: download or copy it again")
    return list(found)
