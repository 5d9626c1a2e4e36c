"""The ways to align that factor the sparse G, from the vectors of the dual encoder.

paper                   here
MF_TRNS (AXN A.2.2)     `mf-trns`: free vectors by AdamW; `als`: by alternating least squares
MF_IND                  `mf-ind`: a gated perceptron on each side
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from crossknn.errors import SpecError
from crossknn.fitting.aligner import Aligner
from crossknn.fitting.factors import Fit, Targets
from crossknn.fitting.job import Job
from crossknn.index.fitted import FittedVectors
from crossknn.scorers.opening import needs_torch
from crossknn.types import Progress


@dataclass(frozen=True, kw_only=True)
class Factorization(Aligner):
    """Vectors fitted to the sparse G, from those of the dual encoder.

    A random share `held_out` of G tells when to stop, and how good the fit is.
    """

    held_out: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise SpecError(f"{self}: held_out is a share, from 0 to below 1")

    def align(self, job: Job) -> FittedVectors:
        items, queries = job.vectors()
        scores = job.sparse()
        with job.tell(f"fitting {self.name}", "") as progress:
            scale = job.scale(items, queries)
            targets = Targets.of(
                scores, items, queries, scale=scale, held_out=self.held_out, seed=job.seed
            )
            fit = self.fit(targets, job.seed, progress)
        return self.kept(job, fit, pairs=job.different(scores), queries=len(scores.scored_queries))

    @abstractmethod
    def fit(self, targets: Targets, seed: int = 0, progress: Progress | None = None) -> Fit:
        """Item vectors (n, d) from G and the initial vectors."""


class FreeVectors(Factorization):
    """Every train query and every item has a vector of its own."""


@dataclass(frozen=True, kw_only=True)
class Als(FreeVectors):
    """Alternating least squares, regularised towards the initial vectors by `strength`.

    A coordinate more, of `bias` lengths of a query's vector, holds how much an item is liked
    whatever the query; 0 leaves it out.
    """

    name = "als"
    strength: float = 0.3
    bias: float = 2.0
    sweeps: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        self.above_zero("strength", "sweeps")
        if self.bias < 0:
            raise SpecError(f"{self}: bias cannot be negative")

    def fit(self, targets: Targets, seed: int = 0, progress: Progress | None = None) -> Fit:
        from crossknn.fitting.als import als

        return als(
            targets,
            strength=self.strength,
            bias=self.bias,
            sweeps=self.sweeps,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class MfTrns(FreeVectors):
    """MF_TRNS: free vectors of train queries and items, by AdamW (extra `torch`)."""

    name = "mf-trns"
    lr: float = 0.001
    epochs: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.above_zero("lr", "epochs")

    def fit(self, targets: Targets, seed: int = 0, progress: Progress | None = None) -> Fit:
        with needs_torch(self.name):
            from crossknn.fitting.transductive import mf_trns

        return mf_trns(
            targets, learning_rate=self.lr, epochs=self.epochs, seed=seed, progress=progress
        )


@dataclass(frozen=True, kw_only=True)
class MfInd(Factorization):
    """MF_IND: perceptrons with a gated skip over the initial vectors (extra `torch`)."""

    name = "mf-ind"
    lr: float = 0.005
    epochs: int = 20
    skip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.above_zero("lr", "epochs")

    def fit(self, targets: Targets, seed: int = 0, progress: Progress | None = None) -> Fit:
        with needs_torch(self.name):
            from crossknn.fitting.inductive import mf_ind

        return mf_ind(
            targets,
            learning_rate=self.lr,
            epochs=self.epochs,
            skip=self.skip,
            seed=seed,
            progress=progress,
        )
