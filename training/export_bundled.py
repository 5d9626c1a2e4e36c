"""Write the bundled ONNX folders from the trained weights."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from train_cross_encoder import build
from train_dual_encoder import build as build_dual

from crossknn.models.folder import write_folder

LICENSE = "Apache-2.0"
NAMES = {
    "cross-encoder": "crossknn-mini-cross-encoder",
    "dual-encoder": "crossknn-mini-dual-encoder",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for cross-encoder/ and dual-encoder/"
    )
    parser.add_argument("--precision", choices=("float32", "int8"), default="int8")
    parser.add_argument("--cross-weights", default="best.pt")
    parser.add_argument("--only", choices=tuple(NAMES))
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.work / "tokenizer.json"))
    special = tuple(tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[PAD]"))
    for kind, name in NAMES.items():
        if arguments.only and arguments.only != kind:
            continue
        if kind == "cross-encoder":
            model = build(arguments.work, special, "eager")
            weights = arguments.work / kind / arguments.cross_weights
        else:
            model = build_dual(arguments.work, "eager")
            weights = arguments.work / kind / "best.pt"
        if weights.exists():
            model.load_state_dict(torch.load(weights, weights_only=True))
        else:
            print(f"{weights} is missing: writing the untrained {kind}")
        folder = write_folder(
            model,
            tokenizer.to_str(),
            arguments.out / kind,
            kind=kind,
            precision=arguments.precision,
            name=name,
            max_length=256,
            pad_token_id=tokenizer.token_to_id("[PAD]"),
            license=LICENSE,
        )
        print(folder, sum(file.stat().st_size for file in folder.iterdir()) / 1e6, "MB")


if __name__ == "__main__":
    main()
