"""The torch folder format: a Hugging Face folder with a settings file and the head's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossknn.errors import InputError, nearest

FORMAT = 1
HEAD = "head.safetensors"
KINDS = {
    "cross_encoder.json": "cross-encoder",
    "dual_encoder.json": "dual encoder",
    "late_interaction.json": "late-interaction model",
}
"""The settings file of each kind of model."""


def write_model(
    folder: Path,
    *,
    encoders: Mapping[str, tuple[Any, Any]],
    head: Mapping[str, Any],
    settings: str,
    content: Mapping[str, Any],
    card: str | None,
) -> Path:
    """Write encoders (subfolder -> encoder and tokenizer), a head, settings and a model card.

    The settings come last, so that a half-written folder is not one. Returns the folder.
    """
    from safetensors.torch import save_file

    from crossknn.models.backbone import save_backbone

    folder.mkdir(parents=True, exist_ok=True)
    for name in (*KINDS, HEAD):  # of a model that was here before
        (folder / name).unlink(missing_ok=True)
    for name, (encoder, tokenizer) in encoders.items():
        save_backbone(encoder, tokenizer, folder / name)
    if head:
        save_file({key: value.contiguous() for key, value in head.items()}, folder / HEAD)
    if card is not None:
        (folder / "README.md").write_text(card, encoding="utf-8")
    text = json.dumps({"format": FORMAT, **content}, indent=2) + "\n"
    part = folder / (settings + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(folder / settings)
    return folder


def check_kind(model: object, settings: str) -> None:
    """Raises InputError if `model` is the folder of a model of ours, and its settings are in
    another file than `settings`."""
    if not isinstance(model, (str, Path)):
        return
    for other, kind in KINDS.items():
        if other != settings and (Path(model) / other).is_file():
            raise InputError(f"{model} is a {kind}, not a {KINDS[settings]} (--kind says which)")


def read_settings(path: Path, kind: str, known: set[str]) -> dict[str, Any]:
    """The settings in `path` without format and kind; InputError if they are not of `kind`."""
    if not path.is_file():
        raise InputError(f"{path.parent} is not a crossknn {kind}: it has no {path.name}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not {"kind", "format"} <= set(content):
        raise InputError(
            f"{path} was not written by crossknn: it has no format and kind, so that nothing "
            "says how the model is to be used; train or convert one with crossknn"
        )
    if content.pop("kind") != kind:
        raise InputError(f"{path} does not describe a crossknn {kind}")
    if content.pop("format") != FORMAT:
        raise InputError(f"{path} has another format than {FORMAT}: upgrade crossknn")
    for name in content:
        if name not in known:
            raise InputError(f"{path} has the unknown setting {name!r} ({nearest(name, known)})")
    return content


def read_head(head: Any, folder: Path) -> None:
    """Load a head's weights from `folder`; InputError names those that are missing."""
    from safetensors.torch import load_file

    wanted = set(head.state_dict())
    if not wanted:
        return
    if not (folder / HEAD).is_file():
        raise InputError(f"{folder} has no trained head: {HEAD} is missing")
    weights = load_file(folder / HEAD)
    if set(weights) != wanted:
        absent, foreign = sorted(wanted - set(weights)), sorted(set(weights) - wanted)
        raise InputError(
            f"{folder / HEAD} does not fit: it lacks {absent or 'nothing'} and has "
            f"{foreign or 'nothing else'}"
        )
    for name, value in head.state_dict().items():
        if value.shape != weights[name].shape:
            raise InputError(
                f"{folder / HEAD} does not fit the encoder beside it: {name} has the shape "
                f"{tuple(weights[name].shape)}, expected {tuple(value.shape)}"
            )
    head.load_state_dict(weights)
