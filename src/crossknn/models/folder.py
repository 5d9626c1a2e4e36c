"""Model folders: the layout of crossknn's own folders, and checks of Hugging Face folders before a
model is loaded, without running code from them.

A torch folder of crossknn is a Hugging Face folder with one of the settings files of `KINDS` and
the head's weights; an ONNX folder has a manifest, graphs and a tokenizer (`crossknn_train.export`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from crossknn.errors import InputError, first_line, needs_extra
from crossknn.files import as_path, open_given, parse_json, read_given

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
"""Inputs of graphs that read tokens, each int64 (b, t)."""
COMPARED = ("query", "query_mask", "items", "item_mask")
"""Inputs of the graph that compares queries with items."""
DATA = ".data"
"""Suffix of the separate file for weights that are too large for the graph."""
GRAPHS = (MODEL, QUERY_MODEL, COMPARE_MODEL, ITEM_MODEL)
OUTPUTS = {
    "cross-encoder": {MODEL: ["scores"]},
    "dual-encoder": {MODEL: ["vectors"]},
    "late-interaction": {QUERY_MODEL: ["states", "mask"], COMPARE_MODEL: ["scores"]},
}
"""The graphs of each kind of ONNX model with their outputs, the query graph first."""
FORMAT = 1
_MODEL_FILES = (MANIFEST, "config.json", "modules.json", *KINDS)
"""Files that occur only in a model folder."""
_LONGEST_GRAPH, _LONGEST_DATA = 2**31, 2**36
"""Maximum size of a graph (ONNX allows no more) and of its weights, in bytes."""
_ABOUT = ("name", "revision", "license", "content")
"""Manifest fields that affect neither scores nor vectors."""

# Download no code, no weights of other frameworks and no exported copies from the hub.
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "model.onnx", "model.onnx.data")
_CONVERT = "crossknn-lab convert CHECKPOINT FOLDER --encoder NAME"
_HEADS = ("classifier", "score", "logits_proj", "classification_head")


def check_files(folder: Path) -> Path:
    """Return `folder`; `InputError` if it holds a model and a file that is a device, a pipe or a
    link (links from `snapshots/<revision>` to `blobs` in the hub's cache are allowed)."""
    if not any(os.path.lexists(folder / name) for name in _MODEL_FILES):
        return folder
    here = folder.resolve()
    blobs = here.parents[1] / "blobs" if here.parent.name == "snapshots" else None
    try:
        own = list(here.iterdir())
        inner = [path for path in own if path.is_dir() and not path.is_symlink()]
        paths = [*own, *(path for each in inner for path in each.iterdir())]
    except OSError as error:
        raise InputError(f"the model {folder} cannot be read: {error.strerror}") from error
    for path in paths:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) and blobs is not None and path.resolve().parent == blobs:
            mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise InputError(
                f"{path} is a link, a device or a pipe: a model's files must be regular files "
                "in its folder"
            )
    return folder


def read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """Read the manifest of an ONNX folder that must hold a complete model of this `kind`."""
    if not (check_files(folder) / MANIFEST).is_file():
        raise InputError(f"{folder} is not a crossknn model folder: it has no {MANIFEST}")
    manifest: dict[str, Any] = json_in(folder, MANIFEST, {})
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{folder} has model format {manifest.get('format')!r}, and this version of crossknn "
            f"reads {FORMAT}: upgrade crossknn, or export the model again"
        )
    if manifest.get("kind") != kind:
        raise InputError(f"{folder} holds a {manifest.get('kind')}, but a {kind} is needed")
    for name in (*OUTPUTS[kind], TOKENIZER):
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise InputError(f"{folder} is incomplete: {name} is missing or empty")
    return manifest


def content_hash(folder: Path, settings: Mapping[str, Any] | None = None) -> str:
    """Compute a hash of a model folder's graphs and tokenizer and of the `settings` that affect
    scores, so that a model that was changed in place gets another fingerprint."""
    digest = hashlib.blake2b(digest_size=8)
    for name in (*(name for graph in GRAPHS for name in (graph, graph + DATA)), TOKENIZER):
        if (folder / name).exists():
            with open_given(folder / name) as file:
                most = _LONGEST_DATA if name.endswith(DATA) else _LONGEST_GRAPH
                if os.fstat(file.fileno()).st_size > most:
                    raise InputError(f"{folder / name} is longer than the limit of {most >> 30} GB")
                hashlib.file_digest(file, lambda: digest)
    if settings is not None:
        kept = {key: value for key, value in settings.items() if key not in _ABOUT}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()


