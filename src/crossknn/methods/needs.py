"""What some methods need of an index, and the sentence when it is not there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from crossknn.errors import InputError
from crossknn.index.base import Anchors, Index, ItemScores
from crossknn.index.stages import default_vectors
from crossknn.predictors.least_squares import AnchorLeastSquares
from crossknn.predictors.scaled import BY_INDEX, Normalize

Center: TypeAlias = Literal["auto", "none"]
"""What CUR subtracts from exact scores: the constant that the index knows, or nothing."""


def anchors(index: Index, method: str) -> Anchors:
    """The exact scores of anchor queries."""
    if index.anchors is None or not len(index.anchors.scores):
        raise InputError(
            f"{method} needs the scores of anchor queries, and there are none here: add them with  "
            "crossknn index ... --anchors QUERIES  (in a matrix file: the key n_anchors)"
        )
    return index.anchors


def cur(rows: Anchors, center: Center, rcond: float) -> AnchorLeastSquares:
    """CUR from the scores of `rows` against every item."""
    offset = rows.center if center == "auto" else 0.0
    return AnchorLeastSquares(rows.scores, center=offset, rcond=rcond)


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
