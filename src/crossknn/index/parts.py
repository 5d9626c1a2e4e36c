"""The parts an index is made of: built from items and models, written, and mapped again."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from crossknn.data.items import Items
from crossknn.errors import InputError
from crossknn.index.columns import StoredRecords
from crossknn.index.encoders import EncodeQueries, RememberedEncoder, checked_vectors
from crossknn.index.models import Models, model_class
from crossknn.index.storage import IndexReader
from crossknn.index.writing import IndexWriter
from crossknn.scorers.base import Encoder
from crossknn.types import Artifact, FloatArray, IntArray, Progress

DUAL_ENCODER = "dense"
LSA_NAME = "lsa"
GIVEN = "vectors"
COMPOSED = ("random", "fixed", "hybrid")
"""Retrievers that every index has; nothing else may have their names."""
_TAKEN = {DUAL_ENCODER, LSA_NAME, "bm25", "tfidf", "lists", "auto", "anchors", "item_scores"}

LSA_DIMENSIONS = 128
N_ANCHOR_ITEMS = 10_000

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Everything of an index but the scores it paid for. `build` names this building of it."""

    items: Items
    vectors: Mapping[str, FloatArray]
    encoders: Mapping[str, RememberedEncoder]
    encode: Mapping[str, EncodeQueries]
    models: Models
    anchor_items: IntArray
    build: str

    def meta(self) -> dict[str, Any]:
        """What the manifest says of them."""
        return {
            "build": self.build,
            "n": len(self.items),
            "template": self.items.template,
            "vectors": {name: int(values.shape[1]) for name, values in self.vectors.items()},
            "encoders": {name: encoder.state() for name, encoder in self.encoders.items()},
            "models": list(self.models.names),
        }

    def write(self, writer: IndexWriter) -> None:
        """Put them on the disk."""
        for column in ("ids", "texts", "titles"):
            writer.texts(column, getattr(self.items, column))
        writer.records("extra", self.items.extra)
        writer.array("anchor_items", self.anchor_items)
        for name, values in self.vectors.items():
            writer.array(f"vectors-{name}", values)
        for name in self.models.names:
            model: Artifact = self.models[name].artifact()
            writer.state(f"model-{name}", {**model.meta, **model.arrays})

    @property
    def query_vector_names(self) -> tuple[str, ...]:
        """Names of the vectors that the queries' can be made for."""
        makers = {*self.encode, *self.encoders, LSA_NAME}
        return tuple(name for name in self.vectors if name in makers)

    def query_vectors(self, texts: Sequence[str], name: str) -> FloatArray:
        """Vectors (m, d) of queries (m) in the space `name`, one of `query_vector_names`."""
        if name in self.encode:
            return self.encode[name](texts)
        if name in self.encoders:
            return self.encoders[name].get().encode_queries(texts)
        return cast(FloatArray, self.models[name].encode_queries(texts))

    def same_items(self, other: Parts) -> bool:
        """Whether the items of both are the same, in the same order."""
        return list(self.items.ids) == list(other.items.ids) and all(
            a == b for a, b in zip(self.items.texts, other.items.texts, strict=True)
        )

    def same_space(self, other: Parts, name: str) -> bool:
        """Whether both make the same vectors `name`: by one encoder, or else the items' agree."""
        encoders = [parts.encoders.get(name) for parts in (self, other)]
        known = [encoder.fingerprint for encoder in encoders if encoder is not None]
        if len(known) == 2 and None not in known:
            return known[0] == known[1]
        shared = name in self.vectors and name in other.vectors
        return shared and np.array_equal(self.vectors[name], other.vectors[name])

    @staticmethod
    def read(reader: IndexReader, encode: Mapping[str, EncodeQueries]) -> Parts:
        """The stored parts, mapped, with functions for the queries of your own vectors."""
        meta = reader.meta
        check_functions(encode, meta["vectors"])
        return Parts(
            items=Items(
                ids=reader.texts("ids"),
                texts=reader.texts("texts"),
                titles=reader.texts("titles"),
                extra=StoredRecords(reader.texts("extra")),
                template=meta["template"],
            ),
            vectors={name: reader.array(f"vectors-{name}") for name in meta["vectors"]},
            encoders={n: RememberedEncoder.from_state(s) for n, s in meta["encoders"].items()},
            encode=encode,
            models=Models({}, reader, meta["models"]),
            anchor_items=reader.array("anchor_items"),
            build=meta["build"],
        )


def build_parts(
    items: Items,
    *,
    encoder: Encoder | str | Path | None,
    vectors: Mapping[str, FloatArray],
    encode: Mapping[str, EncodeQueries],
    lsa: int | None,
    words: list[str],
    seed: int,
    progress: Progress | None,
) -> Parts:
    """Fit and encode; the arguments are those of `ItemIndex.build`, `words` its word models."""
    n = len(items)
    found = {}
    for name, values in vectors.items():
        check_name(name, "your own vectors")
        found[name] = checked_vectors(values, n, None, f"the vectors {name!r}")
    check_functions(encode, found)
    encoders = {}
    if encoder is not None:
        remembered = encoders[DUAL_ENCODER] = RememberedEncoder.of(encoder)
        found[DUAL_ENCODER] = checked_vectors(
            remembered.get().encode_items(items.texts, progress),
            n,
            remembered.dimensions,
            "the encoder's vectors",
        )
    fitted = {name: model_class(name).fit(items.texts) for name in words}
    if lsa or (lsa is None and not found):
        fitted[LSA_NAME], found[LSA_NAME] = model_class(LSA_NAME).fit(
            items.texts, dimensions=lsa or LSA_DIMENSIONS
        )
    return Parts(
        items=items,
        vectors=found,
        encoders=encoders,
        encode=encode,
        models=Models(fitted),
        anchor_items=np.random.default_rng(seed).permutation(n)[:N_ANCHOR_ITEMS],
        build=secrets.token_hex(8),
    )


def by_name(given: _T | Mapping[str, _T] | None, alone: str = GIVEN) -> dict[str, _T]:
    """What was given by name; what was given `alone` has that name."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {alone: given}


def check_name(name: str, what: str) -> None:
    """Refuse a name that a spec could not say, or that means something else there."""
    if not name.isidentifier() or name in _TAKEN.union(COMPOSED):
        raise InputError(f"{what} cannot be named {name!r}; use another name")


def check_functions(encode: Mapping[str, Any], vectors: Mapping[str, Any]) -> None:
    """Refuse a function for the queries of vectors that do not exist."""
    if unknown := sorted(set(encode) - set(vectors)):
        raise InputError(f"query_vectors names {unknown[0]!r}, but no vectors have that name")
