"""Exact search by brute force: what every method is measured against.

`dense_scores` pays every pair once. With a folder the scores lie on the disk as they come: a run
that is killed goes on where it was, other runs with the same items and cross-encoder share them,
and more queries only pay for themselves. What is left of them is small: `GroundTruth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.index.dense import score_rows
from crossknn.index.disk import alone
from crossknn.index.storage import digest
from crossknn.index.stored import StoredMatrix, read_arrays, write_arrays
from crossknn.index.table import ScoreTable
from crossknn.linalg import top_k
from crossknn.scorers._store import text_hash
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Progress

_KEYS = ("truth_items", "truth_scores", "truth_queries", "items_digest", "scorer")


def dense_scores(
    scorer: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    progress: Progress | None = None,
    *,
    workers: int = 1,
    folder: Path | None = None,
) -> FloatArray:
    """Exact scores of every query with every item: (m, n) float32, mapped if there is a `folder`.

    `workers` threads share the scorer: one that computes in one thread uses as many cores. Texts
    that are there twice are paid once. Without a folder, a cache around the scorer lets an
    interrupted run go on. Raises ScorerError if a pair cannot be scored: without it there is no
    exact search to compare with; InputError if the folder holds scores of another cross-encoder,
    or another process is filling it.
    """
    texts = list(dict.fromkeys(queries))
    with alone(folder):
        table = ScoreTable.open(
            texts,
            len(items),
            folder=folder,
            items=digest(items),
            fingerprint=scorer.fingerprint,
            replace=False,
        )
        report = score_rows(table, scorer, items, workers=workers, progress=progress)
    scores = table.scores[: len(texts)]
    if not report.complete:
        row = next(row for row in range(len(texts)) if np.isnan(scores[row]).any())
        q, item = queries.index(texts[row]), int(np.flatnonzero(np.isnan(scores[row]))[0])
        raise ScorerError(
            f"query {q} and item {item} could not be scored, so exact search is not known"
        )
    if len(texts) < len(queries):
        row_of = {text: row for row, text in enumerate(texts)}
        scores = scores[[row_of[text] for text in queries]]
    scores.flags.writeable = False
    return scores


@dataclass(frozen=True, eq=False, kw_only=True)
class GroundTruth:
    """The exact top `k` of m queries: `items` (m, k) by position, best first, and `scores` (m, k).

    `queries` (m) are names that tell the queries: hashes of their texts, or a stored matrix's ids.
    `items_digest` and `scorer` say what it is of, empty where that is not known.
    """

    items: IntArray
    scores: FloatArray
    queries: tuple[str, ...]
    items_digest: str = ""
    scorer: str = ""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def k(self) -> int:
        """How deep it is."""
        return self.items.shape[1]

    def top(self, k: int) -> IntArray:
        """The exact top k: (m, k). Raises InputError if it is not as deep."""
        if not 1 <= k <= self.k:
            raise InputError(
                f"k is {k}, and the ground truth holds the {self.k} best items of each query"
            )
        return self.items[:, :k]

    @classmethod
    def of_scores(
        cls,
        scores: FloatArray,
        k: int,
        *,
        queries: Sequence[str],
        items: Sequence[str],
        scorer: str | None,
    ) -> GroundTruth:
        """Of dense scores (m, n), row by row; `queries` and `items` are the texts.

        `scorer` is the cross-encoder's fingerprint. Ties by position.
        """
        best = top_k(scores, k)
        return cls(
            items=best.items,
            scores=best.scores,
            queries=tuple(text_hash(text).hex() for text in queries),
            items_digest=digest(items),
            scorer=scorer or "",
        )

    @classmethod
    def of_matrix(cls, matrix: StoredMatrix, k: int) -> GroundTruth:
        """Of a stored matrix's test queries, named by their ids."""
        best = top_k(matrix.scores[matrix.n_anchors :], k)
        ids = matrix.query_ids[matrix.n_anchors :]
        return cls(items=best.items, scores=best.scores, queries=ids)

    def of(self, queries: Sequence[str], items: Sequence[str], scorer: str | None) -> GroundTruth:
        """The part of these query texts, in their order.

        Raises InputError if it is of other items or of another cross-encoder, or lacks a query.
        """
        if self.items_digest != digest(items):
            raise InputError("the ground truth is of other items: make it again for these")
        if not scorer or self.scorer != scorer:
            raise InputError(
                f"the ground truth is of another cross-encoder ({self.scorer or 'unnamed'}, not "
                f"{scorer or 'unnamed'}): make it again with this one"
            )
        rows = {name: row for row, name in enumerate(self.queries)}
        names = tuple(text_hash(text).hex() for text in queries)
        lacking = [text for text, name in zip(queries, names, strict=True) if name not in rows]
        if lacking:
            raise InputError(
                f"the ground truth lacks {len(lacking)} of {len(queries)} queries, the first of "
                f"them {lacking[0][:60]!r}"
            )
        chosen = [rows[name] for name in names]
        return GroundTruth(
            items=self.items[chosen],
            scores=self.scores[chosen],
            queries=names,
            items_digest=self.items_digest,
            scorer=self.scorer,
        )

    def save(self, path: str | Path) -> None:
        """Write an `.npz` file in one step."""
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"{path}: the name of a ground truth must end in .npz")
        values = (self.items, self.scores, self.queries, self.items_digest, self.scorer)
        arrays = {key: np.asarray(value) for key, value in zip(_KEYS, values, strict=True)}
        write_arrays(path, arrays, by=path.with_name(path.name + ".part"))

    @classmethod
    def load(cls, path: str | Path) -> GroundTruth:
        """Read a file that `save` has written; `InputError` if it is something else."""
        arrays = read_arrays(path)
        if not set(_KEYS) <= set(arrays):
            raise InputError(f"{path} holds no ground truth; it has the keys {', '.join(arrays)}")
        items, scores, queries = (arrays[key] for key in _KEYS[:3])
        if items.ndim != 2 or items.shape != scores.shape or len(queries) != len(items):
            raise InputError(
                f"{path} is damaged: items {items.shape}, scores {scores.shape} and "
                f"{len(queries)} queries do not fit"
            )
        return cls(
            items=items.astype(np.int64),
            scores=scores.astype(np.float32),
            queries=tuple(map(str, queries)),
            items_digest=str(arrays["items_digest"]),
            scorer=str(arrays["scorer"]),
        )


def brute_force(
    scorer: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    k: int,
    progress: Progress | None = None,
    *,
    workers: int = 1,
    folder: Path | None = None,
) -> GroundTruth:
    """The exact top k of the queries, every pair of them and the items paid once.

    For `workers`, `folder` and what it raises see `dense_scores`.
    """
    scores = dense_scores(scorer, queries, items, progress, workers=workers, folder=folder)
    return GroundTruth.of_scores(scores, k, queries=queries, items=items, scorer=scorer.fingerprint)
