"""`crossknn-lab convert`: a published checkpoint as a model folder that opens by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crossknn.cli.options import AsJson
from crossknn.cli.output import note, out, print_json
from crossknn.errors import InputError

NAME = "convert"
_UNVERIFIED = "msmarco-emb is unverified: compare its scores with some of its authors' own"


def command(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint's file, folder or hub name; pickles are not run.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where to write the model folder.")],
    layout: Annotated[
        str | None,
        typer.Option(
            help="zeshel-emb, zeshel-cls, zeshel-dual or cmc, by default told from the keys, or "
            "msmarco-emb, which must be said, and is unverified."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Whose tokenizer a pickled checkpoint goes with: bert-base-uncased."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Convert a CHECKPOINT of ANNCUR's ZESHEL models, CMC or the MS MARCO [EMB]-CE to FOLDER."""
    from crossknn.scorers.opening import needs_torch

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already and not empty: choose another folder")
    with needs_torch("converting a checkpoint"):
        from crossknn.models.cross_encoder import CrossEncoderModel
        from crossknn.models.late.model import LateInteractionModel
        from crossknn_lab.checkpoints import open_checkpoint

    given: Any = layout  # any text: what is not a layout is refused there
    model = open_checkpoint(checkpoint, layout=given, encoder=encoder)
    card = f"Converted by crossknn from {Path(checkpoint).name}; its licence is its own.\n"
    if layout == "msmarco-emb":
        note(_UNVERIFIED)
        card += f"The layout {_UNVERIFIED}.\n"
    written = model.save_pretrained(folder, card=card)
    head, use = "dual encoder", "--encoder"
    if isinstance(model, CrossEncoderModel):
        head, use = f"[{model.config.head.upper()}] cross-encoder", "--scorer"
    elif isinstance(model, LateInteractionModel):
        head, use = "late-interaction model (cmc)", "crossknn encode INDEX"
    if json:
        print_json({"model": str(written), "kind": head, "settings": vars(model.config)})
        return
    out.print(f"{written}: a {head}; use it with  {use} {written}", soft_wrap=True, markup=False)
