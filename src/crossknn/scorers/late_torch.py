"""Late-interaction models trained here, in torch, on any device (extra `torch`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from crossknn.models.fingerprint import weights_hash
from crossknn.models.late_interaction.base import LateInteractionModel
from crossknn.models.tokens import Row
from crossknn.scorers.late import EncodedLateInteraction
from crossknn.scorers.torch import open_model, quiet, tokens_per_run_of
from crossknn.types import BoolArray, FloatArray

_BYTES_ON_GPU = 4 << 30


class TorchLateInteraction(EncodedLateInteraction):
    """Encodes and compares with a model, or the folder that `save_pretrained` wrote.

    `device` is a GPU if there is one; `dtype` is "bfloat16" or "float32", by default float32 unless
    the call stands in an autocast. Threads take turns.
    """

    def __init__(
        self,
        model: LateInteractionModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        """Raises InputError if the folder holds no such model."""
        name, self.model = open_model(LateInteractionModel, model, device)
        super().__init__(name, self.model.encoding, tokens_per_run or tokens_per_run_of(self.model))
        self.kind, self.joint = self.model.config.kind, self.model.head.joint
        self.dimensions = self.model.dimensions
        self._dtype, self._turn = dtype, threading.Lock()
        self._device = next(self.model.parameters()).device
        if self._device.type != "cpu":
            self.bytes_at_once = _BYTES_ON_GPU

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer and settings, as they are when first asked for.

        An export of the model has the same.
        """
        precision = "" if self._dtype in (None, "float32") else f"|{self._dtype}"
        return f"{self.kind}:{weights_hash(self.model)}{precision}"

    def _room(self) -> int | None:
        if self._device.type != "cuda":
            return super()._room()
        free, _ = torch.cuda.mem_get_info(self._device)
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free + kept)

    def _states(self, rows: Sequence[Row], queries: bool) -> tuple[FloatArray, BoolArray]:
        with self._turn, quiet(self.model, self._dtype):
            values, mask = self.model.states(list(rows), queries=queries)
            return values.float().cpu().numpy(), mask.cpu().numpy()

    def _scores(
        self, query: FloatArray, query_mask: BoolArray, items: FloatArray, item_mask: BoolArray
    ) -> FloatArray:
        arrays = (query, query_mask, items, item_mask)
        with self._turn, quiet(self.model, self._dtype), _memory_errors():
            given = [torch.from_numpy(np.ascontiguousarray(a)).to(self._device) for a in arrays]
            found: FloatArray = self.model.head(*given).float().cpu().numpy()
        return found


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Torch's errors of a full memory as MemoryError."""
    try:
        yield
    except RuntimeError as error:
        full = isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate" in str(error)
        if not full:
            raise
        raise MemoryError from error
