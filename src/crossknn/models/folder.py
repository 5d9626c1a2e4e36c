"""Model folders: what is in those of ours, and how those of others are found and judged.

A torch folder of ours is a Hugging Face folder with one of the settings files of `KINDS` and the
head's weights; an ONNX folder has a manifest, graphs and a tokenizer (`crossknn_train.export`).
Models of others are judged by their files before they are loaded, without their code.
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

from crossknn.errors import InputError, MissingExtraError, first_line, needs_extra
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
"""What the graphs that read tokens take, int64 (b, t) each."""
COMPARED = ("query", "query_mask", "items", "item_mask")
"""What the graph that compares takes."""
DATA = ".data"
"""The suffix of the file with a graph's weights, if they have a file of their own."""
GRAPHS = (MODEL, QUERY_MODEL, COMPARE_MODEL, ITEM_MODEL)
OUTPUTS = {
    "cross-encoder": {MODEL: ["scores"]},
    "dual-encoder": {MODEL: ["vectors"]},
    "late-interaction": {QUERY_MODEL: ["states", "mask"], COMPARE_MODEL: ["scores"]},
}
"""The graphs of each kind of ONNX model, that of queries first, and what they give."""
FORMAT = 1
_MODEL_FILES = (MANIFEST, "config.json", "modules.json", *KINDS)
"""Files that only a model's folder has."""
_LONGEST_GRAPH, _LONGEST_DATA = 2**31, 2**36
"""Most bytes of a graph (ONNX allows no more) and of its weights."""
_ABOUT = ("name", "revision", "license", "content")
"""The fields of a manifest that no score or vector depends on."""

# What a hub snapshot needs: no code, no other frameworks' weights, no exported copies.
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "model.onnx", "model.onnx.data")
_CONVERT = "crossknn-lab convert CHECKPOINT FOLDER"
_HEADS = ("classifier", "score", "logits_proj", "classification_head")


def check_files(folder: Path) -> Path:
    """`folder`; `InputError` if it holds a model and, among its files, a link, a device or a pipe.

    The links of the Hugging Face hub's cache, from `snapshots/<revision>` to `blobs`, are fine.
    """
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
                f"{path} is a link, a device or a pipe: the files of a model must lie in its folder"
            )
    return folder