def json_in(folder: Path, file: str, without: Any) -> Any:
    """Read a JSON file of the folder, or return `without` if it is absent or holds another type."""
    path = folder / file
    try:
        content = parse_json(read_given(path)) if path.is_file() else without
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return content if isinstance(content, type(without)) else without


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn any error into an InputError that joins `what` and the error's first line.

    Libraries in Rust panic on broken files, and a panic is not an `Exception`.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {first_line(error)}") from error


# Locating a model


def bundled_folder(kind: str) -> Path:
    return Path(str(files("crossknn"))) / "bundled" / kind


def existing(path_or_name: str | Path) -> Path | None:
    """Return the existing file or folder, or None if the text may be a name on the hub; InputError
    otherwise."""
    path, name = as_path(path_or_name, "the model").expanduser(), str(path_or_name)
    if name and path.exists():  # Path("") would be the current folder
        return path
    typo = get_close_matches(name, ["bundled"], cutoff=0.8)
    looks_local = isinstance(path_or_name, Path) or name.startswith((".", "/", "~"))
    if typo or looks_local or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise InputError(
            f"there is no model folder {name!r}: give a folder, a name of the Hugging Face hub, "
            "'bundled', or a URL that begins with http:// or https://"
        )
    return None


def snapshot(name: str, revision: str | None, allow: Sequence[str]) -> Path:
    """Return a local folder with the matching files of a model on the hub."""
    with needs_extra(f"{name} is not a folder; to load it from the Hugging Face hub"):
        from huggingface_hub import snapshot_download
    patterns = {"allow_patterns": list(allow), "ignore_patterns": ["onnx/*", "openvino/*"]}
    missing = f"there is no folder {name!r}, and the Hugging Face hub"
    with refusing(f"{missing} has no accessible model of that name"):
        try:
            return Path(snapshot_download(name, revision=revision, **patterns))
        except FileNotFoundError:  # neither the hub nor its cache
            pass
    raise InputError(f"{missing} cannot be reached: give the folder of a model, or 'bundled'")


def model_folder(path_or_name: str | Path, revision: str | None = None) -> Path:
    folder, name = existing(path_or_name), str(path_or_name)
    if folder is None:
        folder = snapshot(name, revision, (*_SMALL_FILES, "*.safetensors"))
        if not any(folder.glob("*.safetensors")) and not (folder / MODEL).exists():
            folder = snapshot(name, revision, (*_SMALL_FILES, "*.bin"))
    if not folder.is_dir():
        raise InputError(
            f"{name} is a file, but a model folder is needed: convert a checkpoint with  {_CONVERT}"
        )
    return check_files(folder)


# Checks of folders that crossknn did not write


def check_not_onnx(folder: Path, name: str) -> None:
    """Raise InputError if the only weights in a folder are an ONNX graph."""
    graphs = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    ends = ("*.safetensors", "*.bin", "*/*.safetensors", "*/*.bin")
    if graphs and not any(next(folder.glob(end), None) for end in ends):
        raise InputError(
            f"{name} has the ONNX graph {graphs[0].relative_to(folder)} but neither {MANIFEST} nor "
            "weights: crossknn did not export it and cannot tell its inputs; give the original "
            "model, or export that with  crossknn-train export"
        )


