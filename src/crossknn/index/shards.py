"""Items in several stores, the shards, which are searched as one.

All shards are asked at once, and the best of their answers taken. A shard that fails is left out
for the rest of that search, which reports it; the next search asks it again. Positions are those of
the shards, one after another.

Axes: m queries, n items of all shards, d dimensions, e items left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import CrossknnError, InputError, StoreError, needs_extra
from crossknn.index.database import Id, ItemStore, Recent
from crossknn.index.item_index import ItemIndex
from crossknn.models.folder import first_line
from crossknn.retrievers.dense import WHOLE, left_out
from crossknn.retrievers.specs import unfitted
from crossknn.scores.ray import Workers
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray

logger = logging.getLogger(__name__)


class ShardedStore:
    """Several stores of items, searched as one; a `VectorStore` that `ItemIndex.over` takes.

    >>> store = ShardedStore([QdrantStore(one, "docs"), QdrantStore(two, "docs")])  # doctest: +SKIP

    Outside of searches, as in a fit, a shard that fails raises `StoreError`.

    Args:
        shards: A `QdrantStore`, `PgVectorStore` or `RayShard` each, or an index or its folder, with
            its vectors that were not fitted. Ids must all differ.
        timeout: Seconds after which a shard that has not answered has failed.

    Raises:
        InputError: There are no shards, an id is in two, or their vectors' dimensions differ.
    """

    whole = WHOLE
    """So few vectors are read into memory, once, for methods that predict all items."""

    def __init__(
        self, shards: Sequence[ItemStore | RayShard | ItemIndex | str | Path], timeout: float = 30.0
    ) -> None:
        if not shards:
            raise InputError("there are no shards: give one store at least")
        self.shards: list[Any] = [s if hasattr(s, "keys") else LocalShard(s) for s in shards]
        self.name, self.timeout = f"the store of {len(shards)} shards", timeout
        first, *others = self.shards
        for shard in others:
            if shard.shape[1] != first.shape[1]:
                raise InputError(
                    f"the vectors of {shard.name} have {shard.shape[1]} dimensions, and those of "
                    f"{first.name} {first.shape[1]}: shards must have vectors of one model"
                )
        ends = np.cumsum([shard.shape[0] for shard in self.shards]).tolist()
        self._parts = [slice(*part) for part in zip([0, *ends], ends, strict=False)]
        self._ends, self.shape = ends, (ends[-1], first.shape[1])
        keys = [np.asarray(shard.keys) for shard in self.shards]
        if len({key.dtype.kind for key in keys}) > 1:  # whole numbers here, texts there
            keys = [key.astype(np.bytes_) for key in keys]
        self.keys = np.concatenate(keys)
        order = np.argsort(self.keys, kind="stable")
        if (same := self.keys[order[1:]] == self.keys[order[:-1]]).any():
            pair = order[int(same.argmax()) :][:2]
            names = " and in ".join(self.shards[s].name for s in self._owners(pair))
            raise InputError(
                f"the id {str(self.id(pair[0]))!r} is in {names}: give every item an id of its own"
            )
        self._recent_vectors = Recent[Any](partial(self._of, "vectors"))
        self._recent_records = Recent[Any](partial(self._of, "records"))
        self._lock, self._all, self._held = threading.Lock(), np.zeros(0), set[int]()

    def top(
        self,
        vectors: FloatArray,
        count: int,
        exclude: IntArray | None = None,
        allowed: BoolArray | None = None,
    ) -> Candidates:
        """See `VectorStore.top`: as exact as the shards' own searches; ties by position."""
        asked = dict[int, tuple[Any, ...]]()
        for s, part in enumerate(self._parts):
            some, out = None if allowed is None else allowed[part], None
            if exclude is not None:
                inside = (exclude >= part.start) & (exclude < part.stop)
                out = np.where(inside, exclude - part.start, NO_ITEM)
            if some is None or some.any():
                most = min(count, part.stop - part.start)
                asked[s] = vectors, most, out, None if some is None or some.all() else some
        found = [(a, self._parts[s].start) for s, a in self._ask("top", asked).items()]
        none = np.full((len(vectors), 0), NO_ITEM)
        moved = (np.where(a.items == NO_ITEM, NO_ITEM, a.items + at) for a, at in found)
        items = np.hstack([none, *moved])
        products = np.hstack([none.astype(np.float32), *(a.scores for a, _ in found)])
        products = np.where(items == NO_ITEM, -np.inf, products)
        best = np.lexsort((items, -products))[:, :count]
        return Candidates(*(np.take_along_axis(rows, best, axis=1) for rows in (items, products)))

    def vectors(self, items: IntArray) -> FloatArray:
        """See `VectorStore.vectors`; zeros for those of a failed shard that are not kept."""
        places = np.maximum(items, 0)
        if len(self._held) == len(self.shards):
            return self._all[places]
        found, unknown = self._recent_vectors(places.ravel().tolist()), np.zeros(self.shape[1])
        rows = [unknown if row is None else row for row in found]
        return np.array(rows, np.float32).reshape(*items.shape, self.shape[1])

    @property
    def values(self) -> FloatArray | None:
        """All vectors (n, d), of few items; zeros as of `vectors`."""
        return np.asarray(self) if self.shape[0] <= self.whole else None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        """All vectors (n, d), read once."""
        with self._lock:
            parts = enumerate(self._parts)
            new = {s: (np.arange(p.stop - p.start),) for s, p in parts if s not in self._held}
            if new and (found := self._ask("vectors", new, patient=True)):
                rows = self._all.copy() if len(self._all) else np.zeros(self.shape, np.float32)
                for s, vectors in found.items():
                    rows[self._parts[s]] = vectors
                self._all, self._held = rows, self._held | {*found}
            return self._all if dtype is None else self._all.astype(dtype, copy=False)

    def id(self, item: int) -> Id:
        """What the database calls an item.

        Args:
            item: The item's position.

        Returns:
            Its id there.
        """
        key = self.keys[item].item()
        return key if isinstance(key, int) else str(key.decode())

    def records(self, items: Sequence[int]) -> list[Mapping[str, Any]]:
        """The fields of items.

        Args:
            items: Their positions.

        Returns:
            Of each item its fields by name.

        Raises:
            StoreError: An item is of a shard that has failed, and was not read before.
        """
        found: list[Any] = self._recent_records(items)
        gone = next((i for i, one in zip(items, found, strict=True) if one is None), None)
        for part, why in (left_out() or {}).values():
            if gone is not None and part.start <= gone < part.stop:
                raise StoreError(why)
        return found

    def allowed(self, conditions: Mapping[str, Any]) -> BoolArray:
        """Which items meet conditions on their fields, as each shard says.

        Args:
            conditions: As of `ItemIndex.allowed`.

        Returns:
            Mask (n,); False for the items of failed shards.
        """
        mask = np.zeros(self.shape[0], np.bool_)
        asked = dict.fromkeys(range(len(self.shards)), (conditions,))
        for s, met in self._ask("allowed", asked).items():
            mask[self._parts[s]] = met
        return mask

    def _owners(self, items: IntArray) -> IntArray:
        """The shards of items (c,)."""
        return np.searchsorted(self._ends, items, side="right")

    def _of(self, what: str, items: Sequence[int]) -> list[Any]:
        """Vectors or records of items; None for those of failed shards."""
        places, rows, asked = np.asarray(items), [None] * len(items), dict[int, tuple[Any, ...]]()
        owners = self._owners(places)
        for s in np.unique(owners).tolist():
            inside = places[owners == s] - self._parts[s].start
            asked[s] = (inside.tolist() if what == "records" else inside,)
        for s, found in self._ask(what, asked).items():
            for row, one in zip(np.flatnonzero(owners == s).tolist(), found, strict=True):
                rows[row] = one
        return rows

    def _ask(
        self, method: str, asked: Mapping[int, tuple[Any, ...]], *, patient: bool = False
    ) -> dict[int, Any]:
        """What shards answer to a method with these arguments, but for those that have failed.

        Raises:
            InputError: One does not take the question.
            StoreError: One fails outside of a search, or all have failed.
        """
        lost, answers = left_out(), dict[int, Any]()
        names = [f"shard {s}" for s in range(1, len(self.shards) + 1)]
        jobs = {
            s: _started(getattr(self.shards[s], method), *given)
            for s, given in asked.items()
            if names[s] not in (lost or {})
        }
        wait(jobs.values(), None if patient else self.timeout)
        for s, job in jobs.items():
            name = self.shards[s].name
            try:
                if not job.done():
                    raise StoreError(f"{name} has not answered in {self.timeout:g} s")
                answers[s] = job.result()
            except InputError:
                raise
            except Exception as error:
                said = f"{name}: {type(error).__name__}: {first_line(error)}"
                said = str(error) if isinstance(error, CrossknnError) else said
                why = f"{names[s]} failed: {said}"
                if lost is None:
                    raise StoreError(why) from error
                logger.warning("%s", why)
                lost[names[s]] = self._parts[s], why
        if lost is not None and all(name in lost for name in names):
            raise StoreError(lost[names[-1]][1])
        return answers


