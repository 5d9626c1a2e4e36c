"""Items whose vectors, texts and fields stay in a database.

A search identifies items by position, so all ids are read once; later items appear once the store
is opened again. Vectors are cached, because every round needs those of all items scored so far.
Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from crossknn.data.items import Items
from crossknn.errors import CrossknnError, InputError, StoreError, counted, first_line, nearest
from crossknn.index.filters import Condition, fields_of, parse_filter
from crossknn.retrievers.base import WHOLE
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Mask, is_missing

T = TypeVar("T")
Id: TypeAlias = int | str
Found: TypeAlias = tuple[Sequence[Id], Sequence[float]]
"""Ids and inner products of one query's nearest items, nearest first."""

Among: TypeAlias = Sequence[Id] | Condition | None
"""What a search is restricted to: items with these ids, items that meet a condition, or nothing."""

TextsOf: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""A function from ids to texts."""

FEW = 2_000
"""If a filter allows at most this many items, their ids are sent to the database; otherwise a
search requests more items than it needs and drops the items that the filter excludes."""

_KEPT = 20_000  # vectors, and as many records, in memory
_BLOCK = 1_000  # items that are read at once
_MASKS = 16  # masks of filters that are kept


class DatabaseStore(ABC):
    """A `VectorStore` in a database, whose requests a subclass implements. `keys` (n,) are the ids
    of the items, integers or bytes, by position; `name` names the store in messages."""

    whole = WHOLE
    """Maximum number of items whose vectors are all read, to predict the scores of all items."""
    errors: tuple[type[Exception], ...] = (OSError,)
    """Exceptions that the database's client raises when a request fails."""
    filters = False
    """Whether `_search` accepts a filter condition."""

    def __init__(self, name: str, ids: Sequence[Id], dimensions: int) -> None:
        if not ids:
            raise InputError(f"{name} holds no vectors: add some first")
        self.name, self._numbers = name, all(isinstance(key, int) for key in ids)
        self._whole_numbers = np.int64 if self._numbers and min(ids) < 0 else np.uint64  # type: ignore[operator]
        self.keys, self.shape = self._as_keys(ids), (len(ids), dimensions)
        self._order = np.argsort(self.keys, kind="stable")
        self._recent_vectors = Recent[FloatArray](partial(self._of, vectors=True))
        self.records = Recent[Mapping[str, Any]](partial(self._of, vectors=False))
        self._masks = dict[str, tuple[Condition, BoolArray]]()
        same = self.keys[self._order[1:]] == self.keys[self._order[:-1]]
        if same.any():
            twice = self.id(int(self._order[int(same.argmax())]))
            raise InputError(
                f"{name} has the id {twice!r} more than once: give every item its own id"
            )

    @abstractmethod
    def _search(self, vectors: FloatArray, count: int, among: Among) -> Sequence[Found]:
        """Return the `count` nearest items of each vector (m, d)."""

    @abstractmethod
    def _read(self, ids: Sequence[Id], *, vectors: bool) -> Mapping[Id, Any]:
        """Read the vectors or the records of items, by id."""

    @abstractmethod
    def _fields_like(self, field: str) -> Iterable[str] | None:
        """Return None if an item has the field, and else the fields of some items."""

    @abstractmethod
    def _matching(self, condition: Condition) -> Iterable[Id]:
        """Return the ids of the items that meet a condition."""

    def top(
        self,
        vectors: FloatArray,
        count: int,
        exclude: IntArray | None = None,
        allowed: Mask = None,
        search: Callable[[Any, int, Among], Sequence[Found]] | None = None,
    ) -> Candidates:
        """See `VectorStore.top`; results are approximate if the database searches approximately.
        `search` may replace `_search`, and `vectors` are then queries of any kind, an array (m,).
        """
        search = search or self._search
        n = self.shape[0]
        among: Among = None
        limit = count + (0 if exclude is None else exclude.shape[1])
        if allowed is not None:
            few = np.flatnonzero(allowed)
            if len(few) <= FEW:
                among = [self.id(item) for item in few.tolist()]
            elif self.filters:
                among = next(
                    (c for c, m in self._masks.values() if np.array_equal(m, allowed)), None
                )
            if among is None:
                limit = int(1.5 * limit * n / len(few))
        rows: dict[int, tuple[IntArray, FloatArray]] = {}
        waiting = [] if among == [] else [*range(len(vectors))]
        while waiting:
            with self.answering():
                answers = search(vectors[waiting], min(limit, n), among)
            for q, (ids, products) in zip([*waiting], answers, strict=True):
                items, scores = self.positions(ids), np.asarray(products, np.float32)
                kept = items != NO_ITEM
                if allowed is not None:
                    kept &= allowed[items]
                if exclude is not None:
                    kept &= ~np.isin(items, exclude[q])
                if kept.sum() >= count or len(ids) < limit:
                    items, scores = items[kept], scores[kept]
                    best = np.lexsort((items, -scores))[:count]  # ties by position
                    rows[q] = items[best], scores[best]
                    waiting.remove(q)
            limit *= 4
        nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return Candidates.from_rows([rows.get(q, nothing) for q in range(len(vectors))])

    def vectors(self, items: IntArray) -> FloatArray:
        rows = self._recent_vectors(np.maximum(items, 0).ravel().tolist())
        return np.array(rows, np.float32).reshape(*items.shape, self.shape[1])

    @property
    def values(self) -> FloatArray | None:
        """All vectors (n, d), or None if there are more than `whole` items."""
        return self._all if self.shape[0] <= self.whole else None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        """Read all vectors (n, d) once, for fits."""
        return self._all if dtype is None else self._all.astype(dtype, copy=False)

    @cached_property
    def _all(self) -> FloatArray:
        n, d = self.shape
        vectors = np.empty((n, d), np.float32)
        for start in range(0, n, _BLOCK):
            rows = range(start, min(start + _BLOCK, n))
            vectors[rows.start : rows.stop] = self._of(rows, vectors=True)
        return vectors

    def id(self, item: int) -> Id:
        """Return the id of the item at a position."""
        key = self.keys[item].item()
        return key if self._numbers else self._native(key.decode())

    def positions(self, ids: Sequence[Id]) -> IntArray:
        """Return the positions (p,) of ids, with `NO_ITEM` for items that were added later."""
        keys = self._as_keys(ids)
        near = np.minimum(np.searchsorted(self.keys, keys, sorter=self._order), self.shape[0] - 1)
        items = self._order[near]
        return np.where(self.keys[items] == keys, items, NO_ITEM)

    def allowed(self, conditions: Mapping[str, Any]) -> BoolArray:
        """Return the mask (n,) of the items that meet conditions, as the database finds them."""
        condition = parse_filter(conditions)
        if (asked := self._masks.get(key := repr(condition))) is not None:
            return asked[1]
        for field in fields_of(condition):
            # A database accepts no text with half a surrogate pair.
            is_text = not any("\ud800" <= character <= "\udfff" for character in field)
            with self.answering():
                names = self._fields_like(field) if is_text else ()
            if names is not None:
                lacks = f"no item of {self.name} has this field ({nearest(field, names)})"
                raise InputError(f"the filter names {field!r}, but {lacks}")
        mask = np.zeros(self.shape[0] + 1, np.bool_)  # the last entry stands for unknown items
        with self.answering():
            mask[self.positions([*self._matching(condition)])] = True
        mask.flags.writeable = False
        while len(self._masks) >= _MASKS:
            self._masks.pop(next(iter(self._masks)), None)
        asked = self._masks[key] = condition, mask[:-1]
        return asked[1]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn exceptions of the database's client into a `StoreError`."""
        try:
            yield
        except CrossknnError:
            raise
        except self.errors as error:
            said = f"{type(error).__name__}: {first_line(error):.200}"
            raise StoreError(f"{self.name} failed: {said}") from error

    def _as_keys(self, ids: Sequence[Id]) -> Any:
        if self._numbers:
            return np.array(ids, self._whole_numbers)
        return np.array([str(key).encode() for key in ids], np.bytes_)

    def _native(self, key: str) -> Id:
        return key

    def _of(self, items: Sequence[int], *, vectors: bool) -> list[Any]:
        ids = [self.id(item) for item in items]
        with self.answering():
            held = self._read(ids, vectors=vectors)
        if gone := [key for key in ids if key not in held]:
            raise StoreError(
                f"{self.name} no longer has the item {gone[0]!r}: open the store again"
            )
        rows = [held[key] for key in ids]
        return [*np.array(rows, np.float32)] if vectors else rows


