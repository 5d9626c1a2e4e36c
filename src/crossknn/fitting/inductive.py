"""MF_IND: two perceptrons move the dual encoder's vectors, new ones included (AXN 2.1, A.2.2)."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.errors import InputError
from crossknn.fitting.factors import Fit, Targets
from crossknn.fitting.mf import Factors, descend, place
from crossknn.index.maps import GatedSkip
from crossknn.types import FloatArray, Progress

FIRST_GATE = -5.0
_ROWS_AT_ONCE = 8_192


def mf_ind(
    targets: Targets,
    *,
    learning_rate: float = 0.005,
    epochs: int = 20,
    batch: int = 1024,
    hidden: int | None = None,
    skip: bool = True,
    weight_decay: float = 0.01,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Perceptrons of queries and of items by AdamW on G: vectors (n, d) of all items.

    Items that no query scored are moved as well. `hidden` is the width of both, 2 d by default;
    without `skip` their output is the vector (the ablation). `map` and `item_map` of the fit embed
    what comes later. `device` is a GPU if there is one. Raises as `descend` does.
    """
    if hidden is not None and hidden < 1:
        raise InputError(f"hidden is {hidden}; a perceptron needs a width of at least 1")
    began = time.perf_counter()
    width = hidden or 2 * targets.items.shape[1]
    pair = MovedPair(targets, width, skip=skip, seed=seed).to(place(device))
    descent = descend(
        pair,
        targets,
        learning_rate=learning_rate,
        batch=batch,
        weight_decay=weight_decay,
        epochs=epochs,
        seed=seed,
        progress=progress,
    )
    fitted_queries, fitted_items = pair.vectors()
    settings = {"learning_rate": learning_rate, "batch": batch, "weight_decay": weight_decay}
    return Fit(
        items=fitted_items,
        queries=fitted_queries,
        map=pair.query.map(),
        item_map=pair.item.map(),
        scale=targets.scale,
        held_out=descent.best,
        initial=targets.initial,
        untouched=0,
        seconds=time.perf_counter() - began,
        details=descent.details(**settings, hidden=width, skip=skip),
    )


class Perceptron(nn.Module):  # type: ignore[misc]
    """`GatedSkip` with gradients; the initial weights are PyTorch's, the gate's is -5."""

    def __init__(self, d: int, hidden: int, *, skip: bool) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(d, hidden), nn.Linear(hidden, d)
        if skip:
            self.gate = nn.Parameter(torch.tensor(FIRST_GATE))
        else:
            self.register_buffer("gate", torch.tensor(float("inf")))

    def forward(self, vectors: Tensor) -> Tensor:
        share = torch.sigmoid(self.gate)
        moved = self.outer(functional.gelu(self.inner(vectors)))
        return share * moved + (1 - share) * vectors

    def map(self) -> GatedSkip:
        """The same in NumPy."""
        inner, inner_offset, outer, outer_offset, gate = (
            tensor.detach().cpu().numpy().copy()
            for tensor in (
                self.inner.weight,
                self.inner.bias,
                self.outer.weight,
                self.outer.bias,
                self.gate,
            )
        )
        return GatedSkip(inner, inner_offset, outer, outer_offset, gate)


class MovedPair(Factors):
    """Vectors of queries and items by a perceptron each, from the initial ones."""

    def __init__(self, targets: Targets, hidden: int, *, skip: bool, seed: int) -> None:
        super().__init__()
        self.start = (targets.queries, targets.items)
        d = targets.items.shape[1]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.query = Perceptron(d, hidden, skip=skip)
            self.item = Perceptron(d, hidden, skip=skip)
        for name, vectors in zip(("queries", "items"), self.start, strict=True):
            self.register_buffer(name, torch.from_numpy(vectors), persistent=False)

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        # Each query and each item of a batch goes through its perceptron once.
        known_queries, query_of = query.unique(return_inverse=True)
        known_items, item_of = item.unique(return_inverse=True)
        u = self.query(self.queries[known_queries])
        v = self.item(self.items[known_items])
        return (functional.embedding(query_of, u) * functional.embedding(item_of, v)).sum(-1)

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        queries, items = self.start
        return _in_parts(self.query.map(), queries), _in_parts(self.item.map(), items)


def _in_parts(moved: GatedSkip, vectors: FloatArray) -> FloatArray:
    """Vectors moved, in parts that bound the memory of the hidden layer."""
    found = np.empty_like(vectors)
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        found[part] = moved(vectors[part])
    return found
