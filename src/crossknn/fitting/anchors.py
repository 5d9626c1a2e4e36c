"""Collect an index's anchors (R_anc): exact scores of some queries with every item.

The scores go to the index's store. Queries scored with every item become the artifact "anchors" of
ANNCUR and ADACUR (Yadav et al. 2022, 2.2), whose arrays are memory-mapped when the index is opened.

Axes: k_q anchor queries, n items.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from crossknn.data.queries import Texts, query_set
from crossknn.errors import InputError
from crossknn.fitting.kriging import TEACHING_ANCHORS, fit_prior
from crossknn.index.item_index import ItemIndex
from crossknn.index.parts import ANCHORS
from crossknn.methods.prior import stored_prior
from crossknn.scorers.opening import as_scorer
from crossknn.scores.collect import CollectReport, Limits, collect, fingerprint_of
from crossknn.types import Artifact, FloatArray, Progress, Queries

logger = logging.getLogger(__name__)

_CHUNK = 8_192


def collect_anchors(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score training queries with every item, store those that are complete as the index's anchors,
    and fit kriging's prior to the anchors. Existing anchors are kept. After an interruption, the
    same call resumes.

    Args:
        index, scorer: The n items, and a cross-encoder or its name.
        queries: Texts (k_q); they cost k_q * n scored pairs, minus those in the store.
        limits, progress: As for `collect`.
    """
    texts = check_texts(queries)
    opened = as_scorer(scorer)
    index = index.for_scorer(opened.fingerprint)
    index.check_compact("collecting rows of scores")
    items, fingerprint = index.items.texts, fingerprint_of(opened, index.scores)
    before = _current_rows(index, opened.fingerprint)
    if before is not None and before.meta.get("added"):  # its rows lack scores of later items
        texts = [*before.arrays["queries"], *texts]
    report = collect(index.scores, opened, texts, items, limits=limits, progress=progress)
    now = _current_rows(index, opened.fingerprint)  # another process may have added rows
    old = {} if now is None or now.meta.get("added") else now.arrays
    own = dict.fromkeys(old.get("queries", ()))
    new = [text for text in dict.fromkeys(texts) if text not in own]
    rows = index.scores.rows(fingerprint, new, items)
    done = np.flatnonzero(np.isfinite(rows).all(axis=1))
    if not len(done):
        return report
    arrays: dict[str, Any] = {"queries": [*own, *np.array(new)[done].tolist()]}
    arrays["scores"] = np.vstack([old["scores"], rows[done]]) if old else rows[done]
    meta: dict[str, Any] = {"fingerprint": opened.fingerprint}
    meta["scales"] = _scales(index, arrays["scores"], arrays["queries"])
    index.put_artifact(ANCHORS, meta, arrays)
    index = index.for_scorer(opened.fingerprint)
    count, prior = len(index.anchor_queries), stored_prior(index)
    # A prior that was fitted to past searches is better than one of few anchors.
    enough = prior is None or not prior.from_searches or count >= TEACHING_ANCHORS
    if enough and count > 1 and index.vectors:
        try:
            fit_prior(index)
        except InputError as error:  # such as queries that have no vectors
            logger.warning("kriging's prior was not fitted to the anchors: %s", error)
    return report


def check_texts(queries: Texts) -> list[str]:
    """The different texts of a container of queries; `InputError` if there are none."""
    if isinstance(queries, str):
        raise InputError("the queries must be a list of texts, not one text")
    return list(dict.fromkeys(query_set(queries).texts))


def _current_rows(index: ItemIndex, own: str | None) -> Artifact | None:
    """Return this cross-encoder's current anchors, including those that other processes added."""
    rows = index.newest("artifacts", ANCHORS)
    if rows is None or rows.meta["fingerprint"] != own:
        return None
    if own is None:
        raise InputError("the anchors belong to a cross-encoder without a name: name this one")
    return rows


def _scales(
    index: ItemIndex, rows: FloatArray, queries: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Return the parameters (alpha, beta) of `Scale` for each of the index's unfitted vectors, and
    as "center" those that only subtract the mean."""
    mean, std = _moments(np.asarray(row) for row in rows)
    scales = {"center": (mean, 1.0)}
    for name in (name for name in index.vectors if name not in index.fitted):
        try:
            vectors = index.query_vectors(Queries(queries), name)
        except InputError as error:
            logger.info("no scale for the vectors %s: %s", name, error)
            continue
        items = index.vectors[name]
        starts = range(0, len(items), _CHUNK)
        center, spread = _moments(vectors @ items[start : start + _CHUNK].T for start in starts)
        if std > 0 and spread > 0:
            beta = spread / std
            scales[name] = mean - center / beta, beta
    return scales


def _moments(parts: Iterable[FloatArray]) -> tuple[float, float]:
    """Mean and standard deviation of values given in portions."""
    each = [(p.size, p.mean(dtype=np.float64), p.var(dtype=np.float64)) for p in parts]
    sizes, means, variances = np.transpose(each)
    mean = np.average(means, weights=sizes)
    return float(mean), math.sqrt(np.average(variances + (means - mean) ** 2, weights=sizes))
