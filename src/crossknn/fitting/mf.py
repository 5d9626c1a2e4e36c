"""Matrix factorization by gradient descent: what MF_TRNS and MF_IND share (AXN 2.1, A.2.2).

Axes: b pairs of a batch, e entries, q train queries, n items, d dimensions.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from crossknn.errors import InputError, TrainingError
from crossknn.fitting.factors import Targets
from crossknn.index.sparse import SparseScores
from crossknn.types import FloatArray, Progress

_PATIENCE = 2
_PAIRS_AT_ONCE = 16_384


class Factors(nn.Module):  # type: ignore[misc]
    """Vectors of train queries and items that depend on parameters."""

    @abstractmethod
    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        """Inner products of pairs by position: (b,) and (b,) -> (b,)."""

    @abstractmethod
    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """Those of all train queries (q, d) and all items (n, d), float32."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Root mean squared errors on held-out entries after each epoch, and the best of them.

    `best_epoch` 0 is the start. Without held-out entries all errors are NaN, and the last is kept.
    """

    errors: tuple[float, ...]
    best: float
    best_epoch: int

    def details(self, **settings: Any) -> dict[str, Any]:
        """What `Fit.details` says of it, beside the settings."""
        return settings | {
            "epochs": len(self.errors),
            "best_epoch": self.best_epoch,
            "errors": list(self.errors),
        }


def descend(
    factors: Factors,
    targets: Targets,
    *,
    learning_rate: float,
    weight_decay: float,
    epochs: int,
    batch: int,
    seed: int,
    progress: Progress | None = None,
) -> Descent:
    """AdamW on the squared error of the entries in random batches; leaves the best epoch's weights.

    Ends early when the error on held-out entries has not fallen for two epochs. Raises InputError
    for settings out of range, TrainingError if the error is no number.
    """
    if learning_rate <= 0 or weight_decay < 0 or min(epochs, batch) < 1:
        raise InputError(
            f"learning_rate is {learning_rate}, weight_decay {weight_decay}, epochs {epochs} and "
            f"batch {batch}; all must be positive (weight_decay may be 0)"
        )
    device = next(factors.parameters()).device
    query, item, score = entries(targets.fitted, device)
    held = entries(targets.held, device)
    optimizer = torch.optim.AdamW(
        factors.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True
    )
    generator = torch.Generator().manual_seed(seed)
    errors: list[float] = []
    best, best_epoch, kept = _error(factors, held), 0, _weights(factors)
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(score), generator=generator).to(device).split(batch):
            optimizer.zero_grad()
            loss = squared_error(factors, query[rows], item[rows], score[rows])
            loss.backward()
            optimizer.step()
        errors.append(_error(factors, held))
        if not math.isfinite(float(loss.detach())):
            raise TrainingError(
                f"the error of epoch {epoch} is not a number: fit with a lower learning_rate than "
                f"{learning_rate}"
            )
        if not errors[-1] >= best:  # NaN, too, is an improvement
            best, best_epoch, kept = errors[-1], epoch, _weights(factors)
        if progress:
            progress(epoch, epochs)
        if epoch - best_epoch >= _PATIENCE:
            break
    factors.load_state_dict(kept)
    return Descent(errors=tuple(errors), best=best, best_epoch=best_epoch)


def squared_error(factors: Factors, query: Tensor, item: Tensor, score: Tensor) -> Tensor:
    """Mean over the pairs of (g - u . v)^2 (AXN eq. 3): (b,) three times -> ()."""
    return (factors(query, item) - score).square().mean()


def entries(scores: SparseScores, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, items and scores (e,) of the entries on the device."""
    query, item, score = (
        torch.from_numpy(values).to(device) for values in (scores.query, scores.item, scores.score)
    )
    return query, item, score


def place(device: str | None) -> torch.device:
    """The device of that name, a GPU if there is one for None; InputError if it cannot be used."""
    wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {wanted!r} cannot be used: {error}") from error


def _error(factors: Factors, held: tuple[Tensor, Tensor, Tensor]) -> float:
    """Root mean squared error on entries; NaN if there are none."""
    parts = (tensor.split(_PAIRS_AT_ONCE) for tensor in held)
    with torch.no_grad():
        squares = [
            float((factors(query, item) - score).double().square().sum())
            for query, item, score in zip(*parts, strict=True)
        ]
    return math.sqrt(sum(squares) / len(held[0])) if len(held[0]) else math.nan


def _weights(factors: Factors) -> dict[str, Any]:
    return copy.deepcopy(factors.state_dict())
