"""What a Hugging Face folder holds, told from its files before anything is loaded.

Libraries load a bi-encoder, or a model without a classifier, as a cross-encoder with random
weights in its head, and go on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.models.saved import KINDS
from crossknn.models.weights import (
    SCORING,
    has_head,
    is_bi_encoder,
    module_kinds,
    read_json,
    weight_names,
)

CONVERT = "crossknn-lab convert CHECKPOINT FOLDER"
_EMB = f"an [EMB] checkpoint is first made one by  {CONVERT} --layout msmarco-emb"
_OPENERS = {
    "cross_encoder.json": "CrossEncoder",
    "dual_encoder.json": "DualEncoder",
    "late_interaction.json": "open_late",
}


def check_own_kind(folder: Path, name: str, settings: str) -> None:
    """Raises InputError if `folder` holds a model of ours, and not of the kind of `settings`."""
    for other, opener in _OPENERS.items():
        if other != settings and (folder / other).exists() and not (folder / settings).exists():
            raise InputError(
                f"{name} is a {KINDS[other]}, where a {KINDS[settings]} is needed: open it with "
                f"{opener}"
            )


def check_cross_encoder_folder(folder: Path, name: str) -> None:
    """Raises InputError, with the reason, unless `folder` holds a cross-encoder with one score."""
    config = _config(folder, name)
    if is_bi_encoder(folder):
        raise InputError(
            f"{name} is a bi-encoder: it encodes texts one by one and cannot score a pair; open it "
            f"with DualEncoder, and give a cross-encoder here"
        )
    architecture = _architecture(config)
    if {*module_kinds(folder)[-1:]} & {*SCORING}:
        return
    if architecture.endswith("ForCausalLM"):
        if "document" in _chat_template(folder):
            return  # scored by the logits of two words; sentence-transformers knows how
        raise InputError(
            f"{name} is a causal language model, and neither modules.json nor a chat template with "
            f"the roles 'query' and 'document' says how it scores a pair: give its folder the "
            f"chat_template.jinja of its author"
        )
    if not architecture.endswith("ForSequenceClassification"):
        raise InputError(
            f"{name} has no classification head ({architecture or 'no architecture'}), so that it "
            f"cannot score a pair: a fine-tuned cross-encoder is needed; {_EMB}"
        )
    labels = config.get("id2label")
    # 2 is the library's default where the file says nothing.
    n_labels = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if n_labels != 1:
        raise InputError(
            f"{name} has {n_labels} outputs for a pair: it is a classifier, and none of its "
            f"outputs is a score; a cross-encoder with one output is needed"
        )
    names = weight_names(folder, name)
    if names is not None and not has_head(names):
        raise InputError(
            f"{name} has no weights for its classification head, so that its scores would be "
            f"random; {_EMB}"
        )


def _chat_template(folder: Path) -> str:
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    path = folder / "tokenizer_config.json"
    return str(read_json(path).get("chat_template") or "") if path.is_file() else ""


def check_dual_encoder_folder(folder: Path, name: str) -> None:
    """Raises InputError if `folder` is no model folder, or holds a cross-encoder or a model that
    makes no vector or several of a text."""
    about = folder / "config_sentence_transformers.json"
    kind = read_json(about).get("model_type") if about.is_file() else None
    if kind in ("SparseEncoder", "MultiVectorEncoder"):
        raise InputError(
            f"{name} is a {kind} of sentence-transformers: a dual encoder makes one dense vector "
            f"of a text; give a SentenceTransformer model here"
        )
    if (folder / "modules.json").exists() and is_bi_encoder(folder):
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
            config = read_json(path)
            return config if isinstance(config, dict) else {}
    if (folder / "modules.json").is_file():
        return {}
    raise InputError(f"{name} is not a model folder: it has neither crossknn.json nor config.json")


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures") or [""]
    return str(names[0])