def read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of an ONNX folder that holds a complete model of the `kind`, or InputError."""
    path = check_files(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} is not a crossknn model folder: it has no {MANIFEST}")
    manifest: dict[str, Any] = json_in(folder, MANIFEST, {})
    if not isinstance(manifest.get("format"), int):
        raise InputError(f"{path} is not a crossknn model description")
    if manifest["format"] > FORMAT:
        raise InputError(
            f"{folder} has model format {manifest['format']}; this version of crossknn reads up to "
            f"{FORMAT}: upgrade crossknn"
        )
    if manifest.get("kind") != kind:
        raise InputError(f"{folder} holds a {manifest.get('kind')}, where a {kind} is needed")
    for name in (*OUTPUTS[kind], TOKENIZER):
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise InputError(f"{folder} is incomplete: {name} is missing or empty")
    return manifest


def content_hash(folder: Path, settings: Mapping[str, Any] | None = None) -> str:
    """A hash of a model folder's graphs and tokenizer, and of those `settings` that answers depend
    on: a model changed in place must not be taken for what it was."""
    digest = hashlib.blake2b(digest_size=8)
    for name in (*(name for graph in GRAPHS for name in (graph, graph + DATA)), TOKENIZER):
        if (folder / name).exists():
            with open_given(folder / name) as file:
                most = _LONGEST_DATA if name.endswith(DATA) else _LONGEST_GRAPH
                if os.fstat(file.fileno()).st_size > most:
                    raise InputError(f"{folder / name} is longer than {most >> 30} GB: no model is")
                hashlib.file_digest(file, lambda: digest)
    if settings is not None:
        kept = {key: value for key, value in settings.items() if key not in _ABOUT}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()


def json_in(folder: Path, file: str, without: Any) -> Any:
    """The content of a folder's JSON file, or `without` if it is absent or of another type."""
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
    """Turns any error inside into an InputError: `what`, and the error's first line.

    Libraries in Rust panic at broken files; their error is no `Exception`.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {first_line(error)}") from error


# Where a model is


def bundled_folder(kind: str) -> Path:
    """The folder of the model of `kind` that comes with the package."""
    return Path(str(files("crossknn"))) / "bundled" / kind


def existing(path_or_name: str | Path) -> Path | None:
    """The file or folder there, or None for what can only be a hub name; InputError if neither."""
    path, name = as_path(path_or_name, "the model").expanduser(), str(path_or_name)
    if name and path.exists():  # Path("") would be the current folder
        return path
    if get_close_matches(name, ["bundled"], cutoff=0.8):
        raise InputError(f"there is no model {name!r}: did you mean 'bundled'?")
    if re.match(r"[\w.-]+:\d+(/|$)", name):
        raise InputError(f"there is no model {name!r}: a URL begins with http:// or https://")
    looks_local = isinstance(path_or_name, Path) or name.startswith((".", "/", "~"))
    if looks_local or name.count("/") > 1 or "\\" in name or " " in name or not name:
        raise InputError(f"there is no model folder {name!r}")
    return None


def snapshot(name: str, revision: str | None, allow: Sequence[str]) -> Path:
    """A local folder with the files of a hub name that match. Raises InputError if it has none."""
    with needs_extra(f"{name} is no folder; to load it from the Hugging Face hub"):
        from huggingface_hub import snapshot_download
    files = {"allow_patterns": list(allow), "ignore_patterns": ["onnx/*", "openvino/*"]}
    with refusing(
        f"there is no folder {name!r}, and the Hugging Face hub gave no model of that name"
    ):
        try:
            return Path(snapshot_download(name, revision=revision, **files))
        except FileNotFoundError:  # neither the hub nor what was kept of it
            unreachable = f"there is no folder {name!r}, and the Hugging Face hub cannot be reached"
    raise InputError(f"{unreachable}: give the folder of a model, or 'bundled'")


def model_folder(path_or_name: str | Path, revision: str | None = None) -> Path:
    """An existing folder, or the local snapshot of a hub name; InputError if there is none."""
    folder, name = existing(path_or_name), str(path_or_name)
    if folder is None:
        folder = snapshot(name, revision, (*_SMALL_FILES, "*.safetensors"))
        if not any(folder.glob("*.safetensors")) and not (folder / MODEL).exists():
            folder = snapshot(name, revision, (*_SMALL_FILES, "*.bin"))
    if not folder.is_dir():
        raise InputError(
            f"{name} is a file, where a model folder is needed; a checkpoint is first made one by  "
            f"{_CONVERT}"
        )
    return check_files(folder)


# What a folder of others holds


def architecture(folder: Path, name: str) -> str:
    """The first architecture in a model folder's configuration, or ""; InputError if it has none
    and is no sentence-transformers folder either."""
    if not any((folder / file).is_file() for file in ("config.json", "modules.json")):
        raise InputError(f"{name} is not a model folder: it has neither {MANIFEST} nor config.json")
    return str((json_in(folder, "config.json", {}).get("architectures") or [""])[0])


def check_not_onnx(folder: Path, name: str) -> None:
    """Raises InputError for a folder whose only weights are an ONNX graph of somebody else."""
    graphs = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    ends = ("*.safetensors", "*.bin", "*/*.safetensors", "*/*.bin")
    if graphs and not any(next(folder.glob(end), None) for end in ends):
        graph = graphs[0].relative_to(folder)
        raise InputError(
            f"{name} has the ONNX graph {graph} and neither {MANIFEST} nor weights: crossknn did "
            "not export it, and nothing says what the graph takes; give the model that it was made "
            "from, or export that one with  crossknn-train export"
        )


def check_cross_encoder(folder: Path, name: str) -> None:
    """Raises InputError, with the reason, unless `folder` holds a cross-encoder with one score."""
    made_of = architecture(folder, name)
    if is_bi_encoder(folder):
        reason = "is a bi-encoder: it encodes texts one by one; open it with DualEncoder"
    elif _modules(folder)[-1:] in (["LogitScore"], ["Dense"]):
        return
    elif made_of.endswith("ForCausalLM"):
        if "document" in _chat_template(folder):
            return  # scored by the logits of two words; sentence-transformers knows how
        reason = "is a causal language model without a chat template for 'query' and 'document'"
    elif not made_of.endswith("ForSequenceClassification"):
        reason = f"has no classification head ({made_of or 'no architecture'})"
    else:
        config = json_in(folder, "config.json", {})
        labels = config.get("id2label")
        # 2 is the library's default where the file says nothing.
        count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
        check_outputs(count, name)
        if has_head(folder) is not False:
            return
        reason = "has no weights for its head, so that its scores would be random"
    raise InputError(f"{name} {reason}; a cross-encoder with one score is needed")


def check_dual_encoder(folder: Path, name: str) -> None:
    """Raises InputError if `folder` holds a cross-encoder, or no model."""
    encodes = (folder / "modules.json").exists() and is_bi_encoder(folder)
    if not encodes and architecture(folder, name).endswith("ForSequenceClassification"):
        raise InputError(
            f"{name} is a cross-encoder: it scores pairs and has no vectors for single texts; "
            f"open it with CrossEncoder, and give a dual encoder here"
        )


def check_outputs(count: int, name: str) -> None:
    """Raises InputError unless a cross-encoder has one output for a pair."""
    if count != 1:
        raise InputError(
            f"{name} has {count} outputs for a pair, and none is a score: a cross-encoder with "
            "one output is needed"
        )


def _chat_template(folder: Path) -> str:
    if (folder / "chat_template.jinja").is_file():
        return read_given(folder / "chat_template.jinja").decode(errors="replace")
    return str(json_in(folder, "tokenizer_config.json", {}).get("chat_template") or "")


def has_head(folder: Path) -> bool | None:
    """Whether a classification head is among the weights in a folder's files; None where only
    loading them would say. Raises InputError for a damaged file."""
    index = json_in(folder, "model.safetensors.index.json", {})
    weights, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    names: Iterable[str]
    try:
        if index:
            names = index["weight_map"]
        elif weights.is_file():
            from safetensors import safe_open

            with safe_open(weights, framework="numpy") as file:
                names = file.keys()
        elif pickled.is_file():
            with needs_extra(f"the model in {folder}"):
                import torch

            names = torch.load(pickled, map_location="meta", weights_only=True)
        else:
            return None
    except MissingExtraError:
        raise
    except OSError as error:
        raise InputError(f"the weights in {folder} cannot be read: {first_line(error)}") from error
    except Exception as error:  # safetensors' own, and a pickle can be wrong in any way
        raise InputError(f"the weights in {folder} are damaged: copy them again") from error
    return any(head in name.split(".") for name in names for head in _HEADS)


def is_bi_encoder(folder: Path) -> bool:
    """Whether a folder is a sentence-transformers model that encodes texts one by one."""
    kind = json_in(folder, "config_sentence_transformers.json", {}).get("model_type")
    if kind is not None:
        return kind in ("SentenceTransformer", "SparseEncoder")
    return any("Pooling" in kind or "StaticEmbedding" in kind for kind in _modules(folder))


def _modules(folder: Path) -> list[str]:
    """Names of the modules of a sentence-transformers folder, in order; none of another folder."""
    modules = json_in(folder, "modules.json", [])
    return [str(module.get("type", "")).split(".")[-1] for module in modules]
