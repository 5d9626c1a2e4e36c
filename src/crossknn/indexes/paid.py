"""Scores an index has paid for in advance: rows of exact scores against every item."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.marks import item_as_query
from crossknn.errors import InputError
from crossknn.indexes.base import Scale
from crossknn.indexes.dense import (
    DenseReport,
    ScoreTable,
    same_scorer,
    score_rows,
)
from crossknn.indexes.storage import IndexReader, digest
from crossknn.indexes.writing import IndexWriter
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Progress, Queries

logger = logging.getLogger(__name__)

CENTRE = "centre"
"""The name of the scale that only centres: what CUR subtracts where there are no vectors."""

_CHUNK = 8_192


@dataclass(frozen=True, eq=False)
class PaidScores:
    """Exact scores (r, n) of r texts against every item, and the cross-encoder they are of.

    `scales` are fitted on them, by name of item vectors.
    """

    texts: Sequence[str]
    scores: FloatArray
    fingerprint: str | None
    scales: Mapping[str, Scale] = field(default_factory=dict)

    def meta(self) -> dict[str, Any]:
        """What the manifest says of them."""
        return {
            "fingerprint": self.fingerprint,
            "scales": {name: [scale.alpha, scale.beta] for name, scale in self.scales.items()},
        }

    def write(self, writer: IndexWriter, name: str) -> None:
        """Put them on the disk as `name`."""
        writer.texts(f"{name}.texts", self.texts)
        writer.array(f"{name}.scores", self.scores)

    @staticmethod
    def read(reader: IndexReader, name: str) -> PaidScores:
        """The stored scores `name`, mapped."""
        meta = reader.meta["paid"][name]
        return PaidScores(
            reader.texts(f"{name}.texts"),
            reader.array(f"{name}.scores"),
            meta["fingerprint"],
            {key: Scale(alpha, beta) for key, (alpha, beta) in meta["scales"].items()},
        )


def pay(
    scorer: Scorer,
    wanted: Sequence[str],
    items: Sequence[str],
    *,
    before: PaidScores | None,
    work: Path | None,
    max_calls: int | None,
    replace: bool,
    progress: Progress | None,
) -> tuple[DenseReport, PaidScores | None, ScoreTable]:
    """Rows for the texts `wanted`, beside those that were there `before`.

    Nothing is paid twice: texts given twice are one row, rows of `before` are kept, and `work` is
    the folder of an unfinished run. Returns the report, all complete rows (None if there are
    none), and the table, to be removed once the rows are stored.
    """
    if not len(wanted):
        raise InputError("there are no texts to score the items against")
    if max_calls is not None and max_calls < 0:
        raise InputError(f"max_calls is {max_calls}; it cannot be negative")
    known: dict[str, FloatArray] = {}
    what = "the scores in the index"
    if before and same_scorer(before.fingerprint, scorer.fingerprint, what, replace):
        known = dict(zip(before.texts, before.scores, strict=True))
    table = ScoreTable.open(
        list(dict.fromkeys([*known, *wanted])),
        len(items),
        folder=work,
        items=digest(items),
        fingerprint=scorer.fingerprint,
        replace=replace,
    )
    table.put_known(known)
    report = score_rows(table, scorer, items, max_calls=max_calls, progress=progress)
    done = table.done()
    if not len(done):
        return report, None, table
    scores = table.scores if report.complete else np.asarray(table.scores[done])
    rows = PaidScores([table.texts[r] for r in done], scores, scorer.fingerprint)
    return report, rows, table


def fit_scales(
    paid: PaidScores,
    vectors: Mapping[str, FloatArray],
    query_vectors: Callable[[Queries, str], FloatArray],
) -> PaidScores:
    """`paid` with its scales: the centre of the scores, and for each space of vectors
    `Scale.match` to its inner products.

    A space that the queries have no vectors in gets none.

    Computed from moments over slices of items, so that no second (r, n) matrix is needed.
    """
    scales = {}
    exact = _Moments()
    for row in paid.scores:
        exact.add(row)
    scales[CENTRE] = Scale(alpha=exact.mean)
    for name, items in vectors.items():
        try:
            queries = query_vectors(Queries(paid.texts), name)
        except InputError as error:
            logger.info("no scale for the vectors %s: %s", name, error)
            continue
        inner = _Moments()
        for start in range(0, len(items), _CHUNK):
            inner.add(queries @ items[start : start + _CHUNK].T)
        if exact.deviation > 0 and inner.deviation > 0:
            beta = inner.deviation / exact.deviation
            scales[name] = Scale(exact.mean - inner.mean / beta, beta)
    return dataclasses.replace(paid, scales=scales)


class _Moments:
    """Mean and standard deviation of values that come in parts."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, values: FloatArray) -> None:
        part = np.asarray(values, np.float64)
        count, mean = part.size, float(part.mean())
        step, total = mean - self.mean, self.count + count
        # Chan et al.: merging centred sums, which does not cancel as E[x^2] - E[x]^2 does.
        self._squares += float(((part - mean) ** 2).sum()) + step**2 * self.count * count / total
        self.mean += step * count / total
        self.count = total

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self._squares / self.count)) if self.count else 0.0


def positions_of(texts: Sequence[str], items: Sequence[str], among: Iterable[int]) -> IntArray:
    """Positions of the items that stand in the query's place as these texts.

    They are looked for `among` positions in that order.
    """
    wanted, found = set(texts), dict[str, int]()
    for position in among:
        if len(found) == len(wanted):
            break
        if (text := item_as_query(items[position])) in wanted:
            found.setdefault(text, position)
    return np.array([found[text] for text in texts], dtype=np.int64)
