"""Models trained here, in torch, on any device (extra `torch`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from crossknn.scorers.late import LateInteractionScorer
from crossknn.scorers.token_models import TokenEncoder, TokenScorer
from crossknn.types import BoolArray, FloatArray

TOKENS_PER_RUN = {"cpu": 2048, "cuda": 65_536}
_BYTES_ON_GPU = 4 << 30


class TorchCrossEncoder(TokenScorer):
    """Scores with a [CLS]-CE or [EMB]-CE: a model, or the folder `save_pretrained` wrote.

    On CPUs a model exported to ONNX is faster. Threads take turns.

    Args:
        device: a GPU if there is one, by default; a loaded model stays where it is.
        dtype: "bfloat16" or "float32"; by default float32 unless the call stands in an autocast.
        tokens_per_run: tokens of a batch, padding included.

    Raises:
        InputError: the folder holds no such model.
    """

    def __init__(
        self,
        model: CrossEncoderModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        self._torch = _TorchModel(CrossEncoderModel, model, device, dtype, tokens_per_run)
        self.model = self._torch.model
        super().__init__(self._torch)

    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        with self._torch.quiet():
            return _numpy(self.model.score_rows(rows))


class TorchDualEncoder(TokenEncoder):
    """Encodes with a dual encoder; arguments as `TorchCrossEncoder`."""

    def __init__(
        self,
        model: DualEncoderModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        self._torch = _TorchModel(DualEncoderModel, model, device, dtype, tokens_per_run)
        self.model = self._torch.model
        self.dimensions = self.model.dimensions
        super().__init__(self._torch)

    def _vectors(self, rows: Sequence[Row], queries: bool) -> FloatArray:
        with self._torch.quiet():
            return _numpy(self.model(list(rows), queries=queries))


class TorchLateInteraction(LateInteractionScorer):
    """Encodes and compares with a late-interaction model; arguments as `TorchCrossEncoder`.

    An export of the model has the same fingerprint.
    """

    def __init__(
        self,
        model: LateInteractionModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        self._torch = _TorchModel(LateInteractionModel, model, device, dtype, tokens_per_run)
        self.model = self._torch.model
        self.kind, self.joint = self.model.config.head, self.model.head.joint
        self.dimensions = self.model.dimensions
        if self._torch.device.type != "cpu":
            self.bytes_at_once = _BYTES_ON_GPU
        super().__init__(self._torch)

    def _room(self) -> int | None:
        device = self._torch.device
        if device.type != "cuda":
            return super()._room()
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))

    def _states(self, rows: Sequence[Row], queries: bool) -> tuple[FloatArray, BoolArray]:
        with self._torch.quiet():
            values, mask = self.model.states(list(rows), queries=queries)
            return _numpy(values), mask.cpu().numpy()

    def _scores(self, *states: FloatArray | BoolArray) -> FloatArray:
        with self._torch.quiet():
            given = [torch.from_numpy(np.ascontiguousarray(array)) for array in states]
            try:
                return _numpy(self.model.head(*(array.to(self._torch.device) for array in given)))
            except RuntimeError as error:
                full = isinstance(error, torch.cuda.OutOfMemoryError)
                if not full and "can't allocate" not in str(error):
                    raise
                raise MemoryError from error


class _TorchModel:
    """A model on its device, run in turns; one from a folder goes to the GPU if there is one."""

    def __init__(
        self,
        kind: Any,
        model: Any,
        device: str | None,
        dtype: str | None,
        tokens_per_run: int | None,
    ) -> None:
        self.name, self._dtype, self._turn = type(model).__name__, dtype, threading.Lock()
        if isinstance(model, (str, Path)):
            self.name, model = Path(model).name, kind.from_pretrained(model)
            device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model if device is None else model.to(device)
        self.encoding = model.encoding
        self.device = next(self.model.parameters()).device
        self.tokens_per_run = tokens_per_run or TOKENS_PER_RUN.get(self.device.type, 65_536)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, settings and precision, as they are when first asked for."""
        precision = f"|{self._dtype or 'float32'}"
        if isinstance(self.model, LateInteractionModel):  # as its export has it
            kind, precision = self.model.config.head, precision.replace("|float32", "")
        else:
            kind = "cross-encoder" if isinstance(self.model, CrossEncoderModel) else "dual-encoder"
        return f"{kind}:{weights_hash(self.model)}{precision}"

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No gradients, no dropout, and the precision asked for; the model's mode comes back."""
        with self._turn, ExitStack() as stack:
            stack.callback(self.model.train, self.model.training)
            self.model.eval()
            stack.enter_context(torch.inference_mode())
            if self._dtype is not None:
                wanted = self._dtype == "bfloat16"
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16, wanted))
            yield


def _numpy(values: torch.Tensor) -> FloatArray:
    found: FloatArray = values.float().cpu().numpy()
    return found
