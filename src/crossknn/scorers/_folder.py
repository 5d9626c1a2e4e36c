"""The folder format of ONNX models: `crossknn.json`, `model.onnx`, `tokenizer.json`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossknn.errors import InputError

FORMAT = 1
MANIFEST = "crossknn.json"
MODEL = "model.onnx"
ITEM_MODEL = "item.onnx"
TOKENIZER = "tokenizer.json"

KINDS = {"cross-encoder": "a cross-encoder", "dual-encoder": "a dual encoder"}
_PRECISIONS = ("float32", "int8")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a model folder says of itself, plus the hash of what is really in it."""

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
    for name in (MODEL, TOKENIZER):
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise InputError(f"{folder} is incomplete: {name} is missing or empty")
    if raw.get("precision") not in _PRECISIONS:
        raise InputError(f"{folder} has the unknown precision {raw.get('precision')!r}")
    return Manifest(
        folder=folder,
        kind=kind,
        name=_field(raw, folder, "name", str),
        revision=_field(raw, folder, "revision", str),
        precision=raw["precision"],
        max_length=_field(raw, folder, "max_length", int),
        pad_token_id=_field(raw, folder, "pad_token_id", int),
        dimensions=_field(raw, folder, "dimensions", int) if kind == "dual-encoder" else 0,
        query_prefix=str(raw.get("query_prefix") or ""),
        item_prefix=str(raw.get("item_prefix") or ""),
        halves={
            name: _field(raw, folder, name, int)
            for name in ("query_length", "item_length")
            if name in raw
        },
        marked=raw.get("marked") is not False,
        content=_hash_of(
            *(folder / name for name in (MODEL, ITEM_MODEL, TOKENIZER) if (folder / name).exists())
        ),
    )


def _field(raw: dict[str, Any], folder: Path, name: str, kind: type) -> Any:
    value = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{folder / MANIFEST} has no usable {name!r}: {value!r}")
    return value


def _hash_of(*paths: Path) -> str:
    """A hash of the files' contents: a model changed in place must not meet its old cache."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
