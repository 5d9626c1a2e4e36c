"""What the stored parts of an index must hold: a folder may come from a stranger, whose manifest
and files are right for each other and for nothing else.

The kinds and lengths of columns are looked at when a part is opened, by the headers of their files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from crossknn.columns import StoredArray, StoredColumns, StoredTexts
from crossknn.types import Artifact, IntArray

_COLUMNS: Mapping[str, str] = {
    "words": "terms:t idf:t:f weights:p:f items:p:iu starts:s:iu components:td:f "
    "added.counts:c:iu added.terms:q:iu added.weights:q:f",
    "vectors": "values:nd:f",
    "late": "values:sd:f starts:m:iu",
    "graphs": "neighbours:nk:iu",
    "artifacts/anchors": "queries:q scores:qN:f",
    "artifacts/item_scores": "items:q:iu scores:qN:f",
    "artifacts/kriging": "factor:Nr:f mean:N:f",
    "artifacts/calibration": "weights:3:f at:b:f chance:b:f top:e:f found:e:f",
}
"""Columns by kind, or key, of a part: name, axes, and kinds of NumPy's, without which they are
texts. n is the number of items, N perhaps of those before some were added."""

_OF_ITEMS = dict.fromkeys(("ids", "texts", "titles", "extra"), True)
_OF_ITEMS |= {"anchor_items": False, "deleted": False}
"""Whether the columns of items are texts."""

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "graphs": ("neighbours",),
    "artifacts/anchors": ("queries", "scores"),
}
"""Columns that are read without looking whether they are there."""


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _scale(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_number, value))


def _each(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_META: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "": {"fingerprint": _text, "added": _count, "queries": _count, "pairs": _count},
    "words": {
        "n": _count,
        "tokenizer": _text,
        "mean_length": lambda value: value is None or (_number(value) and value > 0),
    },
    "vectors": {
        "method": _text,
        "base": _text,
        "map": _text,
        "item_map": _text,
        "cost": _each(_number),
        "scale": lambda value: value is None or _scale(value),
    },
    "artifacts/anchors": {"scales": lambda value: _each(_scale)(value) and "center" in value},
    "artifacts/fusion": {"weights": _each(_number)},
    "artifacts/calibration": {"fusion": lambda value: isinstance(value, list)},
    "artifacts/learning": {
        "fits": lambda value: (
            isinstance(value, list) and all(isinstance(fit, dict) for fit in value)
        )
    },
}
"""What the values of `meta` must be, of every part and by kind or key."""

_MUST: Mapping[str, tuple[str, ...]] = {
    "artifacts/anchors": ("scales", "fingerprint"),
    "artifacts/fusion": ("weights", "queries"),
    "artifacts/calibration": ("fusion", "fingerprint"),
    "artifacts/learning": ("fits",),
}


def check_meta(key: str, meta: Mapping[str, Any]) -> None:
    """`ValueError` for what `meta` of the part `key` (without a cross-encoder's) must not say."""
    for kind in ("", key.partition("/")[0], key):
        for name, right in _META.get(kind, {}).items():
            if name in meta and not right(meta[name]):
                raise ValueError(f"its {name} is {str(meta[name])!r:.80}")


def check_part(key: str, part: Artifact, n: int) -> None:
    """`ValueError`, or a `LookupError`, for what the part `key` of an index of n items lacks, or
    has of another kind; parts that are in memory were checked when they were made."""
    if not isinstance(part.arrays, StoredColumns):
        return
    check_meta(key, part.meta)
    kind, columns = key.partition("/")[0], part.arrays.columns
    for name in (*_NEEDED.get(key, ()), *_NEEDED.get(kind, ())):
        columns[name]
    for name in (*_MUST.get(key, ()), *_MUST.get(kind, ())):
        part.meta[name]
    sizes = {"n": n, "3": 3} | ({} if part.meta.get("added") else {"N": n})
    for rule in (_COLUMNS.get(key) or _COLUMNS.get(kind) or "").split():
        name, axes, kinds = (*rule.split(":"), "")[:3]
        if (column := columns.get(name)) is not None:
            _check_column(name, column, axes, kinds, sizes)
    for name, column in columns.items():
        if isinstance(column, StoredArray) and column.dtype.kind not in "biuf":
            raise ValueError(f"{name} are an array of {column.dtype}")


def check_kinds(columns: Mapping[str, Any]) -> None:
    """`ValueError` unless the columns of stored items are texts and arrays, as they are to be; no
    file is read."""
    if isinstance(columns, StoredColumns):
        for name, column in columns.columns.items():
            if name in _OF_ITEMS and isinstance(column, StoredTexts) != _OF_ITEMS[name]:
                raise ValueError(f"{name} are {'numbers' if _OF_ITEMS[name] else 'texts'}")


def check_positions(values: Any, n: int) -> IntArray:
    """The array (a,); `ValueError` unless it holds positions of n items."""
    if values.ndim != 1 or values.dtype.kind not in "iu" or ((values < 0) | (values >= n)).any():
        raise ValueError(f"they are no positions of {n} items")
    found: IntArray = values
    return found


def _check_column(
    name: str, column: StoredArray | StoredTexts, axes: str, kinds: str, sizes: dict[str, int]
) -> None:
    """`ValueError` for another kind or other lengths; `sizes` gets those of axes that are new."""
    if isinstance(column, StoredTexts) == bool(kinds):
        raise ValueError(f"{name} are {'texts' if kinds else 'numbers'}")
    shape = (len(column),) if isinstance(column, StoredTexts) else column.shape
    right = len(shape) == len(axes) and all(
        sizes.setdefault(axis, size) == size for axis, size in zip(axes, shape, strict=True)
    )
    if not right or (isinstance(column, StoredArray) and column.dtype.kind not in kinds):
        what = getattr(column, "dtype", "text")
        raise ValueError(f"{name} are {what} of the shape {shape}")
