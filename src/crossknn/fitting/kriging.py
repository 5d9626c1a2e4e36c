"""Fitting kriging's prior to all exact scores at hand, and its kernel parameters to the anchors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.fitting.factor_model import fit_sparse
from crossknn.index.base import Index, lacking
from crossknn.index.item_index import ItemIndex
from crossknn.index.nearest import LARGE
from crossknn.linalg import standardised
from crossknn.methods.base import equal_rounds, pool_size
from crossknn.methods.kriging import (
    NAME,
    cross_fitted,
    fit_anchors,
    fit_top_weights,
    lead_of,
    near_of,
    points_of,
    process,
    stored_prior,
)
from crossknn.methods.posterior import FLOOR, Directional, squared_distances
from crossknn.methods.prior import RANK, KernelParameters, Prior
from crossknn.retrievers.specs import (
    AUTO,
    HYBRID,
    default_vectors,
    open_retriever,
    retriever_scores,
    stage_names,
    unfitted,
)
from crossknn.scores.store import SparseScores
from crossknn.search.loop import simulate
from crossknn.search.plan import Plan
from crossknn.spec import Spec, parse
from crossknn.types import FloatArray, Progress, Queries

LEAST = 20
"""Anchors, at least: fewer than so many leave the parameters as they are."""

MOST = 160
"""Anchors that are searched, at most: evenly spaced ones of all."""

FOLDS = 5
BUDGET = 100
ROUNDS = 10
STEP = 2**0.5
"""By this factor a step changes one parameter."""

FARTHEST = 6
"""Steps that a parameter may be from its start."""

SEED, _AT_ONCE, _CELLS = 0, 64, 2**24
"""So many queries, of so many scores of all items in all, are scored together."""


def fit_prior(
    index: ItemIndex,
    scores: SparseScores | None = None,
    *,
    retriever: str | Spec = HYBRID,
    rank: int = RANK,
    parameters: KernelParameters | None = None,
    top_weights: FloatArray | None = None,
    progress: Progress | None = None,
) -> Prior:
    """Fit how items vary together, for `kriging` searches from now on; kept with the index.

    Args:
        scores: what searches of other queries than the anchors left. Those of the anchors, of the
            same cross-encoder, are added, and are enough. What was fitted before is forgotten.
        retriever: of the searches that are to use it.
        parameters: of the kernel, where a search gives none.
        top_weights: of `crossknn.methods.top_odds`, if they are known; else the anchors are
            searched for them.
        progress: Called with (steps done, the most there may be): sweeps, or items of anchors that
            were read. A fit that is stopped begins anew; the scores that it is fitted to stay.

    Raises:
        InputError: scores of fewer than two queries, or no item vectors.
    """
    retriever = parse(retriever) if isinstance(retriever, str) else retriever
    own = index.scorer_fingerprint("anchors") if scores is None else scores.fingerprint
    index = index.for_scorer(own)
    anchors = index.anchors
    count = 0 if anchors is None else len(anchors.scores)
    if rank < 1:
        raise InputError(f"rank is {rank}; it must be 1 or more")
    if not index.vectors:
        raise InputError("kriging needs item vectors: build the index with some")
    if scores:
        prior = from_searches(index, scores, retriever, rank, progress)
    elif anchors is not None:
        prior = fit_anchors(index, retriever, rank, SEED, progress=progress)
    else:
        raise InputError(
            f"the index has no scores to fit to{lacking(index, 'anchors')}: search it, "
            "or score anchor queries with  crossknn collect INDEX --anchors QUERIES"
        )
    prior = replace(
        prior,
        parameters=parameters or KernelParameters(),
        top_weights=fit_top_weights(index, retriever, rank, SEED)
        if top_weights is None
        else top_weights,
        retriever=str(retriever),
        fingerprint=own,
        queries=count + (len(scores.scored_queries) if scores else 0),
        pairs=count * index.n + (len(scores) if scores else 0),
        n_anchor_queries=count,
    )
    index.put_artifact(NAME, *prior.kept())
    if index.n >= LARGE and find_spec("faiss") is not None:
        add_points(index)
    return prior


def add_points(index: ItemIndex, progress: Progress | None = None) -> None:
    """Build the approximate index of the items' points, if the index has a prior: vectors, what
    other queries teach of an item, and its mean score. With it a round costs the pool's size."""
    if (prior := stored_prior(index)) is not None:
        points = points_of(index, prior, default_vectors(index))
        index.add_nearest(NAME, points, progress=progress)


