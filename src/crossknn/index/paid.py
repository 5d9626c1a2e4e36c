"""Scores an index has paid for in advance: rows of exact scores against every item."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.marks import item_as_query
from crossknn.errors import InputError
from crossknn.index.base import Scale
from crossknn.index.dense import DenseReport, score_rows
from crossknn.index.storage import IndexReader, digest
from crossknn.index.table import Known, ScoreTable, same_scorer, unfinished
from crossknn.index.writing import IndexWriter, Rows
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs, Progress, Queries

logger = logging.getLogger(__name__)

CENTRE = "centre"
"""The name of the scale that only centres: what CUR subtracts where there are no vectors."""

_CHUNK = 8_192


@dataclass(frozen=True, eq=False)
class PaidScores:
    """Exact scores (r, n) of r texts against every item, and the cross-encoder they are of.

    `rows` (r, n) need not lie in one array before they are stored.
    `scales` are fitted on them, by name of item vectors.
    """

    texts: Sequence[str]
    rows: Rows
    fingerprint: str | None
    scales: Mapping[str, Scale] = field(default_factory=dict)

    @cached_property
    def scores(self) -> FloatArray:
        """The rows as one array."""
        return self.rows if isinstance(self.rows, np.ndarray) else np.stack(self.rows)

    def of(self, queries: Sequence[str], pairs: Pairs) -> FloatArray:
        """Scores (p,) of pairs of `queries` (q,) and the items, NaN for those that are not here."""
        rows = {text: row for row, text in enumerate(self.texts)}
        row = np.array([rows.get(text, -1) for text in queries], dtype=np.int64)[pairs.query]
        here, found = row >= 0, np.full(len(pairs), np.nan, dtype=np.float32)
        found[here] = self.scores[row[here], pairs.item[here]]
        return found

    def meta(self) -> dict[str, Any]:
        """What the manifest says of them."""
        return {
            "fingerprint": self.fingerprint,
            "scales": {name: [scale.alpha, scale.beta] for name, scale in self.scales.items()},
        }

    def write(self, writer: IndexWriter, name: str) -> None:
        """Put them on the disk as `name`."""
        writer.texts(f"{name}.texts", self.texts)
        writer.rows(f"{name}.scores", self.rows)

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

    @staticmethod
    def unfinished(work: Path, items: Sequence[str]) -> PaidScores | None:
        """What the unfinished table in `work` has of these items, NaN where unpaid."""
        found = unfinished(work)
        if found is None or found["items"] != digest(items):
            return None
        table = ScoreTable.mapped(work, found, len(items))
        return PaidScores(table.texts, table.scores, found["fingerprint"])


def pay(
    scorer: Scorer,
    wanted: Sequence[str],
    items: Sequence[str],
    *,
    before: PaidScores | None,
    work: Path | None,
    known: Iterable[Known] = (),
    max_calls: int | None = None,
    deadline: float | None = None,
    workers: int = 1,
    replace: bool = False,
    spend: Callable[[int, float], object] | None = None,
    progress: Progress | None = None,
) -> tuple[DenseReport, PaidScores | None, ScoreTable]:
    """Rows for the texts `wanted`, beside those that were there `before`.

    Nothing is paid twice: texts given twice are one row, rows of `before` are kept, `known` are
    scores that were paid elsewhere, and `work` is the folder of unfinished rows. Returns the
    report, all complete rows (None if there are no new ones), and the table they come from.
    """
    if not len(wanted):
        raise InputError("there are no texts to score the items against")
    if max_calls is not None and max_calls < 0:
        raise InputError(f"max_calls is {max_calls}; it cannot be negative")
    if workers < 1:
        raise InputError(f"workers is {workers}; it must be 1 or more")
    what = "the scores in the index"
    if before and not same_scorer(before.fingerprint, scorer.fingerprint, what, replace):
        before = None
    texts = dict.fromkeys(wanted)
    stored = set(before.texts) if before else set[str]()
    missing = [text for text in texts if text not in stored]
    table = ScoreTable.open(
        missing,
        len(items),
        folder=work if missing else None,
        items=digest(items),
        fingerprint=scorer.fingerprint,
        replace=replace,
        stored=stored,
    )
    table.fill(known)
    report = score_rows(
        table,
        scorer,
        items,
        stored=len(texts) - len(missing),
        max_calls=max_calls,
        deadline=deadline,
        workers=workers,
        spend=spend,
        progress=progress,
    )
    done = table.done().tolist()
    if not done:
        return report, None, table
    names, rows = [table.texts[r] for r in done], [table.scores[r] for r in done]
    if before:
        names, rows = [*before.texts, *names], [*before.rows, *rows]
    paid = PaidScores(names, rows if work else np.stack(rows), scorer.fingerprint)
    return report, paid, table


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
    for row in paid.rows:
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
