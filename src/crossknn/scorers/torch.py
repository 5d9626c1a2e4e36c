"""Models trained here, in torch, on any device (extra `torch`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossknn.models.base import weights_hash as weights_hash
from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.models.late.model import LateInteractionModel
from crossknn.models.tokens import Row
from crossknn.types import BoolArray, FloatArray

_KINDS: dict[str, Any] = {
    "cross-encoder": CrossEncoderModel,
    "dual-encoder": DualEncoderModel,
    "late-interaction": LateInteractionModel,
}
TOKENS_PER_RUN = {"cpu": 2048, "cuda": 65_536}


class TorchModel:
    """A model on its device, run in turns: one that is loaded, or the folder of a trained one.

    On CPUs a model exported to ONNX is faster. It computes in float32 unless the caller's autocast
    says otherwise.

    Args:
        kind: of a model in a folder, "cross-encoder", "dual-encoder" or "late-interaction".
        device: of a model from a folder a GPU if there is one, by default; a loaded model stays
            where it is.
        tokens_per_run: tokens of a batch, padding included.

    Raises:
        InputError: the folder holds no such model.
    """

    def __init__(
        self,
        model: Any,
        kind: str = "",
        *,
        device: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        self.name, self._turn = type(model).__name__, threading.Lock()
        if isinstance(model, (str, Path)):
            self.name, model = Path(model).name, _KINDS[kind].from_pretrained(model)
            device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model if device is None else model.to(device)
        self.encoding = model.encoding
        self.dimensions = getattr(model, "dimensions", 0)
        self.head, self.joint = "", False
        if isinstance(model, LateInteractionModel):
            self.head, self.joint = model.config.head, model.head.joint
        self._device = next(self.model.parameters()).device
        on_cpu = self._device.type == "cpu"
        self.bytes_at_once = 256 << 20 if on_cpu else 4 << 30
        self.tokens_per_run = tokens_per_run or TOKENS_PER_RUN["cpu" if on_cpu else "cuda"]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer and settings, as they are when first asked for."""
        if self.head:  # as its export has it
            return f"{self.head}:{weights_hash(self.model)}"
        kind = "cross-encoder" if isinstance(self.model, CrossEncoderModel) else "dual-encoder"
        return f"{kind}:{weights_hash(self.model)}|float32"

    def read(self, rows: Sequence[Row], queries: bool = True) -> list[Any]:
        with self._quiet():
            if isinstance(self.model, LateInteractionModel):
                values, mask = self.model.states(rows, queries=queries)
                return [_numpy(values), mask.cpu().numpy()]
            if isinstance(self.model, CrossEncoderModel):
                return [_numpy(self.model.score_rows(rows))]
            return [_numpy(self.model(rows, queries=queries))]

    def compare(self, *states: FloatArray | BoolArray) -> FloatArray:
        with self._quiet():
            given = [torch.from_numpy(np.ascontiguousarray(array)) for array in states]
            return _numpy(self.model.head(*(array.to(self._device) for array in given)))

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """No gradients and no dropout; the model's mode comes back."""
        with self._turn, torch.inference_mode():
            mode = self.model.training
            self.model.eval()
            try:
                yield
            finally:
                self.model.train(mode)


def _numpy(values: torch.Tensor) -> FloatArray:
    found: FloatArray = values.float().cpu().numpy()
    return found