def from_searches(
    index: Index,
    scores: SparseScores,
    retriever: Spec,
    rank: int = RANK,
    progress: Progress | None = None,
) -> Prior:
    """The prior that earlier searches teach, and the anchors, if there are any."""
    anchors, space = index.anchors, unfitted(index) or default_vectors(index)
    has_queries = index.has_query_vectors(space)
    dense = None
    if anchors is not None:
        columns = _columns(index, retriever, anchors.queries)
        known = index.query_vectors(anchors.queries, space) if has_queries else None
        dense = anchors.scores, columns, known
    cheap, vectors = _at_entries(index, retriever, scores, space if has_queries else None)
    prior = fit_sparse(
        scores,
        cheap,
        index.vectors[space],
        vectors,
        lead=lead_of(index, stage_names(index, retriever)),
        rank=rank,
        anchors=dense,
        progress=progress,
    )
    return replace(prior, space=space if has_queries else None)


def _columns(index: Index, retriever: Spec, queries: Queries) -> list[FloatArray]:
    """Each retriever's standardised scores (m, n)."""
    found = []
    for cheap in retriever_scores(index, retriever, queries, SEED):
        found.append(scratch(cheap.shape))
        for row, scores in zip(found[-1], cheap, strict=True):
            row[:] = standardised(scores)
    return list(found)


def _at_entries(
    index: Index, retriever: Spec, scores: SparseScores, space: str | None
) -> tuple[list[FloatArray], FloatArray | None]:
    """Each retriever's standardised scores at the entries, (e,), and the vectors (q, d) of the
    scored queries."""
    chosen, parts, vectors = scores.scored_queries, [], []
    together = max(1, min(_AT_ONCE, _CELLS // index.n))
    for start in range(0, len(chosen), together):
        rows = chosen[start : start + together]
        where = slice(scores.by_query[rows[0]], scores.by_query[rows[-1] + 1])
        query, item = np.searchsorted(rows, scores.query[where]), scores.item[where]
        queries = Queries([scores.queries[row] for row in rows])
        parts.append([cheap[query, item] for cheap in _columns(index, retriever, queries)])
        if space is not None:
            vectors.append(index.query_vectors(queries, space))
    cheap = [np.concatenate(stage) for stage in zip(*parts, strict=True)]
    return cheap, None if space is None else np.concatenate(vectors)


class Revealed(NamedTuple):
    """What searches of q anchors revealed of b items each, and what was known before.

    `products` (q, b, b) are those of the items' factors, `distances` (q, b, b) those of their
    vectors' directions, squared; `variance` (q,) is the residuals' mean square; `basis` (q, b, f)
    has prior `weights` (q, f) and `precision` (q, f, f); `scores` (q, b) are exact.
    """

    products: FloatArray
    distances: FloatArray
    variance: FloatArray
    basis: FloatArray
    weights: FloatArray
    precision: FloatArray
    scores: FloatArray

    def density(self, parameters: KernelParameters) -> FloatArray:
        """Sum over an anchor's items of the log density of its score given all others': (q,).

        With K the scores' covariance, P = K^-1 less what the weights take of it (Rasmussen and
        Williams 2006, 2.7.1) and r the scores less the prior's mean, item i is predicted with the
        variance 1 / P_ii and the error (P r)_i / P_ii (equations 5.10 to 5.12).
        """
        p, eye = parameters, np.eye(self.distances.shape[1])
        noise = max(p.noise, FLOOR) * (p.smooth + p.linear)
        rest = Directional(p.scale, p.smooth, p.linear).at(self.distances) + noise * eye
        inverse = np.linalg.inv(p.share * self.products + self.variance[:, None, None] * rest)
        carried = inverse @ self.basis
        weights = self.basis.transpose(0, 2, 1) @ carried + self.precision
        precision = inverse - carried @ np.linalg.solve(weights, carried.transpose(0, 2, 1))
        left = self.scores - (self.basis @ self.weights[:, :, None])[:, :, 0]
        error = (precision @ left[:, :, None])[:, :, 0]
        own = np.maximum(np.einsum("qbb->qb", precision), np.finfo(np.float64).tiny)
        density: FloatArray = (np.log(own / (2 * np.pi)) - error**2 / own).sum(axis=1) / 2
        return density


def fit_hyperparameters(index: Index, retriever: Spec, rank: int = RANK) -> KernelParameters:
    """The parameters under which the index's anchor queries are predicted best.

    Every anchor is searched as a query would be, with what the other folds' anchors teach. Of the
    scores that the search reveals each is predicted from all others (leave-one-out predictive
    density, Rasmussen and Williams 2006, 5.4.2), with the weights integrated out under their prior.
    One parameter after the other is changed by a step, as long as the densities rise by more than
    the standard error of their mean. The defaults if fewer than `LEAST` anchors tell anything.
    """
    start = KernelParameters()
    if index.anchors is None or len(index.anchors.scores) < LEAST:
        return start
    parts = zip(*_searched(index, retriever, rank), strict=True)
    whole = Revealed(*map(np.concatenate, parts))
    telling = np.ptp(whole.scores, axis=1) > 0
    if telling.sum() < LEAST:
        return start
    return climb(Revealed(*(part[telling] for part in whole)), start)


def climb(revealed: Revealed, start: KernelParameters) -> KernelParameters:
    """The parameters that coordinate steps from `start` reach; see `fit_hyperparameters`."""
    values = asdict(start)
    steps = dict.fromkeys((name for name, value in values.items() if value > 0), 0)
    best, density = start, revealed.density(start)
    for _ in range(FARTHEST):
        before = best
        for name in steps:
            for step in (steps[name] + 1, steps[name] - 1):
                if abs(step) > FARTHEST:
                    continue
                tried = replace(best, **{name: values[name] * STEP**step})
                found = revealed.density(tried)
                gain = found - density
                if gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)):
                    best, density, steps[name] = tried, found, step
                    break
        if best == before:
            break
    return best


