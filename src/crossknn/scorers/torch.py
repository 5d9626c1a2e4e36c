"""Models trained here, in torch, on any device (extra `torch`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch

from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.models.fingerprint import weights_hash as weights_hash
from crossknn.models.late_interaction.base import LateInteractionModel
from crossknn.models.tokens import Row
from crossknn.scorers.late import LateInteractionScorer
from crossknn.scorers.token_models import TokenEncoder, TokenScorer
from crossknn.types import BoolArray, FloatArray

M = TypeVar("M", CrossEncoderModel, DualEncoderModel, LateInteractionModel)

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
        self._runner = _Runner(CrossEncoderModel, model, device, dtype)
        self.model = self._runner.model
        super().__init__(
            self._runner.name, self.model.encoding, tokens_per_run or self._runner.tokens_per_run
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, settings and precision, as they are when first asked for."""
        return f"cross-encoder:{weights_hash(self.model)}|{self._runner.dtype or 'float32'}"

    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        with self._runner.quiet():
            return self._runner.numpy(self.model.score_rows(rows))


class TorchDualEncoder(TokenEncoder):
    """Encodes with a dual encoder: a model, or the folder `save_pretrained` wrote.

    Options and errors as `TorchCrossEncoder`.
    """

    def __init__(
        self,
        model: DualEncoderModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        self._runner = _Runner(DualEncoderModel, model, device, dtype)
        self.model = self._runner.model
        self.dimensions = self.model.dimensions
        super().__init__(
            self._runner.name, self.model.encoding, tokens_per_run or self._runner.tokens_per_run
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, settings and precision, as they are when first asked for."""
        return f"dual-encoder:{weights_hash(self.model)}|{self._runner.dtype or 'float32'}"

    def _vectors(self, rows: Sequence[Row], queries: bool) -> FloatArray:
        with self._runner.quiet():
            return self._runner.numpy(self.model(list(rows), queries=queries))


class TorchLateInteraction(LateInteractionScorer):
    """Encodes and compares with a late-interaction model, or the folder `save_pretrained` wrote.

    Options and errors as `TorchCrossEncoder`.
    """

    def __init__(
        self,
        model: LateInteractionModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        self._runner = _Runner(LateInteractionModel, model, device, dtype)
        self.model = self._runner.model
        self.kind, self.joint = self.model.config.kind, self.model.head.joint
        self.dimensions = self.model.dimensions
        if self._runner.device.type != "cpu":
            self.bytes_at_once = _BYTES_ON_GPU
        super().__init__(
            self._runner.name, self.model.encoding, tokens_per_run or self._runner.tokens_per_run
        )

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Hash of weights, tokenizer and settings, as they are when first asked for.

        An export of the model has the same.
        """
        dtype = self._runner.dtype
        precision = "" if dtype in (None, "float32") else f"|{dtype}"
        return f"{self.kind}:{weights_hash(self.model)}{precision}"

    def _room(self) -> int | None:
        device = self._runner.device
        if device.type != "cuda":
            return super()._room()
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))

    def _states(self, rows: Sequence[Row], queries: bool) -> tuple[FloatArray, BoolArray]:
        with self._runner.quiet():
            values, mask = self.model.states(list(rows), queries=queries)
            return self._runner.numpy(values), mask.cpu().numpy()

    def _scores(
        self, query: FloatArray, query_mask: BoolArray, items: FloatArray, item_mask: BoolArray
    ) -> FloatArray:
        with self._runner.quiet(), _memory_errors():
            given = [
                torch.from_numpy(np.ascontiguousarray(array)).to(self._runner.device)
                for array in (query, query_mask, items, item_mask)
            ]
            return self._runner.numpy(self.model.head(*given))


class _Runner(Generic[M]):
    """A model on its device, run in turns.

    One from a folder goes to the GPU if there is one; others stay where they are.
    """

    def __init__(
        self, kind: type[M], model: M | str | Path, device: str | None, dtype: str | None
    ) -> None:
        self.dtype, self._turn = dtype, threading.Lock()
        if isinstance(model, (str, Path)):
            self.name = Path(model).name
            model = kind.from_pretrained(model)
            device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        else:
            self.name = type(model).__name__
        self.model: M = model if device is None else model.to(device)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def tokens_per_run(self) -> int:
        """Tokens of a batch, padding included, for the device."""
        return TOKENS_PER_RUN.get(self.device.type, TOKENS_PER_RUN["cuda"])

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No gradients, no dropout, and the precision asked for; the model's mode comes back."""
        with self._turn, ExitStack() as stack:
            stack.callback(self.model.train, self.model.training)
            self.model.eval()
            stack.enter_context(torch.inference_mode())
            if self.dtype is not None:
                wanted = self.dtype == "bfloat16"
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16, wanted))
            yield

    @staticmethod
    def numpy(values: torch.Tensor) -> FloatArray:
        """A tensor in float32 on the CPU."""
        found: FloatArray = values.float().cpu().numpy()
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
