"""What some methods need of an index, and the sentence when it is not there."""

from __future__ import annotations

from collections.abc import Collection

from crossknn.errors import InputError
from crossknn.indexes.base import Anchors, Index, ItemScores
from crossknn.indexes.stages import default_vectors
from crossknn.predictors.scaled import BY_INDEX, Normalize


def anchors(index: Index, method: str) -> Anchors:
    """The exact scores of anchor queries."""
    if index.anchors is None or not len(index.anchors.scores):
        raise InputError(
            f"{method} needs the scores of anchor queries, and there are none here: add them with  "
            "crossknn index ... --anchors QUERIES  (in a matrix file: the key n_anchors)"
        )
    return index.anchors


def item_scores(index: Index, method: str) -> ItemScores:
    """Item x item scores."""
    if index.item_scores is None:
        raise InputError(
            f"{method} needs item x item scores, and there are none here: add them with  crossknn "
            "index ... --item-scores N  (in a matrix file: the keys item_scores, item_score_items)"
        )
    return index.item_scores


def scale(index: Index, vectors: str, normalize: Normalize) -> Collection[str]:
    """What normalizing exact scores reads: the name of the vectors whose scale is taken, if any."""
    return (default_vectors(index, vectors),) if normalize in BY_INDEX else ()
