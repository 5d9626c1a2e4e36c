"""Model folders: names of their files, and what tells one folder's content from another's.

A torch folder is a Hugging Face folder with one of the settings files of `KINDS` and the head's
weights; an ONNX folder has a manifest, graphs and a tokenizer (`crossknn.models.export`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KINDS = {
    "cross_encoder.json": "cross-encoder",
    "dual_encoder.json": "dual encoder",
    "late_interaction.json": "late-interaction model",
}
"""The settings file of each kind of torch model."""
MANIFEST = "crossknn.json"
MODEL = "model.onnx"
ITEM_MODEL = "item.onnx"
QUERY_MODEL = "query.onnx"
COMPARE_MODEL = "compare.onnx"
TOKENIZER = "tokenizer.json"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What the graphs that read tokens take, int64 (b, t) each."""
DATA = ".data"
"""Behind the name of a graph: its weights, where they have a file of their own."""
LATE_GRAPHS = (QUERY_MODEL, COMPARE_MODEL)
"""Those every late-interaction model has."""
_ABOUT = ("name", "revision", "license", "content")
"""What a manifest says that no answer depends on."""


def late_content(folder: Path, settings: Mapping[str, Any]) -> str:
    """A hash of the graphs and the tokenizer of a late-interaction model, and of its settings."""
    graphs = (*LATE_GRAPHS, ITEM_MODEL)
    files = [folder / file for file in (*graphs, TOKENIZER, *(name + DATA for name in graphs))]
    content = content_hash(*(file for file in files if file.exists()))
    kept = {key: value for key, value in settings.items() if key not in _ABOUT}
    text = content + json.dumps(kept, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def content_hash(*paths: Path) -> str:
    """A hash of files' contents: a model changed in place must not be taken for what it was."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
