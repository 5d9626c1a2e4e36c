"""The ways to align, as specs: `als(strength=0.3)`, `mf-ind(skip=false)`, `cur(rank=64)`.

paper                   here
MF_TRNS (AXN A.2.2)     `mf-trns`: free vectors by AdamW; `als`: by alternating least squares
MF_IND                  `mf-ind`: a gated perceptron on each side
DE_DSTL (AXN A.2.1)     `distill`: a dual encoder trained on the same scores
R_anc (ANNCUR 2.2)      `cur`: its truncated SVD; takes all q * n scores
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from crossknn.align.factors import Fit, inner_products
from crossknn.align.job import Job
from crossknn.align.sparse import SparseScores
from crossknn.errors import InputError, SpecError
from crossknn.indexes.aligned import AlignedVectors
from crossknn.indexes.base import Scale
from crossknn.indexes.encoders import RememberedEncoder
from crossknn.indexes.maps import Same
from crossknn.scorers.cross_encoder import DualEncoder, needs_torch
from crossknn.spec import build, parse, text_of
from crossknn.types import FloatArray, Progress, Queries

DEFAULT = "als"


@dataclass(frozen=True, kw_only=True)
class Aligner(ABC):
    """A configuration; `str(aligner)` is its spec in the grammar."""

    name: ClassVar[str]

    @abstractmethod
    def align(self, job: Job) -> AlignedVectors:
        """Item vectors of the job's index, paid for and fitted."""

    def __str__(self) -> str:
        return text_of(self.name, self)


