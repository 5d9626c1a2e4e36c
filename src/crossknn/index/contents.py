"""What an index holds, as a search sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from crossknn.errors import InputError, nearest
from crossknn.index.artifacts import StoredArtifact
from crossknn.index.base import Anchors, Index, ItemScores, Late, Named, Neighbours, Scale
from crossknn.index.encoders import RememberedEncoder, checked_vectors
from crossknn.index.fitted import FittedVectors
from crossknn.index.graphs import nearest_neighbours, no_graph
from crossknn.index.item_graph import ItemGraph, checksum
from crossknn.index.late import LateStates, RememberedLate
from crossknn.index.memo import Memo
from crossknn.index.parts import DUAL_ENCODER, LSA_NAME, Parts
from crossknn.retrievers.base import Retriever
from crossknn.scores.store import ScoreStore
from crossknn.types import Artifact, FloatArray, IntArray, Queries

ANCHORS, ITEM_SCORES = "anchors", "item_scores"
"""Artifacts: rows of exact scores of train queries, and of items in the query's place."""

SCORES = "scores.db"
"""The store of scores in the folder of an index."""


class IndexContents:
    """n items, with what was built from them, paid for and fitted.

    Satisfies `crossknn.index.base.Index`; `ItemIndex` adds the ways to make and to extend it.
    """

    def __init__(
        self,
        parts: Parts,
        fitted: Mapping[str, FittedVectors] | None = None,
        folder: Path | None = None,
        late: Mapping[str, LateStates] | None = None,
        graphs: Mapping[str, ItemGraph] | None = None,
        artifacts: Mapping[str, StoredArtifact] | None = None,
    ) -> None:
        """Use `build` or `load`, which make the parts."""
        self.items = parts.items
        self.folder = folder
        self._parts = parts
        self._aligned = dict(fitted or {})
        self._late = dict(late or {})
        self._graphs = dict(graphs or {})
        self._added: dict[str, Retriever] = {}
        self._artifacts = dict(artifacts or {})
        self._scores = ScoreStore.open(folder and folder / SCORES)
        self.memo = Memo()

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def vector_names(self) -> Collection[str]:
        """Names of the item vectors: `dense`, `lsa`, `vectors` or your own, and the fitted ones."""
        return (*self._parts.vectors, *self._aligned)

    @property
    def fitted(self) -> Mapping[str, FittedVectors]:
        """Vectors fitted with a cross-encoder, by name, the latest last."""
        return MappingProxyType(self._aligned)

    @property
    def fitted_names(self) -> Sequence[str]:
        """Names of `fitted`."""
        return tuple(self._aligned)

    @property
    def query_vector_names(self) -> Collection[str]:
        """Those of `vector_names` that the index can make query vectors for."""
        own = self._parts.query_vector_names
        mapped = [n for n, a in self._aligned.items() if a.encoder is not None or a.base in own]
        return (*own, *mapped)

    @property
    def retriever_names(self) -> Collection[str]:
        """Retrievers that are not made of vectors: `bm25`, `tfidf`, those that were added."""
        fitted = [name for name in self._parts.models.names if name != LSA_NAME]
        return tuple(dict.fromkeys([*fitted, *self._added]))

    @property
    def vectors(self) -> Named[FloatArray]:
        """Item vectors (n, d) by name."""
        return Named(self.vector_names, self._vectors)

    @property
    def retrievers(self) -> Named[Retriever]:
        """Retrievers that are not made of vectors, by name."""
        return Named(self.retriever_names, self.retriever)

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """What fits have left, by name."""
        return MappingProxyType({name: kept.artifact for name, kept in self._artifacts.items()})

    @property
    def cache(self) -> Memo:
        """What methods computed from the index once, in memory."""
        return self.memo

    def has_query_vectors(self, name: str) -> bool:
        """Whether the index can make query vectors in the space of `vectors[name]`."""
        return name in self.query_vector_names

    def _vectors(self, name: str) -> FloatArray:
        """Item vectors (n, d) float32 (fitted: or float16), mapped if the index was loaded."""
        if name in self._aligned:
            return self._aligned[name].values
        if name not in self._parts.vectors:
            raise _unknown("item vectors", name, self.vector_names)
        return self._parts.vectors[name]

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Query vectors (m, d) in the space of `vectors(name)`; kept in `queries.vectors`.

        Raises `InputError` if the index cannot make them, or those at hand do not fit.
        """
        d = self.vectors(name).shape[1]
        if name in queries.vectors:
            made = queries.vectors[name]
        elif name not in self.query_vector_names:
            raise InputError(
                f"the index cannot make query vectors for its item vectors {name!r}: pass "
                "query_vectors= when building or loading it if they are your own, or search them "
                "with blend=0 and retriever=bm25"
            )
        elif name in self._aligned:
            made = self._aligned[name].query_vectors(queries, self.query_vectors)
        else:
            made = self._parts.query_vectors(queries.texts, name)
        queries.vectors[name] = checked_vectors(
            made, len(queries), d, f"the {name!r} query vectors"
        )
        return queries.vectors[name]

    def encoder_source(self, name: str) -> str | None:
        """The folder or name of the model that made the vectors or states `name`, if it has one."""
        encoder = self._encoder(name)
        return None if encoder is None else encoder.source

    @property
    def late_names(self) -> Collection[str]:
        """Names of the late-interaction models that the items have states of, e.g. `cmc`."""
        return tuple(self._late)

    @property
    def late(self) -> Named[Late]:
        """Late-interaction models by name, and the items' states."""
        return Named(self.late_names, self._late_of)

    def _late_of(self, name: str) -> Late:
        """The late-interaction model of that name, opened, and the items' states."""
        if name not in self._late:
            raise _unknown("late-interaction model", name, self.late_names)
        found = self._late[name]
        return Late(found.model.get(), found.states)

    @property
    def graphs(self) -> Mapping[str, ItemGraph]:
        """Item graphs by name; one of vectors that were replaced since is passed over."""
        return {name: graph for name, graph in self._graphs.items() if self._fits(name, graph)}

    @property
    def graph_names(self) -> Collection[str]:
        """Names of `graphs`: of the vectors, or the retriever, that they are made of."""
        return tuple(self.graphs)

    def graph(self, name: str, k: int) -> Neighbours:
        """The k nearest other items of every item (n, k), mapped if the index was loaded."""
        if name not in self.graph_names:
            raise no_graph(name, self)
        return nearest_neighbours(self._graphs[name].neighbours, k, name)

    def _fits(self, name: str, graph: ItemGraph) -> bool:
        """Whether the graph is of what the index has under this name."""
        if graph.vectors is None:
            return name in self._parts.models
        return name in self.vector_names and checksum(self.vectors(name)) == graph.vectors

    def _encoder(self, name: str) -> RememberedEncoder | RememberedLate | None:
        if name in self._late:
            return self._late[name].model
        fitted = self._aligned.get(name)
        return self._parts.encoders.get(name) if fitted is None else fitted.encoder

    def retriever(self, name: str) -> Retriever:
        """The retriever of that name, one of `retriever_names`."""
        if name in self._added:
            return self._added[name]
        if name in self._parts.models and name != LSA_NAME:
            return cast(Retriever, self._parts.models[name])
        raise _unknown("retriever", name, self.retriever_names)

    def scale(self, name: str) -> Scale | None:
        """Brings exact scores to the scale of `vectors(name)`.

        Fitted on the anchors, or with the vectors if they are fitted.
        """
        if name in self._aligned:
            return self._aligned[name].scale
        found = self._scales().get(name)
        return None if found is None else Scale(*found)

    @property
    def anchors(self) -> Anchors | None:
        """Exact scores (k_q, n) of the anchor queries, if there are any."""
        if (known := self._artifacts.get(ANCHORS)) is None:
            return None
        scales, arrays = self._scales(), known.artifact.arrays
        center = scales.get(DUAL_ENCODER, scales["center"])[0]
        return Anchors(arrays["scores"], center, Queries(list(map(str, arrays["queries"]))))

    def _scales(self) -> Mapping[str, tuple[float, float]]:
        known = self._artifacts.get(ANCHORS)
        return {} if known is None else known.artifact.meta["scales"]

    def anchored(self, start: int = 0, stop: int | None = None) -> tuple[Index, Queries]:
        """The anchor queries start..stop, and the index: they see it as others do."""
        return self, Queries(self.anchor_queries[start:stop])

    @property
    def anchor_items(self) -> IntArray:
        """A random order of (at most 10,000) items, drawn when the index was built."""
        return self._parts.anchor_items

    @property
    def item_scores(self) -> ItemScores | None:
        """Exact scores (a, n) of items in the query's place, if there are any."""
        if (known := self._artifacts.get(ITEM_SCORES)) is None:
            return None
        return ItemScores(known.artifact.arrays["items"], known.artifact.arrays["scores"])

    @property
    def scores(self) -> ScoreStore:
        """All exact scores of the index's items that were ever computed: its store."""
        return self._scores

    @property
    def anchor_queries(self) -> Sequence[str]:
        """Texts (k_q) of the anchor queries."""
        return self.anchors.queries.texts if self.anchors is not None else ()

    @property
    def scorer_fingerprint(self) -> str | None:
        """The cross-encoder that the stored scores are of, or else the vectors fitted last.

        None without any of them, or a fingerprint.
        """
        rows = [name for name in (ANCHORS, ITEM_SCORES) if name in self._artifacts]
        return next((self.scorer_of(name) for name in (*rows, *reversed(self._aligned))), None)

    def scorer_of(self, name: str) -> str | None:
        """The cross-encoder of `anchors`, `item_scores`, an artifact, or the scale of item vectors,
        if known."""
        if name in self._aligned:
            return self._aligned[name].fingerprint
        known = self._artifacts.get(name, self._artifacts.get(ANCHORS))
        return None if known is None else known.artifact.meta.get("fingerprint")

    def description(self) -> dict[str, Any]:
        """What the index holds, as values that JSON can write."""
        found = {name: self.scale(name) for name in self.vector_names}
        return {
            **self._parts.meta(),
            "first_stages": list(self.retriever_names),
            "anchors": len(self.anchor_queries),
            "item_scores": len(self.item_scores.items) if self.item_scores else 0,
            "scorer": self.scorer_fingerprint,
            "fitted": {name: fitted.meta() for name, fitted in self._aligned.items()},
            "late": {name: late.meta() for name, late in self._late.items()},
            "graphs": {name: graph.meta() for name, graph in self.graphs.items()},
            "artifacts": {name: kept.meta() for name, kept in self._artifacts.items()},
            "scales": {n: {"alpha": s.alpha, "beta": s.beta} for n, s in found.items() if s},
        }


def _unknown(what: str, name: str, known: Collection[str]) -> InputError:
    return InputError(f"the index has no {what} {name!r} ({nearest(name, known)})")
