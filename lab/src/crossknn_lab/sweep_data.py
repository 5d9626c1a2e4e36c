"""Which queries of a stored matrix are anchors and which are searched: as stored, drawn, or dev."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from crossknn.errors import InputError
from crossknn.index.stored import StoredMatrix
from crossknn.types import IntArray

DEV = 3
"""One of so many anchor queries is a dev query: held out of the anchors while settings are chosen,
so that no test query has a say."""


@dataclass(frozen=True, kw_only=True)
class MatrixFile:
    """A file of stored scores and what a sweep has to know of it; `digest` is of its bytes."""

    name: str
    path: Path
    digest: str
    n_items: int
    n_anchors: int
    n_tests: int
    fitted: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> MatrixFile:
        """Load and check the file; `InputError` says what is wrong with it."""
        matrix = StoredMatrix.load(path)
        return cls(
            name=path.stem,
            path=path,
            digest=digest(path),
            n_items=matrix.scores.shape[1],
            n_anchors=matrix.n_anchors,
            n_tests=matrix.n_tests,
            fitted=tuple(matrix.fitted),
        )

    @property
    def n_dev(self) -> int:
        """How many anchor queries are held out to choose settings on; 0 if none can be."""
        return dev_queries(self.n_anchors)


def digest(path: Path) -> str:
    """What tells the content of a file from others: 128 bits."""
    with path.open("rb") as file:
        made = blake2b(digest_size=16)
        while block := file.read(1 << 20):
            made.update(block)
    return made.hexdigest()


def dev_queries(anchors: int) -> int:
    """How many of so many anchor queries are dev queries: a third, 0 if no anchor would be left."""
    return max(1, anchors // DEV) if anchors > 1 else 0


def divided(
    matrix: StoredMatrix, *, anchors: int | None = None, seed: int | None = None, dev: bool = False
) -> tuple[StoredMatrix, IntArray]:
    """The matrix with other anchors and tests, and where its queries (q',) stand in the given one.

    Args:
        matrix: The first `n_anchors` of its q queries are anchors.
        anchors: Only so many anchor queries, the first ones; all by default.
        seed: Draws which queries are anchors (as many as there were) and which are tests, and
            leaves the choice of fixed anchor items to the methods' seed; as stored by default.
        dev: The last third of the anchors are the tests, the others the anchors.

    Raises `InputError` for more anchors than there are, for dev queries of fewer than 2 anchors,
    and for anything but what is stored of a matrix with fitted vectors: these were fitted to all
    its anchors.
    """
    q, a = len(matrix.scores), matrix.n_anchors
    if anchors is not None and anchors > a:
        raise InputError(f"anchors is {anchors}, but the matrix has {a} anchor queries")
    if matrix.fitted and (dev or seed is not None or anchors not in (None, a)):
        raise InputError(own_anchors(matrix.fitted))
    order = np.arange(q) if seed is None else np.random.default_rng(seed).permutation(q)
    pool, tests = order[:a], order[a:]
    if dev:
        if not (held := dev_queries(a)):
            raise InputError(
                f"the matrix has {a} anchor queries: settings are chosen on a third of them, so "
                "that 2 are needed at least"
            )
        pool, tests = pool[:-held], pool[-held:]
    known = pool if anchors is None else pool[:anchors]
    rows = np.concatenate([known, tests])
    if len(known) == a and seed is None:
        return matrix, rows
    return _taken(matrix, rows, len(known), redrawn=seed is not None), rows


def own_anchors(fitted: Iterable[str]) -> str:
    """Why a matrix with fitted vectors is not divided."""
    return (
        f"its fitted vectors ({', '.join(fitted)}) were fitted to all its anchor queries, which "
        "therefore cannot be fewer, drawn anew, or dev queries"
    )


def _taken(matrix: StoredMatrix, rows: IntArray, n_anchors: int, *, redrawn: bool) -> StoredMatrix:
    vectors, labels = matrix.query_vectors, matrix.labels
    return replace(
        matrix,
        scores=matrix.scores[rows],
        n_anchors=n_anchors,
        query_vectors=None if vectors is None else vectors[rows],
        firsts={name: values[rows] for name, values in matrix.firsts.items()},
        query_ids=tuple(matrix.query_ids[row] for row in rows),
        anchor_items=None if redrawn else matrix.anchor_items,
        labels=None if labels is None else labels[rows],
    )
