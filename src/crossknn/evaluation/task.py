"""Measures of relevance judgements, per query: finding more of the cross-encoder's top k does not
always find more relevant items (AXN 3).

A missing value is NaN. Measures other than accuracy are computed by ir-measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.qrels import Qrels, by_position, given_qrels, judged
from crossknn.data.queries import QuerySet, own_items, without_own
from crossknn.errors import InputError
from crossknn.types import NO_ITEM, BoolArray, FloatArray, IntArray

ACCURACY, NORMALISED = "accuracy", "accuracy_normalised"

DEFAULT = ("nDCG@10", "R@10", "R@20", "R@100", "RR@10")
"""Default measures of judged queries."""

LABELLED = (ACCURACY, NORMALISED, *DEFAULT)
"""Default measures of queries with one gold item."""

WHOLE = 1000
"""Number of items of an answer that count in a measure without a cutoff, as in a TREC run."""

Rows: TypeAlias = tuple[Mapping[str, int], ...]


@dataclass(frozen=True, eq=False)
class Judgements:
    """The judgements of m queries: `rows[q]` maps item to grade, and is empty for an unjudged one.

    Items are named by their position as text, as ir-measures requires. Judged items that are not in
    the index are named `absent`; if they are relevant, they count as missed. `own` (m,) is the item
    that is the query itself, if there is one; no measure counts it (`own_items`).
    """

    rows: Rows
    absent: int = 0
    own: IntArray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def from_labels(cls, labels: IntArray) -> Judgements:
        """Make judgements from one gold item per query: positions (m,), -1 for none."""
        return cls(tuple({} if i == NO_ITEM else {str(i): 1} for i in np.asarray(labels).tolist()))

    @classmethod
    def from_qrels(
        cls,
        qrels: Qrels,
        queries: QuerySet | Sequence[str],
        item_ids: Sequence[str],
        *,
        keep_own: bool = False,
    ) -> Judgements:
        """Make judgements from `{query id: {item id: grade}}` of m queries, or of their ids.
        `keep_own` counts an item that has the query's id like any other."""
        qrels = given_qrels(qrels)
        queries = queries if isinstance(queries, QuerySet) else QuerySet(tuple(queries), ())
        judged(qrels, queries.ids)
        rows = tuple(by_position(qrels, queries.ids, item_ids))
        own = None if keep_own else own_items(queries, item_ids, qrels)
        absent = sum(not item.isdigit() for row in rows for item in row)
        return cls(rows, absent, own if own is not None and (own != NO_ITEM).any() else None)

    def take(self, rows: Sequence[int]) -> Judgements:
        """Return the judgements of the given queries."""
        own = None if self.own is None else self.own[rows]
        return Judgements(tuple(self.rows[q] for q in rows), self.absent, own)

    def seen(self, items: IntArray, start: int = 0) -> IntArray:
        """Return answers (r, c) of the queries from `start` on, without the queries' own items."""
        return items if self.own is None else without_own(items, self.own[start:][: len(items)])

    @property
    def unjudged(self) -> int:
        """Return how many queries have no judgements; every measure leaves them out."""
        return sum(not row for row in self.rows)

    def notes(self) -> list[str]:
        """List the limits of the judgements: numbers of missing queries and items."""
        left_out = "queries have no judgements and are left out of the task's measures"
        missed = "judged items are not among the items; relevant ones count as missed"
        own = 0 if self.own is None else int((self.own != NO_ITEM).sum())
        itself = "queries have the id of an item, which is left out of their answers"
        notes = {
            f"{own} of {len(self)} {itself}": own,
            f"{self.unjudged} of {len(self)} {left_out}": self.unjudged,
            f"{self.absent} {missed}": self.absent,
        }
        return [note for note, count in notes.items() if count]


def measure_names(text: str) -> list[str]:
    """Split names of measures at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


class TaskMeasures:
    """Measures by name (`accuracy`, `accuracy_normalised`, and those of ir-measures), per query.

    Accuracy is 1 if the best item is relevant. Normalised accuracy leaves out (NaN) queries with no
    relevant item among the scored ones, which no reranking could answer (CMC, table 2).
    """

    def __init__(self, judgements: Judgements, names: Sequence[str] = DEFAULT) -> None:
        if not names:
            raise InputError(f"no measure is given; known are {', '.join(LABELLED)}")
        self.judgements = judgements
        own = (ACCURACY, NORMALISED)
        parsed = [name if name in own else _parse(name) for name in dict.fromkeys(names)]
        self._measures = [measure for measure in parsed if not isinstance(measure, str)]
        self.names = tuple(map(str, parsed))
        """The measures' names, as ir-measures spells them."""

    @property
    def depth(self) -> int:
        """Number of items of each answer that the measures see, including the query's own."""
        cutoffs = (int(m.params.get("cutoff", WHOLE)) for m in self._measures)
        return max(cutoffs, default=1) + (self.judgements.own is not None)

    def values(
        self, items: IntArray, scored: IntArray | None = None, *, start: int = 0
    ) -> dict[str, FloatArray]:
        """Compute each measure's values (r,), NaN if undefined, of the queries from `start` on.

        `items` are the answers (r, c), best first and padded with -1, whose order counts even where
        scores tie. `scored` (r, b) are all items with an exact score, by default the answers.
        """
        rows = self.judgements.rows[start : start + len(items)]
        items = self.judgements.seen(items, start)
        values = self._ranked(rows, items) if self._measures else {}
        judged = np.array([bool(row) for row in rows], np.bool_)
        right = _hits(rows, items[:, :1])
        reachable = _hits(rows, items if scored is None else scored)
        values[ACCURACY] = np.where(judged, right, np.nan)
        values[NORMALISED] = np.where(judged & reachable, right, np.nan)
        return {name: values[name] for name in self.names}

    def _ranked(self, rows: Rows, items: IntArray) -> dict[str, FloatArray]:
        import ir_measures

        qrels = {str(q): dict(row) for q, row in enumerate(rows) if row}
        run = {
            q: {str(i): -float(rank) for rank, i in enumerate(items[int(q)]) if i != NO_ITEM}
            for q in qrels
        }
        values = {str(m): np.full(len(items), np.nan) for m in self._measures}
        for value in ir_measures.iter_calc(self._measures, qrels, run) if qrels else ():
            values[str(value.measure)][int(value.query_id)] = value.value
        return values


def _hits(rows: Rows, items: IntArray) -> BoolArray:
    """Whether one of a query's relevant items is among the given items: (r,)."""
    both = zip(rows, items, strict=True)
    return np.array([np.isin(relevant_items(row), given).any() for row, given in both], np.bool_)


def relevant_items(row: Mapping[str, int]) -> IntArray:
    """Return the positions of a query's relevant items that are in the index."""
    return np.array([int(i) for i, grade in row.items() if grade > 0 and i.isdigit()], np.int64)


def _parse(name: str) -> Any:
    """Parse a measure of ir-measures that an installed provider can compute."""
    import ir_measures

    try:
        measure = ir_measures.parse_measure(name)
        cutoff = measure.params.get("cutoff", 1)
        if type(cutoff) is not int or cutoff < 1:  # pytrec_eval aborts the process at 0
            raise ValueError("cutoff")
        ir_measures.evaluator([measure], {"q": {"i": 1}})
    except (AssertionError, NameError, RuntimeError, SyntaxError, ValueError):
        raise InputError(
            f"unknown measure {name!r}: give names of ir-measures, with a whole cutoff "
            f"where they take one (nDCG@10, R@100, RR@10, AP), or {ACCURACY}"
        ) from None
    return measure
