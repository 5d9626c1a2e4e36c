"""The index: items, their vectors and retrievers, and what fits have left beside them.

All of it are named parts, `kind/name`, that are kept in a folder and opened when first needed:

    vectors/dense      item vectors, the index's own and fitted ones    `ItemVectors`
    words/bm25         word models                                      BM25, TF-IDF, LSA
    late/cmc           states of late-interaction models                `LateStates`
    graphs/dense       item graphs, by the vectors or words             neighbours (n, k)
    artifacts/anchors  what fits and collecting have left               `Artifact`

Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.items import Items
from crossknn.data.reading import read_items
from crossknn.errors import IndexFormatError, InputError, nearest
from crossknn.files import StoredArray, as_path, rows_of
from crossknn.index.base import Anchors, Cache, ItemScores, Scale, all_scores, n_items
from crossknn.index.database import DatabaseStore, TextsOf, items_in, parts_beside
from crossknn.index.filters import Fields, parse_filter
from crossknn.index.graphs import NEIGHBOURS, nearest_by_vectors, nearest_items
from crossknn.index.late import LateStates, encode_states, work_folder
from crossknn.index.nearest import (
    LARGE,
    FaissStore,
    build_lists,
    fingerprint,
    open_lists,
    write_lists,
)
from crossknn.index.storage import (
    SCORES,
    Growth,
    as_json,
    changing,
    columns_of,
    commit,
    damages,
    read_parts,
    write_parts,
)
from crossknn.index.updates import compacted, growth
from crossknn.index.vectors import (
    EncodeQueries,
    GivenModel,
    ItemVectors,
    RememberedModel,
    check_vectors,
)
from crossknn.retrievers.base import ItemPriors, Late, Retriever
from crossknn.retrievers.dense import ArrayStore, VectorStore
from crossknn.retrievers.lexical import BM25, LSA, LSA_DIMENSIONS, TFIDF
from crossknn.retrievers.specs import default_vectors, unfitted
from crossknn.scores.store import ScoreStore
from crossknn.types import (
    Artifact,
    BoolArray,
    FloatArray,
    IntArray,
    Named,
    Neighbours,
    Progress,
    Queries,
    Value,
    as_count,
)

logger = logging.getLogger(__name__)

DUAL_ENCODER, LSA_NAME, GIVEN = "dense", "lsa", "vectors"
ANCHORS, ITEM_SCORES = "anchors", "item_scores"
"""Artifacts: exact scores of train queries, and of items in the query's place, with every item."""

WORDS: Mapping[str, Any] = {"bm25": BM25, "tfidf": TFIDF, LSA_NAME: LSA}
COMPOSED = ("random", "fixed", "hybrid")
"""Retrievers that every index has; nothing else may have their names."""
_TAKEN = {DUAL_ENCODER, *WORDS, "lists", "auto", ANCHORS, ITEM_SCORES, *COMPOSED}
N_ANCHOR_ITEMS = 10_000


