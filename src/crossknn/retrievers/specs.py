"""From the grammar to retrievers: names of an index, `random`, `fixed`, `hybrid(...)`, and
late-interaction models over another retriever, `cmc(retriever=bm25, depth=512)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from crossknn.errors import InputError, SpecError, nearest
from crossknn.retrievers.base import (
    DEPTH,
    KINDS,
    DenseRetriever,
    Late,
    LateRetriever,
    RandomItems,
    RankFusion,
    Retriever,
    fixed_order,
    stages_of,
)
from crossknn.spec import Spec, build
from crossknn.types import FloatArray, IntArray, Queries

KNOWN = ("random", "fixed", "bm25", "tfidf", "dense", "lsa", "hybrid", "lists")
HYBRID = Spec("hybrid")


class Searchable(Protocol):
    """What of an index retrievers are made of."""

    @property
    def n(self) -> int:
        """Number of items."""

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) by name, float32 or float16, possibly memory-mapped."""

    @property
    def fitted(self) -> Mapping[str, Any]:
        """Those of `vectors` that were fitted to a cross-encoder, the latest last."""

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """Retrievers that are not made of vectors, e.g. `bm25`."""

    @property
    def late(self) -> Mapping[str, Late]:
        """Late-interaction models that the items have states of, e.g. `cmc`."""

    @property
    def anchor_items(self) -> IntArray | None:
        """A fixed random order of items to draw ANNCUR's anchor items from, if one is stored."""

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Query vectors (m, d) in the space of `vectors[name]`; kept in `queries.vectors`.

        Raises `InputError` where they cannot be made.
        """

    def has_query_vectors(self, name: str) -> bool:
        """Whether queries have vectors in the space of `vectors[name]`."""


@dataclass(frozen=True, kw_only=True)
class Over:
    """Options of a late-interaction model: it compares the first `depth` candidates."""

    retriever: Spec = HYBRID
    depth: int = DEPTH


@runtime_checkable
class Offers(Protocol):
    """An index with retrievers of its own making, which may have options."""

    def offered(self, spec: Spec, seed: int) -> Retriever | None:
        """The retriever that `spec` names; None if it is none of its own."""


def open_retriever(index: Searchable, spec: Spec, seed: int) -> Retriever:
    """The retriever that `spec` names, over `index`.

    `hybrid` alone fuses what the index has of `bm25` and of vectors that are not fitted, by
    default: how good its first candidates are does not depend on what was fitted since.

    Raises:
        InputError: If the index has no such retriever.
        SpecError: If there is none, or the spec has options that it does not take.
    """
    if isinstance(index, Offers) and (offered := index.offered(spec, seed)) is not None:
        return offered
    if spec.name in index.late:
        return _open_late(index, spec, seed)
    if spec.name in KINDS and spec.name not in {*index.retrievers, *index.vectors}:
        raise InputError(
            f"the items have no states of a model {spec.name!r} (there are those of: "
            f"{', '.join(index.late) or 'none'}); make them with  "
            "crossknn index add INDEX --late MODEL"
            "  (a matrix file has none)"
        )
    if spec.options or (spec.args and spec.name != "hybrid"):
        raise SpecError(f"retriever {str(spec)!r}: {spec.name!r} takes no options")
    if spec.name == "hybrid":
        return RankFusion([open_retriever(index, part, seed) for part in _stages(index, spec)])
    if spec.name == "random":
        return RandomItems(index.n, seed)
    if spec.name == "fixed":
        stored = index.anchor_items
        order = np.random.default_rng(seed).permutation(index.n) if stored is None else stored
        return fixed_order(order, index.n)
    if spec.name in index.retrievers:
        return index.retrievers[spec.name]
    if spec.name in index.vectors:
        values = index.vectors[spec.name]
        return DenseRetriever(values, lambda queries: index.query_vectors(queries, spec.name))
    have = sorted({*index.retrievers, *index.vectors, *index.late, "random", "fixed"})
    if spec.name in KNOWN:
        raise InputError(f"this index has no retriever {spec.name!r}; it has {', '.join(have)}")
    raise SpecError(f"unknown retriever {spec.name!r}: {nearest(spec.name, {*KNOWN, *have})}")


def stage_names(index: Searchable, spec: Spec) -> tuple[str, ...]:
    """The retrievers that `spec` comes to on this index: `hybrid` is `bm25, dense`."""
    return tuple(map(str, _stages(index, spec) if spec.name == "hybrid" else (spec,)))


def retriever_scores(
    index: Searchable, spec: Spec, queries: Queries, seed: int
) -> list[FloatArray]:
    """Scores (m, n) of all items by each of the retrievers that `spec` comes to."""
    return [stage.scores(queries) for stage in stages_of(open_retriever(index, spec, seed))]


def default_vectors(index: Searchable, name: str = "auto") -> str:
    """`name`, checked; for `auto` the vectors fitted last, or else as `unfitted` says.

    `auto` passes over vectors that the queries have none beside, if there are others. Raises
    `InputError` if there are no such vectors.
    """
    names = sorted(index.vectors)
    if name == "auto" and names:
        fitted = [known for known in index.fitted if index.has_query_vectors(known)]
        return fitted[-1] if fitted else unfitted(index) or [*index.fitted][-1]
    if name not in names:
        raise InputError(
            f"this index has no item vectors {name!r}; it has {', '.join(names) or 'none'}"
        )
    return name


def unfitted(index: Searchable) -> str | None:
    """Vectors that are not fitted: the dual encoder's, or else your own, or else LSA's."""
    return min(
        set(index.vectors) - set(index.fitted),
        key=lambda n: (not index.has_query_vectors(n), n != "dense", n == "lsa", n),
        default=None,
    )


def need_query_vectors(index: Searchable, name: str, method: str) -> str:
    """`name`, or `InputError` if the queries have no vectors in that space."""
    if not index.has_query_vectors(name):
        raise InputError(
            f"{method} needs query vectors, and this index has none for its item vectors "
            f"{name!r}: search those with axn(vectors={name}, blend=0) and another retriever, or "
            "give the index query_vectors= if they are your own"
        )
    return name


def _open_late(index: Searchable, spec: Spec, seed: int) -> LateRetriever:
    over = build(spec, {spec.name: Over}, "retriever")
    if over.depth < 1:
        raise SpecError(f"{spec}: depth must be 1 or more")
    model, states = index.late[spec.name]
    stage = open_retriever(index, over.retriever, seed)
    return LateRetriever(stage, model, states, over.depth, name=spec.name)


def _stages(index: Searchable, spec: Spec) -> tuple[Spec, ...]:
    if spec.args:
        wrong = [str(a) for a in spec.args if not isinstance(a, Spec)]
        if wrong:
            raise SpecError(f"retriever {str(spec)!r}: {wrong[0]} is not a retriever")
        return tuple(a for a in spec.args if isinstance(a, Spec))
    found = ["bm25"] if "bm25" in index.retrievers else []
    if (vectors := unfitted(index)) is not None:
        found.append(vectors)
    if not found:
        raise InputError("hybrid needs an index with bm25 or with item vectors")
    return tuple(map(Spec, found))