def check_cross_encoder(folder: Path, name: str) -> None:
    """Raise InputError, with the reason, unless `folder` holds a cross-encoder with one output."""
    architecture, config = _architecture(folder, name), json_in(folder, "config.json", {})
    reason = ""
    if is_bi_encoder(folder):
        reason = "is a bi-encoder: it encodes texts one by one; open it with DualEncoder"
    elif _modules(folder)[-1:] in (["LogitScore"], ["Dense"]):
        pass
    elif architecture.endswith("ForCausalLM"):
        # sentence-transformers scores such pairs by the logits of two words.
        if "document" not in _chat_template(folder):
            reason = "is a causal language model without a chat template for 'query' and 'document'"
    elif not architecture.endswith("ForSequenceClassification"):
        reason = f"has no classification head ({architecture or 'no architecture'})"
    else:
        labels = config.get("id2label")
        # transformers assumes 2 labels if the configuration does not say.
        count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
        check_outputs(count, name)
        if not _has_head(folder):
            reason = "has no weights for its head, so that its scores would be random"
    if reason:
        raise InputError(f"{name} {reason}; a cross-encoder with one score is needed")


def check_dual_encoder(folder: Path, name: str) -> None:
    """Raise InputError if `folder` holds a cross-encoder, a sparse encoder or no model."""
    if _kind(folder) == "SparseEncoder":
        raise InputError(
            f"{name} is a sparse encoder, whose vectors have a dimension for each word: build the "
            f"index with sparse={name!r} (--sparse), and give a dual encoder here"
        )
    encodes = (folder / "modules.json").exists() and is_bi_encoder(folder)
    if not encodes and _architecture(folder, name).endswith("ForSequenceClassification"):
        raise InputError(
            f"{name} is a cross-encoder: it scores pairs and cannot encode single texts; open "
            "it with CrossEncoder, and give a dual encoder here"
        )


def check_sparse_encoder(folder: Path, name: str) -> None:
    """Raise InputError unless `folder` holds a sparse encoder or a masked language model."""
    kind, architecture = _kind(folder), _architecture(folder, name)
    masked = kind is None and not is_bi_encoder(folder) and architecture.endswith("ForMaskedLM")
    if kind != "SparseEncoder" and not masked:
        raise InputError(
            f"{name} is not a sparse encoder of sentence-transformers, but {kind or architecture}: "
            "give a SPLADE model here, and a dual encoder as encoder="
        )


def check_outputs(count: int, name: str) -> None:
    """Raise InputError unless a cross-encoder has one output per pair."""
    if count != 1:
        raise InputError(
            f"{name} has {count} outputs per pair, none of which is a relevance score: give a "
            "cross-encoder with one output"
        )


def is_bi_encoder(folder: Path) -> bool:
    """Whether a folder is a sentence-transformers model that encodes texts one by one."""
    if (kind := _kind(folder)) is not None:
        return kind in ("SentenceTransformer", "SparseEncoder")
    return any("Pooling" in kind or "StaticEmbedding" in kind for kind in _modules(folder))


def _kind(folder: Path) -> Any:
    """Return the class that sentence-transformers has saved, if the folder says so."""
    return json_in(folder, "config_sentence_transformers.json", {}).get("model_type")


def _architecture(folder: Path, name: str) -> str:
    """Return the first architecture in a folder's configuration, or ""."""
    if not any((folder / file).is_file() for file in ("config.json", "modules.json")):
        raise InputError(f"{name} is not a model folder: it has neither {MANIFEST} nor config.json")
    return str((json_in(folder, "config.json", {}).get("architectures") or [""])[0])


def _chat_template(folder: Path) -> str:
    if (folder / "chat_template.jinja").is_file():
        return read_given(folder / "chat_template.jinja").decode(errors="replace")
    return str(json_in(folder, "tokenizer_config.json", {}).get("chat_template") or "")


def _has_head(folder: Path) -> bool:
    index = json_in(folder, "model.safetensors.index.json", {})
    weights, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    names: Iterable[str]
    if index:
        names = index.get("weight_map", {})
    elif weights.is_file():
        from safetensors import safe_open

        problem = f"the weights in {folder} cannot be read"
        with refusing(problem), safe_open(weights, framework="numpy") as file:
            names = file.keys()
    elif pickled.is_file():
        with needs_extra(f"the model in {folder}"):
            import torch
        with refusing(f"the weights in {folder} cannot be read"):
            names = torch.load(pickled, map_location="meta", weights_only=True)
    else:
        return True
    return any(head in name.split(".") for name in names for head in _HEADS)


def _modules(folder: Path) -> list[str]:
    modules = json_in(folder, "modules.json", [])
    return [str(module.get("type", "")).split(".")[-1] for module in modules]
