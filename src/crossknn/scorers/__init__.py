"""Exact scores of (query, item) pairs, from wherever they come.

Names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossknn.scorers.base import Scorer
    from crossknn.scorers.cache import CachedScorer
    from crossknn.scorers.callable import CallableScorer
    from crossknn.scorers.cross_encoder import CrossEncoder, DualEncoder, as_scorer, open_late
    from crossknn.scorers.encoder import Encoder, SentenceTransformerEncoder
    from crossknn.scorers.http import HttpScorer
    from crossknn.scorers.late_onnx import OnnxLateInteraction
    from crossknn.scorers.late_torch import TorchLateInteraction
    from crossknn.scorers.matrix import MatrixScorer
    from crossknn.scorers.onnx import OnnxCrossEncoder, OnnxDualEncoder
    from crossknn.scorers.predict import PredictScorer
    from crossknn.scorers.robust import NothingScoredError
    from crossknn.scorers.torch import TorchCrossEncoder, TorchDualEncoder

__all__ = [
    "CachedScorer",
    "CallableScorer",
    "CrossEncoder",
    "DualEncoder",
    "Encoder",
    "HttpScorer",
    "MatrixScorer",
    "NothingScoredError",
    "OnnxCrossEncoder",
    "OnnxDualEncoder",
    "OnnxLateInteraction",
    "PredictScorer",
    "Scorer",
    "SentenceTransformerEncoder",
    "TorchCrossEncoder",
    "TorchDualEncoder",
    "TorchLateInteraction",
    "as_scorer",
    "open_late",
]

_MODULES = {
    "CachedScorer": "cache",
    "CallableScorer": "callable",
    "CrossEncoder": "cross_encoder",
    "DualEncoder": "cross_encoder",
    "Encoder": "encoder",
    "HttpScorer": "http",
    "MatrixScorer": "matrix",
    "NothingScoredError": "robust",
    "OnnxCrossEncoder": "onnx",
    "OnnxDualEncoder": "onnx",
    "OnnxLateInteraction": "late_onnx",
    "PredictScorer": "predict",
    "Scorer": "base",
    "SentenceTransformerEncoder": "encoder",
    "TorchCrossEncoder": "torch",
    "TorchDualEncoder": "torch",
    "TorchLateInteraction": "late_torch",
    "as_scorer": "cross_encoder",
    "open_late": "cross_encoder",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from crossknn.errors import MissingExtraError

        raise MissingExtraError(name, "torch") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
