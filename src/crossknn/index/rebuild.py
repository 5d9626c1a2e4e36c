"""Building an index again: vectors of texts that stay, and what was fitted to them, are kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossknn.files import text_digest
from crossknn.index.encoders import RememberedModel
from crossknn.index.fitted import FittedVectors
from crossknn.retrievers.specs import unfitted
from crossknn.types import FloatArray, Progress

logger = logging.getLogger(__name__)

DUAL_ENCODER = "dense"
OF_ITEMS = ("anchors", "item_scores")
"""Artifacts that depend on the items alone: exact scores of texts with every item."""


def encode_items(
    model: RememberedModel,
    texts: Sequence[str],
    previous: Any,
    progress: Progress | None,
) -> FloatArray:
    """Vectors (n, d) of the items; of texts that `previous` has by this model, its own."""
    known, places = None, np.full(len(texts), -1)
    before = None if previous is None else previous.model_of(DUAL_ENCODER)
    if before is not None and before.fingerprint == model.fingerprint is not None:
        known = previous.vectors[DUAL_ENCODER]
        rows = {text_digest(text): row for row, text in enumerate(previous.items.texts)}
        places = np.array([rows.get(text_digest(text), -1) for text in texts])
    new = np.flatnonzero(places < 0)
    if known is None or len(new) == len(texts):
        made: FloatArray = model.get().encode_items(texts, progress)
        return made
    vectors: FloatArray = known[places]
    if len(new):
        vectors[new] = model.get().encode_items([texts[p] for p in new.tolist()], progress)
    return vectors


def keep_parts(index: Any, other: Any) -> None:
    """Keep what the index that this one replaces has, as far as it fits."""
    mine, theirs, dropped = index._parts, other._parts, dict[str, str]()
    same_items = list(index.items.ids) == list(other.items.ids) and all(
        a == b for a, b in zip(index.items.texts, other.items.texts, strict=True)
    )
    for name in theirs["late"]:
        if not same_items or name in {*index.vectors, *index.retrievers}:
            source = other.encoder_source(name) or "MODEL"
            dropped[f"states {name}"] = f"crossknn index add INDEX --late {source} --name {name}"
        else:
            mine["late"][name] = other._parts.open("late", name)
    for name, fitted in other.fitted.items():
        if (kept := _refitted(index, other, name, fitted, same_items)) is None:
            dropped[f"fitted vectors {name}"] = "crossknn fit INDEX"
        else:
            mine["fitted"][name] = kept
    for name, graph in theirs["graphs"].items():
        mine["graphs"][name] = graph
        if not same_items or not index.fits(name):
            k = theirs.meta("graphs", name)["neighbours"]
            how = f"crossknn index add INDEX --graph {k} --graph-from {name}"
            dropped[f"item graph {name}"] = how
            del mine["graphs"][name]
    base = unfitted(other)
    same_start = base is not None and base == unfitted(index) and _same_space(index, other, base)
    same_start = same_start and ("bm25" in theirs["words"]) == ("bm25" in mine["words"])
    for name, artifact in theirs["artifacts"].items():
        if same_items and (same_start or name in OF_ITEMS):
            mine["artifacts"][name] = artifact
        else:
            dropped[name] = "crossknn collect INDEX ..., or crossknn fit INDEX"
    for what, how in dropped.items():
        logger.warning(
            "dropped the %s: the items have changed, or what it was made of; make it again "
            "with  %s",
            what,
            how,
        )


def _refitted(
    index: Any, other: Any, name: str, fitted: FittedVectors, same_items: bool
) -> FittedVectors | None:
    """Fitted vectors of another index, for the items of this one; None if that cannot be."""
    base = fitted.base
    if name in index._parts["vectors"]:
        return None
    if base is not None and not _same_space(index, other, base):
        return None
    if same_items:
        return fitted
    return None if base is None else fitted.of_items(index.vectors[base])


def _same_space(index: Any, other: Any, name: str) -> bool:
    """Whether both make the same vectors `name`: by one encoder, or else the items' agree."""
    models = [index.model_of(name) for index in (index, other) if name in index.vectors]
    known = [model.fingerprint for model in models if model is not None]
    if len(known) == 2 and None not in known:
        return known[0] == known[1]
    return len(models) == 2 and np.array_equal(index.vectors[name], other.vectors[name])