@dataclass(frozen=True, kw_only=True)
class _Factorization(Aligner):
    """Vectors fitted to the sparse G, from those of the dual encoder.

    A random share `held_out` of G tells when to stop, and how good the fit is.
    """

    held_out: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise SpecError(f"{self}: held_out is a share, from 0 to below 1")

    def align(self, job: Job) -> AlignedVectors:
        items, queries = job.vectors()
        scores = job.sparse()
        with job.tell(f"fitting {self.name}", "") as progress:
            scale = job.scale(items, queries)
            fit = self.fit(scores, items, queries, scale, job.seed, progress)
        queries_used = len(scores.scored_queries)
        return _fitted(self, job, fit, len(scores), queries_used, scores.fingerprint)

    @abstractmethod
    def fit(
        self,
        scores: SparseScores,
        items: FloatArray,
        queries: FloatArray,
        scale: Scale | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fit:
        """Item vectors (n, d) from G and the initial vectors of items (n, d) and queries (q, d).

        `scale` normalises G; without one G's own moments do.
        """


@dataclass(frozen=True, kw_only=True)
class Als(_Factorization):
    """Alternating least squares, regularised towards the initial vectors by `strength`."""

    name = "als"
    strength: float = 0.3
    sweeps: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        _above_zero(self, "strength", "sweeps")

    def fit(
        self,
        scores: SparseScores,
        items: FloatArray,
        queries: FloatArray,
        scale: Scale | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fit:
        from crossknn.align.als import als

        return als(
            scores,
            items,
            queries,
            strength=self.strength,
            sweeps=self.sweeps,
            scale=scale,
            held_out=self.held_out,
            seed=seed,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class MfTrns(_Factorization):
    """MF_TRNS: free vectors of train queries and items, by AdamW (extra `torch`)."""

    name = "mf-trns"
    lr: float = 0.001
    epochs: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        _above_zero(self, "lr", "epochs")

    def fit(
        self,
        scores: SparseScores,
        items: FloatArray,
        queries: FloatArray,
        scale: Scale | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fit:
        with needs_torch("mf-trns"):
            from crossknn.align.transductive import mf_trns

        return mf_trns(
            scores,
            items,
            queries,
            learning_rate=self.lr,
            epochs=self.epochs,
            scale=scale,
            held_out=self.held_out,
            seed=seed,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class MfInd(_Factorization):
    """MF_IND: perceptrons with a gated skip over the initial vectors (extra `torch`)."""

    name = "mf-ind"
    lr: float = 0.005
    epochs: int = 20
    skip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _above_zero(self, "lr", "epochs")

    def fit(
        self,
        scores: SparseScores,
        items: FloatArray,
        queries: FloatArray,
        scale: Scale | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fit:
        with needs_torch("mf-ind"):
            from crossknn.align.inductive import mf_ind

        return mf_ind(
            scores,
            items,
            queries,
            learning_rate=self.lr,
            epochs=self.epochs,
            skip=self.skip,
            scale=scale,
            held_out=self.held_out,
            seed=seed,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class Cur(Aligner):
    """The best `rank` dimensions of the train queries' scores with every item, in float16."""

    name = "cur"
    rank: int | None = None

    def __post_init__(self) -> None:
        _above_zero(self, "rank")

    def align(self, job: Job) -> AlignedVectors:
        from crossknn.align.cur import cur

        most = min(len(job.queries), job.index.n)
        if self.rank is not None and self.rank > most:
            raise InputError(f"{self}: {most} is the highest rank that the scores can have")
        anchors = job.dense()
        texts, base = job.index.anchor_queries, job.base
        known = base in job.index.query_vector_names
        vectors = job.index.query_vectors(Queries(texts), base) if known else None
        with job.tell("factorizing", ""):
            fit = cur(
                anchors.scores,
                rank=self.rank,
                center=anchors.center,
                queries=vectors,
                seed=job.seed,
            )
        pairs = anchors.scores.size
        return _fitted(self, job, fit, pairs, len(texts), job.scorer.fingerprint)


@dataclass(frozen=True, kw_only=True)
class Distill(Aligner):
    """A dual encoder trained on the train queries' scores (extra `torch`).

    `loss=match` learns the scores of the sparse G; `pair` and `both` (the better on held-out
    queries) need each query's true `top`, so that every item is scored.
    """

    name = "distill"
    loss: Literal["match", "pair", "both"] = "match"
    top: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        _above_zero(self, "top", "epochs")

    def align(self, job: Job) -> AlignedVectors:
        with needs_torch("distill"):
            from crossknn.align.distill import best_of_rows, distill, paper_settings, student

        if job.encoder_folder is None:
            raise InputError(
                "distill trains a dual encoder: say in which folder to keep it (--encoder-out)"
            )
        start = job.student()
        student(start)  # refuses what cannot be trained, before anything is paid
        listed = self.top or job.per
        if self.loss == "match":
            scores = job.sparse()
            pairs = len(scores)
        else:
            rows = job.dense().scores
            texts = job.index.anchor_queries
            scores = best_of_rows(texts, rows, listed, job.scorer.fingerprint)
            pairs = rows.size
        settings = replace(paper_settings(listed), seed=job.seed)
        if self.epochs is not None:
            settings = replace(settings, epochs=self.epochs)
        with job.tell("distilling", "steps") as progress:
            made = distill(
                scores,
                job.index.items.texts,
                start,
                job.encoder_folder,
                losses=("match", "pair") if self.loss == "both" else (self.loss,),
                top=self.top,
                calls=pairs,
                settings=settings,
                progress=progress,
            )
        encoder = DualEncoder(made.folder)
        with job.tell("encoding", "items") as progress:
            items = encoder.encode_items(job.index.items.texts, progress)
        queries = encoder.encode_queries(scores.queries)
        return AlignedVectors(
            values=items,
            method=str(self),
            encoder=RememberedEncoder.of(made.folder),
            scale=job.scale(items, queries) or _scale_of_all(scores, items, queries),
            fingerprint=job.scorer.fingerprint,
            cost=job.cost(made.queries, pairs, made.seconds),
            details={"loss": made.loss, **made.measures},
        )


def _fitted(
    aligner: Aligner, job: Job, fit: Fit, pairs: int, queries: int, fingerprint: str | None
) -> AlignedVectors:
    """What an index keeps of a fit to so many pairs of so many train queries."""
    return AlignedVectors(
        values=fit.items,
        method=str(aligner),
        base=None if fit.map is None else job.base,
        map=fit.map or Same(),
        item_map=fit.item_map,
        scale=fit.scale,
        fingerprint=fingerprint,
        cost=job.cost(queries, pairs, fit.seconds),
        details=_for_json(
            {
                "held_out": fit.held_out,
                "initial": fit.initial,
                "untouched": fit.untouched,
                **fit.details,
            }
        ),
    )


def _scale_of_all(scores: SparseScores, items: FloatArray, queries: FloatArray) -> Scale:
    """The scale by all scored pairs, where there are no random ones."""
    inner = inner_products(queries, items, scores.query, scores.item)
    return Scale.match(scores.score, inner)


def _for_json(details: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as texts, and None for what was not measured (NaN)."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    found: dict[str, Any] = plain(details)
    return found


def _above_zero(aligner: Aligner, *options: str) -> None:
    for option in options:
        value = getattr(aligner, option)
        if value is not None and not value > 0:
            raise SpecError(f"{aligner}: {option} must be above 0")


ALIGNERS: dict[str, type[Aligner]] = {
    kind.name: kind for kind in (Als, MfTrns, MfInd, Cur, Distill)
}


def aligner(spec: str | Aligner) -> Aligner:
    """The way to align that a spec names; `SpecError` if there is none.

    >>> aligner("als(strength=0.1)").strength
    0.1
    """
    if isinstance(spec, Aligner):
        return spec
    return build(parse(spec), ALIGNERS, "way to align")
