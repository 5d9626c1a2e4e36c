"""Matrix factorization of G by gradient descent: MF_TRNS and MF_IND (AXN 2.1, A.2.2).

MF_TRNS moves the vector of every train query and item freely; MF_IND moves the vectors of queries
and of items by a perceptron each, new ones included. Both minimise the mean over the entries of
(g - u . v)^2 (eq. 3) by AdamW, from the dual encoder's vectors.

Axes: b pairs of a batch, e entries, q train queries, n items, d dimensions.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError, TrainingError
from crossknn.fitting.factors import Fit, Targets
from crossknn.index.vectors import GatedSkip, Same
from crossknn.scores.store import SparseScores
from crossknn.types import FloatArray, IntArray, Progress

_PATIENCE = 2
_PAIRS_AT_ONCE, _ROWS_AT_ONCE = 16_384, 8_192
_FIRST_GATE = -5.0


def mf_trns(
    targets: Targets,
    *,
    lr: float = 0.001,
    epochs: int = 10,
    batch: int = 1024,
    weight_decay: float = 0.01,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Item vectors (n, d) and query vectors (q, d) by AdamW on G, from the initial ones (A.2.2).

    Weight decay draws to the initial vectors, not to zero, so that what no score says anything of
    stays where it was, to the bit. `device` is a GPU if there is one.

    Raises InputError for settings out of range, TrainingError if the error is no number.
    """
    settings = {"learning_rate": lr, "batch": batch, "weight_decay": weight_decay}
    factors = free_factors(targets).to(place(device))
    fit = _fit(factors, targets, settings, epochs=epochs, seed=seed, progress=progress)
    return replace(fit, untouched=targets.untouched)