class StoredRecords(Sequence[Mapping[str, Any]]):
    """n JSON objects, parsed on access."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, position: Any) -> Any:
        return json.loads(self._texts[position])

    def __iter__(self) -> Iterator[Any]:
        return map(json.loads, self._texts)


class ItemIndex:
    """An index of n items: texts, vectors, retrievers, exact scores (`crossknn.index.base.Index`).

    `build` makes it, `save` writes it to a folder, and `load` opens it, memory-mapped.

    Attributes:
        items: Ids, texts, titles and further fields of the items.
        cache: What methods computed from the index once, in memory.
        folder: Where the index is kept, if it is.
        database: Where the items are, if `over` was given one.
        exact: Searches multiply all vectors even where there is an approximate index of them.
    """

    def __init__(
        self,
        items: Items,
        anchor_items: Any,
        parts: Mapping[str, Any],
        encode: Mapping[str, EncodeQueries],
        build: str,
        folder: Path | None = None,
    ) -> None:
        """Use `build` or `load`, which make the parts; `build` names this building."""
        self.items, self._anchor_items = items, anchor_items
        self._parts = dict(parts)
        self._build, self.folder = build, folder
        self.cache, self._encode = Cache(), dict(encode)
        self.exact, self._lists = False, dict[str, tuple[str, Any]]()
        self._added, self._lock = dict[str, Retriever](), threading.Lock()
        self._fields = Fields(items.extra)
        self.database: DatabaseStore | None = None
        if unknown := sorted(set(self._encode) - set(self.vectors)):
            raise InputError(f"query_vectors names {unknown[0]!r}, but no vectors have that name")

    @classmethod
    def build(
        cls,
        items: Items | str | Path | Iterable[str | Mapping[str, object]],
        *,
        encoder: GivenModel | None = None,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        lsa: int | None = None,
        bm25: bool = True,
        tfidf: bool = False,
        seed: int = 0,
        previous: ItemIndex | None = None,
        progress: Progress | None = None,
    ) -> ItemIndex:
        """An index in memory.

        Args:
            items: Items, or whatever `read_items` reads them from.
            encoder: A dual encoder or its name ("bundled", as on the command line, a folder, a hub
                name): makes the vectors "dense". None makes none, and LSA takes their place.
            vectors: Your own (n, d), called "vectors", or several by name. With an encoder, those
                named "dense" are taken as its vectors of the items, which it then need not encode.
            query_vectors: Function from query texts (m) to vectors (m, d).
            lsa: Dimensions of latent semantic analysis, 0 for none; None makes 128 where there
                would be no vectors otherwise.
            bm25, tfidf: Which word models to fit.
            seed: Draws `anchor_items`.
            previous: An index that this one replaces. Vectors of its texts are not made again, and
                what was fitted to the same items and vectors is kept; other parts are dropped, with
                a warning.
            progress: Called with (items encoded, all that need it).

        Raises:
            InputError: For items that cannot be read or vectors that do not fit them.
        """
        items = items if isinstance(items, Items) else read_items(items)
        n, made = len(items), dict[str, Any]()
        given = _by_name(vectors, GIVEN)
        encoded = None if encoder is None else given.pop(DUAL_ENCODER, None)
        for name, values in given.items():
            _check_name(name, "your own vectors")
            values = check_vectors(values, n, None, f"the vectors {name!r}", half=True)
            made[f"vectors/{name}"] = ItemVectors(values=values)
        if encoder is not None:
            model = RememberedModel.of("dual encoder", encoder)
            if encoded is None:
                encoded = _encode_items(model, items.texts, previous, progress)
            values = check_vectors(encoded, n, model.dimensions, "the encoder's vectors")
            made[f"vectors/{DUAL_ENCODER}"] = ItemVectors(values=values, encoder=model)
        if lsa is None:
            lsa = 0 if made else LSA_DIMENSIONS
        as_count(lsa, "lsa", 0)
        for name in ["bm25"] * bm25 + ["tfidf"] * tfidf:
            made[f"words/{name}"] = WORDS[name].fit(items.texts)
        if lsa:
            made[f"words/{LSA_NAME}"], values = LSA.fit(items.texts, dimensions=lsa)
            made[f"vectors/{LSA_NAME}"] = ItemVectors(values=values)
        order = np.random.default_rng(seed).permutation(n)[:N_ANCHOR_ITEMS]
        encode = _by_name(query_vectors, GIVEN)
        index = cls(items, order, made, encode, secrets.token_hex(8))
        if previous is not None:
            index._keep(previous)
        return index

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        encoder: GivenModel | Mapping[str, GivenModel] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        exact: bool = False,
    ) -> ItemIndex:
        """Open a saved index, mapped; what is read is checked when it is first touched.

        Dual encoders and late-interaction models are opened on the first query, from where they
        were when they encoded the items.

        Args:
            encoder: The index's own dual encoder, or several models by the names of their vectors
                or states (`{"cmc": folder}`); `save` keeps where they are.
            query_vectors: As for `build`.
            exact: Search all vectors, even where there is an approximate index of them.

        Raises:
            IndexFormatError: For a folder that is no index, is damaged, unfinished, of another
                version, or of another encoder.
            InputError: For an encoder of vectors that the index lacks.
        """
        folder = as_path(folder, "the folder of the index")
        index = cls._of(*read_parts(folder), _by_name(query_vectors, GIVEN), folder)
        index.exact = exact
        for name, given in _by_name(encoder, DUAL_ENCODER).items():
            if (model := index.model_of(name)) is None:
                raise InputError(f"the index {folder} has no vectors or states {name!r} of a model")
            model.attach(given)
        return index

    @classmethod
    def _of(
        cls,
        build: str,
        parts: Mapping[str, Any],
        encode: Mapping[str, EncodeQueries],
        folder: Path | None,
    ) -> ItemIndex:
        """An index of the parts that `save` or a change has left."""
        if (found := parts.get("items")) is None:
            raise IndexFormatError(
                f"{folder} keeps what belongs to items in a database: open it with  "
                "ItemIndex.over(store, texts, folder=...)"
            )
        columns = {name: found.arrays[name] for name in ("ids", "texts", "titles")}
        if "deleted" in found.arrays:
            columns["alive"] = np.ones(len(columns["ids"]), np.bool_)
            columns["alive"][found.arrays["deleted"]] = False
        extra = StoredRecords(found.arrays["extra"])
        items = Items(**columns, extra=extra, template=found.meta["template"])
        others = {key: part for key, part in parts.items() if key != "items"}
        return cls(items, rows_of(found.arrays, "anchor_items"), others, encode, build, folder)

    @classmethod
    def over(
        cls,
        store: DatabaseStore,
        texts: str | TextsOf,
        *,
        folder: str | Path | None = None,
        encoder: GivenModel | None = None,
        query_vectors: EncodeQueries | None = None,
        seed: int = 0,
    ) -> ItemIndex:
        """An index whose items stay in a database: vectors, texts and fields.

        What needs all vectors, such as a fit, reads them all into memory.

        Args:
            store: The database, such as `QdrantStore`.
            texts: The field that holds the texts, or a function from ids to texts, of many at once.
            folder: Keeps exact scores and what fits have found; made if it is not there.
            encoder: The dual encoder that made the vectors, which are "dense" then, or else
                "vectors".
            query_vectors: Function from query texts (m) to vectors (m, d).
            seed: Draws `anchor_items`.

        Raises:
            InputError: The encoder's vectors have other dimensions, or the folder is of other
                items.
        """
        if not isinstance(store, DatabaseStore):
            raise InputError(f"{store!r:.80} is not a database of items: give a QdrantStore, say")
        model = None if encoder is None else RememberedModel.of("dual encoder", encoder)
        n, d = store.shape
        if model is not None and model.dimensions != d:
            raise InputError(
                f"the encoder makes vectors of {model.dimensions} dimensions, and those of "
                f"{store.name} have {d}: give the encoder that made them"
            )
        values: Any = store
        name, build = DUAL_ENCODER if model else GIVEN, secrets.token_hex(8)
        parts: dict[str, Any] = {}
        if folder is not None:
            folder = as_path(folder, "the folder of the index")
            build, parts = parts_beside(folder, store, build)
        parts = {f"vectors/{name}": ItemVectors(values=values, encoder=model)} | parts
        order = np.random.default_rng(seed).permutation(n)[:N_ANCHOR_ITEMS]
        encode = {} if query_vectors is None else {name: query_vectors}
        index = cls(items_in(store, texts), order, parts, encode, build, folder)
        index.database = store
        return index

    def save(self, folder: str | Path) -> None:
        """Write the index to `folder`, which must be new, empty or an index, in one atomic step.

        Exact scores in the folder stay there. Functions for query vectors and added retrievers are
        not saved. Raises `InputError` if the folder is something else or cannot be written, or the
        items are in a database.
        """
        self._check_own_items()
        folder = as_path(folder, "the folder of the index")
        parts = self._stored()
        scores = self.scores
        write_parts(folder, parts, self._build)
        if folder != self.folder and len(scores):
            ScoreStore(folder / SCORES).add_all(scores)
        self.folder = folder
        del self.scores

    def verify(self, *, repair: bool = False) -> list[str]:
        """Check every file completely. Returns a sentence for each damaged one.

        `repair` removes damaged exact scores. Raises `IndexFormatError` if nothing can be read.
        """
        if self.folder is None:
            return []
        return damages(read_parts(self.folder)[1]) + self.scores.verify(repair=repair)

    @property
    def n(self) -> int:
        """Number of positions of items, those of deleted ones included."""
        return len(self.items)

    def __len__(self) -> int:
        """Number of items that are not deleted."""
        alive = self.items.alive
        return self.n if alive is None else int(alive.sum())

    @property
    def added(self) -> dict[str, int]:
        """How many of its items each fit has not seen, by the keys of parts: those added since."""
        found = {
            key: _artifact(part, key).meta.get("added", 0) for key, part in self._parts.items()
        }
        return {key: count for key, count in found.items() if count}

    def snapshot(self) -> ItemIndex:
        """The index as it is now: items that are added or deleted later do not change it."""
        same = object.__new__(type(self))
        same.__dict__ = dict(self.__dict__)
        return same

    def add(
        self,
        items: Items | str | Path | Iterable[str | Mapping[str, object]],
        *,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Add items, in the folder of the index too, in one atomic step.

        What the index has of items is made for the new ones (`crossknn.index.updates`), and written
        behind what is there. Searches under way, and whoever has loaded the index, go on with the
        items of before; loading it again shows the new ones. Retrievers of `add_retriever` are
        dropped.

        Args:
            items: As for `build`, read with the index's template. They should have ids of theirs.
            vectors: Vectors (k, d) of the items, where the index has given ones, as for `build`.
            replace: Items whose ids the index has take the place of these.
            progress: Called with (items encoded, k).

        Raises:
            InputError: For items that cannot be read, an id that the index has (unless `replace`),
                vectors that lack or do not fit, or no room; nothing is changed then.
        """
        new = items if isinstance(items, Items) else read_items(items, template=self.items.template)
        if new.alive is not None:
            new = new.take(np.flatnonzero(new.alive).tolist())
        given = _by_name(vectors, GIVEN)

        def made(now: ItemIndex) -> dict[str, Growth]:
            old = [now.items.position(i) for i in new.ids if i in now.items]
            if old and not replace:
                raise InputError(
                    f"the index has an item {now.items.ids[old[0]]!r} already: give another id, or "
                    "replace it (replace=True, --replace)"
                )
            grown = growth(now.opened, now.items, new, given, unfitted(now), progress)
            if old:
                grown["items"].rows["deleted"] = np.array(old, np.int64)  # type: ignore[index]
            return grown

        self._change(made)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete items, in the folder of the index too, in one atomic step.

        They keep their positions until `compact`, and no search returns them. Raises `InputError`
        for an unknown id; nothing is changed then.
        """
        if isinstance(ids, str):
            raise InputError(f"the ids to delete are the text {ids!r:.80}; give a list of ids")
        ids = list(dict.fromkeys(ids))

        def made(now: ItemIndex) -> dict[str, Growth]:
            meta = {"template": now.items.template}
            return {"items": Growth(meta, {"deleted": now.items.positions(ids)})}

        if ids:
            self._change(made)

    def compact(self) -> None:
        """Write the index without the items that were deleted, in one atomic step.

        Word models are fitted again. Searches go on meanwhile, so that it can run in a thread or
        another process; adding and deleting waits. Raises `InputError` for an index without items,
        or no room; nothing is changed then.
        """
        if not len(self):
            raise InputError("every item of the index is deleted: add items, then compact it")
        self._change(lambda now: compacted(now.opened, now.items, now.anchor_items), whole=True)

    def check_compact(self, what: str) -> None:
        """`InputError` if the index has deleted items, which `what` would count."""
        if len(self) < self.n:
            raise InputError(
                f"{what} reads every item, and {self.n - len(self)} are deleted: compact the index "
                "first (crossknn index compact INDEX)"
            )

    @property
    def opened(self) -> dict[str, Any]:
        """All parts, opened."""
        return {key: self._open(*key.split("/", 1)) for key in self._parts}

    def _change(
        self, make: Callable[[ItemIndex], Mapping[str, Growth | Artifact]], *, whole: bool = False
    ) -> None:
        """Become the index with what `make` says of the newest one, in the folder first: all parts
        if `whole`, else what is added to some."""
        self._check_own_items()
        folder, build = self.folder, secrets.token_hex(8)
        parts: dict[str, Artifact]
        with self._lock, nullcontext() if folder is None else changing(folder):
            if folder is None:
                parts = self._stored()
                for key, part in make(self).items():
                    whole_part = part.of(parts[key]) if isinstance(part, Growth) else part
                    parts[key] = Artifact(whole_part.meta, dict(whole_part.arrays))
            else:
                before, known = read_parts(folder)
                now = self._with(ItemIndex._of(before, known, self._encode, folder))
                commit(folder, make(now), build, None if whole else before)
                build, parts = read_parts(folder)
            # In one step: a search that has begun goes on with its snapshot.
            self.__dict__ = self._with(ItemIndex._of(build, parts, self._encode, folder)).__dict__

    def _check_own_items(self) -> None:
        """`InputError` if a database has the items."""
        if self.database is not None:
            raise InputError(
                f"the items stay in {self.database.name}: change them there, and give "
                "ItemIndex.over a folder, which keeps what belongs to them"
            )

    def _stored(self) -> dict[str, Artifact]:
        """What is kept of all parts."""
        parts = {key: _artifact(part, key) for key, part in self._parts.items()}
        columns = {**columns_of(self.items), "anchor_items": self.anchor_items}
        return parts | {"items": Artifact({"template": self.items.template}, columns)}

    def _with(self, other: ItemIndex) -> ItemIndex:
        """The other index with the models that this one has opened."""
        for key, part in self._parts.items():
            model = getattr(part, "encoder", None)
            if model is not None and model.opened is not None and key in other._parts:
                same: RememberedModel | None = other._open(*key.split("/", 1)).encoder
                if same is not None and same.state() == model.state():
                    same.opened = model.opened
        other.exact, other._lock, other._lists = self.exact, self._lock, self._lists
        if other.n == self.n:
            other._added = self._added
        elif self._added:
            logger.warning("dropped the retrievers %s: add them again", ", ".join(self._added))
        if "scores" in self.__dict__:
            other.scores = self.scores
        return other

    def allowed(self, conditions: Mapping[str, Any]) -> BoolArray:
        """Mask (n,) of the items whose fields meet conditions, such as `{"lang": "en"}`.

        `crossknn.index.filters` has them all. The first filter on a field reads the field of all
        items. Raises `InputError` for a condition that is none, and an unknown field.
        """
        if self.database is not None:
            return self.database.allowed(conditions)
        if self._fields.records is not self.items.extra:
            self._fields = Fields(self.items.extra)
        return self._fields.mask(parse_filter(conditions))

    @property
    def anchor_items(self) -> IntArray:
        """A random order of (at most 10,000) items, drawn when the index was built."""
        return np.asarray(self._anchor_items)

    @cached_property
    def scores(self) -> ScoreStore:
        """The store of exact scores: what collections, fits and the commands computed, and searches
        whose scorer is `StoredScorer(scorer, index.scores)`, in its folder if it has one."""
        return ScoreStore(None if self.folder is None else self.folder / SCORES)

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) float32 or float16 by name."""
        return self._named("vectors", lambda part: np.asarray(part.values))

    def store(self, name: str) -> VectorStore:
        """Searches the item vectors `name`: by their approximate index, if there is one (see
        `add_nearest`), unless the index was loaded with `exact`."""
        if isinstance(values := self._open("vectors", name).values, DatabaseStore):
            return values
        key = "store", name, self.exact
        return self.cache.get(key, (self.items,), lambda: self._store(name))

    @property
    def fitted(self) -> Mapping[str, ItemVectors]:
        """Vectors fitted to a cross-encoder, by name, the latest last."""
        parts = {name: self._open("vectors", name) for name in self._names("vectors")}
        return {name: part for name, part in parts.items() if part.method}

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """Retrievers that are not made of vectors: `bm25`, `tfidf`, those that were added."""
        names = dict.fromkeys([*self._matchers, *self._added])
        return Named(names, lambda name: self._added.get(name) or self._open("words", name))

    @property
    def late(self) -> Mapping[str, Late]:
        """Late-interaction models, opened, and the items' states, by name: `cmc`, ..."""
        return self._named("late", lambda part: Late(part.encoder.get(), part.states))

    @property
    def graphs(self) -> Mapping[str, Neighbours]:
        """Item graphs (n, k) by name."""
        return self._named("graphs", lambda part: part.arrays["neighbours"])

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """Results of fits, such as kriging's prior, by name."""
        return {name: self._open("artifacts", name) for name in self._names("artifacts")}

    def has_query_vectors(self, name: str) -> bool:
        """Whether the index can make query vectors in the space of `vectors[name]`."""
        return name in self.vectors and self._encoder(name) is not None

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """See `Searchable.query_vectors`."""
        d, encode = self._open("vectors", name).values.shape[1], self._encoder(name)
        if name in queries.vectors:
            made = queries.vectors[name]
        elif encode is not None:
            made = encode(queries)
        else:
            raise InputError(
                f"the index cannot make query vectors for its item vectors {name!r}: build or load "
                "it with query_vectors=, or search with blend=0 and retriever=bm25"
            )
        what = f"the {name!r} query vectors"
        queries.vectors[name] = check_vectors(made, len(queries), d, what)
        return queries.vectors[name]

    def _encoder(self, name: str) -> Callable[[Queries], FloatArray] | None:
        """What makes query vectors in the space of `vectors[name]`, if anything does."""
        if name in self._encode:
            return lambda queries: self._encode[name](queries.texts)
        if f"words/{name}" in self._parts:
            return lambda queries: self._open("words", name).encode_queries(queries.texts)
        part: ItemVectors = self._open("vectors", name)
        encoder, base = part.encoder, part.base
        if encoder is not None:
            return lambda queries: part.map(encoder.get().encode_queries(queries.texts))
        if base is not None and self.has_query_vectors(base):
            return lambda queries: part.map(self.query_vectors(queries, base))
        return None

    def scale(self, name: str) -> Scale | None:
        """Brings exact scores to the scale of `vectors[name]`, as the anchors or a fit have it."""
        if name in self.fitted:
            return self.fitted[name].scale
        anchors = self.artifacts.get(ANCHORS)
        known = None if anchors is None else anchors.meta["scales"].get(name)
        return None if known is None else Scale(*known)

    @property
    def anchors(self) -> Anchors | None:
        """Exact scores (k_q, n) of the anchor queries, if there are any."""
        if (found := self.artifacts.get(ANCHORS)) is None:
            return None
        scales, columns = found.meta["scales"], found.arrays
        center = scales.get(DUAL_ENCODER, scales["center"])[0]
        scores = self.cache.get((ANCHORS,), (found,), lambda: all_scores(columns))
        return Anchors(scores, center, Queries(columns["queries"]))

    @property
    def anchor_queries(self) -> Sequence[str]:
        """Texts (k_q) of the anchor queries."""
        known = self.artifacts.get(ANCHORS)
        return () if known is None else known.arrays["queries"]

    @property
    def item_scores(self) -> ItemScores | None:
        """Exact scores (a, n) of items in the query's place, if there are any."""
        if (found := self.artifacts.get(ITEM_SCORES)) is None:
            return None
        scores = self.cache.get((ITEM_SCORES,), (found,), lambda: all_scores(found.arrays))
        return ItemScores(found.arrays["items"], scores)

    def scorer_fingerprint(self, name: str) -> str | None:
        """The fingerprint of the cross-encoder of an artifact, fitted vectors, or else the anchors,
        if known."""
        if name in self.fitted:
            return self.fitted[name].fingerprint
        found = self.artifacts.get(name) or self.artifacts.get(ANCHORS)
        return None if found is None else found.meta.get("fingerprint")

    def model_of(self, name: str) -> RememberedModel | None:
        """The model that made the vectors or states `name`, if the index knows one."""
        kind = "late" if name in self._names("late") else "vectors"
        return self._open(kind, name).encoder if name in self._names(kind) else None

    def add_retriever(self, name: str, retriever: Retriever) -> None:
        """Offer `retriever` under this name. It is not saved; `InputError` if it is none."""
        if not name.isidentifier() or name in {*self.vectors, *self.late, *COMPOSED}:
            raise InputError(f"a retriever cannot be named {name!r} here; use another name")
        if not isinstance(retriever, Retriever):
            raise InputError(f"{retriever!r:.80} is not a retriever: it lacks top or scores")
        if isinstance(retriever, ItemPriors) and len(retriever.values) != self.n:
            raise InputError(
                f"there are {len(retriever.values)} priors for {self.n} items: give one for each"
            )
        self._added[name] = retriever
        self.cache = Cache()

    def check_free(self, name: str, what: str = "fitted vectors") -> None:
        """`InputError` if fitted vectors, or states of items, cannot have this name."""
        _check_name(name, what)
        same = self.fitted if what == "fitted vectors" else self.late
        if name in {*self.vectors, *self.retrievers, *self.late} - {*same}:
            raise InputError(f"the index has something else named {name!r}; use another name")

    def add_fitted(self, name: str, fitted: ItemVectors, *, replace: bool = False) -> None:
        """Offer `fitted` as the item vectors of this name; an index in a folder keeps them there.

        Their item graph is dropped. Raises `InputError` if they do not fit, the name is taken (by
        other fitted vectors: unless `replace`), or there is no room; nothing is changed then.
        """
        self.check_free(name)
        own = {own: self._open("vectors", own) for own in self.vectors if own not in self.fitted}
        fitted = fitted.checked(self.n, own, name)
        if self.newest("vectors", name) is not None and not replace:
            raise InputError(
                f"the index has fitted vectors {name!r}; use another name, or replace them"
            )
        self._put({f"vectors/{name}": fitted, f"graphs/{name}": None})

    def add_late(
        self,
        model: GivenModel,
        name: str | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Encode all items with a late-interaction model, for the retriever `name` (its kind).

        Stopped by an error or a kill, the same call resumes; items that the same model
        has encoded are not encoded again. Returns the name. Raises `InputError` if the name is
        taken (by states of another model: unless `replace`), the model is none, there is no room,
        or another process is encoding; the index stays as it was then.
        """
        given = RememberedModel.of("late-interaction model", model, name)
        self.check_free(given.name, "states of items")
        before = None if replace else self.newest("late", given.name)
        if before is None:
            states = encode_states(given, self.items.texts, self.folder, progress)
        else:
            known = LateStates.of(before, given.name)
            if not known.encoder.same_as(given):
                raise InputError(
                    f"the index has states {given.name!r} of another model (fingerprint "
                    f"{known.encoder.fingerprint}); use another name, or replace them (--replace)"
                )
            states = known.states
        self._put({f"late/{given.name}": LateStates(states, given)})
        if self.folder is not None:
            shutil.rmtree(work_folder(self.folder, given.name), ignore_errors=True)
        return given.name

    def add_graph(
        self,
        name: str | None = None,
        neighbours: int = NEIGHBOURS,
        *,
        progress: Progress | None = None,
    ) -> str:
        """Find every item's nearest other items: the graph that `gar`, `ladr` and `greedy` walk.

        By cosine of the vectors `name`, or by `bm25` or `tfidf` with items as queries; by default
        `unfitted` vectors, or else `bm25`. A graph that is as deep stays. Returns the name. Raises
        `InputError` for fewer than 1 neighbour, a name that is neither, or no room.
        """
        k = min(as_count(neighbours, "neighbours"), max(1, self.n - 1))
        name = name or unfitted(self) or "bm25"
        if name in self.graphs and self.graphs[name].shape[1] >= k:
            return name
        if name in self.vectors:
            found = nearest_by_vectors(self.vectors[name], k, progress)
        elif name in self._matchers:
            items = Queries(self.items.texts)
            found = nearest_items(self._open("words", name), items, k, progress=progress)
        else:
            raise _unknown("vectors or words to make a graph of", name, self._matchers)
        self._put({f"graphs/{name}": Artifact({"neighbours": k}, {"neighbours": found})})
        return name

    def add_nearest(
        self, name: str | None = None, rows: Any = None, *, progress: Progress | None = None
    ) -> str:
        """Build an approximate index of the item vectors `name` (`crossknn.index.nearest`), by
        default `unfitted`, which searches then use: for 200,000 items or more. Or one of other
        `rows` (n, p), for the method of that name.

        It needs the extra `faiss`. In the folder of the index a killed building goes on where it
        was. Returns the name. Raises `InputError` for a name that is none of vectors, or no room.
        """
        if rows is None:
            name = default_vectors(self, name or unfitted(self) or "auto")
            rows = self._rows(name)
        assert name is not None
        if self.folder is None:
            self._lists[name] = fingerprint(rows), build_lists(rows, progress=progress)
        else:
            write_lists(self.folder / f"nearest-{name}", rows, progress)
        self.cache = Cache()
        return name

    def lists(self, name: str, rows: Any = None) -> FaissStore | None:
        """Searches the item vectors `name`, or other `rows` (n, p), by the codes of what
        `add_nearest` has built alone."""
        rows = self._rows(name) if rows is None else rows
        found = self._open_lists(name, rows)
        return found and FaissStore(rows, found, rescored=False)

    def _open_lists(self, name: str, rows: Any) -> Any:
        known = self._lists.get(name)
        if self.exact or (known is None and self.folder is None):
            return None
        if known is not None:
            return known[1] if known[0] == fingerprint(rows, known[1].ntotal) else None
        assert self.folder is not None
        folder = self.folder / f"nearest-{name}"
        return self.cache.get(("lists", name), (rows,), lambda: open_lists(folder, rows))

    def _rows(self, name: str) -> Any:
        """The vectors `name`, by rows."""
        rows = self._open("vectors", name).values
        if self.folder is None or isinstance(rows, StoredArray):
            return rows
        part = self.newest("vectors", name)  # fitted since the index was opened
        assert part is not None
        return rows_of(part.arrays, "values")

    def _store(self, name: str) -> VectorStore:
        rows = self._rows(name)
        if (found := self._open_lists(name, rows)) is not None:
            return FaissStore(rows, found)
        if self.n >= LARGE and not self.exact:
            logger.warning(
                "each round of a search multiplies all %s vectors; crossknn index add INDEX "
                "--nearest (extra faiss) makes an index that finds the best of them sooner",
                f"{self.n:,}",
            )
        return ArrayStore(self.vectors[name])

    def add_words(self, name: str) -> None:
        """Fit the word model `bm25` or `tfidf`; `InputError` for another name, or no room."""
        if name not in WORDS or name == LSA_NAME:
            raise _unknown("word model", name, set(WORDS) - {LSA_NAME})
        if name not in self._matchers:
            self._put({f"words/{name}": WORDS[name].fit(self.items.texts)})

    def put_artifact(self, name: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Keep what a fit has found, in the folder of the index too, in place of the same name.

        `meta` are values for JSON, `arrays` arrays or sequences of texts. Raises `InputError` for
        what cannot be stored, and a full disk.
        """
        if not name.isidentifier():
            raise InputError(f"an artifact cannot be named {name!r}; use another name")
        if (n := n_items(f"artifacts/{name}", arrays)) not in (None, self.n):
            raise InputError(
                f"{name!r} is of {n} items, and the index has {self.n} now: fit or collect it again"
            )
        self._put({f"artifacts/{name}": Artifact(meta, dict(arrays))})

    def description(self) -> dict[str, Any]:
        """What the index holds, as values for JSON: the `meta` of parts, by kind."""
        kinds = "words", "vectors", "late", "graphs", "artifacts"
        parts: dict[str, Any] = {kind: {} for kind in kinds}
        for key, part in self._parts.items():
            kind, _, name = key.partition("/")
            parts[kind][name] = _artifact(part, key).meta
        return {"n": self.n, "template": self.items.template, **parts}

    def __repr__(self) -> str:
        return f"ItemIndex({len(self):,} items; {', '.join(self._parts)})"

    @property
    def _matchers(self) -> list[str]:
        """Word models that are retrievers themselves."""
        return [name for name in self._names("words") if name != LSA_NAME]

    def _names(self, kind: str) -> list[str]:
        """Names of the parts of a kind, the latest last."""
        return [key.partition("/")[2] for key in self._parts if key.startswith(f"{kind}/")]

    def _open(self, kind: str, name: str) -> Any:
        """A part, read when it is first asked for."""
        key = f"{kind}/{name}"
        if key not in self._parts:
            raise _unknown(kind, name, self._names(kind))
        part = self._parts[key]
        if isinstance(part, Artifact) and kind in _READERS:
            part = self._parts[key] = _READERS[kind](part, name)
        return part

    def _named(self, kind: str, get: Callable[[Any], Value]) -> Named[Value]:
        """What `get` takes from the parts of a kind, by name."""
        return Named(self._names(kind), lambda name: get(self._open(kind, name)))

    def _put(self, parts: Mapping[str, Any]) -> None:
        """Add parts, or drop those that are None; in the folder first, if there is one."""
        written = {key: part and _artifact(part, key) for key, part in parts.items()}
        if self.folder is not None:
            write_parts(self.folder, written, self._build, keep=True)
        # In one step: searches in other threads see all of it or nothing.
        kept = {key: part for key, part in self._parts.items() if key not in parts}
        new = {k: written[k] if isinstance(p, Artifact) else p for k, p in parts.items()}
        self._parts = kept | {key: part for key, part in new.items() if part is not None}
        self.cache = Cache()

    def newest(self, kind: str, name: str) -> Artifact | None:
        """The part as the folder has it now, where another process may have put it."""
        key = f"{kind}/{name}"
        if self.folder is None:
            part = self._parts.get(key)
            return part and _artifact(part, key)
        return read_parts(self.folder, self._build)[1].get(key)

    def _keep(self, other: ItemIndex) -> None:
        """Keep what was fitted to the index that this one replaces, as far as it still fits."""
        mine, others = self.items, other.items
        same_items = [*mine.ids, *mine.texts] == [*others.ids, *others.texts]
        for key in sorted(other._parts, key=lambda key: not key.startswith("vectors/")):
            kind, _, name = key.partition("/")
            if kind == "words" or (kind == "vectors" and name not in other.fitted):
                continue
            part = other._open(kind, name) if self._fits(other, kind, name) else None
            if part is not None and not same_items:
                part = part.of_items(self.vectors) if kind == "vectors" else None
            if part is None:
                logger.warning("dropped %s: the items have changed, or what it is made of", key)
            else:
                self._put({key: part})

    def _fits(self, other: ItemIndex, kind: str, name: str) -> bool:
        """Whether a part of another index with the same items fits what this one is made of."""
        if kind == "graphs":
            return name in self._matchers or _same_space(self, other, name)
        if kind == "artifacts":
            base = unfitted(other)
            same_words = ("bm25" in self._matchers) == ("bm25" in other._matchers)
            same = base == unfitted(self) and _same_space(self, other, base) and same_words
            return same or name in (ANCHORS, ITEM_SCORES)
        base = other.fitted[name].base if kind == "vectors" else None
        free = name not in {*self.vectors, *self.retrievers}
        return free and (base is None or _same_space(self, other, base))


def _encode_items(
    model: RememberedModel,
    texts: Sequence[str],
    previous: ItemIndex | None,
    progress: Progress | None,
) -> FloatArray:
    """Vectors (n, d) of the items; those of texts that `previous` has by this model are its own."""
    before = None if previous is None else previous.model_of(DUAL_ENCODER)
    if previous is None or before is None or not before.same_as(model):
        return model.get().encode_items(texts, progress)
    rows = {text: row for row, text in enumerate(previous.items.texts)}
    places = np.array([rows.get(text, -1) for text in texts])
    vectors: FloatArray = previous.vectors[DUAL_ENCODER][places]
    new = np.flatnonzero(places < 0)
    if len(new):
        vectors[new] = model.get().encode_items([texts[p] for p in new.tolist()], progress)
    return vectors


def _same_space(one: ItemIndex, two: ItemIndex, name: str | None) -> bool:
    """Whether both make the same vectors `name`: by one encoder, or else the items' agree."""
    if name is None or name not in one.vectors or name not in two.vectors:
        return False
    mine, other = one.model_of(name), two.model_of(name)
    if mine is not None and other is not None and mine.fingerprint and other.fingerprint:
        return mine.same_as(other)
    return np.array_equal(one.vectors[name], two.vectors[name])


_READERS: Mapping[str, Callable[[Artifact, str], Any]] = {
    "vectors": ItemVectors.of,
    "words": lambda part, name: WORDS[name].of(part),
    "late": LateStates.of,
}


def _artifact(part: Any, key: str) -> Artifact:
    """What is kept of a part; `InputError` for `meta` that is no JSON."""
    made = part if isinstance(part, Artifact) else part.artifact()
    return Artifact(json.loads(as_json(made.meta, key)), made.arrays)


def _by_name(given: Any, alone: str) -> dict[str, Any]:
    """What was given by name; what was given `alone` has that name."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {alone: given}


def _check_name(name: str, what: str) -> None:
    """Refuse a name that a spec could not say, or that means something else there."""
    if not name.isidentifier() or name in _TAKEN:
        raise InputError(f"{what} cannot be named {name!r}; use another name")


def _unknown(what: str, name: str, known: Collection[str]) -> InputError:
    return InputError(f"the index has no {what} {name!r} ({nearest(name, known)})")