def _started(call: Callable[..., Any], *given: Any) -> Future[Any]:
    """A call in a thread of its own: one that never returns delays no other, nor the exit."""
    job = Future[Any]()

    def run() -> None:
        try:
            job.set_result(call(*given))
        except BaseException as error:
            job.set_exception(error)

    threading.Thread(target=run, name="crossknn-shard", daemon=True).start()
    return job


class LocalShard:
    """The items of an index in this process as a shard.

    Args:
        index: An index, or its folder, without deleted items.
        vectors: The name of its vectors; by default those that were not fitted.

    Raises:
        InputError: The index has deleted items, or no such vectors.
    """

    def __init__(self, index: ItemIndex | str | Path, vectors: str | None = None) -> None:
        found = ItemIndex.load(index) if isinstance(index, str | Path) else index
        found.check_compact("a shard")
        store = found.store(vectors or unfitted(found) or "")
        self.name, self.shape = f"the index {found.folder or 'in memory'}", store.shape
        self.keys = np.array([key.encode() for key in found.items.ids], np.bytes_)
        self.top, self.vectors, self.allowed, self._items = (
            store.top,
            store.vectors,
            found.allowed,
            found.items,
        )

    def records(self, items: Sequence[int]) -> list[Mapping[str, Any]]:
        """The fields of items.

        Args:
            items: Their positions.

        Returns:
            Of each item its fields by name, with `title` and `text`.
        """
        found = [self._items[item] for item in items]
        return [{**one.extra, "title": one.title, "text": one.text} for one in found]


class RayShard:
    """A shard that a worker of Ray holds (extra `ray`).

    Ray is the one that this process has joined, `ray.init(address)`, or else starts here. A worker
    that is lost is started again, and opens its store anew.

    Args:
        opened: Opens the store on the worker: a function, or the folder of an index there.
        options: Ray's, of an actor, such as `num_cpus` and `resources`.

    Raises:
        InputError, ScorerError: The store cannot be opened, or the worker not be started.
        MissingExtraError: Ray is not installed.
    """

    def __init__(
        self, opened: Callable[[], ItemStore | LocalShard] | str | Path, **options: Any
    ) -> None:
        with needs_extra("a shard on Ray", "ray"):
            ray: Any = import_module("ray")
        opens = opened if callable(opened) else partial(LocalShard, str(opened))
        self._worker = Workers(ray, opens, **{"max_restarts": -1, "max_task_retries": 0} | options)
        about = (self._worker.ask("__getattribute__", name) for name in ("name", "shape", "keys"))
        name, self.shape, self.keys = about
        self.name = f"{name} on Ray"

    def __getattr__(self, method: str) -> Any:
        if method not in ("top", "vectors", "records", "allowed"):
            raise AttributeError(method)
        return partial(self._worker.ask, method)
