"""Conditions on the fields of items, and the items that meet them.

    {"lang": "en"}                         the field is this text, number or truth value
    {"lang": ["en", "de"]}                 one of these values
    {"year": {"gte": 2020, "lt": 2024}}    between bounds: gt, gte, lt, lte
    {"lang": {"not": "en"}}                the field has not this value, or is missing
    {"lang": None}                         the field is missing, null or an empty list
    {"lang": "en", "year": 2020}           both conditions
    {"any": [FILTER, ...], "not": FILTER}  one of the filters in the list, and not the other filter

A field that is a list meets a condition if one of its entries does. Texts are compared character by
character, so dates in one ISO format sort in order. Numbers, texts and truth values never equal
each other.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from crossknn.errors import InputError, nearest
from crossknn.files import parse_json
from crossknn.index.columns import StoredRecords
from crossknn.types import BoolArray, IntArray

T = TypeVar("T")
Scalar: TypeAlias = str | bool | float
Kind: TypeAlias = Literal["text", "truth value", "number"]
FEW, MOST_FIELDS, MOST_CHARACTERS = 10_000, 64, 64
"""A folder of `FEW` items or more keeps columns of the `MOST_FIELDS` most common fields whose
distinct values take at most `MOST_CHARACTERS` per item."""
MOST_CONDITIONS, MOST_VALUES, MOST_DEPTH = 1000, 100_000, 50
"""Limits on the size of a filter; a longer filter should list values of a field instead."""
_BOUNDS = ("gt", "gte", "lt", "lte")


@dataclass(frozen=True)
class Among:
    """The field is one of these values."""

    field: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class Between:
    """The field lies within all of these bounds, numbers or texts."""

    field: str
    bounds: Mapping[str, Scalar]


@dataclass(frozen=True)
class Missing:
    """The field is missing, null or an empty list."""

    field: str


@dataclass(frozen=True)
class Group:
    """All of the conditions, any of the conditions, or the negation of one condition."""

    how: Literal["all", "any", "not"]
    parts: tuple[Condition, ...]


Leaf: TypeAlias = Among | Between | Missing
Condition: TypeAlias = Leaf | Group


def parse_filter(given: Any) -> Condition:
    """Parse a filter into a condition (syntax above); raise `InputError` if it is malformed."""
    try:
        condition = _filter(given)
        leaves = [*leaves_of(condition)]
        values = sum(len(leaf.values) for leaf, _ in leaves if isinstance(leaf, Among))
        deepest = max(depth for _, depth in leaves)
    except RecursionError:
        deepest = MOST_DEPTH + 1
    if deepest > MOST_DEPTH or len(leaves) > MOST_CONDITIONS or values > MOST_VALUES:
        raise InputError(
            f"the filter is larger than the limit of {MOST_CONDITIONS:,} conditions, "
            f"{MOST_VALUES:,} values and {MOST_DEPTH} levels: give values as a list, "
            '{"lang": ["en", "de"]}'
        )
    return condition


def leaves_of(condition: Condition, depth: int = 1) -> Iterator[tuple[Leaf, int]]:
    """Yield the conditions on one field of which a condition consists, and their depths."""
    if isinstance(condition, Group):
        for part in condition.parts:
            yield from leaves_of(part, depth + 1)
    else:
        yield condition, depth


def evaluate(
    condition: Condition,
    leaf: Callable[[Leaf], T],
    all: Callable[[Iterator[T]], T],
    any: Callable[[Iterator[T]], T],
    no: Callable[[T], T],
) -> T:
    """Evaluate a condition: `leaf` evaluates conditions on one field, the others combine values."""
    if not isinstance(condition, Group):
        return leaf(condition)
    parts = (evaluate(part, leaf, all, any, no) for part in condition.parts)
    if condition.how == "not":
        return no(next(parts))
    return all(parts) if condition.how == "all" else any(parts)


def fields_of(condition: Condition) -> list[str]:
    """Return the fields that a condition names, each once."""
    return [*dict.fromkeys(leaf.field for leaf, _ in leaves_of(condition))]


def kind_of(value: object) -> Kind | None:
    """Return the kind of a value: only values of one kind are compared; None for other values."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "truth value"
    return "number" if isinstance(value, Real) and value == value else None  # not NaN


