"""What methods, retrievers and fits read of an index. Axes: m queries, n items, d dimensions."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from crossknn.data.items import Item, Items
from crossknn.data.passages import DOCUMENT, Passages, document_of
from crossknn.errors import InputError
from crossknn.index.columns import StoredArray
from crossknn.index.database import DatabaseStore
from crossknn.index.filters import Fields, parse_filter
from crossknn.index.nearest import LARGE, FaissStore, open_lists
from crossknn.index.parts import ANCHORS, DUAL_ENCODER, LSA_NAME, Parts, fingerprint_of, plain
from crossknn.index.storage import SCORES, damages
from crossknn.index.vectors import ItemVectors, RememberedModel, check_vectors
from crossknn.retrievers.base import ArrayStore, Late, Retriever, VectorStore
from crossknn.retrievers.specs import SEARCH, SPARSE
from crossknn.scores.store import ScoreStore
from crossknn.types import (
    Anchors,
    Artifact,
    BoolArray,
    Cache,
    FloatArray,
    IntArray,
    Named,
    Queries,
    Scale,
)

logger = logging.getLogger(__name__)

N_ANCHOR_ITEMS = 10_000


class IndexView:
    """An index for reading; its items may be in a `database` (`ItemIndex.over`)."""

    def __init__(self, parts: Parts, database: DatabaseStore | None = None) -> None:
        self._parts, self.database = parts, database
        self._origin: Self | None = None  # the index of which this is a snapshot
        self._fields = Cache()  # shared with snapshots, and kept when parts change

    @property
    def items(self) -> Items:
        return self._parts.items

    @property
    def passages(self) -> Passages | None:
        """How documents were cut into the items; None if the items are not passages."""
        return self._parts.passages

    def item(self, name: str) -> Item:
        """Return the item of this id or, of an index of passages, the document."""
        document = None if self.passages is None else document_of(self.items, name)
        return self.items[self.items.position(name)] if document is None else document

    @property
    def folder(self) -> Path | None:
        """The index's folder, if it has one."""
        place = self._parts.folder
        return None if place is None else place.path

    @property
    def cache(self) -> Cache:
        """Values that methods have computed from the index, kept in memory."""
        return self._parts.cache

    @property
    def n(self) -> int:
        """Number of item positions, including those of deleted items."""
        return len(self.items)

    def __len__(self) -> int:
        """Number of items that are not deleted."""
        alive = self.items.alive
        return self.n if alive is None else int(alive.sum())

    def check_compact(self, what: str) -> None:
        """Raise `InputError` if the index has deleted items, which `what` would read."""
        if len(self) < self.n:
            raise InputError(
                f"{what} reads every item, but {self.n - len(self)} items are deleted: compact "
                "the index first (crossknn index compact INDEX)"
            )

    def snapshot(self) -> Self:
        """Return the index in its current state, which later additions and deletions do not change;
        results of fits are stored in both, unless the items have changed by then."""
        if self.folder is None:
            _ = self.scores  # one store for both
        made = copy(self)
        made._origin = self
        return made

    def for_scorer(self, fingerprint: str | None) -> Self:
        """Return a `snapshot` with the fits of one cross-encoder, by its `scorer.fingerprint` or
        None; vectors fitted to others (`of_others`) are never chosen by default."""
        made = self.snapshot()
        made._parts = replace(made._parts, scorers=frozenset({fingerprint, None}))
        return made

    def after_search(self, search: Retriever) -> Self:
        """Return a `snapshot` whose default retriever is a search with a cheaper scorer."""
        made, parts = self.snapshot(), self._parts
        made._parts = replace(parts, added=parts.added | {SEARCH: search})
        return made

    @property
    def added(self) -> dict[str, int]:
        """Number of items added after each fit, by kind and name of the fit."""
        return {key: meta["added"] for key, meta in self._parts.metas.items() if meta.get("added")}

    @property
    def anchor_items(self) -> IntArray:
        """At most 10,000 items in a random order, the same for any index of as many items."""
        draw = np.random.default_rng(0).permutation
        return self.cache.get("anchor items", (self.items,), lambda: draw(self.n)[:N_ANCHOR_ITEMS])

    def allowed(self, conditions: Mapping[str, Any]) -> BoolArray:
        """Return the mask (n,) of the items that meet conditions; see `crossknn.index.filters`."""
        if self.database is not None:
            return self.database.allowed(conditions)
        condition = parse_filter(conditions)
        records = self.items.extra
        fields = self._fields.get("fields", (records,), lambda: Fields(records))
        return fields.mask(condition)

    def groups(self, field: str) -> IntArray:
        """Return the position (n,) of the first item of each item's group: the items with the same
        value of a field, or with "id" every item alone."""
        if field == "id":
            return np.arange(self.n)
        records = self.items.extra
        fields = self._fields.get("fields", (records,), lambda: Fields(records))
        of: IntArray = self._fields.get(("groups", field), (records,), lambda: fields.groups(field))
        return of

    @property
    def documents(self) -> IntArray | None:
        """Return the position (n,) of the first passage of each passage's document, which stands
        for the document in evaluations; None if the items are not passages."""
        return None if self.passages is None else self.groups(DOCUMENT)

    @property
    def answer_ids(self) -> Sequence[str]:
        """Ids (n) of what is at each position in an answer: items or, at their first passage,
        documents."""
        if (first := self.documents) is None:
            return self.items.ids
        ids, extra = self.items.ids, self.items.extra
        return [str(extra[p][DOCUMENT]) if f == p else ids[p] for p, f in enumerate(first.tolist())]

    @cached_property
    def scores(self) -> ScoreStore:
        """The store of exact scores: `StoredScorer(scorer, index.scores)` uses it."""
        return ScoreStore(None if self.folder is None else self.folder / SCORES)

    def verify(self, *, repair: bool = False) -> list[str]:
        """Check all files, and return one sentence per damaged file; `repair` removes damaged exact
        scores, which searches then compute again."""
        place = self._parts.folder
        return [] if place is None else damages(place.read()[1]) + self.scores.verify(repair=repair)

    def stamp_now(self) -> tuple[int, int, int] | None:
        place = self._parts.folder
        return None if place is None else place.stamp()

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) float32 or float16 by name."""
        return self._parts.named("vectors", lambda part: np.asarray(part.values))

    @property
    def fitted(self) -> Mapping[str, ItemVectors]:
        """Vectors fitted to a cross-encoder, by name, the latest last."""
        parts = {name: self._parts.open("vectors", name) for name in self._parts.names("vectors")}
        return {name: part for name, part in parts.items() if part.method}

    @property
    def of_others(self) -> frozenset[str]:
        """Names of vectors fitted to other cross-encoders than that of `for_scorer`."""
        parts, names = self._parts, self._parts.names("vectors")
        if not parts.scorers:
            return frozenset()
        held = {name: parts.held[parts.keys[f"vectors/{name}"]] for name in names}
        return frozenset(n for n in names if fingerprint_of(held[n]) not in parts.scorers)

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """BM25, the sparse encoder's vectors, and the user's retrievers from `add_retriever`."""
        added, words = self._parts.added, self._parts.names("words")
        names = dict.fromkeys([*(name for name in words if name != LSA_NAME), *added])
        return Named(names, lambda name: added.get(name) or self._parts.open("words", name))

    @property
    def tokenizer(self) -> str | None:
        """Name of the tokenizer that splits texts into words; None without word models."""
        return self._parts.tokenizer if {*self._parts.names("words")} - {SPARSE} else None

    @property
    def late(self) -> Mapping[str, Late]:
        """Opened late-interaction models with the states of all items, by name (`cmc`, ...)."""
        return self._parts.named("late", lambda part: Late(part.encoder.get(), part.states))

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """Results of fits, such as kriging's prior, by name."""
        return dict(self._parts.named("artifacts", lambda part: part))

    def each(self, name: str) -> list[Artifact]:
        """Return every artifact of this name, for any cross-encoder, the latest last."""
        held = self._parts.held
        return [held[key] for key in held if plain(key) == f"artifacts/{name}"]

    @property
    def anchors(self) -> Anchors | None:
        """The exact scores (k_q, n) of the anchor queries; None if items were added, until
        `collect_anchors` scores the new items, too."""
        artifact = self.artifacts.get(ANCHORS)
        if artifact is None or artifact.meta.get("added"):
            return None
        scales, arrays = artifact.meta["scales"], artifact.arrays
        center = scales.get(DUAL_ENCODER, scales["center"])[0]
        scores = self.cache.get((ANCHORS,), (artifact,), lambda: arrays["scores"])  # one object
        return Anchors(scores, center, Queries(arrays["queries"]))

    @property
    def anchor_queries(self) -> Sequence[str]:
        """Texts (k_q) of the anchor queries, even if new items have no scores yet."""
        artifact = self.artifacts.get(ANCHORS)
        return () if artifact is None else artifact.arrays["queries"]

    def scale(self, name: str) -> Scale | None:
        """Return the map of exact scores to the scale of inner products with `vectors[name]`, if a
        fit has learned it."""
        if name in self.fitted:
            return None if name in self.of_others else self.fitted[name].scale
        anchors = self.artifacts.get(ANCHORS)
        scale = None if anchors is None else anchors.meta["scales"].get(name)
        return None if scale is None else Scale(*scale)

    def model_of(self, name: str) -> RememberedModel | None:
        """Return the model that made the vectors or states `name`, if it is known."""
        kinds = ("late", "vectors", *(["words"] if name == SPARSE else ()))
        kind = next((kind for kind in kinds if name in self._parts.names(kind)), None)
        return None if kind is None else self._parts.open(kind, name).encoder

    def has_query_vectors(self, name: str) -> bool:
        """Whether queries can be encoded into the space of `vectors[name]`."""
        return name in self.vectors and self._encoder(name) is not None

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """See `Searchable.query_vectors`."""
        d, encode = self._parts.open("vectors", name).values.shape[1], self._encoder(name)
        if name in queries.vectors:
            made = queries.vectors[name]
        elif encode is not None:
            made = encode(queries)
        else:
            raise InputError(
                f"the index cannot make query vectors for its item vectors {name!r}: give "
                "ItemIndex.build, load or over query_vectors=, or the encoder= that made them; or "
                "search with methods that need none (blend=0, retriever=bm25)"
            )
        what = f"the {name!r} query vectors"
        queries.vectors[name] = check_vectors(made, len(queries), d, what)
        return queries.vectors[name]

    def _encoder(self, name: str) -> Callable[[Queries], FloatArray] | None:
        parts = self._parts
        if name in parts.encode:
            return lambda queries: parts.encode[name](queries.texts)
        if f"words/{name}" in parts.held:
            return lambda queries: parts.open("words", name).encode_queries(queries.texts)
        part: ItemVectors = parts.open("vectors", name)
        encoder, base = part.encoder, part.base
        if encoder is not None:
            return lambda queries: part.map(encoder.get().encode_queries(queries.texts))
        if base is not None and self.has_query_vectors(base):
            return lambda queries: part.map(self.query_vectors(queries, base))
        return None

    def store(self, name: str) -> VectorStore:
        """Return the approximate index of the item vectors `name`, or else exact search."""
        values: Any = self._parts.open("vectors", name).values
        if isinstance(values, DatabaseStore):
            return values
        key = "store", self._parts.keys[f"vectors/{name}"]
        return self.cache.get(key, (self.items,), lambda: self._open_store(name))

    def lists(self, name: str, rows: Any = None) -> FaissStore | None:
        """Return the approximate index of the vectors `name`, or of `rows` (n, p) under that name,
        without rescoring by exact vectors; None if `add_nearest` has not built it."""
        rows = self._rows(name) if rows is None else rows
        lists = self._approximate(name, rows)
        return None if lists is None else FaissStore(rows, lists, rescored=False)

    def _open_store(self, name: str) -> VectorStore:
        if (lists := self._approximate(name, rows := self._rows(name))) is not None:
            return FaissStore(rows, lists)
        if len(self.items) >= LARGE:
            logger.warning(
                "each round of a search multiplies all %s vectors; to search them faster, "
                "build an approximate index with  crossknn index prepare INDEX --nearest "
                "(extra faiss)",
                f"{len(self.items):,}",
            )
        return ArrayStore(self.vectors[name])

    def _rows(self, name: str) -> Any:
        rows = self._parts.open("vectors", name).values
        if self._parts.folder is None or isinstance(rows, StoredArray):
            return rows
        part = self._parts.newest("vectors", name)  # fitted after the index was opened
        assert part is not None
        return part.rows("values")

    def _approximate(self, name: str, rows: Any) -> Any:
        folder = self._folder_of_lists(name)
        if folder is None or not os.path.lexists(folder):
            return None
        return self.cache.get(("lists", name), (rows,), lambda: open_lists(folder, rows))

    def _folder_of_lists(self, name: str) -> Path | None:
        # Vectors of the same name may belong to different cross-encoders, so the key is used.
        keys = (self._parts.keys.get(f"{kind}/{name}") for kind in ("vectors", "artifacts"))
        key = next((key.partition("/")[2] for key in keys if key is not None), name)
        return None if self.folder is None else self.folder / f"nearest-{key}"

    def __repr__(self) -> str:
        return f"ItemIndex({len(self):,} items; {', '.join(self._parts.held)})"
