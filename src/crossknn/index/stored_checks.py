"""What the arrays of a score matrix must be, key by key: `crossknn.index.stored` has the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.types import NO_ITEM

_LARGEST = np.finfo(np.float32).max
_POSITIONS = ("labels", "anchor_items", "item_score_items")
_NUMBERS = ("item_vectors", "query_vectors", "first_", "item_scores")

_AXES = {
    "labels": ("queries",),
    "query_ids": ("queries",),
    "item_ids": ("items",),
    "anchor_items": ("anchor items",),
    "item_score_items": ("items in the query's place",),
    "item_scores": ("items in the query's place", "items"),
    "item_vectors": ("items", "dimensions"),
    "query_vectors": ("queries", "dimensions of the items' vectors"),
}
_AXES_OF_NAMED = {
    "item_vectors_": _AXES["item_vectors"],
    "query_vectors_": _AXES["query_vectors"],
    "first_": ("queries", "items"),
}


def check_arrays(arrays: Mapping[str, Any], path: str) -> None:
    """Raises `InputError` for what is no score matrix: one sentence with the file and the key."""
    if "scores" not in arrays and "item_scores" in arrays:
        raise InputError(
            f"{path} holds item x item scores only: add queries with  crossknn collect ... "
            "--queries FILE"
        )
    scores = arrays.get("scores", np.zeros(0))
    if scores.ndim != 2 or not scores.size:
        raise InputError(f"{path} has no matrix 'scores' of shape (queries, items)")
    if scores.dtype.kind != "f":
        raise InputError(f"{path}: 'scores' must be floating point numbers")
    _check_anchors(arrays, path)
    for key in arrays:
        _check_kind(key, arrays[key], path)
        _check_shape(key, arrays, path)
        _check_finite(key, arrays[key], path)
    _check_spaces(arrays, path)
    _check_positions(arrays, path)


def _check_anchors(arrays: Mapping[str, Any], path: str) -> None:
    given = arrays.get("n_anchors", np.array(0))
    if given.size != 1 or given.dtype.kind not in "iu":
        raise InputError(f"{path}: 'n_anchors' must be one whole number, how many rows are anchors")
    q = len(arrays["scores"])
    if not 0 <= given.item() < q:
        raise InputError(f"{path}: n_anchors is {given.item()}, with {q} queries in 'scores'")


def _check_kind(key: str, values: Any, path: str) -> None:
    if key in _POSITIONS and values.size and values.dtype.kind not in "iu":
        raise InputError(f"{path}: '{key}' holds {values.dtype}; give positions as whole numbers")
    if key.startswith(_NUMBERS) and values.dtype.kind not in "fiu":
        raise InputError(f"{path}: '{key}' holds {values.dtype}; give numbers, or leave it out")


def _check_shape(key: str, arrays: Mapping[str, Any], path: str) -> None:
    named = (axes for start, axes in _AXES_OF_NAMED.items() if key.startswith(start))
    axes = _AXES.get(key) or next(named, None)
    if axes is None:
        return
    sizes = dict(zip(("queries", "items"), arrays["scores"].shape, strict=True))
    items = arrays.get(key.replace("query_", "item_", 1))
    if items is not None and items.ndim == 2:
        sizes["dimensions of the items' vectors"] = items.shape[1]
    if "item_score_items" in arrays:
        sizes["items in the query's place"] = arrays["item_score_items"].size
    shape = arrays[key].shape
    if len(shape) != len(axes) or any(
        sizes.get(axis, size) != size for axis, size in zip(axes, shape, strict=True)
    ):
        wanted = ", ".join(f"{sizes[axis]} {axis}" if axis in sizes else axis for axis in axes)
        raise InputError(
            f"{path}: '{key}' has the shape {shape}; it must be ({wanted}): mend it, or leave it "
            "out"
        )


def _check_finite(key: str, values: Any, path: str) -> None:
    if values.dtype.kind == "f" and not (np.abs(values) <= _LARGEST).all():
        row = np.argwhere(~(np.abs(values) <= _LARGEST))[0]
        raise InputError(f"{path}: '{key}' is {values[tuple(row)]} at {tuple(map(int, row))}")


def _check_spaces(arrays: Mapping[str, Any], path: str) -> None:
    if ("item_vectors" in arrays) != ("query_vectors" in arrays):
        raise InputError(f"{path} needs both 'item_vectors' and 'query_vectors', or neither")
    for key in arrays:
        if key.startswith("query_vectors_") and key.replace("query_", "item_", 1) not in arrays:
            raise InputError(f"{path} has '{key}' but no such item vectors")


def _check_positions(arrays: Mapping[str, Any], path: str) -> None:
    n = arrays["scores"].shape[1]
    for key in ("anchor_items", "item_score_items"):
        chosen = arrays.get(key, np.zeros(0, np.int64))
        if len(np.unique(chosen)) < len(chosen) or not np.isin(chosen, np.arange(n)).all():
            raise InputError(f"{path}: '{key}' must hold positions of items, each once")
    labels = arrays.get("labels", np.zeros(0, np.int64))
    if len(wrong := labels[(labels < NO_ITEM) | (labels >= n)]):
        raise InputError(
            f"{path}: 'labels' has {wrong[0]}, which is no item: give positions of items, 0 to "
            f"{n - 1}, or {NO_ITEM} for a query without a label"
        )
