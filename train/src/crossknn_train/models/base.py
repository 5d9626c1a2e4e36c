"""What all torch models share: encoders, a tokenizer, settings, a head, and the folder format.

A model's folder is its encoder's Hugging Face folder with a settings file (`KINDS` in
`crossknn.models.folder`) and the head's weights; a separate item tower has a subfolder.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn

from crossknn.errors import InputError
from crossknn.files import make_folder, sync, write_file
from crossknn.models.folder import KINDS, check_files, json_in, refusing
from crossknn.models.tokens import Encoding, Row, Tokenizer, Window, padded
from crossknn.scorers.library import state_hash
from crossknn.types import BoolArray, FloatArray
from crossknn_train.models.backbone import open_backbone, position_limit, save_backbone

FORMAT = 1
HEAD = "head.safetensors"
ITEM_TOWER = "item"
"""The subfolder of the item tower, if it is not shared."""


class TorchModel(nn.Module):  # type: ignore[misc]
    """A torch model that `save_pretrained` writes and `from_pretrained` opens; a `TokenModel`.

    It computes in float32 unless the caller uses autocast, and serves one caller at a time. With 1
    tower the attribute `encoder` is the encoder; with 2 towers `query` and `item` are the towers,
    one object if the config has `shared`.
    """

    SETTINGS: ClassVar[str]
    Config: ClassVar[Any]
    n_towers: ClassVar[int] = 2
    late_kind: str = ""
    joint: bool = False

    def __init__(self, encoders: Sequence[Any], tokenizer: FastTokenizer, config: Any) -> None:
        super().__init__()
        limit = min(position_limit(encoder.config) for encoder in encoders)
        halves = {"query_length": config.query_length, "item_length": config.item_length}
        lengths = [config.max_length] if self.n_towers == 1 else list(halves.values())
        if not all(isinstance(length, int) for length in lengths):
            raise InputError(f"lengths must be whole numbers, got {lengths}")
        longest = max(lengths)
        if longest > limit:
            names = "max_length" if self.n_towers == 1 else "query_length or item_length"
            raise InputError(f"{names} is {longest}; the encoder has {limit} positions")
        self.name, self._turn = type(self).__name__, threading.Lock()
        self.config = config
        self.encoders = list(dict.fromkeys(encoders))  # one encoder if the towers share it
        self.head: Any = None
        self.tokenizer = Tokenizer(tokenizer)
        window = Window(max_length=longest, **halves)
        self.encoding = Encoding(self.tokenizer, window, marked=config.marked)

    @property
    def device(self) -> torch.device:
        return torch.device(next(self.parameters()).device)

    workers = 0
    one_width = False  # on a GPU a further run costs more than padding

    @property
    def tokens_per_run(self) -> int:
        return 2048 if self.device.type == "cpu" else 65_536

    @property
    def bytes_at_once(self) -> int:
        return 256 << 20 if self.device.type == "cpu" else 4 << 30

    @property
    def fingerprint(self) -> str:
        """A hash of the current weights, tokenizer and settings."""
        kind = self.late_kind or self.SETTINGS.removesuffix(".json").replace("_", "-")
        return f"{kind}:{state_hash(self, self.tokenizer.fast.to_str(), repr(self.config))}"

    def read(self, rows: Sequence[Row], queries: bool = True) -> list[FloatArray]:
        return self._quietly(lambda: self.outputs(rows, queries=queries))

    def compare(self, *states: FloatArray | BoolArray) -> FloatArray:
        tensors = [torch.from_numpy(np.ascontiguousarray(s)).to(self.device) for s in states]
        return self._quietly(lambda: [self.head(*tensors)])[0]

    def outputs(self, rows: Sequence[Row], *, queries: bool) -> Sequence[Tensor]:
        return [self.encode(rows, queries=queries)]

    def encode(self, rows: Sequence[Row], *, queries: bool = True) -> Any:
        """Compute raw scores (b,) of pairs, or a tower's outputs for single texts."""
        towers = [self, self] if self.n_towers == 1 else [self.query, self.item]
        return towers[0 if queries else 1](*self.tensors(rows))

    def _quietly(self, run: Callable[[], Sequence[Tensor]]) -> list[FloatArray]:
        with self._turn, torch.inference_mode():
            mode = self.training
            self.eval()
            try:
                outputs = [t if t.dtype == torch.bool else t.float() for t in run()]
                return [output.cpu().numpy() for output in outputs]
            finally:
                self.train(mode)

    def tensors(self, rows: Sequence[Row]) -> list[Tensor]:
        arrays = padded(rows, self.tokenizer.padding, self.encoding.window.max_length)
        return [torch.from_numpy(array).to(self.device) for array in arrays.values()]

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | None = "cpu") -> Self:
        """Open a folder that `save_pretrained` wrote, or raise InputError; device None is a GPU
        if the machine has one."""
        folder = Path(folder)
        config = cls.read_config(check_files(folder))
        encoder, tokenizer = open_backbone(folder, marked=config.marked)
        encoders = [encoder]
        if cls.n_towers == 2:
            encoders += [encoder if config.shared else open_backbone(folder / ITEM_TOWER)[0]]
        model = cls(encoders, tokenizer, config)
        model.load_head(folder)
        model.name = folder.name
        return model.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    @classmethod
    def read_config(cls, folder: Path) -> Any:
        """Read the settings in `folder`; InputError if they belong to another kind of model."""
        path, kind = folder / cls.SETTINGS, KINDS[cls.SETTINGS]
        if not path.is_file():
            raise InputError(f"{folder} is not a crossknn {kind}: it has no {path.name}")
        content = json_in(folder, path.name, {})
        if [content.pop(key, None) for key in ("kind", "format")] != [kind, FORMAT]:
            raise InputError(
                f"{path} does not describe a {kind} of format {FORMAT}: upgrade crossknn"
            )
        with refusing(str(path)):
            return cls.Config(**content)

    def save_pretrained(self, folder: str | Path, card: str | None = None) -> Path:
        """Write encoders, head, a model card (README.md) and, last, the settings, without which the
        folder is not a model; return the folder."""
        from safetensors.torch import save_file

        folder = Path(folder)
        with filling(folder) as made:
            for name in (*KINDS, HEAD):  # of a previous model
                (folder / name).unlink(missing_ok=True)
            for name, encoder in zip(("", ITEM_TOWER), self.encoders, strict=False):
                save_backbone(encoder, self.tokenizer.fast, made / name)
            weights = self.head.state_dict() if self.head is not None else {}
            if weights:
                save_file({key: value.contiguous() for key, value in weights.items()}, made / HEAD)
            if card is not None:
                write_file(made, "README.md", card.encode())
        settings = {"format": FORMAT, "kind": KINDS[self.SETTINGS], **asdict(self.config)}
        write_file(folder, self.SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())
        return folder

    def load_head(self, folder: Path) -> None:
        """Load the head's weights from a folder; InputError names weights that do not match."""
        from safetensors.torch import load_file

        if self.head is None or not self.head.state_dict():
            return
        path = folder / HEAD
        if not path.is_file():
            raise InputError(f"{folder} has no trained head: {HEAD} is missing")
        try:
            self.head.load_state_dict(load_file(path))
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip()
            raise InputError(f"{path} does not match the encoder in its folder: {first}") from error


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Make a temporary folder for libraries that write files themselves; at the end its files are
    moved to `folder`, following no link there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch)
        yield made
        for path in sorted(made.rglob("*")):  # a folder comes before its contents
            if path.is_dir():
                make_folder(folder / path.relative_to(made))
            else:
                sync(path)
                os.replace(path, folder / path.relative_to(made))
        sync(folder)
