"""MF_TRNS: free vectors of train queries and items, fitted to G (AXN 2.1, A.2.2)."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crossknn.fitting.factors import Fit, Targets
from crossknn.fitting.mf import Factors, descend, place
from crossknn.index.maps import Same
from crossknn.types import FloatArray, IntArray, Progress


def mf_trns(
    targets: Targets,
    *,
    learning_rate: float = 0.001,
    epochs: int = 10,
    batch: int = 1024,
    weight_decay: float = 0.01,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Item vectors (n, d) and query vectors (q, d) by AdamW on G, from the initial ones.

    The initial vectors are a dual encoder's, or random for the ablation. Weight decay draws to
    them, not to zero, so that what no score says anything of stays where it was, to the bit.
    `device` is a GPU if there is one. Raises as `descend` does.
    """
    began = time.perf_counter()
    free = FreeFactors(targets).to(place(device))
    settings = {"learning_rate": learning_rate, "batch": batch, "weight_decay": weight_decay}
    descent = descend(
        free,
        targets,
        learning_rate=learning_rate,
        batch=batch,
        weight_decay=weight_decay,
        epochs=epochs,
        seed=seed,
        progress=progress,
    )
    fitted_queries, fitted_items = free.vectors()
    return Fit(
        items=fitted_items,
        queries=fitted_queries,
        map=Same(),
        item_map=None,
        scale=targets.scale,
        held_out=descent.best,
        initial=targets.initial,
        untouched=targets.untouched,
        seconds=time.perf_counter() - began,
        details=descent.details(**settings),
    )


class FreeFactors(Factors):
    """Vectors of all queries and items; those with an entry are free."""

    def __init__(self, targets: Targets) -> None:
        super().__init__()
        parts = (targets.fitted, targets.held)
        self.queries = Moved(targets.queries, np.concatenate([part.query for part in parts]))
        self.items = Moved(targets.items, np.concatenate([part.item for part in parts]))

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        return (self.queries(query) * self.items(item)).sum(-1)

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        return self.queries.vectors(), self.items.vectors()


class Moved(nn.Module):  # type: ignore[misc]
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
        """Vectors of rows that are used: (b,) -> (b, d)."""
        places = self.place_of[rows]
        return functional.embedding(places, self.known) + functional.embedding(places, self.moved)

    def vectors(self) -> FloatArray:
        """All vectors, float32."""
        found = self.start.copy()
        found[self.used] += self.moved.detach().cpu().numpy()
        return found
