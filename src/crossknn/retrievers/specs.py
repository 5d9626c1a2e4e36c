"""Open retrievers by specification, such as `bm25` or `cmc(retriever=bm25, depth=512)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

from crossknn.errors import InputError, SpecError, nearest
from crossknn.files import scratch
from crossknn.retrievers.base import (
    DEPTH,
    ArrayStore,
    DenseRetriever,
    Late,
    LateRetriever,
    RandomItems,
    RankFusion,
    Retriever,
    VectorStore,
    WeightedSum,
    fixed_order,
)
from crossknn.spec import Spec, build, option, parse
from crossknn.types import Artifact, FloatArray, IntArray, Queries

AUTO, HYBRID = Spec("auto"), Spec("hybrid")
FUSION, FUSED = "fusion", "fused"
"""Name of a fusion's fitted weights in the index, and of the retriever that uses them."""
SEARCH = "search"
"""Name of the retriever that searches with a cheaper scorer; it is the default if there is one."""
SPARSE = "sparse"
"""Name of the retriever by a sparse encoder's vectors."""

AT_ONCE = 2**25
"""Maximum number of scores (queries times items) that a fit computes at once."""


class Searchable(Protocol):
    """The interface of an index from which retrievers are opened."""

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) by name, perhaps memory-mapped."""

    @property
    def fitted(self) -> Mapping[str, Any]:
        """The item vectors that were fitted to a cross-encoder, by name, the latest last."""

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Encode queries (m, d) into the space of `vectors[name]`; cached in `queries.vectors`."""

    def has_query_vectors(self, name: str) -> bool:
        """Whether queries can be encoded into the space of `vectors[name]`."""

    @property
    def n(self) -> int:
        """Number of items."""

    def store(self, name: str) -> VectorStore:
        """Return the vector store that searches the item vectors `name`."""

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """Retrievers without vectors, such as `bm25`."""

    @property
    def late(self) -> Mapping[str, Late]:
        """Late-interaction models, such as `cmc`, for which the index has states of all items."""

    @property
    def anchor_items(self) -> IntArray | None:
        """The random order of items from which ANNCUR takes anchor items, or None."""

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """Results of fits, by name."""


@dataclass(frozen=True, kw_only=True)
class Over:
    """Options of a late-interaction model, which compares the first `depth` candidates of a
    retriever."""

    retriever: Spec = AUTO
    depth: int = option(DEPTH, least=1)


