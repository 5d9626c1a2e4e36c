"""What an index is made of: items, and named parts, `kind/name`, in memory or in its folder, where
they are opened when first needed.

    vectors/dense      item vectors, the index's own and fitted ones    `ItemVectors`
    words/bm25         word models                                      BM25, TF-IDF, LSA
    late/cmc           states of late-interaction models                `LateStates`
    artifacts/anchors  what fits and collecting have left               `Artifact`

What belongs to a cross-encoder is kept once for each of them, under `kind/name-<digest of its
fingerprint>`, and found by its name: see `Parts.keys`.

Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.columns import StoredArray, check_kinds, check_meta, check_part, rows_of
from crossknn.data.items import Items
from crossknn.errors import CrossknnError, IndexFormatError, InputError, nearest
from crossknn.files import parse_json, text_digest
from crossknn.index.base import Cache, plain
from crossknn.index.late import LateStates
from crossknn.index.nearest import LARGE, FaissStore, fingerprint, open_lists
from crossknn.index.storage import as_json, columns_of, read_parts, write_parts
from crossknn.index.vectors import EncodeQueries, ItemVectors, RememberedModel, check_vectors
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.dense import ArrayStore, VectorStore
from crossknn.retrievers.lexical import BM25, TFIDF, UNICODE, Tokenizer, same_function
from crossknn.retrievers.lsa import LSA
from crossknn.types import Artifact, FloatArray, Named, Queries, Value

logger = logging.getLogger(__name__)

DUAL_ENCODER, LSA_NAME, GIVEN = "dense", "lsa", "vectors"
ANCHORS = "anchors"
"""Artifact: exact scores of anchor queries with every item."""

WORDS: Mapping[str, Any] = {"bm25": BM25, "tfidf": TFIDF, LSA_NAME: LSA}


class StoredRecords(Sequence[Any]):
    """n JSON objects, or other values, parsed on access; `columns` has `field_columns` of the first
    of them."""

    def __init__(
        self,
        texts: Sequence[str],
        columns: Mapping[str, Any] | None = None,
        *,
        objects: bool = True,
    ) -> None:
        self._texts, self.columns, self._objects = texts, columns or {}, objects

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, position: Any) -> Any:
        return self._record(self._texts[position])

    def __iter__(self) -> Iterator[Any]:
        return map(self._record, self._texts)

    def _record(self, text: str) -> Any:
        with refusing("the fields of an item"):
            found = json.loads(text)
            return dict(found) if self._objects else found


@dataclass(frozen=True, eq=False)
class Parts:
    """The items of an index and its parts; a value: whoever holds it goes on with what it is of.

    Args:
        items: The items (n).
        anchor_items: Positions of items, in a random order.
        held: The other parts by key, opened or as they are kept.
        build: Names this building of the index.
        encode: Functions that make query vectors, by the names of the vectors.
        folder: Where the index is kept, if it is.
        added: Retrievers that were added, by name.
        lists: Approximate indexes of vectors in memory, by name, and these vectors' `fingerprint`.
        cache: What was computed from these parts.
        scorers: Whose scores the parts that are seen were made with: the fingerprint of a
            cross-encoder, and None, which stands for an unknown one; by default anybody's.
    """

    items: Items
    anchor_items: Any
    held: dict[str, Any]
    build: str
    encode: Mapping[str, EncodeQueries]
    folder: Path | None = None
    added: dict[str, Retriever] = field(default_factory=dict)
    lists: dict[str, tuple[str, Any]] = field(default_factory=dict)
    cache: Cache = field(default_factory=Cache)
    scorers: frozenset[str | None] | None = None

    @classmethod
    def of(
        cls,
        build: str,
        kept: Mapping[str, Artifact],
        encode: Mapping[str, EncodeQueries],
        folder: Path | None,
    ) -> Parts:
        """The parts that `save` or a change has left."""
        if (found := kept.get("items")) is None:
            raise IndexFormatError(
                f"{folder} keeps what belongs to items in a database: open it with  "
                "ItemIndex.over(store, texts, folder=...)"
            )
        with refusing("items"):
            check_kinds(found.arrays)
            columns = {name: found.arrays[name] for name in ("ids", "texts", "titles")}
            if "deleted" in found.arrays:
                columns["alive"] = np.ones(len(columns["ids"]), np.bool_)
                columns["alive"][found.arrays["deleted"]] = False
            extra = StoredRecords(found.arrays["extra"], found.arrays)
            items = Items(**columns, extra=extra, template=str(found.meta["template"]))
            anchor_items = rows_of(found.arrays, "anchor_items")
        others = {key: part for key, part in kept.items() if key != "items"}
        for key, part in others.items():
            with refusing(plain(key)):
                check_meta(plain(key), part.meta)
        return cls(items, anchor_items, others, build, encode, folder)

    def stored(self) -> dict[str, Artifact]:
        """What is kept of all parts."""
        parts = {key: _artifact(part, key) for key, part in self.held.items()}
        columns = {**columns_of(self.items), "anchor_items": np.asarray(self.anchor_items)}
        return parts | {"items": Artifact({"template": self.items.template}, columns)}

    def put(self, parts: Mapping[str, Any]) -> Parts:
        """With more parts, or without those that are None; in the folder first, if there is one."""
        keys = self.keys
        parts = {
            keys.get(key, key) if part is None else _key(key, part): part
            for key, part in parts.items()
        }
        written = {key: part and _artifact(part, key) for key, part in parts.items()}
        if self.folder is not None and parts:
            write_parts(self.folder, written, self.build, keep=True)
        kept = {key: part for key, part in self.held.items() if key not in parts}
        new = {k: written[k] if isinstance(p, Artifact) else p for k, p in parts.items()}
        kept |= {key: part for key, part in new.items() if part is not None}
        return replace(self, held=kept, cache=Cache())

    def newest(self, kind: str, name: str) -> Artifact | None:
        """The part as the folder has it now, where another process may have put it."""
        held = self.held if self.folder is None else read_parts(self.folder, self.build)[1]
        key = self.seen_among(held).get(f"{kind}/{name}")
        return None if key is None else _artifact(held[key], key)

    @property
    def keys(self) -> dict[str, str]:
        """The key of each part that is seen, by kind and name, the latest last."""
        return self.seen_among(self.held)

    def seen_among(self, held: Mapping[str, Any]) -> dict[str, str]:
        """`keys` of these parts: of several of one name the cross-encoder's own, or the latest."""
        found = dict[str, str]()
        for key, part in held.items():
            name, of = plain(key), fingerprint_of(part)
            if self.scorers is not None and key.startswith(_OF_SCORERS):
                foreign = of not in self.scorers
                if foreign and key.startswith("artifacts/"):
                    continue
                if name in found and (foreign or of is None):
                    continue  # one that is nearer is there
            found.pop(name, None)
            found[name] = key
        return found

    def each(self, name: str) -> list[Any]:
        """Every part of this kind and name, of whichever cross-encoder."""
        return [part for key, part in self.held.items() if plain(key) == name]

    def keys_of_others(self, name: str) -> list[str]:
        """The keys of the parts of this kind and name that are another cross-encoder's."""
        named = [key for key in self.held if plain(key) == name]
        return [key for key in named if fingerprint_of(self.held[key]) not in (self.scorers or ())]

    @property
    def of_others(self) -> frozenset[str]:
        """Names of the vectors that were fitted to another cross-encoder than the one at hand."""
        of = {key[8:]: self.held[own] for key, own in self.keys.items() if key[:8] == "vectors/"}
        known = {name: fingerprint_of(part) for name, part in of.items()}
        foreign = (name for name, by in known.items() if self.scorers and by not in self.scorers)
        return frozenset(foreign)

    def names(self, kind: str) -> list[str]:
        """Names of the parts of a kind, the latest last."""
        return [name.partition("/")[2] for name in self.keys if name.startswith(f"{kind}/")]

    def open(self, kind: str, name: str) -> Any:
        """A part, read when it is first asked for."""
        key = self.keys.get(f"{kind}/{name}")
        if key is None:
            raise unknown(kind, name, self.names(kind))
        return self._opened(key)

    def _opened(self, key: str) -> Any:
        part, (kind, name) = self.held[key], plain(key).split("/", 1)
        if isinstance(part, Artifact):
            with refusing(f"{kind}/{name}"):
                self._check_items()
                check_part(plain(key), part, len(self.items))
                if kind in _READERS:
                    part = self.held[key] = _READERS[kind](part, name)
        return part

    def _check_items(self) -> None:
        """`ValueError` unless each item has all columns."""
        items = self.items
        counts = [len(column) for column in (items.ids, items.texts, items.titles, items.extra)]
        if len(set(counts)) > 1:
            raise ValueError(f"there are {counts} ids, texts, titles and fields")

    def named(self, kind: str, get: Callable[[Any], Value]) -> Named[Value]:
        """What `get` takes from the parts of a kind, by name."""
        return Named(self.names(kind), lambda name: get(self.open(kind, name)))

    @property
    def opened(self) -> dict[str, Any]:
        """All parts, opened, by their keys."""
        return {key: self._opened(key) for key in self.held}

    def after(self, before: Parts) -> Parts:
        """These parts, with the models, approximate indexes and retrievers in memory of others."""
        for key, part in before.held.items():
            model = getattr(part, "encoder", None)
            if model is not None and model.opened is not None and key in self.held:
                same: RememberedModel | None = self._opened(key).encoder
                if same is not None and same.state() == model.state():
                    same.opened = model.opened
        added = before.added
        if added and not self.same_items(before):
            added = {}
            logger.warning("dropped the retrievers %s: add them again", ", ".join(before.added))
        parts = replace(self, lists=before.lists, added=added)
        one_function = same_function(self.tokenizer, before.tokenizer)
        return parts.parted_by(before.tokenizer) if one_function else parts

    def parted_by(self, tokenizer: str | None) -> Parts:
        """With the name that the tokenizer of the word models has in this process."""
        held = {
            key: replace(part, meta={**part.meta, "tokenizer": tokenizer})
            if key.startswith("words/") and isinstance(part, Artifact)
            else part
            for key, part in self.held.items()
        }
        return replace(self, held=held)

    def same_items(self, other: Parts) -> bool:
        """Whether the positions are of the same items, deleted or not."""
        ours, theirs = self.items, other.items
        return ours is theirs or all(
            len(one) == len(two) and all(map(eq, one, two))
            for one, two in ((ours.ids, theirs.ids), (ours.texts, theirs.texts))
        )

    @property
    def metas(self) -> dict[str, Mapping[str, Any]]:
        """What is said of each part, values for JSON: by kind and name, or by key where it is
        another cross-encoder's than the one at hand."""
        names = {key: name for name, key in self.keys.items()}
        return {names.get(key, key): _artifact(part, key).meta for key, part in self.held.items()}

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) by name."""
        return self.named("vectors", lambda part: np.asarray(part.values))

    def rows(self, name: str) -> Any:
        """The vectors `name`, by rows, mapped if there is a folder."""
        rows = self.open("vectors", name).values
        if self.folder is None or isinstance(rows, StoredArray):
            return rows
        part = self.newest("vectors", name)  # fitted since the index was opened
        assert part is not None
        return rows_of(part.arrays, "values")

    def approximate(self, name: str, rows: Any) -> Any:
        """The approximate index of the vectors `name`, or of other `rows`, if there is one."""
        if (known := self.lists.get(self.of_scorer(name))) is not None:
            return known[1] if known[0] == fingerprint(rows, known[1].ntotal) else None
        if self.folder is None:
            return None
        folder = self.folder / f"nearest-{self.of_scorer(name)}"
        if not os.path.lexists(folder):
            return None
        return self.cache.get(("lists", name), (rows,), lambda: open_lists(folder, rows))

    def of_scorer(self, name: str) -> str:
        """What tells an approximate index of these vectors, or of this artifact's, from those of
        other cross-encoders' of the same name."""
        kinds = (self.keys.get(f"{kind}/{name}") for kind in ("vectors", "artifacts"))
        return next((key.partition("/")[2] for key in kinds if key is not None), name)

    def store(self, name: str, *, exact: bool) -> VectorStore:
        """Searches the vectors `name`, by their approximate index if there is one, or `exact`."""
        values: Any = self.open("vectors", name).values
        if hasattr(values, "records"):  # an `ItemStore`
            return values
        key = "store", self.of_scorer(name), exact
        return self.cache.get(key, (self.items,), lambda: self._store(name, exact))

    def _store(self, name: str, exact: bool) -> VectorStore:
        if not exact:
            if (found := self.approximate(name, rows := self.rows(name))) is not None:
                return FaissStore(rows, found)
            if len(self.items) >= LARGE:
                logger.warning(
                    "each round of a search multiplies all %s vectors; crossknn index prepare "
                    "INDEX --nearest (extra faiss) makes an index that finds the best of them "
                    "sooner",
                    f"{len(self.items):,}",
                )
        return ArrayStore(self.vectors[name])

    @property
    def fitted(self) -> Mapping[str, ItemVectors]:
        """Vectors fitted to a cross-encoder, by name, the latest last."""
        parts = {name: self.open("vectors", name) for name in self.names("vectors")}
        return {name: part for name, part in parts.items() if part.method}

    @property
    def matchers(self) -> list[str]:
        """Word models that are retrievers themselves."""
        return [name for name in self.names("words") if name != LSA_NAME]

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """Retrievers that are not made of vectors: `matchers`, and those that were added."""
        names = dict.fromkeys([*self.matchers, *self.added])
        return Named(names, lambda name: self.added.get(name) or self.open("words", name))

    @property
    def tokenizer(self) -> str | None:
        """Name of the tokenizer of the word models; None if an older version made them."""
        models = [meta for key, meta in self.metas.items() if key.startswith("words/")]
        return models[0].get("tokenizer") if models else UNICODE.name

    def checked_with(self, tokenizer: Tokenizer) -> Parts:
        """With the tokenizer of the word models, as somebody gives it. Raises `IndexFormatError`
        for one of another name, and for one that makes other words of the first items."""
        said = f"the words of {self.folder} were parted by the tokenizer {self.tokenizer}, "
        what_to_do = "give the same one, or build the index again"
        if not same_function(tokenizer.name, self.tokenizer):
            raise IndexFormatError(f"{said}not by {tokenizer.name}: {what_to_do}")
        parts = self.parted_by(tokenizer.name)
        for name in parts.names("words"):
            known = parts.open("words", name).vocabulary.number
            for text in islice(self.items.texts, 3):
                if other := next((w for w in tokenizer.split(text) if w not in known), None):
                    raise IndexFormatError(
                        f"{said}which was another function: {other!r:.40} is none of the words "
                        f"that the index has of {text!r:.40}; {what_to_do}"
                    )
        return parts

    def model_of(self, name: str) -> RememberedModel | None:
        """The model that made the vectors or states `name`, if it is known."""
        kind = "late" if name in self.names("late") else "vectors"
        return self.open(kind, name).encoder if name in self.names(kind) else None

    def has_query_vectors(self, name: str) -> bool:
        """See `Searchable.has_query_vectors`."""
        return name in self.vectors and self._encoder(name) is not None

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """See `Searchable.query_vectors`."""
        d, encode = self.open("vectors", name).values.shape[1], self._encoder(name)
        if name in queries.vectors:
            made = queries.vectors[name]
        elif encode is not None:
            made = encode(queries)
        else:
            words = ", or search with blend=0 and retriever=bm25" * ("bm25" in self.matchers)
            raise InputError(
                f"the index cannot make query vectors for its item vectors {name!r}: give "
                "ItemIndex.build, load or over query_vectors=, or the encoder= that made "
                f"them{words}"
            )
        what = f"the {name!r} query vectors"
        queries.vectors[name] = check_vectors(made, len(queries), d, what)
        return queries.vectors[name]

    def _encoder(self, name: str) -> Callable[[Queries], FloatArray] | None:
        """What makes query vectors in the space of `vectors[name]`, if anything does."""
        if name in self.encode:
            return lambda queries: self.encode[name](queries.texts)
        if f"words/{name}" in self.held:
            return lambda queries: self.open("words", name).encode_queries(queries.texts)
        part: ItemVectors = self.open("vectors", name)
        encoder, base = part.encoder, part.base
        if encoder is not None:
            return lambda queries: part.map(encoder.get().encode_queries(queries.texts))
        if base is not None and self.has_query_vectors(base):
            return lambda queries: part.map(self.query_vectors(queries, base))
        return None


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """What a part of an index lacks, or has of another kind, is an `IndexFormatError`."""
    try:
        yield
    except CrossknnError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IndexFormatError(
            f"the index is damaged or of another version: {what} cannot be read "
            f"({type(error).__name__}: {error}); build or copy it again"
        ) from error


