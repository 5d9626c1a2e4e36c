"""From the grammar to retrievers: names of the index, `random`, `fixed`, `hybrid(...)`, and
late-interaction models over another one, `cmc(retriever=bm25, depth=512)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from crossknn.errors import InputError, SpecError, nearest
from crossknn.index.base import Index
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.chance import FixedFirst, RandomFirst
from crossknn.retrievers.fusion import HybridFirst, stages_of
from crossknn.retrievers.late import DEPTH, KINDS, LateFirst
from crossknn.retrievers.vectors import VectorFirst
from crossknn.spec import Spec, build
from crossknn.types import FloatArray, Queries

KNOWN = ("random", "fixed", "bm25", "tfidf", "dense", "lsa", "hybrid", "lists")
HYBRID = Spec("hybrid")


@dataclass(frozen=True, kw_only=True)
class Over:
    """Options of a late-interaction model: the first `depth` candidates of `retriever` are compared."""

    retriever: Spec = HYBRID
    depth: int = DEPTH


@runtime_checkable
class Offers(Protocol):
    """An index with retrievers of its own making, which may have options."""

    def offered(self, spec: Spec, seed: int) -> Retriever | None:
        """The retriever that `spec` names; None if it is none of its own."""
        ...


def open_retriever(index: Index, spec: Spec, seed: int) -> Retriever:
    """The retriever that `spec` names, over `index`.

    `hybrid` alone fuses what the index has of `bm25` and of vectors that are not fitted, by
    default: how good its first candidates are does not depend on what was fitted since.
    """
    if isinstance(index, Offers) and (offered := index.offered(spec, seed)) is not None:
        return offered
    if spec.name in index.late_names:
        return _late(index, spec, seed)
    if spec.name in KINDS and spec.name not in {*index.retriever_names, *index.vector_names}:
        raise InputError(
            f"the items have no states of a model {spec.name!r} (there are those of: "
            f"{', '.join(index.late_names) or 'none'}); make them with  crossknn encode INDEX MODEL"
            "  (a matrix file has none)"
        )
    if spec.options or (spec.args and spec.name != "hybrid"):
        raise SpecError(f"retriever {str(spec)!r}: {spec.name!r} takes no options")
    if spec.name == "hybrid":
        return HybridFirst([open_retriever(index, part, seed) for part in _parts(index, spec)])
    if spec.name == "random":
        return RandomFirst(index.n, seed)
    if spec.name == "fixed":
        stored = index.anchor_items
        order = np.random.default_rng(seed).permutation(index.n) if stored is None else stored
        return FixedFirst(order, index.n)
    if spec.name in index.retriever_names:
        return index.retriever(spec.name)
    if spec.name in index.vector_names:
        return VectorFirst(
            index.vectors(spec.name), lambda queries: index.query_vectors(queries, spec.name)
        )
    have = sorted(
        {*index.retriever_names, *index.vector_names, *index.late_names, "random", "fixed"}
    )
    if spec.name in KNOWN:
        raise InputError(f"this index has no retriever {spec.name!r}; it has {', '.join(have)}")
    raise SpecError(f"unknown retriever {spec.name!r}: {nearest(spec.name, {*KNOWN, *have})}")


def stage_names(index: Index, spec: Spec) -> tuple[str, ...]:
    """The stages that `spec` comes to on this index, each once written: `hybrid` is `bm25, dense`."""
    parts = _parts(index, spec) if spec.name == "hybrid" else (spec,)
    return tuple(map(str, parts))


def retriever_scores(index: Index, spec: Spec, queries: Queries, seed: int) -> list[FloatArray]:
    """Scores (m, n) of the queries by each of the stages that `spec` comes to."""
    return [stage.scores(queries) for stage in stages_of(open_retriever(index, spec, seed))]


def default_vectors(index: Index, name: str = "auto") -> str:
    """`name`, checked; for `auto` the vectors fitted last, or else as `unaligned` says.

    `auto` passes over vectors that the queries have none beside, if there are others.
    """
    names = sorted(index.vector_names)
    if name == "auto" and names:
        fitted = [known for known in index.fitted_names if known in index.query_vector_names]
        return fitted[-1] if fitted else unaligned(index) or index.fitted_names[-1]
    if name not in names:
        raise InputError(
            f"this index has no item vectors {name!r}; it has {', '.join(names) or 'none'}"
        )
    return name


def unaligned(index: Index) -> str | None:
    """Vectors that are not fitted: the dual encoder's, or else your own, or else LSA's."""
    usable = index.query_vector_names
    return min(
        set(index.vector_names) - set(index.fitted_names),
        key=lambda name: (name not in usable, name != "dense", name == "lsa", name),
        default=None,
    )


def need_query_vectors(index: Index, name: str, method: str) -> str:
    """`name`, or `InputError` if the queries have no vectors in that space."""
    if name not in index.query_vector_names:
        raise InputError(
            f"{method} needs query vectors, and this index has none for its item vectors "
            f"{name!r}: search those with axn(vectors={name}, blend=0) and another retriever, or "
            "give the index query_vectors= if they are your own"
        )
    return name


def _late(index: Index, spec: Spec, seed: int) -> LateFirst:
    over = build(spec, {spec.name: Over}, "retriever")
    if over.depth < 1:
        raise SpecError(f"{spec}: depth must be 1 or more")
    late = index.late(spec.name)
    below = open_retriever(index, over.retriever, seed)
    return LateFirst(below, late.model, late.states, over.depth, name=spec.name)


def _parts(index: Index, spec: Spec) -> tuple[Spec, ...]:
    if spec.args:
        wrong = [str(a) for a in spec.args if not isinstance(a, Spec)]
        if wrong:
            raise SpecError(f"retriever {str(spec)!r}: {wrong[0]} is not a retriever")
        return tuple(a for a in spec.args if isinstance(a, Spec))
    parts = ["bm25"] if "bm25" in index.retriever_names else []
    if (vectors := unaligned(index)) is not None:
        parts.append(vectors)
    if not parts:
        raise InputError("hybrid needs an index with bm25 or with item vectors")
    return tuple(map(Spec, parts))
