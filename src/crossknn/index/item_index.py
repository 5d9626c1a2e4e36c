"""The index: items, their vectors and retrievers, and what was fitted. Each change replaces its
parts, so that a running search keeps those it began with. Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.items import Items, read_items
from crossknn.data.passages import cut
from crossknn.data.records import Entries
from crossknn.errors import IndexFormatError, InputError, counted
from crossknn.files import is_file
from crossknn.index import building, updates
from crossknn.index.columns import refusing
from crossknn.index.database import DatabaseStore, TextsOf
from crossknn.index.filters import FEW, field_columns
from crossknn.index.nearest import CENTROIDS, write_lists
from crossknn.index.parts import (
    DUAL_ENCODER,
    GIVEN,
    PASSAGES,
    Parts,
    fingerprint_of,
    n_items,
    new_build,
)
from crossknn.index.storage import SCORES, IndexFolder
from crossknn.index.vectors import (
    EncodeQueries,
    GivenModel,
    ItemVectors,
    LateStates,
    RememberedModel,
)
from crossknn.index.view import IndexView
from crossknn.retrievers.base import ItemPriors, Retriever
from crossknn.retrievers.specs import default_vectors, unfitted
from crossknn.retrievers.words import UNICODE, as_tokenizer, tokenizer_named
from crossknn.types import Artifact, Cache, FloatArray, Progress

logger = logging.getLogger(__name__)


class ItemIndex(IndexView):
    """An index of n items: texts, vectors, retrievers, exact scores.

    `build` makes an index, `save` writes it to a folder, and `load` opens it, memory-mapped.
    `stamp` identifies the loaded manifest; `stamp_now` differs once the folder has changed.
    """

    def __init__(self, parts: Parts, database: DatabaseStore | None = None) -> None:
        super().__init__(parts, database)
        self.stamp: tuple[int, int, int] | None = None
        self._lock = threading.RLock()
        if wrong := sorted(set(parts.encode) - set(parts.names("vectors"))):
            raise InputError(f"query_vectors names {wrong[0]!r}, but no vectors have that name")

    @classmethod
    def build(
        cls,
        items: Items | str | Path | Entries,
        *,
        encoder: GivenModel | Mapping[str, GivenModel] | None = None,
        sparse: Any = None,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        lsa: int | None = None,
        bm25: bool = True,
        tokenizer: str | Callable[[str], Sequence[str]] = UNICODE.name,
        passages: bool | int | None = None,
        overlap: int | None = None,
        scorer: Any = None,
        folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> ItemIndex:
        """Make an index, in memory or in a folder.

        Args:
            items: Items, or any source that `read_items` accepts.
            encoder: A dual encoder, its folder or name, which makes the vectors "dense", or several
                by the names of their vectors.
            sparse: A sparse encoder (SPLADE), its folder or name: the retriever "sparse".
            vectors: Your own vectors (n, d), stored as "vectors", or several arrays by name. An
                array with an encoder's name ("dense") is used instead of encoding the items.
            query_vectors: Function from query texts (m) to vectors (m, d), or several by name.
            lsa: Dimensions of LSA: by default 0, or 128 for an index without other vectors.
            bm25, tokenizer: Fit BM25; "unicode" reads every script, "whitespace" splits at blanks,
                or give a function from a text to its words, or its name, "package.module:function".
            passages: Cut the items, which are documents, into passages of at most so many tokens,
                200 for true; `add` and `delete` then take documents (docs/how-to/data.md).
            overlap, scorer: Tokens that neighbouring passages share at most, by default a fifth;
                and the cross-encoder whose tokens are counted, by default the bundled one.
            folder: Save the index there. Of an index in this folder, exact scores and vectors of
                unchanged texts are kept, but anchors and fits dropped. A stopped build resumes.
            progress: Called with (items encoded, items to encode).
        """
        place, split = None if folder is None else IndexFolder(folder), as_tokenizer(tokenizer)
        if place is not None:
            place.check_target()
        cutting = building.cutting_of(passages, overlap, scorer, vectors)
        items = items if isinstance(items, Items) else read_items(items)
        items = items if cutting is None else cut(items, cutting)
        parts = building.parts_of(
            items,
            place,
            encoders=building.by_name(encoder, DUAL_ENCODER),
            sparse=sparse,
            vectors=building.by_name(vectors, GIVEN),
            lsa=lsa,
            bm25=bm25,
            tokenizer=split,
            progress=progress,
        )
        parts |= {} if cutting is None else {PASSAGES: cutting}
        index = cls(Parts(items, parts, new_build(), building.by_name(query_vectors, GIVEN)))
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
        """Open a saved index, memory-mapped; models are opened at the first query.

        Args:
            folder: The folder that `save` or `crossknn index build` wrote.
            encoder: The dual encoder that made the vectors, if its folder has moved; or several
                models by the names of their vectors or states. `save` stores the new path.
            query_vectors: As in `build`.
            tokenizer: The function that the index was built with; for safety, a function that only
                the index names is never imported.
        """
        place = IndexFolder(folder)
        stamp = place.stamp()  # before reading the index, which may be replaced meanwhile
        index = cls(Parts.read(place, building.by_name(query_vectors, GIVEN)))
        index.stamp = stamp
        stored = index._parts.tokenizer
        if tokenizer is not None and (name := as_tokenizer(tokenizer).name) != stored:
            raise IndexFormatError(
                f"the word models of {folder} were built with the tokenizer {stored}, not {name}: "
                "give the same one, or build the index again"
            )
        tokenizer_named(stored)  # raises if it is not registered
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
    ) -> ItemIndex:
        """Make an index whose items (vectors, texts and fields) stay in a database; fits that need
        all vectors read them into memory.

        Args:
            store: The database, such as `QdrantStore`.
            texts: The field that holds the texts, or a function from a list of ids to texts.
            folder: Folder for exact scores and fits; created if it does not exist.
            encoder: The dual encoder that made the vectors, which are then named "dense"; without
                it they are named "vectors".
            query_vectors: Function from query texts (m) to vectors (m, d).
        """
        place = None if folder is None else IndexFolder(folder)
        return cls(building.parts_over(store, texts, place, encoder, query_vectors), store)

    def save(self, folder: str | Path) -> None:
        """Write the index in one atomic step to `folder`, which must be new, empty or an index, and
        keeps its exact scores. Functions for query vectors and your retrievers are not saved."""
        self._check_own_items()
        place, scores = IndexFolder(folder), self.scores
        parts = self._parts.stored()
        if self.n >= FEW:
            meta, columns = parts["items"].meta, parts["items"].arrays
            parts["items"] = Artifact(meta, {**columns, **field_columns(self.items.extra)})
        place.write(parts, self._parts.build)
        place.remove_work()
        if place.path != self.folder and len(scores) and not is_file(place.path, SCORES):
            scores.copy_to(place.path / SCORES)
        self._parts = replace(self._parts, folder=place)
        self.__dict__.pop("scores", None)

    def reloaded(self) -> ItemIndex:
        """Load the current version of the folder, with this index's models and retrievers."""
        assert self._parts.folder is not None
        stamp = self.stamp_now()
        parts = Parts.read(self._parts.folder, self._parts.encode)
        tokenizer_named(parts.tokenizer)  # raises if it is not registered
        index = ItemIndex(updates.carried_over(self._parts, parts))
        index.stamp = stamp
        return index

    def add(
        self,
        items: Items | str | Path | Entries,
        *,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Add items in one atomic step, also in the index's folder, and extend vectors, word models
        and fits to them. Your retrievers are dropped. Running searches keep the old items.

        Args:
            items: As in `build`, read with the index's template. Each item should have an id.
            vectors: Vectors (k, d) of the new items, required if `build` was given vectors.
            replace: Replace items that have the same ids.
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
        """Delete items (of an index of passages, documents) in one atomic step; an unknown id
        changes nothing. Positions stay as they are until `compact`."""
        if isinstance(ids, str):
            raise InputError(f"the ids to delete are the text {ids!r:.80}: give a list of ids")
        ids = list(dict.fromkeys(ids))
        if ids:
            self._change(partial(updates.deletion, ids=ids))

    def compact(self) -> None:
        """Rewrite the index without its deleted items, in one atomic step, and fit its word models
        again. Searches go on meanwhile; changes to items wait."""
        if not len(self):
            raise InputError("every item of the index is deleted: add items, then compact it")
        with refusing("a part"):  # of a folder from a stranger
            self._change(updates.compacted, whole=True)

    def add_retriever(self, name: str, retriever: Retriever) -> None:
        """Add your own retriever, for methods such as `rerank(retriever=name)`; it is not saved."""
        if not name.isidentifier() or name in {*self.vectors, *self.late, *building.COMPOSED}:
            raise InputError(f"a retriever cannot be named {name!r}: use another name")
        if not isinstance(retriever, Retriever):
            raise InputError(f"{retriever!r:.80} is not a retriever: it lacks top or scores")
        if isinstance(retriever, ItemPriors) and len(retriever.values) != self.n:
            raise InputError(
                f"there are {len(retriever.values)} priors for {self.n} items: give one for each"
            )
        self._parts.added[name] = retriever
        self._parts = replace(self._parts, cache=Cache())

    def check_free(self, name: str, what: str = "fitted vectors") -> None:
        """Refuse a taken or invalid name for `what` ("fitted vectors", "states of items")."""
        building.check_name(name, what)
        same = self.fitted if what == "fitted vectors" else self.late
        if name in {*self.vectors, *self.retrievers, *self.late} - {*same}:
            raise InputError(f"the index already has something named {name!r}: use another name")

    def add_fitted(self, name: str, fitted: ItemVectors, *, replace: bool = False) -> None:
        """Store fitted item vectors under a name for methods, such as `axn(vectors=name)`.

        Args:
            name: The name.
            fitted: The fitted vectors.
            replace: Replace this name's vectors of the same cross-encoder.
        """
        self.check_free(name)
        names = [own for own in self.vectors if own not in self.fitted]
        own = {own: self._parts.open("vectors", own) for own in names}
        fitted = fitted.checked(self.n, own, name)
        before = None if replace else self.for_scorer(fitted.fingerprint).newest("vectors", name)
        if before is not None and fingerprint_of(before) == fitted.fingerprint:
            raise InputError(
                f"the index already has fitted vectors {name!r}: use another name, or replace them"
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
        """Encode all items with a late-interaction model, which becomes a retriever, and return its
        name. After an error or a kill, the same call resumes.

        Args:
            model: The model, its folder or its hub name.
            name: The name for `rerank(retriever=name)`; by default the model's kind, such as `cmc`.
            replace: Replace states of another model under this name.
            progress: Called with (items encoded, n).
        """
        given = RememberedModel.of("late-interaction model", model, name)
        self.check_free(given.name, "states of items")
        parts, before = self._parts, None if replace else self._parts.newest("late", given.name)
        late = None if before is None else LateStates.of(before, given.name)
        if late is not None and not late.encoder.same_as(given):
            raise InputError(
                f"the index has states named {given.name!r} from another model (fingerprint "
                f"{late.encoder.fingerprint}): use another name, or replace them (--replace)"
            )
        kept = None if late is None else late.states
        states = kept or given.encode(parts.items.texts, progress, self.folder)
        self._put({f"late/{given.name}": LateStates(states, given)}, parts)
        if parts.folder is not None:
            parts.folder.remove_work(given.work)
        return given.name

    def add_nearest(
        self, name: str | None = None, rows: Any = None, *, progress: Progress | None = None
    ) -> str:
        """Build an approximate index of item vectors in the index's folder, and return its name. It
        saves time from 200,000 items on, needs the extra `faiss` and 16 items.

        Args:
            name: Name of the vectors, by default the unfitted vectors; or of the method that
                searches `rows`.
            rows: Vectors (n, p) to index instead of the index's own.
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
        if (folder := self._folder_of_lists(name)) is None:
            raise InputError("an approximate index needs a folder: save the index first")
        write_lists(folder, rows, progress)
        self._put({})
        return name

    def put_artifact(self, name: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Store or replace the result of a fit, also in the folder of the index.

        Args:
            name: Name of the artifact.
            meta: Metadata that can be written as JSON.
            arrays: Arrays or sequences of texts, by name.
        """
        if not name.isidentifier():
            raise InputError(f"an artifact cannot be named {name!r}: use another name")
        if (n := n_items(f"artifacts/{name}", meta, arrays)) not in (None, self.n):
            raise InputError(
                f"{name!r} was made for {n} items, but the index has {self.n} now: fit or "
                "collect it again"
            )
        self._put({f"artifacts/{name}": Artifact(meta, dict(arrays))})

    def newest(self, kind: str, name: str) -> Artifact | None:
        """Read a part from the folder, where another process may have stored a newer one."""
        parts = (self if self._origin is None else self._origin)._parts
        return replace(parts, scorers=self._parts.scorers).newest(kind, name)

    def _put(self, parts: Mapping[str, Any], made_of: Parts | None = None) -> None:
        made_of = made_of or self._parts
        with self._lock:  # in one step: searches in other threads see all of it or nothing
            if self._origin is not None:
                self._origin._put(parts, made_of)
                self._parts = replace(self._origin._parts, scorers=self._parts.scorers)
                return
            if parts and not made_of.same_items(self._parts):
                raise InputError(
                    "items were added or removed while this was made: fit or collect it again"
                )
            self._parts = self._parts.put(parts)

    def _change(self, make: updates.Change, *, whole: bool = False) -> None:
        self._check_own_items()
        with self._lock:  # in one step: a search that has begun goes on with its snapshot
            self._parts = updates.changed(self._parts, make, whole=whole)

    def _check_own_items(self) -> None:
        if self.database is not None:
            raise InputError(
                f"the items stay in {self.database.name}: change them there, and give "
                "ItemIndex.over a folder, which keeps the scores and fits"
            )
