"""Rows of exact scores as artifacts of an index: R_anc, and items in the query's place.

The scores are collected into the index's store, where every search and fit finds them. Complete
rows become the artifacts "anchors" (ANNCUR and ADACUR; Yadav et al. 2022, 2.2) and "item_scores"
(itemCUR and fixedITEM, A.2 and 3.4), arrays that are mapped when the index is opened.

Axes: k_q anchor queries, a items in the query's place, n items.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.queries import item_as_query
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.scorers import as_scorer
from crossknn.scorers.base import Scorer
from crossknn.scores.collect import CollectReport, Limits, collect, fingerprint_of
from crossknn.types import Artifact, FloatArray, IntArray, Progress, Queries

logger = logging.getLogger(__name__)

ANCHORS, ITEM_SCORES = "anchors", "item_scores"
N_ITEM_SCORES = 500
_CHUNK = 8_192


def collect_anchors(
    index: ItemIndex,
    scorer: Any,
    queries: Sequence[str],
    *,
    limits: Limits | None = None,
    replace: bool = False,
    source: str | Path | Callable[[], Scorer] | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score train queries against every item, and keep the complete rows as anchors.

    Args:
        queries: texts (k_q,); they cost k_q * n calls, less what the store has.
        replace: drop anchors that another cross-encoder has scored.
        limits, source, progress: as for `crossknn.scores.collect.collect`.

    Anchors that are there stay. Returns what was collected; stopped, the same call goes on. Raises
    what `collect` does, and InputError for anchors of another cross-encoder.
    """
    texts, opened = check_texts(queries, "anchor"), as_scorer(scorer)
    return _collect_rows(index, opened, ANCHORS, texts, limits, replace, source, progress)


def collect_item_scores(
    index: ItemIndex,
    scorer: Any,
    positions: IntArray | None = None,
    *,
    limits: Limits | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> CollectReport:
    """Score items (a,), put in the query's place, against every item.

    `positions` are the first 500 of the index's `anchor_items` by default; else as
    `collect_anchors`.
    """
    chosen = index.anchor_items[:N_ITEM_SCORES] if positions is None else positions
    texts = [item_as_query(index.items.texts[int(position)]) for position in chosen]
    return _collect_rows(
        index, as_scorer(scorer), ITEM_SCORES, texts, limits, replace, None, progress, chosen
    )


def check_texts(queries: Sequence[str], kind: str) -> list[str]:
    """The different texts; InputError if these are not a list of texts."""
    if (
        isinstance(queries, str)
        or not isinstance(queries, Sequence)
        or not all(isinstance(query, str) and query.strip() for query in queries)
    ):
        raise InputError(f"{kind} queries must be a list of texts that are not empty")
    return list(dict.fromkeys(queries))


def fit_scales(index: ItemIndex) -> None:
    """Fit the scales of the index's own vectors to the anchors, where there are any.

    A scale brings exact scores to the mean and standard deviation of inner products (AXN A.2).
    Vectors that the queries have none beside get no scale.
    """
    known = index.artifacts.get(ANCHORS)
    if known is not None:
        rows, texts = known.arrays["scores"], list(known.arrays["queries"])
        scales = {"scales": _scales(index, rows, texts)}
        index.put_artifact(ANCHORS, {**known.meta, **scales}, known.arrays)


def _collect_rows(
    index: ItemIndex,
    scorer: Scorer,
    name: str,
    texts: Sequence[str],
    limits: Limits | None,
    replace: bool,
    source: str | Path | Callable[[], Scorer] | None,
    progress: Progress | None,
    positions: IntArray | None = None,
) -> CollectReport:
    if not len(texts):
        raise InputError("there are no texts to score the items against")
    items, fingerprint = index.items.texts, fingerprint_of(scorer, index.scores)
    _known_rows(index, name, scorer, replace)
    report = collect(
        index.scores, scorer, texts, items, limits=limits, source=source, progress=progress
    )
    known = _known_rows(index, name, scorer, replace)  # others may have added to them
    place = {text: row for row, text in enumerate(texts)}
    own = [] if known is None else list(known.arrays["queries"])
    new = [text for text in place if text not in set(own)]
    rows = index.scores.rows(fingerprint, new, items)
    done = np.flatnonzero(~np.isnan(rows).any(axis=1)).tolist()
    if not done:
        return report
    arrays: dict[str, Any] = {
        "queries": [*own, *(new[row] for row in done)],
        "scores": rows[done] if known is None else np.vstack([known.arrays["scores"], rows[done]]),
    }
    meta: dict[str, Any] = {"fingerprint": scorer.fingerprint}
    if positions is None:
        meta["scales"] = _scales(index, arrays["scores"], arrays["queries"])
    else:
        added = np.array([int(positions[place[new[row]]]) for row in done], np.int64)
        before = [] if known is None else [known.arrays["items"]]
        arrays["items"] = np.concatenate([*before, added])
    index.put_artifact(name, meta, arrays)
    return report


def _known_rows(index: ItemIndex, name: str, scorer: Scorer, replace: bool) -> Artifact | None:
    """The rows there are now, also those of other processes; InputError if they are of another."""
    fresh = index if index.folder is None else ItemIndex.load(index.folder)
    known = fresh.artifacts.get(name)
    if known is None or (replace and known.meta["fingerprint"] != scorer.fingerprint):
        return None
    old, new = known.meta["fingerprint"], scorer.fingerprint
    if old is not None and old == new:
        return known
    discard = "discard them with replace=True (--replace)"
    if old is None or new is None:
        raise InputError(
            "the scores in the index cannot be told from those of another cross-encoder, because a "
            f"scorer has no fingerprint: name the scorer, or {discard}"
        )
    raise InputError(
        f"the scores in the index are of another cross-encoder ({old}, not {new}); {discard}, or "
        "use an index of its own"
    )


def _scales(
    index: ItemIndex, rows: FloatArray, queries: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """(alpha, beta) by name of the index's own vectors; "center" only centers."""
    mean, std = _moments(np.asarray(row) for row in rows)
    found = {"center": (mean, 1.0)}
    for name in index.vectors:
        if name in index.fitted:
            continue
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
            found[name] = mean - center / beta, beta
    return found


def _moments(parts: Iterable[FloatArray]) -> tuple[float, float]:
    """Mean and standard deviation of values that come in parts."""
    count, total, squares, shift = 0, 0.0, 0.0, None
    for part in parts:
        values = np.asarray(part, np.float64)
        shift = float(values.mean()) if shift is None else shift  # so that nothing cancels
        count += values.size
        total += float((values - shift).sum())
        squares += float(((values - shift) ** 2).sum())
    mean = total / count
    return (shift or 0.0) + mean, math.sqrt(max(squares / count - mean**2, 0.0))