def mf_ind(
    targets: Targets,
    *,
    lr: float = 0.005,
    epochs: int = 20,
    batch: int = 1024,
    hidden: int | None = None,
    skip: bool = True,
    weight_decay: float = 0.01,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Perceptrons of queries and of items by AdamW on G: vectors (n, d) of all items (A.2.2).

    Items that no query scored are moved as well. `hidden` is the width of both, 2 d by default;
    without `skip` their output is the vector (the ablation). `map` and `item_map` of the fit embed
    what comes later. Raises as `mf_trns`.
    """
    if hidden is not None and hidden < 1:
        raise InputError(f"hidden is {hidden}; a perceptron needs a width of at least 1")
    settings = {"learning_rate": lr, "batch": batch, "weight_decay": weight_decay}
    width = hidden or 2 * targets.items.shape[1]
    factors = perceptrons(targets, width, skip, seed).to(place(device))
    fit = _fit(factors, targets, settings, epochs=epochs, seed=seed, progress=progress)
    return replace(fit, details={**fit.details, "hidden": width, "skip": skip})


class FreeSide(nn.Module):  # type: ignore[misc]
    """Vectors `start + moved`: only rows that are `used` have the parameters `moved`.

    A row without a gradient has moments of zero and decays to zero, so that it does not move.
    """

    def __init__(self, start: FloatArray, used: IntArray) -> None:
        super().__init__()
        self.start, self.used = start, np.unique(used)
        place_of = torch.zeros(len(start), dtype=torch.long)
        place_of[self.used] = torch.arange(len(self.used))
        known = torch.from_numpy(start[self.used])
        self.register_buffer("place_of", place_of, persistent=False)
        self.register_buffer("known", known, persistent=False)
        self.moved = nn.Parameter(torch.zeros_like(known))

    def forward(self, rows: Tensor) -> Tensor:
        """Vectors of rows: (b,) -> (b, d)."""
        places = self.place_of[rows]
        return functional.embedding(places, self.known) + functional.embedding(places, self.moved)

    def vectors(self) -> FloatArray:
        """All vectors, float32."""
        found = self.start.copy()
        found[self.used] += self.moved.detach().cpu().numpy()
        return found

    def map(self) -> None:
        """Nothing gives other rows their vectors."""


class PerceptronSide(nn.Module):  # type: ignore[misc]
    """`GatedSkip` with gradients; the initial weights are PyTorch's, the gate's is -5."""

    def __init__(self, start: FloatArray, hidden: int, skip: bool) -> None:
        super().__init__()
        d = start.shape[1]
        self.inner, self.outer = nn.Linear(d, hidden), nn.Linear(hidden, d)
        if skip:
            self.gate = nn.Parameter(torch.tensor(_FIRST_GATE))
        else:
            self.register_buffer("gate", torch.tensor(float("inf")))
        self.register_buffer("start", torch.from_numpy(start), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        known, row_of = rows.unique(return_inverse=True)  # each goes through once
        vectors, share = self.start[known], torch.sigmoid(self.gate)
        moved = self.outer(functional.gelu(self.inner(vectors)))
        return functional.embedding(row_of, share * moved + (1 - share) * vectors)

    def vectors(self) -> FloatArray:
        start, moved = self.start.cpu().numpy(), self.map()
        parts = range(0, len(start), _ROWS_AT_ONCE)
        return np.concatenate([moved(start[part : part + _ROWS_AT_ONCE]) for part in parts])

    def map(self) -> GatedSkip:
        values = (self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias, self.gate)
        return GatedSkip(*(value.detach().cpu().numpy().copy() for value in values))


class Factors(nn.Module):  # type: ignore[misc]
    """Inner products of the vectors of train queries and items."""

    def __init__(self, query: FreeSide | PerceptronSide, item: FreeSide | PerceptronSide) -> None:
        super().__init__()
        self.query, self.item = query, item

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        """Of pairs by position: (b,) and (b,) -> (b,)."""
        return (self.query(query) * self.item(item)).sum(-1)


def free_factors(targets: Targets) -> Factors:
    """MF_TRNS's: rows that have an entry are free."""
    parts = (targets.fitted, targets.held)
    return Factors(
        FreeSide(targets.queries, np.concatenate([part.query for part in parts])),
        FreeSide(targets.items, np.concatenate([part.item for part in parts])),
    )


def perceptrons(targets: Targets, hidden: int, skip: bool, seed: int) -> Factors:
    """MF_IND's: a perceptron for queries, and one for items."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        query = PerceptronSide(targets.queries, hidden, skip)
        return Factors(query, PerceptronSide(targets.items, hidden, skip))


class Descent(NamedTuple):
    """Root mean squared errors on held-out entries after each epoch, and the best of them.

    `best_epoch` 0 is the start. Without held-out entries all errors are NaN, and the last is kept.
    """

    errors: list[float]
    best: float
    best_epoch: int


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
    best, best_epoch, kept = _error(factors, held), 0, copy.deepcopy(factors.state_dict())
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
            best, best_epoch, kept = errors[-1], epoch, copy.deepcopy(factors.state_dict())
        if progress:
            progress(epoch, epochs)
        if epoch - best_epoch >= _PATIENCE:
            break
    factors.load_state_dict(kept)
    return Descent(errors, best, best_epoch)


def squared_error(factors: Factors, query: Tensor, item: Tensor, score: Tensor) -> Tensor:
    """Mean over the pairs of (g - u . v)^2 (AXN eq. 3): (b,) three times -> ()."""
    return (factors(query, item) - score).square().mean()


def entries(scores: SparseScores, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, items and scores (e,) of the entries on the device."""
    query, item, score = map(torch.from_numpy, (scores.query, scores.item, scores.score))
    return query.to(device), item.to(device), score.to(device)


def place(device: str | None) -> torch.device:
    """The device of that name, a GPU if there is one for None; InputError if it cannot be used."""
    wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {wanted!r} cannot be used: {error}") from error


def _fit(
    factors: Factors,
    targets: Targets,
    settings: dict[str, Any],
    **options: Any,
) -> Fit:
    began = time.perf_counter()
    found = descend(factors, targets, **settings, **options)
    errors = found.errors
    return Fit(
        items=factors.item.vectors(),
        queries=factors.query.vectors(),
        map=factors.query.map() or Same(),
        item_map=factors.item.map(),
        scale=targets.scale,
        held_out=found.best,
        initial=targets.initial,
        untouched=0,
        seconds=time.perf_counter() - began,
        details={
            **settings,
            "epochs": len(errors),
            "best_epoch": found.best_epoch,
            "errors": errors,
        },
    )


def _error(factors: Factors, held: tuple[Tensor, Tensor, Tensor]) -> float:
    """Root mean squared error on entries; NaN if there are none."""
    parts = (tensor.split(_PAIRS_AT_ONCE) for tensor in held)
    with torch.no_grad():
        squares = [
            float((factors(query, item) - score).double().square().sum())
            for query, item, score in zip(*parts, strict=True)
        ]
    return math.sqrt(sum(squares) / len(held[0])) if len(held[0]) else math.nan
