"""Searches of stored matrices, whose exact scores are all known: `crossknn.evaluation` drives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from crossknn.data.qrels import Qrels
from crossknn.errors import InputError
from crossknn.evaluation.compare import BATCH, Evaluation
from crossknn.evaluation.outcome import QueryBatch
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.index.base import Index
from crossknn.methods import Method
from crossknn.types import NO_ITEM, FloatArray, Queries
from crossknn_lab.rivals.oracles import WithOracles
from crossknn_lab.stored import StoredMatrix


def known_part(index: Index, queries: Queries, exact: FloatArray) -> QueryBatch:
    """Queries whose exact scores (r, n) are known, to be searched with methods or oracles."""
    return QueryBatch.scored(cast(Index, WithOracles(index, exact)), queries, exact)


def parts_of(matrix: StoredMatrix, queries: int | None = None) -> list[QueryBatch]:
    """The first `queries` test queries of a matrix, or all of them, in batches."""
    if queries is not None and queries < 1:
        raise InputError(f"queries is {queries}; it must be 1 or more")
    tests = matrix.n_tests if queries is None else min(queries, matrix.n_tests)
    stops = range(0, tests, BATCH)
    return [known_part(*matrix.rows(s, min(s + BATCH, tests))) for s in stops]


def prepared(parts: Sequence[QueryBatch], method: Method, budget: int) -> list[QueryBatch]:
    """The parts of a matrix, with what a search by kriging reads: see `StoredMatrix.prepared`."""
    made = []
    for part in parts:
        matrix: Any = part.index
        assert part.exact is not None
        made.append(known_part(matrix.prepared(method, budget), part.queries, part.exact))
    return made


def replay(
    matrix: StoredMatrix,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    seed: int = 0,
    queries: int | None = None,
    task: TaskMeasures | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of every method, budget and k, over the first `queries` test queries of a matrix."""
    evaluation = Evaluation(batches=parts_of(matrix, queries), ks=ks, seed=seed, task=task)
    for found in evaluation.outcomes(methods, budgets):
        yield from found.rows()


def judgements_of(matrix: StoredMatrix, qrels: Qrels | None = None) -> Judgements | None:
    """Of a matrix's test queries: by `qrels`, or else its own `qrels` or labels; None without any.

    Raises InputError if the matrix lacks the ids that qrels need.
    """
    first = matrix.n_anchors
    if qrels is not None:
        if matrix.item_ids is None:
            raise InputError(
                "qrels name items by id, and the matrix has no ids: it needs the key 'item_ids'"
            )
        return Judgements.from_qrels(qrels, matrix.query_ids[first:], matrix.item_ids)
    if matrix.qrels is None:
        labels = matrix.labels
        return None if labels is None else Judgements.from_labels(labels[first:])
    tests = matrix.qrels[matrix.qrels[:, 0] >= first]
    rows: list[dict[str, int]] = [{} for _ in range(matrix.n_tests)]
    for number, (query, item, grade) in enumerate(tests.tolist()):
        name = f"absent {number}" if item == NO_ITEM else str(item)
        rows[query - first][name] = grade
    return Judgements(tuple(rows), absent=int((tests[:, 1] == NO_ITEM).sum()))
