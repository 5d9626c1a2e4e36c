"""Make model folders of what train.py wrote, in torch's format; crossknn-train exports them.

    python finish.py WORK TRAINED ENCODER OUT

WORK is the folder of prepare.py, TRAINED that of train.py, ENCODER all-MiniLM-L6-v2. OUT gets
`cross-encoder`, of six layers, and `cross-encoder-3`, of three. What was learned is added to the
encoder's own weights, times the share that train.py chose (Wortsman et al. 2022: a trained model
forgets what the mean still knows); the head is calibrated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from train import KEPT, opened

from crossknn_train.models.backbone import layers_of
from crossknn_train.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel


def trained(folder: Path, name: str) -> dict[str, Tensor]:
    """The arrays of all files of a model."""
    arrays = {}
    for path in sorted(folder.glob(f"{name}-*.npz")):
        with np.load(path) as found:
            arrays |= {n: torch.from_numpy(found[n].astype(np.float32)) for n in found}
    return arrays


def fresh(encoder: Path) -> CrossEncoderModel:
    config = CrossEncoderConfig(head="interaction", max_length=256)
    return CrossEncoderModel.new(encoder, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("work", "trained", "encoder", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--share", type=float, help="in place of the chosen one")
    given = parser.parse_args()
    log = [json.loads(line) for line in (given.trained / "log.jsonl").open()]
    share = next(row["chosen"] for row in log if "chosen" in row)
    share = share if given.share is None else given.share
    before = opened(given.work, "cpu").state_dict()  # rounded, as train.py began
    learned, head = trained(given.trained, "six"), trained(given.trained, "head")

    model = fresh(given.encoder)
    state = model.state_dict()
    for name, value in learned.items():
        change = share * (value - before[name])
        state[name] = change + (before if name.startswith("head.") else state)[name]
    model.load_state_dict(state | (head if given.share is None else {}))
    model.save_pretrained(given.out / "cross-encoder")

    small = fresh(given.encoder)
    layers, reading = layers_of(small.encoder), small.head.reading
    small.encoder.encoder.layer = nn.ModuleList(layers[depth] for depth in KEPT)
    small.encoder.config.num_hidden_layers = len(KEPT)
    reading.gates = nn.Parameter(reading.gates[list(KEPT)].detach())
    small.load_state_dict(small.state_dict() | trained(given.trained, "three"))
    small.save_pretrained(given.out / "cross-encoder-3")


if __name__ == "__main__":
    main()
