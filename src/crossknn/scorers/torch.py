"""Cross-encoders and dual encoders trained here, in torch, on any device (extra `torch`)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from crossknn.models.cross_encoder import CrossEncoderModel
from crossknn.models.dual_encoder import DualEncoderModel
from crossknn.models.fingerprint import weights_hash as weights_hash
from crossknn.models.late_interaction.base import LateInteractionModel
from crossknn.models.tokens import Row
from crossknn.scorers._encoded import EncodedCrossEncoder, EncodedDualEncoder
from crossknn.types import FloatArray

M = TypeVar("M", CrossEncoderModel, DualEncoderModel, LateInteractionModel)

TOKENS_PER_RUN = {"cpu": 2048, "cuda": 65_536}


class TorchCrossEncoder(EncodedCrossEncoder):
    """Scores with a [CLS]-CE or [EMB]-CE: a model, or the folder `save_pretrained` wrote.

    `device` is a GPU if there is one; `dtype` is "bfloat16" or "float32", by default float32 unless
    the call stands in an autocast. On CPUs a model exported to ONNX is faster. Threads take turns.
    """

    def __init__(
        self,
        model: CrossEncoderModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        """Raises InputError if the folder holds no such model."""
        name, self.model = open_model(CrossEncoderModel, model, device)
        self._dtype, self._turn = dtype, threading.Lock()
        super().__init__(name, self.model.encoding, tokens_per_run or tokens_per_run_of(self.model))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, settings and precision, as they are when first asked for."""
        return f"cross-encoder:{weights_hash(self.model)}|{self._dtype or 'float32'}"

    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        with self._turn, quiet(self.model, self._dtype):
            found: FloatArray = self.model.score_rows(rows).float().cpu().numpy()
        return found


class TorchDualEncoder(EncodedDualEncoder):
    """Encodes with a dual encoder: a model, or the folder `save_pretrained` wrote."""

    def __init__(
        self,
        model: DualEncoderModel | str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        tokens_per_run: int | None = None,
    ) -> None:
        """Options as `TorchCrossEncoder`. Raises InputError if the folder holds no such model."""
        name, self.model = open_model(DualEncoderModel, model, device)
        self._dtype, self._turn = dtype, threading.Lock()
        super().__init__(name, self.model.encoding, tokens_per_run or tokens_per_run_of(self.model))

    @property
    def dimensions(self) -> int:
        """d, the length of a vector."""
        return self.model.dimensions

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, tokenizer, settings and precision, as they are when first asked for."""
        return f"dual-encoder:{weights_hash(self.model)}|{self._dtype or 'float32'}"

    def _vectors(self, rows: Sequence[Row], queries: bool) -> FloatArray:
        with self._turn, quiet(self.model, self._dtype):
            found: FloatArray = self.model(list(rows), queries=queries).float().cpu().numpy()
        return found


def open_model(kind: type[M], model: M | str | Path, device: str | None) -> tuple[str, M]:
    """A name and a model: one from a folder goes to the GPU if there is one; others stay."""
    if not isinstance(model, (str, Path)):
        return type(model).__name__, model if device is None else model.to(device)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Path(model).name, kind.from_pretrained(model).to(place)


def tokens_per_run_of(model: Any) -> int:
    """Tokens of a batch, padding included, for the device a model is on."""
    kind = next(model.parameters()).device.type
    return TOKENS_PER_RUN.get(kind, TOKENS_PER_RUN["cuda"])


class quiet:  # noqa: N801
    """No gradients, no dropout, and the precision asked for; the model's mode comes back."""

    def __init__(self, model: Any, dtype: str | None) -> None:
        self._model, self._was = model, model.training
        place, wanted = next(model.parameters()).device.type, dtype == "bfloat16"
        self._autocast = (
            nullcontext() if dtype is None else torch.autocast(place, torch.bfloat16, wanted)
        )
        self._inference = torch.inference_mode()

    def __enter__(self) -> None:
        self._model.eval()
        self._inference.__enter__()
        self._autocast.__enter__()

    def __exit__(self, *error: object) -> None:
        self._autocast.__exit__(*error)
        self._inference.__exit__(*error)
        self._model.train(self._was)