def _searched(index: Index, retriever: Spec, rank: int) -> Iterator[Revealed]:
    """What a search of each anchor reveals, with what the other folds teach: fold by fold."""
    assert index.anchors is not None
    exact, batches = index.anchors.scores, equal_rounds(min(BUDGET, index.n), ROUNDS)
    searched = np.unique(np.linspace(0, len(exact) - 1, MOST).round().astype(int))
    stage, names = open_retriever(index, AUTO, SEED), stage_names(index, retriever)
    name = default_vectors(index)
    for fold, prior in cross_fitted(index, retriever, rank, FOLDS, SEED):
        rows = np.intersect1d(fold, searched)
        queries, scores = index.anchors.queries.take(rows), exact[rows]
        predictor = process(index, name, stage, names, prior, KernelParameters(), seed=SEED)
        pool = pool_size(index, BUDGET)
        if pool is not None:
            predictor = replace(predictor, near=near_of(index, prior, name))
        plan = Plan(retriever=stage, predictor=predictor, batches=batches, shortlist=pool)
        items = simulate(plan, queries, scores).observed().items
        points = np.stack([predictor.points(row) for row in items]).astype(np.float64)
        factor, points = np.split(points, [prior.factor.shape[1]], axis=2)
        state = predictor.start(queries)
        basis = [
            predictor.basis(state, r, row, predictor.points(row)) for r, row in enumerate(items)
        ]
        trend = prior.trends[-1]  # of all columns
        yield Revealed(
            products=factor @ factor.transpose(0, 2, 1),
            distances=np.stack([squared_distances(own, own) for own in points]),
            variance=np.full(len(rows), prior.variance),
            basis=np.stack(basis).astype(np.float64),
            weights=np.tile(trend.mean, (len(rows), 1)),
            precision=np.tile(trend.precision, (len(rows), 1, 1)),
            scores=np.take_along_axis(scores, items, axis=1).astype(np.float64),
        )