def field_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the columns that a folder keeps of common fields (see `docs/reference/formats.md`)."""
    common = Counter(key for record in records for key in record).most_common(MOST_FIELDS)
    columns, kept = dict[str, Any](), list[str]()
    for name, column in Fields(records).read([name for name, _ in common], 0).items():
        texts = {kind: [json.dumps(v) for v in run[0]] for kind, (run,) in column.runs.items()}
        if sum(map(len, chain(*texts.values()))) > MOST_CHARACTERS * len(records):
            continue
        at = f"field{len(kept)}"
        kept.append(json.dumps(name))
        columns[f"{at}.missing"] = column.missing
        for kind, [(_, ranks, rows)] in column.runs.items():
            prefix = f"{at}.{kind.split()[0]}"
            columns[f"{prefix}.values"] = texts[kind]
            columns[f"{prefix}.ranks"] = ranks.astype("<i4")
            columns[f"{prefix}.rows"] = rows.astype("<i4")
    return columns | {"fields": kept}


class Fields:
    """The fields of n records, each read into a column when a filter first uses it."""

    def __init__(self, records: Sequence[Mapping[str, object]]) -> None:
        self.records, self._stored = records, getattr(records, "columns", {})
        self._stored_names = [parse_json(name) for name in self._stored.get("fields", ())]
        self._columns = dict[str, _Column]()

    def mask(self, condition: Condition) -> BoolArray:
        """Return the mask (n,) of the records that meet the condition.

        The first condition on a field reads its column from the folder, or else all records; later
        conditions take milliseconds. (SQLite's JSON functions take 150 times as long.)
        """
        self._add(fields_of(condition))
        # Combine masks as they are computed: many masks (n,) would not fit into memory.
        return evaluate(
            condition,
            lambda leaf: self._columns[leaf.field].mask(leaf),
            all=partial(reduce, np.logical_and),
            any=partial(reduce, np.logical_or),
            no=np.logical_not,
        )

    def groups(self, name: str) -> IntArray:
        """Return the position (n,) of the first record with the same value of a field as each
        record, which is its own if it has no value."""
        self._add([name], "group_by")
        column, of, known = self._columns[name], np.full(len(self.records), -1), dict[Any, int]()
        for kind, runs in column.runs.items():
            for values, ranks, rows in runs:
                numbers = [known.setdefault((kind, value), len(known)) for value in values]
                if len(rows) > len(np.unique(rows)) or (of[rows] >= 0).any():
                    raise InputError(
                        f"group_by names {name!r}, but an item has several values of it: give a "
                        "field with one value per item"
                    )
                of[rows] = np.array(numbers)[ranks]
        alone = np.flatnonzero(of < 0)
        if not column.missing[alone].all():
            raise InputError(f"group_by names {name!r}, but there is an object among its values")
        of[alone] = len(known) + np.arange(len(alone))
        _, first, number = np.unique(of, return_index=True, return_inverse=True)
        return first[number]

    def _add(self, names: Iterable[str], who: str = "the filter") -> None:
        new = [name for name in names if name not in self._columns]
        stored = {name: self._open(name) for name in new if name in self._stored_names}
        rest = [name for name in new if name not in stored]
        self._columns |= stored | self.read(rest, 0, who)

    def _open(self, name: str) -> _Column:
        at, stored = f"field{self._stored_names.index(name)}", self._stored
        missing = stored[f"{at}.missing"]
        column = self.read([name], len(missing))[name]
        column.missing[: len(missing)] = missing
        for kind in get_args(Kind):
            if (prefix := f"{at}.{kind.split()[0]}") + ".ranks" in stored:
                values = StoredRecords(stored[f"{prefix}.values"], objects=False)
                run = values, stored[f"{prefix}.ranks"], stored[f"{prefix}.rows"]
                column.runs.setdefault(kind, []).insert(0, run)
        return column

    def read(self, names: Sequence[str], start: int, who: str = "the filter") -> dict[str, _Column]:
        if not names:
            return {}
        columns = {name: _Column(name, len(self.records)) for name in names}
        later = (self.records[row] for row in range(start, len(self.records)))
        for row, record in enumerate(later if start else self.records, start):
            for name, column in columns.items():
                if (value := record.get(name)) is not None:
                    column.add(row, value)
        for name, column in columns.items():
            is_empty = not start and column.missing.all()
            if is_empty and not any(name in record for record in self.records):
                names_there = {key for record in self.records for key in record}
                hint = "they have only ids, titles and texts"
                hint = nearest(name, names_there) if names_there else hint
                raise InputError(f"{who} names {name!r}, but no item has this field ({hint})")
            column.sort()
        return columns


class _Column:
    """A field of n records. For each kind of value, `runs` holds (distinct values in ascending
    order, rank (p,) of each occurrence, row (p,) of each occurrence): one for the items in the
    folder, one for later items."""

    def __init__(self, name: str, n: int) -> None:
        self.name, self.missing = name, np.ones(n, np.bool_)
        self.runs: dict[Kind, list[tuple[Sequence[Any], IntArray, IntArray]]] = {}
        self._values: dict[Kind, tuple[list[Any], list[int]]] = {}

    def add(self, row: int, value: Any) -> None:
        for entry in value if isinstance(value, list | tuple) else (value,):
            self.missing[row] = False
            if (kind := kind_of(entry)) is not None:
                values, rows = self._values.setdefault(kind, ([], []))
                values.append(entry)
                rows.append(row)

    def sort(self) -> None:
        """Replace the values by their ranks among the distinct values."""
        for kind, (values, rows) in self._values.items():
            distinct = sorted(set(values))
            rank = {value: position for position, value in enumerate(distinct)}
            ranks = np.fromiter(map(rank.__getitem__, values), np.int64, len(values))
            self.runs[kind] = [(distinct, ranks, np.array(rows, np.int64))]
        self._values = {}

    def mask(self, leaf: Leaf) -> BoolArray:
        if isinstance(leaf, Missing):
            return self.missing.copy()
        met = np.zeros(len(self.missing), np.bool_)
        compared: dict[Kind | None, list[Any]] = {}
        for value in leaf.values if isinstance(leaf, Among) else leaf.bounds.values():
            compared.setdefault(kind_of(value), []).append(value)
        for kind, values in compared.items():
            if kind not in self.runs:
                held = [f"{kind}s such as {runs[0][0][0]!r}" for kind, runs in self.runs.items()]
                raise InputError(
                    f"the filter compares the field {self.name!r} with the {kind} "
                    f"{values[0]!r}, but its values are "
                    f"{' and '.join(held) or 'nothing that can be compared'}"
                )
            for distinct, ranks, rows in self.runs[kind]:
                wanted = np.zeros(len(distinct), np.bool_)
                for start, stop in _ranges(leaf, distinct, values):
                    wanted[start:stop] = True
                met[rows[wanted[ranks]]] = True
        return met


def _ranges(
    leaf: Among | Between, distinct: Sequence[Any], values: list[Any]
) -> Sequence[tuple[int, int]]:
    """The ranges [start, stop) of the distinct values that meet the condition."""
    if isinstance(leaf, Among):
        wanted = {*values}
        if 16 * len(wanted) > len(distinct):  # comparing each is faster than so many bisections
            return [(place, place + 1) for place, v in enumerate(distinct) if v in wanted]
        return [(bisect_left(distinct, v), bisect_right(distinct, v)) for v in wanted]
    start, stop = 0, len(distinct)
    for bound, value in leaf.bounds.items():
        place = (bisect_left if bound in ("gte", "lt") else bisect_right)(distinct, value)
        start, stop = (max(start, place), stop) if bound[0] == "g" else (start, min(stop, place))
    return [(start, stop)]


def _filter(given: Any) -> Condition:
    if not isinstance(given, Mapping) or not given:
        raise InputError(
            f"{given!r:.80} is not a filter: give conditions, such as {{'lang': 'en'}}"
        )
    parts = list[Condition]()
    for name, asked in given.items():
        if not isinstance(name, str) or "\0" in name:
            raise InputError(f"the filter names the field {name!r}: names of fields must be texts")
        if name == "any":
            if not isinstance(asked, list | tuple) or not asked:
                raise InputError(f"the filter's 'any' is {asked!r:.80}; give a list of filters")
            parts.append(Group("any", tuple(map(_filter, asked))))
        elif name == "not":
            parts.append(Group("not", (_filter(asked),)))
        else:
            parts.append(_condition(name, asked))
    return parts[0] if len(parts) == 1 else Group("all", tuple(parts))


def _condition(name: str, asked: Any) -> Condition:
    if isinstance(asked, Mapping):
        if [*asked] == ["not"]:
            return Group("not", (_condition(name, asked["not"]),))
        kinds = {kind_of(value) for value in asked.values()}
        if asked and set(asked) <= {*_BOUNDS} and kinds in ({"number"}, {"text"}):
            return Between(name, {bound: _plain(asked[bound], name) for bound in asked})
        raise InputError(
            f"the filter asks {asked!r:.80} of {name!r}: give {', '.join(_BOUNDS)} with "
            "numbers or texts, or not"
        )
    values = asked if isinstance(asked, list | tuple) else [asked]
    if not values or any(value is not None and kind_of(value) is None for value in values):
        raise InputError(
            f"the filter asks {asked!r:.80} of {name!r}: give a text, a number, true, false, null "
            "or a list of them"
        )
    scalars = tuple(_plain(value, name) for value in values if value is not None)
    parts: list[Condition] = [Among(name, scalars)] if scalars else []
    parts += [Missing(name)] if len(scalars) < len(values) else []
    return parts[0] if len(parts) == 1 else Group("any", tuple(parts))


def _plain(value: Any, field: str) -> Scalar:
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        if isinstance(plain, str):
            is_valid = not any("\ud800" <= c <= "\udfff" or c == "\0" for c in plain)
        else:
            plain = plain if isinstance(plain, int) else float(plain)
            is_valid = math.isfinite(plain)
    except OverflowError:
        is_valid = False
    if not is_valid:
        raise InputError(
            f"the filter compares {field!r} with what no store holds: give a number up to 1e308, "
            "or a text without NUL and without half a surrogate pair"
        )
    return plain
