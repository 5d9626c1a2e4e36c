"""The values that a search passes between its components.

Axis letters, everywhere: m queries, n items, b scored items per query, d dimensions, p pairs.
Late interaction: c candidates per query, t states (vectors) of a text, s states of all texts.
Within a search, queries and items are numbered from 0; the index maps numbers to ids.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError

FloatArray: TypeAlias = NDArray[np.floating]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

Mask: TypeAlias = BoolArray | None
"""Mask (n,) of the items that may be returned or scored; None: all."""

LateKind = Literal["cmc", "poly", "som", "deformer", "mixencoder"]
"""The kinds of late-interaction models."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (done, total) during long operations."""

NO_ITEM = -1
"""Padding in arrays of item positions whose rows have different lengths."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """p query-item pairs: positions (p,) of the queries and of the items."""

    query: IntArray
    item: IntArray

    def __len__(self) -> int:
        return len(self.item)

    def take(self, positions: IntArray | slice) -> Pairs:
        """Select pairs at some positions (or in a slice), in this order."""
        return Pairs(self.query[positions], self.item[positions])


@dataclass(frozen=True, slots=True)
class Candidates:
    """At most c items of each query, best first.

    Args:
        items: Positions (m, c) of items; `NO_ITEM` (-1) after a query's last candidate.
        scores: Approximate scores (m, c) float32 of these items; -inf after the last candidate.
        std: Standard deviations (m, c) of these scores; None if the predictor computes none.
    """

    items: IntArray
    scores: FloatArray
    std: FloatArray | None = None

    @staticmethod
    def from_rows(rows: Sequence[tuple[IntArray, FloatArray]]) -> Candidates:
        """Make candidates from one pair (items (c,), scores (c,)) per query, best first."""
        width = max((len(items) for items, _ in rows), default=0)
        items = np.full((len(rows), width), NO_ITEM, dtype=np.int64)
        scores = np.full((len(rows), width), -np.inf, dtype=np.float32)
        for r, (row_items, row_scores) in enumerate(rows):
            items[r, : len(row_items)] = row_items
            scores[r, : len(row_items)] = row_scores
        return Candidates(items, scores)


@dataclass(frozen=True, slots=True)
class Observed:
    """The items of m queries that were scored so far, and their exact scores.

    Args:
        items, scores: Positions (m, b) of the scored items, in this order, and their exact scores.
        counts: Numbers (m,) of scored items; what follows in a row is padding.
    """

    items: IntArray
    scores: FloatArray
    counts: IntArray

    def rows(self) -> Iterator[tuple[int, IntArray, FloatArray]]:
        """Return (query, items (b,), scores (b,)) of each query with scored items."""
        for r, count in enumerate(self.counts):
            if count:
                yield r, self.items[r, :count], self.scores[r, :count]


@dataclass(frozen=True, eq=False, slots=True)
class States:
    """States of n texts: the vectors, one or several per text, that a late-interaction model
    compares. Text i has `values[starts[i] : starts[i + 1]]`; `values` (s, d) float32 or float16."""

    values: FloatArray
    starts: IntArray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> IntArray:
        """Number (n,) of states of each text."""
        return np.diff(self.starts)

    def padded(self, texts: IntArray) -> tuple[FloatArray, BoolArray]:
        """Return the states of the texts at positions (...,), none for `NO_ITEM`: values (..., t,
        d) float32, zero where the mask (..., t) is false. t is the largest number of states."""
        first = self.starts[texts]
        count = self.starts[texts + (texts != NO_ITEM)] - first
        t = max(1, int(count.max(initial=1)))
        mask = np.arange(t) < count[..., None]
        values = np.zeros((*mask.shape, self.values.shape[1]), np.float32)
        values[mask] = self.values[(first[..., None] + np.arange(t))[mask]]
        return values, mask


@dataclass(frozen=True, eq=False, slots=True)
class Artifact:
    """The result of a fit as stored in an index: metadata `meta` for JSON, and named `arrays` or
    sequences of texts, memory-mapped if the index is on disk."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, Any]

    def rows(self, name: str) -> Any:
        """Return an array whose rows are read from disk, and checked, when they are accessed."""
        return getattr(self.arrays, "data", self.arrays)[name]


