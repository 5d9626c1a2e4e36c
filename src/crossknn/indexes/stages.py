"""From the grammar to first stages: names of the index, `random`, `fixed`, `hybrid(...)`."""

from __future__ import annotations

import numpy as np

from crossknn.errors import InputError, SpecError, nearest
from crossknn.first.base import FirstStage
from crossknn.first.chance import FixedFirst, RandomFirst
from crossknn.first.fusion import HybridFirst
from crossknn.first.vectors import VectorFirst
from crossknn.indexes.base import Index
from crossknn.spec import Spec

KNOWN = ("random", "fixed", "bm25", "tfidf", "de", "lsa", "hybrid", "lists")


def first_stage(index: Index, spec: Spec, seed: int) -> FirstStage:
    """The first stage that `spec` names, over `index`.

    `hybrid` alone fuses what the index has of `bm25` and its default vectors.
    """
    if spec.options or (spec.args and spec.name != "hybrid"):
        raise SpecError(f"first stage {str(spec)!r}: {spec.name!r} takes no options")
    if spec.name == "hybrid":
        return HybridFirst([first_stage(index, part, seed) for part in _parts(index, spec)])
    if spec.name == "random":
        return RandomFirst(index.n, seed)
    if spec.name == "fixed":
        stored = index.anchor_items
        order = np.random.default_rng(seed).permutation(index.n) if stored is None else stored
        return FixedFirst(order, index.n)
    if spec.name in index.first_names:
        return index.first(spec.name)
    if spec.name in index.vector_names:
        return VectorFirst(
            index.vectors(spec.name), lambda queries: index.query_vectors(queries, spec.name)
        )
    have = sorted({*index.first_names, *index.vector_names, "random", "fixed"})
    if spec.name in KNOWN:
        raise InputError(f"this index has no first stage {spec.name!r}; it has {', '.join(have)}")
    raise SpecError(f"unknown first stage {spec.name!r}: {nearest(spec.name, {*KNOWN, *have})}")


def default_vectors(index: Index, name: str = "auto") -> str:
    """`name`, checked; for `auto` the dual encoder's vectors, or else your own, or else LSA's."""
    names = sorted(index.vector_names)
    if name == "auto" and names:
        return min(names, key=lambda known: (known != "de", known == "lsa", known))
    if name not in names:
        raise InputError(
            f"this index has no item vectors {name!r}; it has {', '.join(names) or 'none'}"
        )
    return name


def _parts(index: Index, spec: Spec) -> tuple[Spec, ...]:
    if spec.args:
        wrong = [str(a) for a in spec.args if not isinstance(a, Spec)]
        if wrong:
            raise SpecError(f"first stage {str(spec)!r}: {wrong[0]} is not a first stage")
        return tuple(a for a in spec.args if isinstance(a, Spec))
    parts = ["bm25"] if "bm25" in index.first_names else []
    if index.vector_names:
        parts.append(default_vectors(index))
    if not parts:
        raise InputError("hybrid needs an index with bm25 or with item vectors")
    return tuple(map(Spec, parts))
