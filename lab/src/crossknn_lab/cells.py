"""A cell of a sweep: one method's search of one matrix's queries at one budget, by one seed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b, file_digest
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import crossknn
from crossknn.errors import CrossknnError, InputError
from crossknn.evaluation.outcome import Outcome, QueryBatch, check, outcome, truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.files import open_given, parse_json
from crossknn.methods import Method
from crossknn.types import IntArray
from crossknn_lab.replay import judgements_of, parts_of, prepared
from crossknn_lab.rivals.item_scores import ITEM_SCORES
from crossknn_lab.stored import StoredMatrix

FORMAT = 1
"""Of what `CellResult` holds and how it is computed: cells of another one are computed again."""

DEV = 3
"""One of so many anchor queries is held out as a dev query, while settings are chosen."""

# ----------------------------------------------- which queries are anchors, tests or dev queries


@dataclass(frozen=True, kw_only=True)
class MatrixFile:
    """A file of stored scores and what a sweep has to know of it; `digest` is of its bytes.

    `retrievers` and `vectors` are those that a matrix has, `fitted` the vectors that were fitted
    to its anchor queries, which can therefore not be divided otherwise.
    """

    path: Path
    digest: str
    n_items: int
    n_anchors: int
    n_tests: int
    fitted: tuple[str, ...]
    retrievers: tuple[str, ...]
    vectors: tuple[str, ...]
    items_by_items: bool

    @property
    def name(self) -> str:
        """What the matrix is called in every table."""
        return self.path.stem

    @property
    def n_dev(self) -> int:
        """How many anchor queries are held out to choose settings on; 0 if none can be."""
        return dev_queries(self.n_anchors)

    @classmethod
    def read(cls, path: Path) -> MatrixFile:
        """Load and check the file; `InputError` says what is wrong with it."""
        matrix = StoredMatrix.load(path)
        return cls(
            path=path,
            digest=digest(path),
            n_items=matrix.scores.shape[1],
            n_anchors=matrix.n_anchors,
            n_tests=matrix.n_tests,
            fitted=tuple(matrix.fitted),
            retrievers=tuple(matrix.firsts),
            vectors=tuple(matrix.spaces),
            items_by_items=ITEM_SCORES in matrix.artifacts,
        )


def digest(path: Path) -> str:
    """What tells the content of a file from others: 128 bits."""
    with open_given(path) as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def dev_queries(anchors: int) -> int:
    """How many of so many anchor queries are dev queries: a third, 0 if no anchor would be left."""
    return max(1, anchors // DEV) if anchors > 1 else 0


def divided(
    matrix: StoredMatrix, *, anchors: int | None = None, seed: int | None = None, dev: bool = False
) -> tuple[StoredMatrix, IntArray]:
    """Return the matrix with other anchors and tests, and the positions (q',) of its queries in the
    given one: with only the first `anchors` anchor queries, with anchors and tests drawn by `seed`,
    or, for `dev`, with the last third of the anchors as tests."""
    q, a = len(matrix.scores), matrix.n_anchors
    order = np.arange(q) if seed is None else np.random.default_rng(seed).permutation(q)
    pool, tests = order[:a], order[a:]
    if dev:
        held = dev_queries(a)
        pool, tests = pool[:-held], pool[-held:]
    known = pool if anchors is None else pool[:anchors]
    rows = np.concatenate([known, tests])
    if len(known) == a and seed is None:
        return matrix, rows
    vectors, labels, qrels = matrix.dense_queries, matrix.labels, matrix.qrels
    if qrels is not None:
        place = np.full(q, -1)
        place[rows] = np.arange(len(rows))
        moved = np.column_stack([place[qrels[:, 0]], qrels[:, 1:]])
        qrels = moved[moved[:, 0] >= 0]
    return replace(
        matrix,
        scores=matrix.scores[rows],
        n_anchors=len(known),
        dense_queries=None if vectors is None else vectors[rows],
        firsts={name: values[rows] for name, values in matrix.firsts.items()},
        query_ids=tuple(matrix.query_ids[row] for row in rows),
        anchor_items=matrix.anchor_items if seed is None else None,
        labels=None if labels is None else labels[rows],
        qrels=qrels,
    ), rows


# -------------------------------------------------------------------------- cells and results


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
        """Names the cell by its content: a file that is renamed, or another folder, changes nothing.

        Every option of the method counts, defaults too, and the version of crossknn.
        """
        names = ("budget", "seed", "anchors", "queries", "k", "measures", "draw", "dev")
        content = {name: getattr(self, name) for name in names} | {
            "format": FORMAT,
            "version": crossknn.__version__,
            "matrix": self.digest,
            "method": repr(self.method),
        }
        return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class CellResult:
    """What a cell found, query by query, so that no test needs the search again.

    `queries` (m,) is where they stand in the file; `rows` are the outcome's, one for each k;
    `code` is what searched (see `code`).
    """

    queries: IntArray
    outcome: Outcome
    rows: tuple[dict[str, Any], ...]
    code: str

    def as_json(self) -> str:
        """One JSON object; a value that a query lacks is null."""
        made = {
            **{name: value for name, value in vars(self.outcome).items() if name != "items"},
            "task": {
                name: [None if np.isnan(value) else value for value in values.tolist()]
                for name, values in self.outcome.task.items()
            },
            "queries": self.queries,
            "code": self.code,
            "rows": self.rows,
        }
        return json.dumps(made, separators=(",", ":"), default=lambda array: array.tolist())

    @classmethod
    def from_json(cls, text: str) -> CellResult:
        """Raises ValueError, KeyError, TypeError or AttributeError for what is no such object."""
        found = parse_json(text)
        rows = tuple(found.pop("rows"))
        queries, code = np.array(found.pop("queries"), np.int64), found.pop("code")
        found["recall"] = {int(k): np.array(v, np.float64) for k, v in found["recall"].items()}
        found["task"] = {name: np.array(v, np.float64) for name, v in found["task"].items()}
        found["calls"] = np.array(found["calls"], np.int64)
        found["seconds"] = np.array(found["seconds"], np.float64)
        made = Outcome(**found)
        by_query = (made.calls, made.seconds, *made.recall.values(), *made.task.values())
        if any(values.shape != queries.shape for values in by_query):
            raise ValueError("not every query has a value of everything")
        if {row["k"] for row in rows} != made.recall.keys():
            raise ValueError("not every k has a row")
        return cls(queries=queries, outcome=made, rows=rows, code=code)


def search(cell: Cell) -> CellResult | str:
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


def _search(cell: Cell) -> CellResult:
    data = _data(*cell.data, max(cell.k))
    task = None
    if data.judged is not None and cell.measures:
        task = TaskMeasures(data.judged, cell.measures)
    name = str(cell.method)
    parts = prepared(data.parts, cell.method, cell.budget)
    # What is computed once for all queries, an item graph for instance, is not of their seconds.
    check(parts, {name: cell.method}, cell.budget, cell.seed)
    found = outcome(
        name,
        cell.method,
        parts,
        data.truth,
        budget=cell.budget,
        ks=cell.k,
        seed=cell.seed,
        task=task,
    )
    return CellResult(queries=data.rows, outcome=found, rows=tuple(found.rows()), code=code())


@lru_cache(maxsize=1)
def code() -> str:
    """Tells the source files of methods and search from others: results rest on them.

    It is no part of a cell's key, or a new comment would cost a night. Who changes a method hears
    from the sweep that older cells are of other code.
    """
    root, lab = Path(crossknn.__file__).parent, Path(__file__).parent
    made = blake2b(digest_size=8)
    for folder in (
        *(root / name for name in ("methods", "fitting", "search", "retrievers", "index")),
        lab / "rivals",
    ):
        for file in sorted(folder.rglob("*.py")):
            made.update(file.read_bytes())
    return made.hexdigest()


@dataclass(frozen=True, eq=False)
class _Data:
    """The queries of cells that differ in method and budget only, and where they stand (m,)."""

    rows: IntArray
    parts: list[QueryBatch]
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
    parts, judged = parts_of(matrix, queries), judgements_of(matrix)
    return _Data(
        rows=rows[matrix.n_anchors :][:queries],
        parts=parts,
        truth=truth_of(parts, k),
        judged=None if judged is None else judged.take(range(len(judged))[:queries]),
    )