@dataclass(eq=False, slots=True)
class Queries:
    """A batch of m queries.

    Args:
        texts: m texts.
        vectors, states: Vectors (m, d) and states of late-interaction models, by name, cached here
            so that each query is encoded once.
        kept: What was computed for these queries, by what computed it.
    """

    texts: Sequence[str]
    vectors: dict[str, FloatArray] = field(default_factory=dict)
    states: dict[str, States] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: IntArray) -> Queries:
        """Select queries at some positions, in this order, with their cached vectors."""
        vectors = {name: values[rows] for name, values in self.vectors.items()}
        return Queries([self.texts[row] for row in rows], vectors)

    def generator(self, query: int, seed: int) -> np.random.Generator:
        """Make a random generator from a query's text and a seed, independent of the batch."""
        return np.random.default_rng([seed, zlib.crc32(self.texts[query].encode())])


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear normalization of exact scores: `beta * (score - alpha)` (AXN A.2)."""

    alpha: float = 0.0
    beta: float = 1.0

    @classmethod
    def match(cls, scores: FloatArray, target: FloatArray) -> Scale:
        """Make the scale on which `scores` get the mean and standard deviation of `target`.

        >>> Scale.match(np.array([10.0, 14.0]), np.array([0.0, 1.0]))
        Scale(alpha=10.0, beta=0.25)
        """
        exact, wanted = np.asarray(scores, np.float64), np.asarray(target, np.float64)
        spread, aim = float(exact.std()), float(wanted.std())
        beta = aim / spread if spread > 0 and aim > 0 else 1.0
        return cls(alpha=float(exact.mean()) - float(wanted.mean()) / beta, beta=beta)


class Cache:
    """Values computed from an index, each kept as long as the objects that it was computed from
    stay the same."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}

    def get(self, key: Hashable, of: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """Return the cached value if it was made from the same objects (`of`), else make it."""
        sources, value = self._made.get(key, ((), None))
        if len(sources) != len(of) or any(a is not b for a, b in zip(sources, of, strict=True)):
            value = make()
            self._made[key] = of, value
        return cast(Value, value)


@dataclass(frozen=True, slots=True)
class Anchors:
    """R_anc: exact scores (k_q, n) of anchor (train) queries against every item (ANNCUR 2.2).
    CUR has no intercept, so methods subtract `center` first."""

    scores: FloatArray
    center: float = 0.0
    queries: Queries = field(default_factory=lambda: Queries(()))


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranked items, up to k for each of m queries: all arrays are (m, k), padded as in `PADDING`.

    `rounds` is the round (from 1) in which an item was chosen for scoring, `approx` the score
    predicted for it then (in round 1, the retriever's), and `std` its standard deviation, NaN if
    unknown. `added` are the retrievers' scores that a fusion adds to the exact `scores`. If a
    retriever ranks alone, `scores` and `approx` are its scores, and `rounds` are 0.
    """

    items: IntArray
    scores: FloatArray
    rounds: IntArray
    approx: FloatArray
    std: FloatArray
    added: FloatArray

    @classmethod
    def empty(cls, m: int, k: int = 0) -> Ranking:
        """Make a ranking (m, k) that holds only padding."""
        return cls(**{name: np.full((m, k), fill, kind) for name, (fill, kind) in PADDING.items()})

    @property
    def final(self) -> FloatArray:
        """The final scores (m, k)."""
        return self.scores + self.added

    def take(self, columns: IntArray) -> Ranking:
        """Select the items of each row at `columns` (m, k)."""
        return self._each(lambda values, _: np.take_along_axis(values, columns, axis=1))

    def where(self, kept: BoolArray) -> Ranking:
        """Keep the items where a mask (m, k) is true, and replace the others by padding."""
        return self._each(lambda values, name: np.where(kept, values, PADDING[name][0]))

    def beside(self, other: Ranking) -> Ranking:
        """Append the columns of another ranking."""
        return self._each(
            lambda values, name: np.concatenate([values, getattr(other, name)], axis=1)
        )

    def _each(self, of: Callable[[Any, str], Any]) -> Ranking:
        return Ranking(**{name: of(getattr(self, name), name) for name in PADDING})


PADDING: Mapping[str, tuple[float, type]] = {
    "items": (NO_ITEM, np.int64),
    "scores": (np.nan, np.float32),
    "rounds": (0, np.int64),
    "approx": (np.nan, np.float32),
    "std": (np.nan, np.float32),
    "added": (0.0, np.float32),
}
"""Padding and type of each array of a `Ranking`."""


Value = TypeVar("Value")


class Named(Mapping[str, Value]):
    """Values by name, each looked up on demand."""

    def __init__(self, names: Collection[str], get: Callable[[str], Value]) -> None:
        self._names, self._get = names, get

    def __getitem__(self, name: str) -> Value:
        return self._get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def as_count(value: object, name: str, least: int = 1) -> int:
    """Check that a value is an integer of at least `least`; `InputError` otherwise."""
    if not is_whole(value):
        raise InputError(f"{name} is {value!r:.80}; it must be a whole number")
    if value < least:
        raise InputError(f"{name} is {value}; it must be {least} or more")
    return int(value)


def as_positive(value: object, name: str, most: float = math.inf) -> float:
    """Check that a value is a number above 0 and at most `most`; `InputError` otherwise."""
    number = isinstance(value, int | float | np.integer | np.floating)
    if not number or isinstance(value, bool) or not 0 < value <= most:  # type: ignore[operator]
        upper = "" if most == math.inf else f", and {most:g} at most"
        raise InputError(f"{name} is {value!r:.80}; it must be above 0{upper}")
    return float(value)  # type: ignore[arg-type]


LARGEST = 10**4000
"""Upper bound of integers that are read and written: Python converts at most 4,300 digits."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy."""
    whole = isinstance(value, int | np.integer)
    return whole and not isinstance(value, bool | np.timedelta64)  # which NumPy counts as integers


def is_missing(value: object) -> bool:
    """Whether a value is null: None, NaN, NaT, `pandas.NA`, a masked entry of NumPy.

    >>> is_missing(float("nan")), is_missing(np.datetime64("NaT")), is_missing("nan"), is_missing(0)
    (True, True, False, False)
    """
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)
    if isinstance(value, Decimal):
        return value.is_nan()
    # Compare type names, so that pandas need not be imported for its two singletons.
    return value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType")


def json_value(value: object) -> Any:
    """Convert a value to JSON. Missing, infinite and too long numbers become null, sequences and
    sets lists, and other values text (dates in ISO 8601).

    >>> json_value({1: np.float32(0.5), "at": date(2020, 2, 1), "x": [float("inf"), Decimal("7")]})
    {'1': 0.5, 'at': '2020-02-01', 'x': [None, 7]}
    """
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if is_missing(value):
        return None
    if is_whole(value):
        return int(value) if abs(value) < LARGEST else None
    if isinstance(value, Decimal | float | np.floating):
        number = float(value)
        if isinstance(value, Decimal) and number.is_integer() and abs(number) < 2**63:
            return int(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping):
        return {whole_text(str(key)): json_value(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return json_value([*value] if value.ndim else value[()])
    if isinstance(value, Set):
        return [json_value(entry) for entry in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Enum):
        return json_value(value.value)
    return whole_text(value.decode(errors="replace") if isinstance(value, bytes) else str(value))


def whole_text(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can express but UTF-8 cannot.

    >>> whole_text("a \\ud800 b") == "a \\ufffd b"
    True
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(text)
