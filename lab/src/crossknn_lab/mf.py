"""Matrix factorization of G by gradient descent: MF_TRNS and MF_IND (AXN 2.1, A.2.2).

MF_TRNS moves the vector of every train query and item freely; MF_IND moves the vectors of queries
and of items by a perceptron each, new ones included. Both minimise the mean over the entries of
(g - u . v)^2 (eq. 3) by AdamW, from the dual encoder's vectors, on a GPU if there is one.

Axes: b pairs of a batch, e entries, q train queries, n items, d dimensions.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import TrainingError
from crossknn.fitting.factors import Fit, Targets
from crossknn.index.vectors import GatedSkip, Same
from crossknn.types import FloatArray, IntArray, Progress

_PATIENCE = 2
_PAIRS_AT_ONCE, _ROWS_AT_ONCE = 16_384, 8_192
_FIRST_GATE = -5.0


def mf_trns(targets: Targets, *, lr: float = 0.001, epochs: int = 10, **settings: Any) -> Fit:
    """Item vectors (n, d) and query vectors (q, d) by AdamW on G, from the initial ones (A.2.2).

    Weight decay draws to the initial vectors, not to zero, so that what no score says anything of
    stays where it was, to the bit. Other `settings` are those of `descend`. Raises TrainingError if
    the error is no number.
    """
    fitted, held = targets.fitted, targets.held
    query = FreeSide(targets.queries, np.concatenate([fitted.query, held.query]))
    item = FreeSide(targets.items, np.concatenate([fitted.item, held.item]))
    fit = descend(query, item, targets, lr=lr, epochs=epochs, **settings)
    return replace(fit, untouched=targets.untouched)


def mf_ind(
    targets: Targets,
    *,
    lr: float = 0.005,
    epochs: int = 20,
    hidden: int | None = None,
    skip: bool = True,
    seed: int = 0,
    **settings: Any,
) -> Fit:
    """Perceptrons of queries and of items by AdamW on G: vectors (n, d) of all items (A.2.2).

    Items that no query scored are moved as well. `hidden` is the width of both, 2 d by default;
    without `skip` their output is the vector (the ablation). `map` and `item_map` of the fit embed
    what comes later. Raises as `mf_trns`.
    """
    width = hidden or 2 * targets.items.shape[1]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        query, item = (PerceptronSide(x, width, skip) for x in (targets.queries, targets.items))
    return descend(query, item, targets, lr=lr, epochs=epochs, seed=seed, **settings)


class FreeSide(nn.Module):  # type: ignore[misc]
    """Vectors `start + moved`: only rows that are `used` have the parameters `moved`.

    A row without a gradient has moments of zero and decays to zero, so that it does not move.
    """

    def __init__(self, start: FloatArray, used: IntArray) -> None:
        super().__init__()
        self.start, rows = start, np.unique(used)
        self.register_buffer("used", torch.from_numpy(rows), persistent=False)
        known = torch.from_numpy(start[rows].astype(np.float32))
        self.register_buffer("known", known, persistent=False)
        self.moved = nn.Parameter(torch.zeros_like(self.known))

    def forward(self, rows: Tensor) -> Tensor:
        """Vectors of rows: (b,) -> (b, d)."""
        places = torch.searchsorted(self.used, rows)
        return functional.embedding(places, self.known) + functional.embedding(places, self.moved)

    def vectors(self) -> FloatArray:
        """All vectors, float32."""
        found = self.start.astype(np.float32)
        found[self.used.cpu()] += self.moved.detach().cpu().numpy()
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
        known = torch.from_numpy(start.astype(np.float32, copy=False))
        self.register_buffer("start", known, persistent=False)

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


def descend(
    query_side: FreeSide | PerceptronSide,
    item_side: FreeSide | PerceptronSide,
    targets: Targets,
    *,
    lr: float,
    epochs: int,
    batch: int = 1024,
    weight_decay: float = 0.01,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fit:
    """AdamW on the squared error of the entries in random batches; the fit of the best epoch.

    Ends early when the error on held-out entries has not fallen for two epochs. `best_epoch` 0 is
    the start; without held-out entries all errors are NaN, and the last epoch is kept.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    factors = nn.ModuleList([query_side, item_side]).to(device)
    (query, item, score), held = (
        tuple(torch.from_numpy(values).to(device) for values in (part.query, part.item, part.score))
        for part in (targets.fitted, targets.held)
    )
    parameters = factors.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)
    generator = torch.Generator().manual_seed(seed)
    errors: list[float] = []
    best, best_epoch, kept = _error(factors, held), 0, copy.deepcopy(factors.state_dict())
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(score), generator=generator).to(device).split(batch):
            optimizer.zero_grad()
            loss = _squares(factors, query[rows], item[rows], score[rows]).mean()
            loss.backward()
            optimizer.step()
        errors.append(_error(factors, held))
        if not math.isfinite(float(loss.detach())):
            raise TrainingError(
                f"the error of epoch {epoch} is not a number: fit with a lower lr than {lr}"
            )
        if not errors[-1] >= best:  # NaN, too, is an improvement
            best, best_epoch, kept = errors[-1], epoch, copy.deepcopy(factors.state_dict())
        if progress:
            progress(epoch, epochs)
        if epoch - best_epoch >= _PATIENCE:
            break
    factors.load_state_dict(kept)
    return Fit(
        items=item_side.vectors(),
        queries=query_side.vectors(),
        map=query_side.map() or Same(),
        item_map=item_side.map(),
        scale=targets.scale,
        held_out=best,
        initial=targets.initial,
        details={"lr": lr, "epochs": len(errors), "best_epoch": best_epoch, "errors": errors},
    )


def _squares(factors: nn.ModuleList, query: Tensor, item: Tensor, score: Tensor) -> Tensor:
    """Squared errors of entries: three (b,) -> (b,)."""
    query_side, item_side = factors
    return ((query_side(query) * item_side(item)).sum(-1) - score).square()


def _error(factors: nn.ModuleList, held: tuple[Tensor, ...]) -> float:
    """Root mean squared error on entries; NaN if there are none."""
    if not len(held[0]):
        return math.nan
    parts = zip(*(values.split(_PAIRS_AT_ONCE) for values in held), strict=True)
    with torch.no_grad():
        total = sum(float(_squares(factors, *part).double().sum()) for part in parts)
    return math.sqrt(total / len(held[0]))
