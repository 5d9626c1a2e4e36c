"""An exported cross-encoder run by OpenVINO in bfloat16, for matrices that take hours in float32.

Twice the pairs a second on a CPU with AVX-512 BF16. Scores differ from float32's by rounding, and
a little with the padding of a batch; `evaluate_wordnet.py report` says by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from crossknn.models.tokens import Row
from crossknn.scorers import OnnxCrossEncoder
from crossknn.types import FloatArray

STEP = 8  # tokens


class Bfloat16CrossEncoder(OnnxCrossEncoder):
    """Scores with the ONNX folder `folder` in bfloat16, on `threads` cores; for one thread."""

    def __init__(self, folder: str | Path, *, threads: int = 1) -> None:
        super().__init__(folder, threads=threads)
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # two processes would be pinned to the same core
        }
        graph = openvino.Core().compile_model(str(Path(folder) / "model.onnx"), "CPU", settings)
        self._request = graph.create_infer_request()

    @property
    def fingerprint(self) -> str:
        return f"{super().fingerprint}|openvino-bf16"

    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        """One shape for each length in steps of 8: OpenVINO prepares every new shape for itself."""
        feeds = self._model.feeds(rows)
        length = -(-feeds["input_ids"].shape[1] // STEP) * STEP
        shape = (max(len(rows), self._model.tokens_per_run // length), length)
        wide: dict[str, Any] = {}
        for name, values in feeds.items():
            wide[name] = np.zeros(shape, values.dtype)
            wide[name][: len(rows), : values.shape[1]] = values
        wide["attention_mask"][len(rows) :, 0] = 1
        scores: FloatArray = np.array(self._request.infer(wide)["scores"])[: len(rows)]
        return scores
