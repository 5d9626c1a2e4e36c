"""The papers' ways to fit item vectors, beside ALS: matrix factorization by AdamW, and CUR.

fit(index, scorer, queries, fit_method("mf-trns(epochs=5)"))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossknn.errors import InputError, needs_extra
from crossknn.fitting.anchors import collect_anchors
from crossknn.fitting.factors import Fit, Targets
from crossknn.fitting.fit import METHODS as OURS
from crossknn.fitting.fit import Factorization, FitMethod, FitTask
from crossknn.index.vectors import ItemVectors
from crossknn.spec import build, option, parse
from crossknn.types import Progress
from crossknn_lab.cur import cur


@dataclass(frozen=True, kw_only=True)
class MFTRNS(Factorization):
    """MF_TRNS: free vectors of train queries and items, by AdamW (extra `torch`)."""

    name = "mf-trns"
    lr: float = option(0.001, least=1e-12)
    epochs: int = option(10, least=1)

    def factorize(self, targets: Targets, seed: int, progress: Progress | None) -> Fit:
        with needs_extra(self.name):
            from crossknn_lab.mf import mf_trns
        return mf_trns(targets, lr=self.lr, epochs=self.epochs, seed=seed, progress=progress)


@dataclass(frozen=True, kw_only=True)
class MFIND(Factorization):
    """MF_IND: perceptrons with a gated skip over the initial vectors (extra `torch`)."""

    name = "mf-ind"
    lr: float = option(0.005, least=1e-12)
    epochs: int = option(20, least=1)
    skip: bool = True

    def factorize(self, targets: Targets, seed: int, progress: Progress | None) -> Fit:
        with needs_extra(self.name):
            from crossknn_lab.mf import mf_ind
        how: dict[str, Any] = {"lr": self.lr, "epochs": self.epochs, "skip": self.skip}
        return mf_ind(targets, seed=seed, progress=progress, **how)


@dataclass(frozen=True, kw_only=True)
class CUR(FitMethod):
    """The best `rank` dimensions of the train queries' scores with every item, in float16."""

    name = "cur"
    rank: int | None = option(None, least=1)

    def fit(self, task: FitTask) -> ItemVectors:
        index = task.index
        most = min(len({*task.queries, *index.anchor_queries}), index.n)
        if self.rank is not None and self.rank > most:
            raise InputError(f"{self}: these scores allow a rank of at most {most}")
        with task.progress("scoring anchor queries", "pairs") as report:
            how = dict[str, Any](limits=task.limits, progress=report)
            task.collected = collect_anchors(index, task.scorer, task.queries, **how)
        if (anchors := index.anchors) is None:
            raise InputError(
                f"no train query has the scores of all {index.n} items yet: allow more calls or "
                "more time"
            )
        known = index.has_query_vectors(task.base)
        vectors = index.query_vectors(anchors.queries, task.base) if known else None
        with task.progress("factorizing", ""):
            center, seed = anchors.center, task.seed
            found = cur(anchors.scores, rank=self.rank, center=center, queries=vectors, seed=seed)
        return task.kept(self, found, len(anchors.queries), anchors.scores.size)


METHODS: dict[str, type[FitMethod]] = {**OURS, **{kind.name: kind for kind in (MFTRNS, MFIND, CUR)}}


def fit_method(spec: str | FitMethod) -> FitMethod:
    """A way to fit by its spec: `als`, `mf-trns`, `mf-ind` or `cur`, with options."""
    if isinstance(spec, FitMethod):
        return spec
    return build(parse(spec), METHODS, "way to fit")
