"""The index: items, their vectors, word matching, and scores that were paid for in advance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from crossknn.data.items import Items
from crossknn.data.reading import read_items
from crossknn.errors import InputError
from crossknn.files import as_path
from crossknn.index.artifacts import StoredArtifact
from crossknn.index.contents import SCORES
from crossknn.index.disk import alone
from crossknn.index.encoders import EncodeQueries, GivenEncoder
from crossknn.index.fitted import FittedVectors
from crossknn.index.graphs import NEIGHBOURS
from crossknn.index.item_graph import ItemGraph
from crossknn.index.late import GivenLate, LateStates, RememberedLate, encoded
from crossknn.index.part_states import discard
from crossknn.index.parts import (
    COMPOSED,
    DUAL_ENCODER,
    LSA_NAME,
    Parts,
    build_parts,
    by_name,
    check_name,
)
from crossknn.index.paying import PayingIndex
from crossknn.index.storage import IndexReader, read_index
from crossknn.index.writing import writing
from crossknn.retrievers.base import ItemPriors, Retriever
from crossknn.retrievers.specs import unfitted
from crossknn.scores.store import ScoreStore
from crossknn.types import Artifact, FloatArray, Progress, as_count

Source: TypeAlias = Items | str | Path | Iterable[str | Mapping[str, object]]


class ItemIndex(PayingIndex):
    """n items as a search sees them; satisfies `crossknn.index.base.Index`.

    Made by `build`, kept by `save`, opened by `load`: mapped, not read, so at once.
    """

    @classmethod
    def build(
        cls,
        items: Source,
        *,
        encoder: GivenEncoder | None = None,
        vectors: FloatArray | Mapping[str, FloatArray] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
        lsa: int | None = None,
        bm25: bool = True,
        tfidf: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> ItemIndex:
        """An index of `items`, or of what `read_items` reads from them, in memory.

        `encoder`, a dual encoder or its name ("bundled", a folder, a hub name), gives the vectors
        "dense". `vectors` are your own: (n, d), called "vectors", or several by name.
        `query_vectors` makes them for queries, texts (m) -> (m, d). `lsa` is the number of
        dimensions of latent semantic analysis, 0 for none; None makes 128 where there would be no
        vectors otherwise.
        `bm25` and `tfidf` say which word models to fit. `seed` draws `anchor_items`. `progress`
        is called with (items encoded, n).

        Raises `InputError` for items that cannot be read or vectors that do not fit them.
        """
        return cls(
            build_parts(
                items if isinstance(items, Items) else read_items(items),
                encoder=encoder,
                vectors=by_name(vectors),
                encode=by_name(query_vectors),
                lsa=None if lsa is None else as_count(lsa, "lsa", 0),
                words=["bm25"] * bm25 + ["tfidf"] * tfidf,
                seed=seed,
                progress=progress,
            )
        )

    def save(self, folder: str | Path) -> None:
        """Write the index to `folder`, which must be new, empty or an index, in one atomic step.

        Functions for query vectors and added retrievers are not saved. Scores that are there stay,
        and those of this index are added to them. Raises `InputError` if the folder is something else, cannot be
        written or has no room; nothing is changed then.
        """
        folder = as_path(folder, "the folder of the index")
        fitted = {name: vectors.meta() for name, vectors in self._aligned.items()}
        late = {name: states.meta() for name, states in self._late.items()}
        graphs = self.graphs
        meta = {**self._parts.meta(), "fitted": fitted, "late": late}
        meta["graphs"] = {name: graph.meta() for name, graph in graphs.items()}
        meta["artifacts"] = {name: kept.meta() for name, kept in self._artifacts.items()}
        with writing(folder, meta) as writer:
            self._parts.write(writer)
            others = (*graphs.items(), *self._artifacts.items())
            for name, part in (*self._aligned.items(), *self._late.items(), *others):
                part.write(writer, name)
        if self.scores.path != folder / SCORES:
            store = ScoreStore.open(folder / SCORES)
            store.add_all(self.scores)
            self._scores = store
        self.folder = folder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        encoder: GivenEncoder | Mapping[str, GivenEncoder | GivenLate] | None = None,
        query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None = None,
    ) -> ItemIndex:
        """Open a saved index, mapped.

        Dual encoders and late-interaction models are opened on the first query, from where they
        were when they encoded the items; `encoder` takes the place of the index's own, or several
        by the names of their vectors or states (`{"cmc": folder}`), and must have the same
        fingerprint. `save` keeps where it is. `query_vectors` is as for `build`.
        Raises `IndexFormatError` for a folder that is no index, is damaged, unfinished, of a newer
        version, or of another encoder; `InputError` for an encoder of vectors that it has not.
        """
        encode = by_name(query_vectors)
        index = read_index(
            as_path(folder, "the folder of the index"), lambda reader: cls._of(reader, encode)
        )
        encoders: Mapping[str, Any] = by_name(encoder, alone=DUAL_ENCODER)
        for name, given in encoders.items():
            if (remembered := index._encoder(name)) is None:
                raise InputError(
                    f"the index {folder} has no vectors {name!r} of a dual encoder, nor such states"
                )
            remembered.attach(given)
        return index

    @classmethod
    def _of(cls, reader: IndexReader, encode: Mapping[str, EncodeQueries]) -> ItemIndex:
        fitted = {name: FittedVectors.read(reader, name) for name in reader.meta.get("fitted", ())}
        late = {name: LateStates.read(reader, name) for name in reader.meta.get("late", ())}
        graphs = {name: ItemGraph.read(reader, name) for name in reader.meta.get("graphs", ())}
        artifacts = {n: StoredArtifact.read(reader, n) for n in reader.meta.get("artifacts", ())}
        parts, folder = Parts.read(reader, encode), reader.folder
        return cls(parts, fitted, folder, late, graphs, artifacts)

    def add_retriever(self, name: str, stage: Retriever) -> None:
        """Offer `stage` as a retriever of this name. It is not saved."""
        taken = {*self.vector_names, *self.late_names, *COMPOSED}
        if not name.isidentifier() or name in taken:
            raise InputError(f"a retriever cannot be named {name!r} here; use another name")
        if not isinstance(stage, Retriever):
            raise InputError(
                f"a retriever has the methods top and scores, and {type(stage).__name__} has "
                "not; candidate lists are made with CandidateLists(lists, index.items.ids)"
            )
        if isinstance(stage, ItemPriors) and len(stage.values) != self.n:
            raise InputError(f"there are {len(stage.values)} priors for {self.n} items")
        self._added[name] = stage
        self.memo.clear()

    def check_free(self, name: str) -> None:
        """`InputError` if fitted vectors cannot have this name."""
        check_name(name, "fitted vectors")
        if name in {*self._parts.vectors, *self.retriever_names, *self.late_names}:
            raise InputError(f"the index has something else named {name!r}; use another name")

    def add_fitted(self, name: str, fitted: FittedVectors, *, replace: bool = False) -> None:
        """Offer `fitted` as the item vectors of this name; an index in a folder keeps them there.

        Raises `InputError` if they do not fit, the name is taken (by other fitted vectors: unless
        `replace`), or there is no room; the index stays as it was then.
        """
        self.check_free(name)
        fitted.check(self.n, self._parts.vectors, name)
        stored = self._on_disk()
        known = self._aligned if stored is None else stored.meta.get("fitted", {})
        if name in known and not replace:
            raise InputError(
                f"the index has fitted vectors {name!r}; use another name, or replace them"
            )
        kept = self._store("fitted", name, fitted)
        others = {known: value for known, value in self._aligned.items() if known != name}
        # An encoder without a name can only be had from here.
        self._aligned = {**others, name: dataclasses.replace(kept, encoder=fitted.encoder)}

    def add_late(
        self,
        model: GivenLate,
        name: str | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Encode all items with a late-interaction model, for the retriever `name` (its kind).

        An index in a folder keeps the states there, and where the model is. If the items have been
        encoded by the same model, only that is noted. They are written as they come: stopped by an
        error or a kill, the same call goes on where it was. Returns the name. Raises `InputError`
        if the name is taken (by states of another model: unless `replace`), the model is none,
        there is no room, or another process is encoding; the index stays as it was then.
        """
        remembered = RememberedLate.of(model, name)
        name = remembered.name
        check_name(name, "states of items")
        if name in {*self.vector_names, *self.retriever_names}:
            raise InputError(f"the index has something else named {name!r}; use another name")
        work = self._work(f"late-{name}")
        with alone(work, "states"):
            stored = self._on_disk()
            here = stored is not None and name in stored.meta.get("late", {})
            before = LateStates.read(stored, name) if stored and here else self._late.get(name)
            before = None if replace else before
            late = encoded(remembered, self.items.texts, before, work, progress)
            kept = self._store("late", name, late)
            discard(work)
        self._late[name] = dataclasses.replace(kept, model=remembered)
        return name

    def add_graph(
        self,
        name: str | None = None,
        neighbours: int = NEIGHBOURS,
        *,
        progress: Progress | None = None,
    ) -> str:
        """Find every item's nearest other items: the graph that `gar`, `ladr` and `greedy` walk.

        By cosine of the vectors `name`, or by `bm25` or `tfidf` with items as queries; by default
        the vectors that are not fitted (or `bm25` without any). All pairs of items are compared.
        An index in a folder keeps the graph there. One that is there and as deep stays. Returns the
        name. Raises `InputError` for fewer than 1 neighbour, a name that is neither, or no room.
        """
        neighbours = min(as_count(neighbours, "neighbours"), max(1, self.n - 1))
        words = [model for model in self._parts.models.names if model != LSA_NAME]
        name = name or unfitted(self) or "bm25"
        known = self.graphs.get(name)
        if known is not None and known.neighbours.shape[1] >= neighbours:
            return name
        graph = ItemGraph.of(self, self.items.texts, name, neighbours, words, progress)
        self._graphs[name] = self._store("graphs", name, graph)
        return name

    def put_artifact(self, name: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Keep what a fit has found, in the folder of the index too, in one atomic step.

        `meta` are values for JSON. An artifact of the same name is replaced. Raises `InputError`
        for what cannot be stored.
        """
        if not name.isidentifier():
            raise InputError(f"an artifact cannot be named {name!r}; use another name")
        made = StoredArtifact(Artifact(dict(meta), dict(arrays)))
        made.meta()
        self._artifacts[name] = self._store("artifacts", name, made)

    def drop_artifact(self, name: str) -> None:
        """Forget the artifact `name`, if there is one."""
        if self._artifacts.pop(name, None) is not None and self.folder is not None:
            self.memo.clear()
            dropped = {"build": self._parts.build, "artifacts": {name: None}}
            with writing(self.folder, dropped, keep=True) as writer:
                writer.replace(f"artifact-{name}.")
