"""Numerical basics: inner products, exact top-k, least squares, and control of threads."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from crossknn.errors import IndexFormatError, InputError
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray

_CHUNK = 8_192
_SMALL = 1 << 17  # number of inner products (m x n) up to which a second thread slows a product
_lock = threading.Lock()
_inside = 0  # callers inside `one_thread`
_before: list[int] = []  # threads of each matrix library before the first caller
_calls = set[object]()  # running searches and scorings; adding and discarding are atomic
_lost = 0  # searches and scorings that ran in the parent when this process was forked


def _forked() -> None:
    global _lost
    _lost += len(_calls)
    _calls.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


LARGEST = 1e15
"""Vectors and scores above this size are refused: their products could overflow float32."""


def usable(values: FloatArray) -> BoolArray:
    """Return a mask of the numbers that are finite and at most `LARGEST` in size."""
    mask: BoolArray = np.abs(values) <= min(LARGEST, float(np.finfo(values.dtype).max))
    return mask


@contextmanager
def solvable() -> Iterator[None]:
    """Turn unsolvable equations, such as with NaN, into an `InputError`."""
    try:
        yield
    except (np.linalg.LinAlgError, ValueError) as error:
        if not isinstance(error, np.linalg.LinAlgError) and "infs or NaNs" not in str(error):
            raise
        raise InputError(
            f"equations of vectors or scores have no solution ({error}): they hold a NaN, an "
            "infinity or very large numbers; crossknn index verify finds damaged files"
        ) from error


@contextmanager
def running() -> Iterator[None]:
    """Count a search or scoring, which holds locks; `InputError` if the process was forked in one:
    a lock that another thread held at that moment is never released in the child."""
    if _lost:
        raise InputError(
            f"this process was forked while {_lost} searches or scorings ran in its parent, "
            "whose locks will never be released here: fork before the first search, or start "
            "processes with multiprocessing's method 'spawn'"
        )
    call = object()
    _calls.add(call)
    try:
        yield
    finally:
        _calls.discard(call)


@contextmanager
def one_thread(cells: int = 0) -> Iterator[None]:
    """Compute matrix products on one thread inside the context, unless `cells` (m x n) is large.

    The threads of a matrix product keep spinning for some milliseconds, which takes a core from the
    scorer: a search over 10,000 items lost a third of its time. The limit holds for the process.
    """
    global _inside, _before
    if cells > _SMALL:
        yield
        return
    with _lock:
        if not _inside:
            _before = [library.num_threads for library in _blas()]
            _set_threads([1] * len(_before))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set_threads(_before)


def _set_threads(counts: Sequence[int]) -> None:
    """Set the number of threads of each matrix library. From 3.8 on, threadpoolctl obeys only the
    thread that set it first, unless that thread gives up control."""
    for library, count in zip(_blas(), counts, strict=True):
        give_up = getattr(library, "clear_controlling_thread", lambda force: None)
        give_up(force=True)
        library.set_num_threads(count)
        give_up(force=True)


@cache
def _blas() -> list[Any]:
    """Return the matrix libraries of NumPy and SciPy."""
    import scipy.linalg
    from threadpoolctl import ThreadpoolController

    assert scipy.linalg  # imported, so that its library is found
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def inner(queries: FloatArray, items: FloatArray) -> FloatArray:
    """Compute inner products in single precision or better: (m, d) and (n, d) -> (m, n)."""
    if items.dtype != np.float16:
        return queries @ items.T
    products = np.empty((len(queries), len(items)), np.float32)
    single = queries.astype(np.float32, copy=False)
    for start in range(0, len(items), _CHUNK):
        part = slice(start, start + _CHUNK)
        np.matmul(single, items[part].astype(np.float32).T, out=products[:, part])
    return products


def top_k(scores: FloatArray, count: int, positions: IntArray | None = None) -> Candidates:
    """Return the `count` best columns of each row (m, n), best first; ties go to the lower column,
    or to the lower of `positions` (m, n). Columns at -inf are never returned, so rows may be short.

    >>> top_k(np.array([[1.0, 3.0, 3.0, 2.0]]), 3).items
    array([[1, 2, 3]])
    """
    rows = []
    for r, row in enumerate(scores):
        place = None if positions is None else positions[r]
        chosen = np.arange(min(count, len(row)))
        if 0 < count < len(row):
            threshold = np.partition(row, len(row) - count)[len(row) - count]
            above, ties = np.flatnonzero(row > threshold), np.flatnonzero(row == threshold)
            if place is not None:
                ties = ties[np.argsort(place[ties])]
            chosen = np.concatenate([above, ties[: count - len(above)]])
        chosen = chosen[row[chosen] > -np.inf]
        order = np.lexsort((chosen if place is None else place[chosen], -row[chosen]))
        chosen = chosen[order]
        rows.append((chosen, row[chosen]))
    return Candidates.from_rows(rows)


def solve_scaled(products: FloatArray, right: FloatArray) -> FloatArray:
    """Solve least squares from normal equations (..., f, f), (..., f) -> (..., f), with columns
    scaled to the same size; eigenvalues below 1e-12 of the largest are dropped.

    >>> solve_scaled(np.diag([1e-18, 1e18]), np.array([2e-18, 3e18]))
    array([2., 3.])
    """
    size = np.sqrt(np.diagonal(products, axis1=-2, axis2=-1))
    size = np.where(size > 0, size, np.inf)  # without values of a column, its weight is 0
    values, vectors = np.linalg.eigh(products / size[..., None, :] / size[..., None])
    values[values <= 1e-12 * values[..., -1:]] = np.inf
    along = np.einsum("...ji,...j->...i", vectors, right / size) / values
    solved: FloatArray = np.einsum("...ij,...j->...i", vectors, along) / size
    return solved


def mask(scores: FloatArray, exclude: IntArray | None, allowed: BoolArray | None) -> FloatArray:
    """Set `scores` (m, n) to -inf in place: at the columns `exclude` (m, e), padded with `NO_ITEM`,
    and where the mask `allowed` (n,) is false."""
    if exclude is not None and exclude.size:
        rows, columns = np.nonzero(exclude != NO_ITEM)
        scores[rows, exclude[rows, columns]] = -np.inf
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    return scores


def least_squares(vectors: FloatArray, scores: FloatArray, rcond: float) -> FloatArray:
    """Compute the minimum-norm u with vectors @ u ~ scores: (b, d), (b,) -> (d,) float64, without
    singular values below `rcond` times the largest. V'V would square the condition number."""
    u, *_ = np.linalg.lstsq(vectors.astype(np.float64), scores.astype(np.float64), rcond=rcond)
    return u


