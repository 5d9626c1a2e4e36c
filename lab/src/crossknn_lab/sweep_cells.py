"""A cell of a sweep: one method's search of one matrix's queries at one budget, by one seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import crossknn
from crossknn.errors import CrossknnError, InputError
from crossknn.evaluation.replay import Outcome, Part, RecallRow, check, outcome, parts_of, truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.index.stored import StoredMatrix
from crossknn.methods import Method
from crossknn.types import IntArray
from crossknn_lab.sweep_data import digest, divided

FORMAT = 1
"""Of what `Found` holds and of how it comes about: cells of another one are computed again."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is to be searched; `draw` says whether the seed draws anchors and tests, too."""

    path: Path
    digest: str
    method: Method
    budget: int
    seed: int
    anchors: int
    queries: int
    k: tuple[int, ...]
    measures: tuple[str, ...]
    draw: bool
    dev: bool

    @property
    def data(self) -> tuple[Any, ...]:
        """What cells that are searched with the same arrays have in common."""
        drawn = self.seed if self.draw else None
        return self.path, self.digest, self.anchors, drawn, self.dev, self.queries

    @property
    def key(self) -> str:
        """Names the cell by its content: a file that is renamed, or another place, changes nothing.

        Every option of the method counts, defaults too, and the version of crossknn.
        """
        of = {
            "format": FORMAT,
            "version": crossknn.__version__,
            "matrix": self.digest,
            "method": repr(self.method),
            "budget": self.budget,
            "seed": self.seed,
            "anchors": self.anchors,
            "queries": self.queries,
            "k": self.k,
            "measures": self.measures,
            "draw": self.draw,
            "dev": self.dev,
        }
        return blake2b(json.dumps(of, sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a cell found, query by query, so that no test needs the search again.

    `queries` (m,) is where they stand in the file; `rows` are the outcome's, one for each k;
    `code` is what searched (see `code`).
    """

    queries: IntArray
    outcome: Outcome
    rows: tuple[RecallRow, ...]
    code: str

    def as_json(self) -> str:
        """One JSON object."""
        outcome = self.outcome
        made = {
            "method": outcome.method,
            "budget": outcome.budget,
            "seed": outcome.seed,
            "code": self.code,
            "queries": self.queries.tolist(),
            "recall": {str(k): values.tolist() for k, values in outcome.recall.items()},
            "calls": outcome.calls.tolist(),
            "seconds": outcome.seconds.tolist(),
            "task": {
                name: [None if np.isnan(value) else value for value in values.tolist()]
                for name, values in outcome.task.items()
            },
            "unjudged": outcome.unjudged,
            "index_calls": outcome.index_calls,
            "rows": [row.as_dict() for row in self.rows],
        }
        return json.dumps(made, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Found:
        """Raises ValueError, KeyError, TypeError or AttributeError for what is no such object."""
        found = json.loads(text)
        made = cls(
            queries=np.array(found["queries"], np.int64),
            outcome=Outcome(
                method=found["method"],
                budget=found["budget"],
                seed=found["seed"],
                recall={int(k): np.array(v, np.float64) for k, v in found["recall"].items()},
                calls=np.array(found["calls"], np.int64),
                seconds=np.array(found["seconds"], np.float64),
                task={name: np.array(v, np.float64) for name, v in found["task"].items()},
                unjudged=found["unjudged"],
                index_calls=found["index_calls"],
            ),
            rows=tuple(RecallRow(**row) for row in found["rows"]),
            code=found["code"],
        )
        of = made.outcome
        by_query = (of.calls, of.seconds, *of.recall.values(), *of.task.values())
        if any(values.shape != made.queries.shape for values in by_query):
            raise ValueError("not every query has a value of everything")
        return made


def search(cell: Cell) -> Found | str:
    """Search the cell's queries on one thread; why it cannot be searched, in a sentence.

    One thread: several cells at a time share the cores, and sums do not depend on how many do.
    """
    try:
        with threadpool_limits(1):
            return _search(cell)
    except CrossknnError as error:
        return str(error)
    except Exception as error:  # of a night's sweep, one cell
        frame = extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        return f"{type(error).__name__}: {error} ({place})"


def _search(cell: Cell) -> Found:
    data = _data(*cell.data, max(cell.k))
    task = None
    if data.judged is not None and cell.measures:
        task = TaskMeasures(data.judged, cell.measures)
    name, method = str(cell.method), cell.method
    # What is computed once for all queries, an item graph for instance, is not of their seconds.
    check(data.parts, {name: method}, cell.budget, cell.seed)
    found = outcome(
        name,
        method,
        data.parts,
        data.truth,
        budget=cell.budget,
        ks=cell.k,
        seed=cell.seed,
        task=task,
    )
    return Found(queries=data.rows, outcome=found, rows=tuple(found.rows()), code=code())


@lru_cache(maxsize=1)
def code() -> str:
    """Tells the source files of methods and search from others: what was found rests on them.

    It is no part of a cell's key, or a new comment would cost a night. Who changes a method hears
    from the sweep that older cells are of other code.
    """
    root = Path(crossknn.__file__).parent
    core = ("linalg.py", "spec.py", "types.py")
    files = [root / name for name in core]
    for package in ("search", "methods", "predictors", "retrievers", "index"):
        files += sorted((root / package).glob("*.py"))
    made = blake2b(digest_size=8)
    for file in files:
        made.update(file.read_bytes())
    return made.hexdigest()


@dataclass(frozen=True, eq=False)
class _Data:
    """The queries of cells that differ in method and budget only, and where they stand (m,)."""

    rows: IntArray
    parts: list[Part]
    truth: IntArray
    judged: Judgements | None


@lru_cache(maxsize=1)
def _matrix(path: Path, expected: str) -> StoredMatrix:
    if digest(path) != expected:
        raise InputError(f"{path} was changed while the sweep ran; run it again")
    return StoredMatrix.load(path)


@lru_cache(maxsize=1)
def _data(
    path: Path, expected: str, anchors: int, drawn: int | None, dev: bool, queries: int, k: int
) -> _Data:
    matrix, rows = divided(_matrix(path, expected), anchors=anchors, seed=drawn, dev=dev)
    parts, judged = parts_of(matrix, queries), Judgements.of_matrix(matrix)
    return _Data(
        rows=rows[matrix.n_anchors :][:queries],
        parts=parts,
        truth=truth_of(parts, k),
        judged=None if judged is None else judged.take(0, queries),
    )