def unknown(what: str, name: str, known: Collection[str]) -> InputError:
    """The error that says that the index lacks something."""
    return InputError(f"the index has no {what} {name!r} ({nearest(name, known)})")


_OF_SCORERS = "artifacts/", "vectors/"
"""Kinds of parts that belong to a cross-encoder if they were made with its scores."""

_READERS: Mapping[str, Callable[[Artifact, str], Any]] = {
    "vectors": ItemVectors.of,
    "words": lambda part, name: WORDS[name].of(part),
    "late": LateStates.of,
}


def fingerprint_of(part: Any) -> str | None:
    """The cross-encoder's with whose scores a part was made, if it is known."""
    found: str | None = (
        part.meta.get("fingerprint")
        if isinstance(part, Artifact)
        else getattr(part, "fingerprint", None)
    )
    return found


def _key(key: str, part: Any) -> str:
    """The key that a part gets, of the kind and name `key`."""
    of = fingerprint_of(part) if key.startswith(_OF_SCORERS) else None
    return plain(key) if of is None else f"{plain(key)}-{text_digest(of).hex()[:12]}"


def _artifact(part: Any, key: str) -> Artifact:
    """What is kept of a part; `InputError` for `meta` that is no JSON."""
    made = part if isinstance(part, Artifact) else part.artifact()
    return Artifact(parse_json(as_json(made.meta, plain(key))), made.arrays)
