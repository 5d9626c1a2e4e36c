"""The folder format of ONNX models: `crossknn.json`, `tokenizer.json` and graphs.

The graphs: `model.onnx`, and `item.onnx` if a dual encoder has two towers; of a late-interaction
model `query.onnx`, `item.onnx` if it is another, and `compare.onnx`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.models.folder import (
    DATA,
    ITEM_MODEL,
    LATE_GRAPHS,
    MANIFEST,
    MODEL,
    TOKENIZER,
    content_hash,
    late_content,
)

FORMAT = 1

LATE_INTERACTION = "late-interaction"
KINDS = {
    "cross-encoder": "a cross-encoder",
    "dual-encoder": "a dual encoder",
    LATE_INTERACTION: "a late-interaction model",
}
_PRECISIONS = ("float32", "int8")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a model folder says of itself, plus the hash of what is really in it.

    `head`, `joint` and `weights` are a late-interaction model's: which one it is, whether it looks
    at all candidates together, and the fingerprint of the model that was exported, or "" if the
    files or the settings have changed since. Its `content` covers the settings, too.
    """

    folder: Path
    kind: str
    name: str
    revision: str
    precision: str
    max_length: int
    pad_token_id: int
    dimensions: int
    query_prefix: str
    item_prefix: str
    halves: dict[str, int]
    marked: bool
    content: str
    head: str
    joint: bool
    weights: str

    def fingerprint(self, max_length: int) -> str:
        """Names everything that the answers depend on."""
        parts = [
            f"{self.kind}:{self.name}@{self.revision}",
            f"content={self.content}",
            self.precision,
            f"max_length={max_length}",
        ]
        if self.query_prefix or self.item_prefix:
            parts.append(f"prefixes={json.dumps([self.query_prefix, self.item_prefix])}")
        return "|".join(parts)


def read_manifest(folder: str | Path, kind: str) -> Manifest:
    """Read and check a model folder that has to be of `kind` (one of `KINDS`).

    Raises InputError, in one sentence, for a folder that is absent, foreign, incomplete, of a
    newer format, or of the other kind.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no model folder {folder}")
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} is not a crossknn model folder: it has no {MANIFEST}")
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / MANIFEST} cannot be read: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
        raise InputError(f"{folder / MANIFEST} is not a crossknn model description")
    if raw["format"] > FORMAT:
        raise InputError(
            f"{folder} has model format {raw['format']}; this version of crossknn reads up to "
            f"{FORMAT}: upgrade crossknn"
        )
    if raw.get("kind") != kind:
        is_what = KINDS.get(str(raw.get("kind")), f"of the unknown kind {raw.get('kind')!r}")
        raise InputError(f"{folder} is {is_what}, where {KINDS[kind]} is needed")
    late = kind == LATE_INTERACTION
    graphs = LATE_GRAPHS if late else (MODEL,)
    for name in (*graphs, TOKENIZER):
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise InputError(f"{folder} is incomplete: {name} is missing or empty")
    if raw.get("precision") not in _PRECISIONS:
        raise InputError(f"{folder} has the unknown precision {raw.get('precision')!r}")
    there = (MODEL, MODEL + DATA, ITEM_MODEL, ITEM_MODEL + DATA, TOKENIZER)
    content = (
        late_content(folder, raw)
        if late
        else content_hash(*(folder / name for name in there if (folder / name).exists()))
    )
    return Manifest(
        folder=folder,
        kind=kind,
        name=_field(raw, folder, "name", str),
        revision=_field(raw, folder, "revision", str),
        precision=raw["precision"],
        max_length=_field(raw, folder, "max_length", int),
        pad_token_id=_field(raw, folder, "pad_token_id", int),
        dimensions=0 if kind == "cross-encoder" else _field(raw, folder, "dimensions", int),
        query_prefix=str(raw.get("query_prefix") or ""),
        item_prefix=str(raw.get("item_prefix") or ""),
        halves={
            name: _field(raw, folder, name, int)
            for name in ("query_length", "item_length")
            if name in raw
        },
        marked=raw.get("marked") is not False,
        content=content,
        head=_field(raw, folder, "head", str) if late else "",
        joint=late and raw.get("joint") is not False,
        weights=str(raw.get("weights") or "") if raw.get("content") == content else "",
    )


def _field(raw: dict[str, Any], folder: Path, name: str, kind: type) -> Any:
    value = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{folder / MANIFEST} has no usable {name!r}: {value!r}")
    return value
