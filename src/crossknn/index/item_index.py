"""The index: items, their vectors and retrievers, and what fits have left beside them.

This is the face of it. `crossknn.index.parts` has what it is made of, `building` and `updates` make
and change that, `nearest` searches vectors, and `filters` fields.

Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.columns import check_positions
from crossknn.data.items import Items
from crossknn.data.reading import read_items
from crossknn.data.records import Entries
from crossknn.errors import IndexFormatError, InputError, counted
from crossknn.files import as_path
from crossknn.index import building, updates
from crossknn.index.base import Anchors, Cache, Scale, n_items
from crossknn.index.database import ItemStore, TextsOf, having_text
from crossknn.index.filters import Fields, field_columns, parse_filter
from crossknn.index.late import LateStates, work_folder
from crossknn.index.nearest import CENTROIDS, FaissStore, build_lists, fingerprint, write_lists
from crossknn.index.parts import (
    ANCHORS,
    DUAL_ENCODER,
    GIVEN,
    Parts,
    fingerprint_of,
    refusing,
)
from crossknn.index.storage import SCORES, damages, read_parts, stamp_of, write_parts
from crossknn.index.vectors import EncodeQueries, GivenModel, ItemVectors, RememberedModel
from crossknn.index.work import WORK
from crossknn.retrievers.base import ItemPriors, Late, Retriever
from crossknn.retrievers.dense import VectorStore
from crossknn.retrievers.lexical import UNICODE, as_tokenizer, tokenizer_named
from crossknn.retrievers.specs import default_vectors, unfitted
from crossknn.scores.collect import Limits
from crossknn.scores.store import ScoreStore
from crossknn.types import (
    Artifact,
    BoolArray,
    FloatArray,
    IntArray,
    Progress,
    Queries,
)

logger = logging.getLogger(__name__)


class ItemIndex:
    """An index of n items: texts, vectors, retrievers, exact scores (`crossknn.index.base.Index`).

    `build` makes it, `save` writes it to a folder, and `load` opens it, memory-mapped.

    Args:
        parts: What `build`, `load` or `over` have made: call one of these instead.
        database: Where the items are, if `over` was given one.

    Attributes:
        database: Where the items are, if `over` was given one.
        exact: Searches multiply all vectors even where there is an approximate index of them.
    """

    def __init__(self, parts: Parts, database: ItemStore | None = None) -> None:
        self._parts, self.database, self.exact = parts, database, False
        self._lock, self._fields = threading.RLock(), Fields(parts.items.extra)
        self._origin: ItemIndex | None = None  # of a snapshot
        self.stamp: tuple[int, int, int] | None = None  # of the manifest that was loaded
        if wrong := sorted(set(parts.encode) - set(parts.vectors)):
            raise InputError(f"query_vectors names {wrong[0]!r}, but no vectors have that name")

    @classmethod
    def build(
        cls,
        items: Items | str | Path | Entries,
        *,
        encoder: GivenModel | None = None,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        lsa: int | None = None,
        bm25: bool = True,
        tfidf: bool = False,
        tokenizer: str | Callable[[str], Sequence[str]] = UNICODE.name,
        seed: int = 0,
        previous: ItemIndex | None = None,
        limits: Limits | None = None,
        folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> ItemIndex:
        """Make an index in memory.

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
            tokenizer: What parts texts into words for them: "unicode", which reads every script,
                "whitespace", or a function from a text to its words, or its name,
                "package.module:function". The index is searched with the same alone.
            seed: Draws `anchor_items`.
            previous: An index that this one replaces. Vectors of its texts are not made again, and
                what was fitted to the same items and vectors is kept; other parts are dropped, with
                a warning.
            limits: Encode the items on Ray, `Limits(ray="local", workers=4)`; by default here.
                Ray needs the encoder's name or folder.
            folder: Where the index is to be saved: the vectors are kept there while they are made,
                and what was stopped goes on with them. Without Ray.
            progress: Called with (items encoded, all that need it).

        Returns:
            The index; `save` keeps it.

        Raises:
            InputError: For items that cannot be read or vectors that do not fit them, or a cluster
                that cannot be reached.
            ScorerError: Ray has lost one worker again and again.
        """
        items = items if isinstance(items, Items) else read_items(items)
        given, encode = building.by_name(vectors, GIVEN), building.by_name(query_vectors, GIVEN)
        words = ["bm25"] * bm25 + ["tfidf"] * tfidf
        before = None if previous is None else previous._parts
        place = None if folder is None else as_path(folder, "the folder of the index")
        how = words, as_tokenizer(tokenizer), lsa, seed, before, progress, limits, place
        return cls(building.build_parts(items, encoder, given, encode, *how))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        encoder: GivenModel | Mapping[str, GivenModel] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        tokenizer: Callable[[str], Sequence[str]] | str | None = None,
        exact: bool = False,
    ) -> ItemIndex:
        """Open a saved index, mapped; what is read is checked when it is first touched.

        Dual encoders and late-interaction models are opened on the first query, from where they
        were when they encoded the items.

        Args:
            folder: The folder that `save` or `crossknn index build` wrote.
            encoder: The dual encoder that made the index's vectors, if it has moved; or several
                models by the names of their vectors or states (`{"cmc": folder}`). `save` keeps
                where they are.
            query_vectors: As for `build`.
            tokenizer: The function that the index was built with, if one was given, or its name: it
                is never imported because an index names it.
            exact: Search all vectors, even where there is an approximate index of them.

        Returns:
            The index.

        Raises:
            IndexFormatError: The folder is no index, is damaged, unfinished or of another version,
                or the encoder or the tokenizer is another one.
            InputError: The index has no vectors of this encoder's name.
        """
        folder = as_path(folder, "the folder of the index")
        stamp = stamp_of(folder)  # before it is read: it may be replaced meanwhile
        index = cls(Parts.of(*read_parts(folder), building.by_name(query_vectors, GIVEN), folder))
        index.exact, index.stamp, built_with = exact, stamp, index._parts.tokenizer
        if tokenizer is not None:
            index._parts = index._parts.checked_with(as_tokenizer(tokenizer))
        else:
            tokenizer_named(built_with)  # which must be known
        for name, given in building.by_name(encoder, DUAL_ENCODER).items():
            if (model := index.model_of(name)) is None:
                raise InputError(f"the index {folder} has no vectors or states {name!r} of a model")
            model.attach(given)
        return index

    def stamp_now(self) -> tuple[int, int, int] | None:
        """What another index in the folder, or none, would change; None without a folder."""
        return None if self.folder is None else stamp_of(self.folder)

    def reloaded(self) -> ItemIndex:
        """The index as its folder has it now, with the models, the functions and the retrievers
        that this one has in memory.

        Returns:
            The index.

        Raises:
            IndexFormatError: The folder is no index any more, or is damaged.
        """
        assert self.folder is not None
        stamp = self.stamp_now()
        parts = Parts.of(*read_parts(self.folder), self._parts.encode, self.folder)
        tokenizer_named(parts.tokenizer)  # which must be known
        index = ItemIndex(parts.after(self._parts))
        index.exact, index.stamp = self.exact, stamp
        return index

    @classmethod
    def replaced_in(cls, folder: str | Path) -> ItemIndex | None:
        """The index that a new one is to replace: `previous` of `build`.

        Args:
            folder: Where it is.

        Returns:
            The index, even if its words are an older version's; None if none can be read.
        """
        try:
            return cls(Parts.of(*read_parts(Path(folder)), {}, Path(folder)))
        except IndexFormatError:
            return None

    @classmethod
    def over(
        cls,
        store: ItemStore,
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

        Returns:
            The index.

        Raises:
            InputError: The encoder's vectors have other dimensions, or the folder is of other
                items.
        """
        store = having_text(store, texts)
        return cls(building.parts_over(store, texts, folder, encoder, query_vectors, seed), store)

    def save(self, folder: str | Path) -> None:
        """Write the index to `folder`, which must be new, empty or an index, in one atomic step.

        Exact scores in the folder stay there. Functions for query vectors and retrievers of
        `add_retriever` are not saved.

        Args:
            folder: The folder.

        Raises:
            InputError: The folder is something else or cannot be written, or the items are in a
                database.
        """
        self._check_own_items()
        folder = as_path(folder, "the folder of the index")
        parts, scores = self._parts.stored(), self.scores
        kept = parts["items"]
        columns = {**kept.arrays, **field_columns(self.items.extra)}
        parts["items"] = Artifact(kept.meta, columns)
        write_parts(folder, parts, self._parts.build)
        shutil.rmtree(folder / WORK, ignore_errors=True)
        if folder != self.folder and len(scores):
            with ScoreStore(folder / SCORES) as kept_scores:
                kept_scores.add_all(scores)
        self._parts = replace(self._parts, folder=folder)
        self.__dict__.pop("_scores", None)

    def verify(self, *, repair: bool = False) -> list[str]:
        """Check every file of the index against its checksums.

        Args:
            repair: Remove damaged exact scores; searches compute them again.

        Returns:
            A sentence for each damaged file; none if all is well.

        Raises:
            IndexFormatError: Nothing can be read.
        """
        if self.folder is None:
            return []
        return damages(read_parts(self.folder)[1]) + self.scores.verify(repair=repair)

    @property
    def items(self) -> Items:
        """Ids, texts, titles and further fields of the items."""
        return self._parts.items

    @property
    def folder(self) -> Path | None:
        """Where the index is kept, if it is."""
        return self._parts.folder

    @property
    def cache(self) -> Cache:
        """What methods computed from the index once, in memory."""
        return self._parts.cache

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
        return {key: meta["added"] for key, meta in self._parts.metas.items() if meta.get("added")}

    def snapshot(self) -> ItemIndex:
        """The index as it is now: items that are added or deleted later do not change it.

        What is fitted to it is kept in this index too, or refused with an `InputError` if that has
        other items by then.
        """
        if self.folder is None:
            _ = self._scores  # one store for both
        made = copy(self)
        made._origin = self
        return made

    def for_scorer(self, fingerprint: str | None) -> ItemIndex:
        """A `snapshot` with what belongs to one cross-encoder: what fits, learning and collecting
        have left of the scores of others is not seen.

        Args:
            fingerprint: The cross-encoder's, `scorer.fingerprint`; None: one that is not known.

        Returns:
            The snapshot. Vectors fitted to another cross-encoder are there by their names, and are
            no default (`of_others`).
        """
        made = self.snapshot()
        made._parts = replace(made._parts, scorers=frozenset({fingerprint, None}))
        return made

    def add(
        self,
        items: Items | str | Path | Entries,
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
        given = building.by_name(vectors, GIVEN)
        self._change(
            partial(updates.growth, new=new, given=given, replace=replace, progress=progress)
        )
        if self.folder is not None:
            shutil.rmtree(self.folder / WORK, ignore_errors=True)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete items, in the folder of the index too, in one atomic step.

        They keep their positions until `compact`, and no search returns them.

        Args:
            ids: Ids of the items.

        Raises:
            InputError: An id is unknown; nothing is changed then.
        """
        if isinstance(ids, str):
            raise InputError(f"the ids to delete are the text {ids!r:.80}; give a list of ids")
        ids = list(dict.fromkeys(ids))
        if ids:
            self._change(partial(updates.deletion, ids=ids))

    def compact(self) -> None:
        """Write the index without the items that were deleted, in one atomic step.

        Word models are fitted again. Searches go on meanwhile, so that it can run in a thread or
        another process; adding and deleting waits.

        Raises:
            InputError: All items are deleted, or there is no room; nothing is changed then.
        """
        if not len(self):
            raise InputError("every item of the index is deleted: add items, then compact it")
        with refusing("a part"):  # of somebody's folder
            self._change(updates.compacted, whole=True)

    def check_compact(self, what: str) -> None:
        """Refuse an index with deleted items, for what would count them.

        Args:
            what: Who asks, for the message.

        Raises:
            InputError: The index has deleted items.
        """
        if len(self) < self.n:
            raise InputError(
                f"{what} reads every item, and {self.n - len(self)} are deleted: compact the index "
                "first (crossknn index compact INDEX)"
            )

    def _change(self, make: updates.Change, *, whole: bool = False) -> None:
        self._check_own_items()
        with self._lock:  # in one step: a search that has begun goes on with its snapshot
            self._parts = updates.changed(self._parts, make, whole=whole)

    def _check_own_items(self) -> None:
        """`InputError` if a database has the items."""
        if self.database is not None:
            raise InputError(
                f"the items stay in {self.database.name}: change them there, and give "
                "ItemIndex.over a folder, which keeps what belongs to them"
            )

    def allowed(self, conditions: Mapping[str, Any]) -> BoolArray:
        """Which items meet conditions on their fields.

        The first filter on a field reads this field: of an index in a folder a column of it, and
        the records of the items that were added since it was saved or compacted.

        Args:
            conditions: By field, such as `{"lang": "en", "year": {"gte": 2020}}`;
                `crossknn.index.filters` lists them all.

        Returns:
            Mask (n,).

        Raises:
            InputError: A condition is not one, or no item has the field.
        """
        if self.database is not None:
            return self.database.allowed(conditions)
        if self._fields.records is not self.items.extra:
            self._fields = Fields(self.items.extra)
        return self._fields.mask(parse_filter(conditions))

    @property
    def anchor_items(self) -> IntArray:
        """A random order of (at most 10,000) items, drawn when the index was built."""
        with refusing("anchor_items"):
            return check_positions(np.asarray(self._parts.anchor_items), len(self.items))

    @property
    def scores(self) -> ScoreStore:
        """The store of exact scores: what collections, fits and the commands computed, and searches
        whose scorer is `StoredScorer(scorer, index.scores)`, in its folder if it has one."""
        return self._scores.current()

    @cached_property
    def _scores(self) -> ScoreStore:
        return ScoreStore(None if self.folder is None else self.folder / SCORES)

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) float32 or float16 by name."""
        return self._parts.vectors

    def store(self, name: str) -> VectorStore:
        """What searches item vectors: their approximate index if there is one (see `add_nearest`),
        unless the index was loaded with `exact`; else all vectors.

        Args:
            name: Name of the vectors.

        Returns:
            Their store.
        """
        return self._parts.store(name, exact=self.exact)

    @property
    def fitted(self) -> Mapping[str, ItemVectors]:
        """Vectors fitted to a cross-encoder, by name, the latest last."""
        return self._parts.fitted

    @property
    def of_others(self) -> frozenset[str]:
        """Names of vectors that were fitted to another cross-encoder than that of `for_scorer`."""
        return self._parts.of_others

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """Retrievers that are not made of vectors: `bm25`, `tfidf`, those that were added."""
        return self._parts.retrievers

    @property
    def tokenizer(self) -> str | None:
        """Name of what parted the items into words; None if there are no word models."""
        words = any(key.startswith("words/") for key in self._parts.held)
        return self._parts.tokenizer if words else None

    @property
    def late(self) -> Mapping[str, Late]:
        """Late-interaction models, opened, and the items' states, by name: `cmc`, ..."""
        return self._parts.named("late", lambda part: Late(part.encoder.get(), part.states))

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """Results of fits, such as kriging's prior, by name."""
        return dict(self._parts.named("artifacts", lambda part: part))

    def each(self, name: str) -> list[Artifact]:
        """The artefacts of this name, one of each cross-encoder, the latest last.

        Args:
            name: Such as "anchors" or "fusion".

        Returns:
            Every one that the index has, whatever `for_scorer` chooses.
        """
        return self._parts.each(f"artifacts/{name}")

    def drop_of_others(self, name: str) -> None:
        """Drop the artefacts of this name that belong to other cross-encoders than that of
        `for_scorer`.

        Args:
            name: Such as "anchors".
        """
        if keys := self._parts.keys_of_others(f"artifacts/{name}"):
            self._put(dict.fromkeys(keys))

    def has_query_vectors(self, name: str) -> bool:
        """Whether the index can make query vectors that fit item vectors.

        Args:
            name: Name of the item vectors.

        Returns:
            Whether it has their dual encoder or a function for them.
        """
        return self._parts.has_query_vectors(name)

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """See `Searchable.query_vectors`."""
        return self._parts.query_vectors(queries, name)

    def scale(self, name: str) -> Scale | None:
        """How exact scores are brought to the scale of inner products.

        Args:
            name: Name of the item vectors.

        Returns:
            The scale that the anchors or a fit have found; None if there is none.
        """
        if name in self.fitted:
            return None if name in self.of_others else self.fitted[name].scale
        anchors = self.artifacts.get(ANCHORS)
        known = None if anchors is None else anchors.meta["scales"].get(name)
        return None if known is None else Scale(*known)

    @property
    def anchors(self) -> Anchors | None:
        """Exact scores (k_q, n) of the anchor queries, if there are any of all items: those that
        items were added after (`added`) are stale until `collect_anchors` scores these, too."""
        found = self.artifacts.get(ANCHORS)
        if found is None or found.meta.get("added"):
            return None
        scales, columns = found.meta["scales"], found.arrays
        center = scales.get(DUAL_ENCODER, scales["center"])[0]
        scores = self.cache.get((ANCHORS,), (found,), lambda: columns["scores"])  # one object
        return Anchors(scores, center, Queries(columns["queries"]))

    @property
    def anchor_queries(self) -> Sequence[str]:
        """Texts (k_q) of the anchor queries, also of stale ones."""
        known = self.artifacts.get(ANCHORS)
        return () if known is None else known.arrays["queries"]

    def scorer_fingerprint(self, name: str) -> str | None:
        """Which cross-encoder's scores something was made with.

        Args:
            name: Name of an artefact or of fitted vectors; any other name stands for the anchors.

        Returns:
            The cross-encoder's fingerprint; None if it is not known.
        """
        if name in self.fitted:
            return self.fitted[name].fingerprint
        found = self.artifacts.get(name) or self.artifacts.get(ANCHORS)
        return None if found is None else found.meta.get("fingerprint")

    def model_of(self, name: str) -> RememberedModel | None:
        """Which model made vectors or states.

        Args:
            name: Name of the vectors or states.

        Returns:
            The model; None if the index knows none.
        """
        return self._parts.model_of(name)

    def add_retriever(self, name: str, retriever: Retriever) -> None:
        """Offer a retriever of yours to methods. It is not saved.

        Args:
            name: What methods call it: `rerank(retriever=name)`.
            retriever: The retriever.

        Raises:
            InputError: The name is taken, or this is no retriever.
        """
        if not name.isidentifier() or name in {*self.vectors, *self.late, *building.COMPOSED}:
            raise InputError(f"a retriever cannot be named {name!r} here; use another name")
        if not isinstance(retriever, Retriever):
            raise InputError(f"{retriever!r:.80} is not a retriever: it lacks top or scores")
        if isinstance(retriever, ItemPriors) and len(retriever.values) != self.n:
            raise InputError(
                f"there are {len(retriever.values)} priors for {self.n} items: give one for each"
            )
        self._parts.added[name] = retriever
        self._parts = replace(self._parts, cache=Cache())

    def check_free(self, name: str, what: str = "fitted vectors") -> None:
        """Refuse a name that something else has.

        Args:
            name: The name wanted.
            what: What is to be called so: "fitted vectors" or "states of items".

        Raises:
            InputError: The name is taken, or is none.
        """
        building.check_name(name, what)
        same = self.fitted if what == "fitted vectors" else self.late
        if name in {*self.vectors, *self.retrievers, *self.late} - {*same}:
            raise InputError(f"the index has something else named {name!r}; use another name")

    def add_fitted(self, name: str, fitted: ItemVectors, *, replace: bool = False) -> None:
        """Offer fitted item vectors to methods; an index in a folder keeps them there.

        Args:
            name: What methods call them: `axn(vectors=name)`.
            fitted: The vectors, and what they were fitted to.
            replace: Replace vectors of this name that were fitted to the same cross-encoder.

        Raises:
            InputError: They do not fit the items, the name is taken, or there is no room; nothing
                is changed then.
        """
        self.check_free(name)
        names = [own for own in self.vectors if own not in self.fitted]
        own = {own: self._parts.open("vectors", own) for own in names}
        fitted = fitted.checked(self.n, own, name)
        known = None if replace else self.for_scorer(fitted.fingerprint).newest("vectors", name)
        if known is not None and fingerprint_of(known) == fitted.fingerprint:
            raise InputError(
                f"the index has fitted vectors {name!r}; use another name, or replace them"
            )
        self._put({f"vectors/{name}": fitted})

    def add_late(
        self,
        model: GivenModel,
        name: str | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Encode all items with a late-interaction model, which then is a retriever.

        Stopped by an error or a kill, the same call resumes; items that the same model has encoded
        are not encoded again.

        Args:
            model: The model, its folder or its hub name.
            name: What methods call it, `rerank(retriever=name)`; by default its kind, such as
                `cmc`.
            replace: Replace states of another model of this name.
            progress: Called with (items encoded, n).

        Returns:
            The name.

        Raises:
            InputError: The name is taken, the model is none, there is no room, or another process
                is encoding; the index stays as it was then.
        """
        given = RememberedModel.of("late-interaction model", model, name)
        self.check_free(given.name, "states of items")
        parts = self._parts
        states = building.states_of(parts, given, replace, progress)
        self._put({f"late/{given.name}": LateStates(states, given)}, parts)
        if self.folder is not None:
            shutil.rmtree(work_folder(self.folder, given.name), ignore_errors=True)
        return given.name

    def add_nearest(
        self, name: str | None = None, rows: Any = None, *, progress: Progress | None = None
    ) -> str:
        """Build an approximate index of item vectors, which searches then use: worth it from
        200,000 items on. Needs the extra `faiss`. Fewer than 16 items are searched exactly, which
        is logged, and nothing is built.

        If building is killed, the same call goes on where it was, in the folder of the index.

        Args:
            name: Name of the vectors, by default those that were not fitted; or of the method that
                searches `rows`.
            rows: Index these (n, p) instead.
            progress: Called with (items done, n).

        Returns:
            The name.

        Raises:
            InputError: There are no such vectors, or there is no room.
        """
        if rows is None:
            name = default_vectors(self, name or unfitted(self) or "auto")
            rows = self._parts.rows(name)
        assert name is not None
        if len(rows) < CENTROIDS:
            logger.warning(
                "no approximate index of %s: with fewer than %d items each search is exact",
                counted(len(rows), "item"),
                CENTROIDS,
            )
            return name
        if self.folder is None:
            own = self._parts.of_scorer(name)
            self._parts.lists[own] = fingerprint(rows), build_lists(rows, progress=progress)
        else:
            write_lists(self.folder / f"nearest-{self._parts.of_scorer(name)}", rows, progress)
        self._put({})
        return name

    def lists(self, name: str, rows: Any = None) -> FaissStore | None:
        """What searches by the codes of an approximate index alone, without the vectors.

        Args:
            name: Name of the item vectors, or of `rows`, as of `add_nearest`.
            rows: What was indexed (n, p), if not item vectors.

        Returns:
            The store; None where `add_nearest` has built nothing, or the index is searched exactly.
        """
        rows = self._parts.rows(name) if rows is None else rows
        found = None if self.exact else self._parts.approximate(name, rows)
        return found and FaissStore(rows, found, rescored=False)

    def add_words(self, name: str) -> None:
        """Fit a word model, unless the index has it.

        Args:
            name: `bm25` or `tfidf`.

        Raises:
            InputError: The name is another one, or there is no room.
        """
        if name not in self._parts.matchers:
            parts = self._parts
            self._put({f"words/{name}": building.matcher_of(parts, name)}, parts)

    def put_artifact(self, name: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Keep what a fit has found, in the folder of the index too.

        Args:
            name: Name of the artefact; one of this name is replaced.
            meta: Values for JSON.
            arrays: By name, arrays or sequences of texts.

        Raises:
            InputError: Something cannot be stored, or is of another number of items, or the disk is
                full.
        """
        if not name.isidentifier():
            raise InputError(f"an artifact cannot be named {name!r}; use another name")
        if (n := n_items(f"artifacts/{name}", meta, arrays)) not in (None, self.n):
            raise InputError(
                f"{name!r} is of {n} items, and the index has {self.n} now: fit or collect it again"
            )
        self._put({f"artifacts/{name}": Artifact(meta, dict(arrays))})

    def description(self) -> dict[str, Any]:
        """What the index holds, as values for JSON: the `meta` of parts, by kind."""
        kinds = "words", "vectors", "late", "artifacts"
        parts: dict[str, Any] = {kind: {} for kind in kinds}
        for key, meta in self._parts.metas.items():
            kind, _, name = key.partition("/")
            parts[kind][name] = meta
        return {"n": self.n, "template": self.items.template, **parts}

    def __repr__(self) -> str:
        return f"ItemIndex({len(self):,} items; {', '.join(self._parts.held)})"

    def _put(self, parts: Mapping[str, Any], made_of: Parts | None = None) -> None:
        """Add parts, or drop those that are None; in the folder first, if there is one.
        `InputError` if the items are others than those that they were made of."""
        made_of = made_of or self._parts
        with self._lock:  # in one step: searches in other threads see all of it or nothing
            if self._origin is not None:
                self._origin._put(parts, made_of)
                self._parts = replace(self._origin._parts, scorers=self._parts.scorers)
                return
            if parts and not made_of.same_items(self._parts):
                raise InputError(
                    "items were added or removed meanwhile, so that this is of other items: fit or "
                    "collect it again"
                )
            self._parts = self._parts.put(parts)

    def newest(self, kind: str, name: str) -> Artifact | None:
        """A part as the folder has it now, where another process may have put it.

        Args:
            kind: Kind of the part: "vectors", "artifacts", ...
            name: Its name.

        Returns:
            The part; None if there is none.
        """
        parts = (self if self._origin is None else self._origin)._parts
        return replace(parts, scorers=self._parts.scorers).newest(kind, name)