def standardised(values: FloatArray) -> FloatArray:
    """Standardise rows (..., n) to mean 0 and deviation 1; 0 where all values are equal."""
    exact = values.astype(np.float64)
    exact -= exact.mean(axis=-1, keepdims=True)
    size = exact.std(axis=-1, keepdims=True)
    some = size > 1e-6 * np.abs(values).max(axis=-1, keepdims=True, initial=0)
    exact /= np.where(some, size, np.inf)
    return exact.astype(np.float32)


def lengths(vectors: FloatArray) -> FloatArray:
    """Compute the lengths (c,) of vectors (c, d), with 1 for zero vectors."""
    lengths = np.sqrt(np.einsum("cd,cd->c", vectors, vectors))
    return np.where(lengths > 0, lengths, lengths.dtype.type(1))


def directions_of(vectors: FloatArray, dtype: type = np.float64) -> FloatArray:
    """Scale vectors (b, d) to unit length; zero vectors stay zero."""
    exact: FloatArray = vectors.astype(dtype)
    return exact / lengths(exact)[:, None]


def available_threads() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_mapped(values: Any) -> None:
    """Raise `IndexFormatError` if an array is mapped from a file that has become shorter, because
    reading it would kill the process."""
    while isinstance(values, np.ndarray):
        values = values.base
    if isinstance(values, memoryview):
        values = values.obj
    if isinstance(values, mmap.mmap) and values.size() < len(values):
        raise IndexFormatError(
            f"a file of the index was cut to {values.size():,} of {len(values):,} bytes while "
            "it was in use: build or copy the index again"
        )
