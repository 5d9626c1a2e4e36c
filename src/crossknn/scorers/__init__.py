"""Exact scores of (query, item) pairs, from wherever they come.

Names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossknn.scorers.base import Encoder as Encoder
    from crossknn.scorers.base import Scorer as Scorer
    from crossknn.scorers.callable import CallableScorer as CallableScorer
    from crossknn.scorers.http import HttpScorer as HttpScorer
    from crossknn.scorers.library import PredictScorer as PredictScorer
    from crossknn.scorers.library import SentenceTransformerEncoder as SentenceTransformerEncoder
    from crossknn.scorers.matrix import MatrixScorer as MatrixScorer
    from crossknn.scorers.onnx import OnnxCrossEncoder as OnnxCrossEncoder
    from crossknn.scorers.onnx import OnnxDualEncoder as OnnxDualEncoder
    from crossknn.scorers.onnx import OnnxLateInteraction as OnnxLateInteraction
    from crossknn.scorers.opening import CrossEncoder as CrossEncoder
    from crossknn.scorers.opening import DualEncoder as DualEncoder
    from crossknn.scorers.opening import as_scorer as as_scorer
    from crossknn.scorers.opening import open_late as open_late
    from crossknn.scorers.streaming import NothingScoredError as NothingScoredError
    from crossknn.scorers.torch import TorchCrossEncoder as TorchCrossEncoder
    from crossknn.scorers.torch import TorchDualEncoder as TorchDualEncoder
    from crossknn.scorers.torch import TorchLateInteraction as TorchLateInteraction

_HOMES = {
    "base": ("Encoder", "Scorer"),
    "callable": ("CallableScorer",),
    "http": ("HttpScorer",),
    "library": ("PredictScorer", "SentenceTransformerEncoder"),
    "matrix": ("MatrixScorer",),
    "onnx": ("OnnxCrossEncoder", "OnnxDualEncoder", "OnnxLateInteraction"),
    "opening": ("CrossEncoder", "DualEncoder", "as_scorer", "open_late"),
    "streaming": ("NothingScoredError",),
    "torch": ("TorchCrossEncoder", "TorchDualEncoder", "TorchLateInteraction"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from crossknn.errors import MissingExtraError

        raise MissingExtraError(name, "torch") from error


def __dir__() -> list[str]:
    return __all__