class Recent(Generic[T]):
    """A cache of the items read last, by position."""

    def __init__(self, read: Callable[[Sequence[int]], Sequence[T]]) -> None:
        self._read, self._kept, self._lock = read, dict[int, T](), threading.Lock()

    def __call__(self, items: Sequence[int]) -> list[T]:
        with self._lock:
            values = {item: self._kept[item] for item in items if item in self._kept}
        new = [item for item in dict.fromkeys(items) if item not in values]
        for start in range(0, len(new), _BLOCK):
            batch = new[start : start + _BLOCK]
            values |= zip(batch, self._read(batch), strict=True)
        with self._lock:
            self._kept |= {i: values[i] for i in new[-_KEPT:]}
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return [values[item] for item in items]


class Column(Sequence[T]):
    """A field (n,) of all items, such as their texts, that is read on demand."""

    def __init__(self, n: int, read: Callable[[Sequence[int]], Sequence[T]]) -> None:
        self._n, self.fetch = n, read

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, position: Any) -> Any:
        places = range(self._n)[position]
        return self.fetch(places) if isinstance(places, range) else self.fetch([places])[0]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, self._n, _BLOCK):
            yield from self.fetch(range(start, min(start + _BLOCK, self._n)))


def entry_of(record: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, or None; a dot selects an entry of an object: `meta.lang`."""
    if field in record:
        return record[field]
    first, _, inner = field.partition(".")
    held = record.get(first)
    return entry_of(held, inner) if isinstance(held, Mapping) else None


_ADVICE = (
    "texts= must be the name of the field that holds the texts, or a function from ids to texts"
)


def items_in(store: DatabaseStore, texts: str | TextsOf) -> Items:
    """Return the items of a store. `texts` is the field that holds their texts, or a function from
    ids to texts; a null text becomes an empty text, which no search scores."""
    if not isinstance(store, DatabaseStore):
        raise InputError(
            f"{store!r:.80} is not a database of items: give a QdrantStore, a PgVectorStore or an "
            "ElasticStore"
        )
    n = store.shape[0]
    if not callable(texts):
        if not isinstance(texts, str):
            raise InputError(f"texts= is {texts!r:.80}: {_ADVICE}")
        try:
            has_text = not store.allowed({texts: None}).all()
        except InputError:
            has_text = False
        if not has_text:
            hint = nearest(texts, store.records([0])[0])
            raise InputError(f"{store.name} has no text in a field {texts!r} ({hint}): {_ADVICE}")

    def ids(items: Sequence[int]) -> list[str]:
        return [str(store.id(item)) for item in items]

    def read_texts(items: Sequence[int]) -> list[str]:
        if callable(texts):
            given = texts(ids(items))
            is_list = isinstance(given, Iterable) and not isinstance(given, str | Mapping)
            made: list[Any] = [*given] if is_list else []
            if len(made) != len(items):
                raise InputError(
                    f"texts= returned {given!r:.80} for {counted(len(items), 'id')}: it must take "
                    "a list of ids and return a list of as many texts"
                )
        else:
            made = [entry_of(record, texts) for record in store.records(items)]
        for item, text in zip(items, made, strict=True):
            if not isinstance(text, str) and not is_missing(text):
                raise InputError(
                    f"the text of the item {store.id(item)!r} of {store.name} is {text!r:.80}: "
                    f"{_ADVICE}"
                )
        return [text if isinstance(text, str) else "" for text in made]

    def extra(items: Sequence[int]) -> list[Mapping[str, Any]]:
        return [{k: v for k, v in r.items() if k != texts} for r in store.records(items)]

    return Items(
        ids=Column(n, ids),
        texts=Column(n, Recent(read_texts) if callable(texts) else read_texts),
        titles=Column(n, lambda items: [""] * len(items)),
        extra=Column(n, extra),
    )