def open_retriever(index: Searchable, spec: Spec | str, seed: int = 0) -> Retriever:
    """Open the retriever that `spec` names, such as `hybrid(bm25, dense)`.

    `auto` is `fused`, the weighted sum from `fit_fusion`, if a fusion was fitted and there is no
    search with a cheaper scorer; otherwise it is the retriever of `first_stage`. Plain `hybrid`
    fuses `bm25` and the first of the `encoders` by rank.

    Args:
        index: The index; it may offer its own retrievers through a method `offered(spec, seed)`.
        spec: The retriever's name, with options in brackets.
        seed: Seed of `random`.
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    offered: Any = getattr(index, "offered", lambda spec, seed: None)
    if (own := offered(spec, seed)) is not None:
        return cast(Retriever, own)
    name = spec.name
    if name in index.late:
        over = build(spec, {name: Over}, "retriever")
        stage = open_retriever(index, over.retriever, seed)
        return LateRetriever(stage, *index.late[name], over.depth, name)
    if name == "auto":
        return open_retriever(index, _default(index), seed)
    have = {*index.retrievers, *index.vectors, "random", "fixed", "hybrid", FUSED}
    if name not in have:
        raise SpecError(
            f"this index has no retriever {name!r}: {nearest(name, {*have, *index.late})} "
            "(crossknn index prepare INDEX --late MODEL adds another)"
        )
    if spec.options or (spec.args and name != "hybrid"):
        raise SpecError(f"retriever {str(spec)!r}: {name!r} takes no options")
    if name == "hybrid":
        return RankFusion([open_retriever(index, stage, seed) for stage in _stages(index, spec)])
    if name == FUSED:
        return open_weighted(index, None, seed)
    if name == "random":
        return RandomItems(index.n, seed)
    if name == "fixed":
        stored = index.anchor_items
        order = np.random.default_rng(seed).permutation(index.n) if stored is None else stored
        return fixed_order(order, index.n)
    if name in index.retrievers:
        return index.retrievers[name]
    return DenseRetriever(index.store(name), lambda queries: index.query_vectors(queries, name))


def _default(index: Searchable) -> str:
    """Return the name of the retriever `auto`."""
    fused = FUSION in index.artifacts and SEARCH not in index.retrievers
    return FUSED if fused else first_stage(index)


def first_stage(index: Searchable) -> str:
    """Return the default retriever: a search with a cheaper scorer, or else the first of the
    `encoders`, or else BM25, or else LSA."""
    if SEARCH in index.retrievers:
        return SEARCH
    if names := encoders(index):
        return names[0]
    if "bm25" in index.retrievers:
        return "bm25"
    return unfitted(index) or "hybrid"  # opening it says what is missing


def encoders(index: Searchable) -> list[str]:
    """Return the names of the retrievers by trained encoders, the default first: `dense`, your own
    vectors in the order of their naming, if queries have such vectors, and `sparse`."""
    own = [n for n in index.vectors if n not in index.fitted and n != "lsa"]
    usable = sorted(filter(index.has_query_vectors, own), key=lambda n: n != "dense")
    return [*usable, *([SPARSE] if SPARSE in index.retrievers else ())]


def open_weighted(index: Searchable, weights: Mapping[str, float] | None, seed: int) -> WeightedSum:
    """Open a weighted sum of retrievers' scores, in units of the exact score; `weights` are in
    standard deviations, by default the fitted weights."""
    fitted = index.artifacts.get(FUSION)
    if fitted is None:
        how = "fit them with  crossknn fit INDEX fusion --queries FILE"
        raise InputError(
            "weights need the standard deviations of each retriever's scores and of this "
            f"cross-encoder's, which the index lacks: {how}"
        )
    deviations = fitted.meta["deviations"]
    names = deviations.keys() - {"exact"}
    weights = fitted.meta["weights"] if weights is None else weights
    for name, weight in weights.items():
        if name not in names or not isinstance(weight, int | float) or not np.isfinite(weight):
            raise InputError(
                f"fuse gives {name!r} the weight {weight!r}: give finite numbers, and only for the "
                f"retrievers of the fitted fusion, {', '.join(sorted(names))}"
            )
    used = {name: weight for name, weight in weights.items() if weight}
    return WeightedSum(
        stages=tuple(_of_all(index, name, seed) for name in used),
        weights=tuple(w * deviations["exact"] / deviations[name] for name, w in used.items()),
    )


def stage_names(index: Searchable, spec: Spec) -> tuple[str, ...]:
    """Return the names of the retrievers that `spec` combines."""
    name = _default(index) if spec == AUTO else spec.name
    if name == FUSED:
        return tuple(index.artifacts[FUSION].meta["weights"])
    if spec == AUTO:
        return (name,)
    if spec == HYBRID:
        return _rank_fused(index)
    return tuple(map(str, _stages(index, spec) if spec.name == "hybrid" else (spec,)))


def retriever_scores(
    index: Searchable, spec: Spec, queries: Queries, seed: int
) -> list[FloatArray]:
    """Compute the scores (m, n) of all items by each retriever that `spec` combines; large arrays
    are mapped from temporary files."""
    retrievers = [_of_all(index, name, seed) for name in stage_names(index, spec)]
    together = max(1, AT_ONCE // index.n)
    if len(queries) <= together:
        return [retriever.scores(queries) for retriever in retrievers]
    arrays = [scratch((len(queries), index.n)) for _ in retrievers]
    for start in range(0, len(queries), together):
        rows = np.arange(start, min(start + together, len(queries)))
        batch = queries.take(rows)
        for scores, retriever in zip(arrays, retrievers, strict=True):
            scores[rows[0] : rows[-1] + 1] = retriever.scores(batch)
    return list(arrays)


def _of_all(index: Searchable, name: str, seed: int) -> Retriever:
    """Open a retriever that scores all items, even if searches use an approximate index."""
    opened = open_retriever(index, name, seed)
    if isinstance(opened, DenseRetriever) and opened.items.values is None and name in index.vectors:
        return replace(opened, items=ArrayStore(index.vectors[name]))
    return opened


def default_vectors(index: Searchable, name: str = "auto") -> str:
    """Return the name of item vectors; `auto` means the vectors fitted last to this scorer, if
    queries can be encoded for them, or else `unfitted`."""
    names = sorted(index.vectors)
    if name == "auto" and names:
        others = getattr(index, "of_others", ())  # fitted to another cross-encoder
        fitted = [n for n in index.fitted if n not in others and index.has_query_vectors(n)]
        return fitted[-1] if fitted else unfitted(index) or [*index.fitted][-1]
    if not names:
        raise InputError(
            "this index has no item vectors: build it with an encoder, your own vectors, or "
            "LSA (--lsa 128)"
        )
    if name not in names:
        raise InputError(f"this index has no item vectors {name!r}; it has {', '.join(names)}")
    return name


def unfitted(index: Searchable) -> str | None:
    """Return the name of the dual encoder's vectors, else of your own vectors (the first named),
    else of LSA's."""
    return min(
        (name for name in index.vectors if name not in index.fitted),
        key=lambda n: (not index.has_query_vectors(n), n != "dense", n == "lsa"),
        default=None,
    )


def need_query_vectors(index: Searchable, name: str, method: str) -> str:
    """Return `name`; raise `InputError` if queries cannot be encoded for these vectors."""
    if not index.has_query_vectors(name):
        raise InputError(
            f"{method} needs query vectors, but this index cannot make them for its item "
            f"vectors {name!r}: give it query_vectors=, or use axn(blend=0) with another "
            "retriever"
        )
    return name


def _stages(index: Searchable, spec: Spec) -> tuple[Spec, ...]:
    if wrong := [str(given) for given in spec.args if not isinstance(given, Spec)]:
        raise SpecError(f"retriever {str(spec)!r}: {wrong[0]} is not a retriever")
    return cast(tuple[Spec, ...], spec.args) or tuple(map(Spec, _rank_fused(index)))


def _rank_fused(index: Searchable) -> tuple[str, ...]:
    """Return the retrievers of plain `hybrid`: `bm25`, and the first of the `encoders` or else the
    unfitted vectors."""
    vectors = next(iter(encoders(index)), unfitted(index))
    words = ("bm25",) if "bm25" in index.retrievers else ()
    names = words if vectors is None else (*words, vectors)
    if not names:
        raise InputError("hybrid needs an index with bm25 or with item vectors")
    return names
