"""The ways to align, as specs: `als(strength=0.3)`, `mf-ind(skip=false)`, `cur(rank=64)`.

paper                   here
MF_TRNS, MF_IND         see `factorizations`
DE_DSTL (AXN A.2.1)     `distill`: a dual encoder trained on the same scores
R_anc (ANNCUR 2.2)      `cur`: its truncated SVD; takes all q * n scores
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from crossknn.errors import InputError
from crossknn.fitting.aligner import Aligner
from crossknn.fitting.factorizations import Als, MfInd, MfTrns
from crossknn.fitting.factors import inner_products
from crossknn.fitting.job import Job
from crossknn.index.base import Scale
from crossknn.index.encoders import RememberedEncoder
from crossknn.index.fitted import FittedVectors
from crossknn.index.sparse import SparseScores
from crossknn.scorers.opening import DualEncoder, needs_torch
from crossknn.spec import build, parse
from crossknn.types import FloatArray, Queries

DEFAULT = "als"


@dataclass(frozen=True, kw_only=True)
class Cur(Aligner):
    """The best `rank` dimensions of the train queries' scores with every item, in float16."""

    name = "cur"
    rank: int | None = None

    def __post_init__(self) -> None:
        self.above_zero("rank")

    def align(self, job: Job) -> FittedVectors:
        from crossknn.fitting.cur import cur

        texts = set(job.queries)
        if job.index.scorer_of("anchors") == job.scorer.fingerprint is not None:
            texts.update(job.index.anchor_queries)
        most = min(len(texts), job.index.n)
        if self.rank is not None and self.rank > most:
            raise InputError(f"{self}: {most} is the highest rank that the scores can have")
        anchors = job.dense()
        queries, base = job.index.anchor_queries, job.base
        known = base in job.index.query_vector_names
        vectors = job.index.query_vectors(Queries(queries), base) if known else None
        with job.tell("factorizing", ""):
            fit = cur(
                anchors.scores,
                rank=self.rank,
                center=anchors.center,
                queries=vectors,
                seed=job.seed,
            )
        return self.kept(job, fit, pairs=job.different(anchors), queries=len(queries))


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
        self.above_zero("top", "epochs")

    def align(self, job: Job) -> FittedVectors:
        with needs_torch("distill"):
            from crossknn.fitting.distill import best_of_rows, distill, paper_settings, student

        if job.encoder_folder is None:
            raise InputError(
                "distill trains a dual encoder: say in which folder to keep it (--encoder-out)"
            )
        start = job.student()
        student(start)  # refuses what cannot be trained, before anything is paid
        listed = self.top or job.per
        if self.loss == "match":
            scores = job.sparse()
            pairs = job.different(scores)
        else:
            anchors, texts = job.dense(), job.index.anchor_queries
            scores = best_of_rows(texts, anchors.scores, listed, job.scorer.fingerprint)
            pairs = job.different(anchors)
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
        encoder, began = DualEncoder(made.folder), time.perf_counter()
        with job.tell("encoding", "items") as progress:
            items = encoder.encode_items(job.index.items.texts, progress)
        queries = encoder.encode_queries(scores.queries)
        job.vector_seconds += time.perf_counter() - began
        return FittedVectors(
            values=items,
            method=str(self),
            encoder=RememberedEncoder.of(made.folder),
            scale=job.scale(items, queries) or _scale_of_all(scores, items, queries),
            fingerprint=job.scorer.fingerprint,
            cost=job.cost(made.queries, pairs, made.seconds),
            details={"loss": made.loss, **made.measures},
        )


def _scale_of_all(scores: SparseScores, items: FloatArray, queries: FloatArray) -> Scale:
    """The scale by all scored pairs, where there are no random ones."""
    inner = inner_products(queries, items, scores.query, scores.item)
    return Scale.match(scores.score, inner)


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
