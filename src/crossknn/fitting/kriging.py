"""Fitting kriging's prior to all exact scores at hand."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.fitting.factor_model import fit_sparse
from crossknn.index.base import Index, lacking
from crossknn.index.item_index import ItemIndex
from crossknn.index.nearest import LARGE
from crossknn.linalg import standardised
from crossknn.methods.kriging import (
    NAME,
    fit_anchors,
    lead_of,
    points_of,
    stored_prior,
)
from crossknn.methods.prior import Prior
from crossknn.retrievers.specs import (
    HYBRID,
    default_vectors,
    retriever_scores,
    stage_names,
    unfitted,
)
from crossknn.scores.store import SparseScores
from crossknn.spec import Spec, parse
from crossknn.types import FloatArray, Progress, Queries

SEED, _AT_ONCE, _CELLS = 0, 64, 2**24
"""So many queries, of so many scores of all items in all, are scored together."""


def fit_prior(
    index: ItemIndex,
    scores: SparseScores | None = None,
    *,
    retriever: str | Spec = HYBRID,
    progress: Progress | None = None,
) -> Prior:
    """Fit how items vary together, for `kriging` searches from now on; kept with the index.

    Args:
        scores: what searches of other queries than the anchors left. Those of the anchors, of the
            same cross-encoder, are added, and are enough. What was fitted before is forgotten.
        retriever: of the searches that are to use it.
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
    if not index.vectors:
        raise InputError("kriging needs item vectors: build the index with some")
    if scores:
        prior = from_searches(index, scores, retriever, progress)
    elif anchors is not None:
        prior = fit_anchors(index, retriever, SEED, progress=progress)
    else:
        raise InputError(
            f"the index has no scores to fit to{lacking(index, 'anchors')}: search it, "
            "or score anchor queries with  crossknn collect INDEX --anchors QUERIES"
        )
    prior = replace(
        prior,
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
