"""The index: items, their vectors and retrievers, and the results of fits to them.

Data flows one way. `building` makes `Parts`, the immutable contents, of items; an `IndexFolder`
writes and reads them; `IndexView` is how methods read them; and `ItemIndex` holds the parts of
now: each change makes new parts and replaces them, so that a search goes on with those that it
began with.

Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.columns import refusing
from crossknn.data.items import Items, read_items
from crossknn.data.records import Entries
from crossknn.errors import InputError, counted
from crossknn.files import as_path
from crossknn.index import building, updates
from crossknn.index.database import DatabaseStore, TextsOf, having_text
from crossknn.index.filters import FEW, field_columns
from crossknn.index.late import LateStates, work_folder
from crossknn.index.nearest import CENTROIDS, build_lists, fingerprint, write_lists
from crossknn.index.parts import DUAL_ENCODER, GIVEN, Parts, fingerprint_of, n_items
from crossknn.index.storage import SCORES, IndexFolder
from crossknn.index.vectors import EncodeQueries, GivenModel, ItemVectors, RememberedModel
from crossknn.index.view import IndexView
from crossknn.retrievers.base import ItemPriors, Retriever
from crossknn.retrievers.specs import default_vectors, unfitted
from crossknn.retrievers.words import UNICODE, as_tokenizer, tokenizer_named
from crossknn.scores.store import ScoreStore
from crossknn.types import Artifact, Cache, FloatArray, Progress

logger = logging.getLogger(__name__)


class ItemIndex(IndexView):
    """An index of n items: texts, vectors, retrievers, exact scores.

    `build` makes it, `save` writes it to a folder, and `load` opens it, memory-mapped.

    Attributes:
        stamp: Tells the folder's manifest that was loaded from later ones (`stamp_now`).
    """

    def __init__(self, parts: Parts, database: DatabaseStore | None = None) -> None:
        super().__init__(parts, database)
        self.stamp: tuple[int, int, int] | None = None
        self._lock = threading.RLock()
        self._origin: ItemIndex | None = None  # of a snapshot
        if wrong := sorted(set(parts.encode) - set(parts.names("vectors"))):
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
        folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> ItemIndex:
        """Make an index, in memory or in a folder.

        Args:
            items: Items, or whatever `read_items` reads them from.
            encoder: A dual encoder or its name ("bundled", a folder, a hub name): makes the vectors
                "dense". Without one LSA takes their place.
            vectors: Your own (n, d), called "vectors", or several by name. With an encoder, those
                named "dense" are taken as its vectors of the items, which it then need not encode.
            query_vectors: Function from query texts (m) to vectors (m, d).
            lsa: Dimensions of latent semantic analysis, 0 for none; None makes 128 where there
                would be no vectors otherwise.
            bm25: Fit BM25.
            tfidf: Fit TF-IDF.
            tokenizer: What splits texts into words: "unicode", which reads every script,
                "whitespace", or a function from a text to its words, or its name,
                "package.module:function". The index is searched with the same alone.
            seed: Draws `anchor_items`.
            folder: Save the index there. An index in this folder is replaced: vectors of unchanged
                texts are not made again, and fits to the same items and vectors are kept; others
                are dropped, with a warning. A build that was stopped is resumed.
            progress: Called with (items encoded, all that need it).
        """
        place = building.checked_folder(folder)
        recipe = building.Recipe(
            encoder, vectors, query_vectors, lsa, bm25, tfidf, tokenizer, seed, progress
        )
        index = cls(building.build_parts(items, recipe, place))
        if place is not None:
            index.save(place.path)
        return index

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        encoder: GivenModel | Mapping[str, GivenModel] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        tokenizer: Callable[[str], Sequence[str]] | str | None = None,
    ) -> ItemIndex:
        """Open a saved index, mapped; its bytes are checked when they are first read.

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
        """
        place = IndexFolder(as_path(folder, "the folder of the index"))
        stamp = place.stamp()  # before it is read: it may be replaced meanwhile
        index = cls(Parts.read(place, building.by_name(query_vectors, GIVEN)))
        index.stamp = stamp
        if tokenizer is not None:
            building.use_tokenizer(index._parts, as_tokenizer(tokenizer))
        tokenizer_named(index._parts.tokenizer)  # which must be known
        for name, given in building.by_name(encoder, DUAL_ENCODER).items():
            if (model := index.model_of(name)) is None:
                raise InputError(f"the index {folder} has no vectors or states {name!r} of a model")
            model.attach(given)
        return index

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

        Fits that need all vectors read them all into memory.

        Args:
            store: The database, such as `QdrantStore`.
            texts: The field that holds the texts, or a function from ids to texts, of many at once.
            folder: Keeps exact scores and fits; made if it is not there.
            encoder: The dual encoder that made the vectors, which are then called "dense", or else
                "vectors".
            query_vectors: Function from query texts (m) to vectors (m, d).
            seed: Draws `anchor_items`.
        """
        store = having_text(store, texts)
        return cls(building.parts_over(store, texts, folder, encoder, query_vectors, seed), store)

    def save(self, folder: str | Path) -> None:
        """Write the index to `folder`, which must be new, empty or an index, in one atomic step.

        Exact scores in the folder stay there. Functions for query vectors and retrievers of
        `add_retriever` are not saved.
        """
        self._check_own_items()
        place = IndexFolder(as_path(folder, "the folder of the index"))
        scores = self.scores
        parts = self._parts.stored()
        if self.n >= FEW:
            meta, columns = parts["items"].meta, parts["items"].arrays
            parts["items"] = Artifact(meta, {**columns, **field_columns(self.items.extra)})
        place.write(parts, self._parts.build)
        place.remove_work()
        if place.path != self.folder and len(scores):
            with ScoreStore(place.path / SCORES) as copied:
                copied.add_all(scores)
        self._parts = replace(self._parts, folder=place)
        self.__dict__.pop("_scores", None)

    def reloaded(self) -> ItemIndex:
        """The index as its folder has it now, with the models, the functions and the retrievers
        that this one has in memory."""
        assert self._parts.folder is not None
        stamp = self.stamp_now()
        parts = Parts.read(self._parts.folder, self._parts.encode)
        tokenizer_named(parts.tokenizer)  # which must be known
        index = ItemIndex(updates.carried_over(self._parts, parts))
        index.stamp = stamp
        return index

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
        """A `snapshot` that shows the results of fitting, learning and collecting with the scores
        of one cross-encoder alone, by its `scorer.fingerprint` (None: one that is not known).

        Vectors fitted to another cross-encoder are there by their names, and are no default
        (`of_others`).
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

        After an error nothing is changed. Vectors, words and fits take in the new items (see
        `crossknn.index.updates`). Searches under way, and other processes that have loaded the
        index, go on with the items of before; loading it again shows the new ones. Retrievers of
        `add_retriever` are dropped.

        Args:
            items: As for `build`, read with the index's template. They should have ids of theirs.
            vectors: Vectors (k, d) of the items, where the index has given ones, as for `build`.
            replace: Items whose ids the index has take the place of these.
            progress: Called with (items encoded, k).
        """
        new = items if isinstance(items, Items) else read_items(items, template=self.items.template)
        if new.alive is not None:
            new = new.take(np.flatnonzero(new.alive).tolist())
        given = building.by_name(vectors, GIVEN)
        self._change(
            partial(updates.growth, new=new, given=given, replace=replace, progress=progress)
        )
        if self._parts.folder is not None:
            self._parts.folder.remove_work()

    def delete(self, ids: Iterable[str]) -> None:
        """Delete items, in the folder of the index too, in one atomic step; an unknown id changes
        nothing. They keep their positions until `compact`, and no search returns them."""
        if isinstance(ids, str):
            raise InputError(f"the ids to delete are the text {ids!r:.80}; give a list of ids")
        ids = list(dict.fromkeys(ids))
        if ids:
            self._change(partial(updates.deletion, ids=ids))

    def compact(self) -> None:
        """Write the index without the items that were deleted, in one atomic step.

        Word models are fitted again. Searches go on meanwhile, so that it can run in a thread or
        another process; adding and deleting waits.
        """
        if not len(self):
            raise InputError("every item of the index is deleted: add items, then compact it")
        with refusing("a part"):  # of somebody's folder
            self._change(updates.compacted, whole=True)

    def add_retriever(self, name: str, retriever: Retriever) -> None:
        """Offer a retriever of yours to methods, `rerank(retriever=name)`. It is not saved."""
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
        """Refuse a name for `what` ("fitted vectors", "states of items") that is taken, or none."""
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
        """
        self.check_free(name)
        names = [own for own in self.vectors if own not in self.fitted]
        own = {own: self._parts.open("vectors", own) for own in names}
        fitted = fitted.checked(self.n, own, name)
        before = None if replace else self.for_scorer(fitted.fingerprint).newest("vectors", name)
        if before is not None and fingerprint_of(before) == fitted.fingerprint:
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
        """Encode all items with a late-interaction model, which then is a retriever; returns its
        name.

        Stopped by an error or a kill, the same call resumes; items that the same model has encoded
        are not encoded again.

        Args:
            model: The model, its folder or its hub name.
            name: What methods call it, `rerank(retriever=name)`; by default its kind, such as
                `cmc`.
            replace: Replace states of another model of this name.
            progress: Called with (items encoded, n).
        """
        given = RememberedModel.of("late-interaction model", model, name)
        self.check_free(given.name, "states of items")
        parts = self._parts
        states = building.states_of(parts, given, replace, progress)
        self._put({f"late/{given.name}": LateStates(states, given)}, parts)
        if parts.folder is not None:
            parts.folder.remove_work(work_folder(parts.folder.path, given.name).name)
        return given.name

    def add_nearest(
        self, name: str | None = None, rows: Any = None, *, progress: Progress | None = None
    ) -> str:
        """Build an approximate index of item vectors, which searches then use: worth it from
        200,000 items on. Needs the extra `faiss`. Returns the name.

        Fewer than 16 items are searched exactly, which is logged, and nothing is built. If building
        in a folder is killed, the same call resumes.

        Args:
            name: Name of the vectors, by default those that were not fitted; or of the method that
                searches `rows`.
            rows: Index these (n, p) instead.
            progress: Called with (items done, n).
        """
        if rows is None:
            name = default_vectors(self, name or unfitted(self) or "auto")
            rows = self._rows(name)
        assert name is not None
        if len(rows) < CENTROIDS:
            logger.warning(
                "no approximate index of %s: with fewer than %d items each search is exact",
                counted(len(rows), "item"),
                CENTROIDS,
            )
            return name
        key = self._key_of_lists(name)
        if self.folder is None:
            self._parts.lists[key] = fingerprint(rows), build_lists(rows, progress=progress)
        else:
            write_lists(self.folder / f"nearest-{key}", rows, progress)
        self._put({})
        return name

    def add_words(self, name: str) -> None:
        """Fit a word model, `bm25` or `tfidf`, unless the index has it."""
        if name not in self.matchers:
            parts = self._parts
            self._put({f"words/{name}": building.matcher_of(parts, name)}, parts)

    def put_artifact(self, name: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Keep the result of a fit, in the folder of the index too.

        Args:
            name: Name of the artifact; one of this name is replaced.
            meta: Values for JSON.
            arrays: By name, arrays or sequences of texts.
        """
        if not name.isidentifier():
            raise InputError(f"an artifact cannot be named {name!r}; use another name")
        if (n := n_items(f"artifacts/{name}", meta, arrays)) not in (None, self.n):
            raise InputError(
                f"{name!r} is of {n} items, and the index has {self.n} now: fit or collect it again"
            )
        self._put({f"artifacts/{name}": Artifact(meta, dict(arrays))})

    def drop_of_others(self, name: str) -> None:
        """Drop the artifacts of this name that belong to other cross-encoders than that of
        `for_scorer`."""
        if keys := self._parts.keys_of_others(f"artifacts/{name}"):
            self._put(dict.fromkeys(keys))

    def newest(self, kind: str, name: str) -> Artifact | None:
        """A part, by its kind ("vectors", "artifacts", ...) and name, as the folder has it now,
        where another process may have put it."""
        parts = (self if self._origin is None else self._origin)._parts
        return replace(parts, scorers=self._parts.scorers).newest(kind, name)

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
