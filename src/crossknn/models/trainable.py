"""What training may begin with: folders of torch weights, and the dual encoders among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.models.backbone import position_limit
from crossknn.models.dual_encoder import SETTINGS, DualEncoderConfig, DualEncoderModel
from crossknn.models.folder import MANIFEST
from crossknn.models.hub import existing, snapshot
from crossknn.models.library import open_library
from crossknn.models.weights import is_bi_encoder

BUNDLED = "bundled"
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin")


def trainable_folder(source: str | Path) -> Path:
    """The folder of a folder or hub name; InputError for an ONNX one or "bundled"."""
    folder = None
    if str(source) != BUNDLED:
        folder = existing(source) or snapshot(str(source), None, _FILES)
    if folder is None or (folder / MANIFEST).is_file():
        raise InputError(
            f"{source} is an ONNX model, whose weights cannot be trained: begin with a folder of "
            "torch weights (a dual encoder trained here, sentence-transformers or Hugging Face)"
        )
    return folder


def dual_encoder_in(folder: Path, source: str) -> DualEncoderModel | None:
    """The dual encoder in a folder: one trained here, or a sentence-transformers model that pools
    by "mean" or "cls"; None if there is none. Raises InputError for other such models."""
    if (folder / SETTINGS).is_file():
        return DualEncoderModel.from_pretrained(folder)
    return _of_library(folder, source) if is_bi_encoder(folder) else None


def _of_library(folder: Path, source: str) -> DualEncoderModel:
    """A sentence-transformers folder as a dual encoder of ours."""
    loaded = open_library("SentenceTransformer", str(folder), f"the encoder {source}", device="cpu")
    kinds = [type(module).__name__ for module in loaded]
    pooling = _pooling(loaded[1]) if kinds[1:2] == ["Pooling"] else ""
    if kinds[0] != "Transformer" or pooling not in ("mean", "cls") or {*kinds[2:]} - {"Normalize"}:
        raise InputError(
            f"{source} is made of {', '.join(kinds)} {f'({pooling})' * bool(pooling)}: only "
            "Transformer, Pooling by mean or cls, and Normalize can be trained"
        )
    inner = loaded[0].auto_model.config
    length = min(int(loaded.max_seq_length or 512), position_limit(inner))
    made = DualEncoderConfig(
        pooling="cls" if pooling == "cls" else "mean",
        normalize="Normalize" in kinds,
        query_length=length,
        item_length=length,
    )
    older = folder / "0_Transformer"
    return DualEncoderModel.new(older if older.is_dir() else folder, made)


def _pooling(module: Any) -> str:
    """How a Pooling module pools, in the library's versions."""
    mode = getattr(module, "pooling_mode", None) or module.get_pooling_mode_str()
    return mode if isinstance(mode, str) else "+".join(mode)
