"""Approximate search by inner product: faiss finds candidates, and exact vectors rescore them.

An inverted file with product quantization (Jegou et al. 2011): items are in 4 sqrt(n) lists by
their nearest centroid, each pair of vector components in four bits (fast table lookups, Andre et
al. 2017). `lab/benchmarks/codes.py` at 8a8705d compares other kinds of indexes. The folder
`nearest-<vectors>` may be deleted. Axes: m queries, n items, c candidates, d dimensions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn import files
from crossknn.errors import IndexFormatError, InputError, needs_extra
from crossknn.linalg import inner
from crossknn.retrievers.base import WHOLE
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, Mask, Progress

logger = logging.getLogger(__name__)

LARGE = 200_000
"""The command line builds an approximate index by default from this many items on."""

PROBES, READ, SCORED = 256, 64_000, 100
"""A search reads at least `PROBES` lists, and lists with `READ` items in all. If more than `SCORED`
items are excluded, it reads more in proportion, because excluded items are the best items and fill
the nearest lists."""

SURPLUS, MIN_SURPLUS = 4, 200
"""Candidates fetched per requested item, and the minimum number of additional candidates."""

CENTROIDS = 16
"""Number of different 4-bit codes; fewer items cannot train an approximate index."""

FEW = 20_000
"""If a filter allows at most this many items, they are searched exactly."""

_PER_LIST, _BLOCK, _ROUNDS = 40, 65_536, 10
_MAPPED = 2**26  # bytes
_FILE, _ABOUT = "lists.faiss", "about.json"


class FaissStore:
    """Vectors (n, d) searched through faiss; a `VectorStore`."""

    def __init__(self, rows: Any, lists: Any, *, rescored: bool = True) -> None:
        """Without `rescored`, candidates keep the approximate scores of their codes."""
        self.rows, self._lists, self._rescored = rows, lists, rescored
        self.shape: tuple[int, int] = (len(rows), rows.shape[1])

    @cached_property
    def values(self) -> FloatArray | None:
        return np.asarray(self.rows) if self.shape[0] <= WHOLE else None

    def vectors(self, items: IntArray) -> FloatArray:
        """See `VectorStore.vectors`."""
        rows: FloatArray = self.rows[items.ravel()]
        return rows.reshape(*items.shape, self.shape[1])

    def top(
        self, vectors: FloatArray, count: int, exclude: IntArray | None = None, allowed: Mask = None
    ) -> Candidates:
        """See `VectorStore.top`; approximate unless the filter allows only a few items."""
        import faiss

        m, n = len(vectors), self.shape[0]
        if allowed is not None and (few := np.flatnonzero(allowed[:])).size <= FEW:
            return self._best(vectors, count, np.tile(few, (m, 1)), None, exclude)
        n_excluded = 0 if exclude is None else exclude.shape[1]
        surplus = max(SURPLUS * count, count + MIN_SURPLUS) if self._rescored else count
        wanted, n_lists = min(surplus + n_excluded, n), self._lists.nlist
        share = 1.0 if allowed is None else float(allowed.mean())
        read = items_read(n, n_lists, wanted, n_excluded) / share
        options: dict[str, Any] = {"nprobe": round(min(read / n, 1) * n_lists)}
        if allowed is not None:
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))  # type: ignore
        parameters = faiss.SearchParametersIVF(**options)
        scores, items = self._lists.search(_even(vectors), wanted, params=parameters)
        items = np.where(items < n, items, NO_ITEM)  # a damaged file may name others
        later = np.arange(self._lists.ntotal, n)  # items added later are searched exactly
        later = later if allowed is None else later[allowed[later]]
        items = np.hstack([items, np.tile(later, (m, 1))])
        if self._rescored:
            return self._best(vectors, count, items, None, exclude)
        scores = np.hstack([scores, inner(vectors, self.vectors(later))])
        return self._best(vectors, count, items, scores, exclude)

    def _best(
        self,
        vectors: FloatArray,
        count: int,
        items: IntArray,
        scores: FloatArray | None,
        exclude: IntArray | None,
    ) -> Candidates:
        rows = []
        for q, candidates in enumerate(items):
            kept = candidates != NO_ITEM
            if exclude is not None:
                kept &= ~np.isin(candidates, exclude[q])
            positions = candidates[kept]
            if scores is None:
                positions = np.sort(positions)  # read in the order of the file
                values = inner(vectors[q][None], self.vectors(positions))[0]
            else:
                values = scores[q][kept]
            best = np.lexsort((positions, -values))[:count]
            rows.append((positions[best], values[best]))
        return Candidates.from_rows(rows)


def items_read(n: int, lists: int, wanted: int = 0, extra: int = 0) -> float:
    """Return how many of n items to read for `wanted` items if `extra` items are excluded."""
    least = max(PROBES * n / lists, READ * max(1.0, extra / SCORED))
    return min(max(least, SURPLUS * wanted), n)


def write_lists(folder: Path, rows: Any, progress: Progress | None = None) -> None:
    """Build the lists of vectors (n, d), float32 or float16, or insert those that the lists in
    `folder` lack; `progress` is called with (items in the lists, n)."""
    with needs_extra("approximate search", "faiss"):
        import faiss

    n = len(rows)
    with files.translate_os_errors(folder, "the approximate index"):
        files.make_folder(folder)
        with files.exclusive_lock(folder, what="an approximate index"):
            files.remove_parts(folder)
            if (count := _count_listed(folder, rows)) == n:
                return
            lists = _trained(rows, faiss) if count is None else _read(folder, rows)
            for start in range(lists.ntotal, n, _BLOCK):
                lists.add(_even(rows[start : start + _BLOCK]))
                if progress is not None:
                    progress(lists.ntotal, n)
            files.write_file(folder, _FILE, faiss.serialize_index(lists).tobytes())
            files.write_file(folder, _ABOUT, json.dumps(_about(rows, n)).encode())


def _trained(rows: Any, faiss: Any) -> Any:
    n, d = len(rows), rows.shape[1]
    count = max(1, min(int(4 * np.sqrt(n)), n // _PER_LIST))
    even = d + d % 2
    lists = faiss.IndexIVFPQFastScan(
        faiss.IndexFlatIP(even), even, count, even // 2, 4, faiss.METRIC_INNER_PRODUCT
    )
    lists.cp.niter, lists.cp.seed = _ROUNDS, 0
    lists.cp.min_points_per_centroid = lists.pq.cp.min_points_per_centroid = 1
    sample = np.random.default_rng(0).permutation(n)[: _PER_LIST * count]
    lists.train(_even(rows[np.sort(sample)]))
    return lists


def open_lists(folder: Path, rows: Any) -> Any:
    """Open the lists in `folder`, memory-mapped if large; None if they are of other vectors."""
    if not files.is_file(folder.parent, f"{folder.name}/{_FILE}"):
        return None
    if _count_listed(folder, rows) is None:
        logger.warning(
            "%s is an approximate index of other vectors and is ignored: build it again with  "
            "crossknn index prepare INDEX --nearest",
            folder,
        )
        return None
    return _read(folder, rows)


def _read(folder: Path, rows: Any) -> Any:
    with needs_extra("approximate search", "faiss"):
        import faiss
    try:
        with files.open_file(folder, _FILE) as file:
            if os.fstat(file.fileno()).st_size > _MAPPED:
                lists = faiss.read_index(str(folder / _FILE), faiss.IO_FLAG_MMAP_IFC)
            else:
                lists = faiss.deserialize_index(np.frombuffer(file.read(), np.uint8))
        even = rows.shape[1] + rows.shape[1] % 2
        is_ours = type(lists) is faiss.IndexIVFPQFastScan and lists.d == even
        if not is_ours or not 0 <= lists.ntotal <= len(rows):
            raise RuntimeError("these are lists of other vectors")
        return lists
    except OSError as error:
        raise InputError(f"{folder / _FILE} cannot be read: {error.strerror}") from error
    except (RuntimeError, MemoryError) as error:
        raise IndexFormatError(
            f"{folder / _FILE} cannot be read: delete the folder {folder.name} and build it again"
        ) from error


def _about(rows: Any, count: int) -> dict[str, Any]:
    """Describe the first `count` vectors by their shape, and by a digest of 64 of them and, if they
    are in a file, its checksums."""
    some = rows[np.unique(np.linspace(0, count - 1, 64).astype(np.int64))]
    sums = [file.digest(count * some[0].nbytes) for file in getattr(rows, "files", ())]
    data = np.ascontiguousarray(some).tobytes() + "".join(sums).encode()
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return {"version": 1, "vectors": digest, "shape": [count, int(rows.shape[1])]}


def _count_listed(folder: Path, rows: Any) -> int | None:
    """Return how many of the first rows are in the lists; None if these are of other vectors."""
    if not files.is_file(folder, _FILE):
        return None
    try:
        about = files.parse_json(files.read_file(folder, _ABOUT))
        count = int(about["shape"][0])
        same = 0 < count <= len(rows) and about == _about(rows, count)
    except InputError:  # a link, or something else than a file
        raise
    except (FileNotFoundError, TypeError, LookupError, ValueError):
        return None
    return count if same else None


def _even(vectors: FloatArray) -> FloatArray:
    """Pad vectors (c, d) with a zero if d is odd, because components are coded in pairs."""
    return np.pad(vectors.astype(np.float32, copy=False), ((0, 0), (0, vectors.shape[1] % 2)))
