"""The contents of an index, as one immutable value: items, and named parts `kind/name`.

    vectors/dense      item vectors, the index's own and fitted ones    `ItemVectors`
    words/bm25         word models                                      BM25, TF-IDF, LSA
    late/cmc           states of late-interaction models                `LateStates`
    artifacts/anchors  results of fits and of collecting                `Artifact`

A part is read from the folder when it is first needed. Parts that were made with the scores of a
cross-encoder are kept once for each of them, under `kind/name-<digest of its fingerprint>`.

Axes: n items, d dimensions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.columns import (
    StoredArray,
    StoredColumns,
    StoredRecords,
    StoredTexts,
    refusing,
    rows_of,
)
from crossknn.data.items import Items
from crossknn.errors import IndexFormatError, InputError, nearest
from crossknn.files import parse_json, text_digest
from crossknn.index.late import LateStates
from crossknn.index.storage import IndexFolder, as_json, columns_of
from crossknn.index.vectors import EncodeQueries, ItemVectors
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.lexical import BM25, LSA, TFIDF
from crossknn.retrievers.words import UNICODE
from crossknn.types import Artifact, Cache, IntArray, Named, Value

DUAL_ENCODER, LSA_NAME, GIVEN = "dense", "lsa", "vectors"
ANCHORS = "anchors"
"""Artifact: exact scores of anchor (train) queries with every item."""

WORDS: Mapping[str, Any] = {"bm25": BM25, "tfidf": TFIDF, LSA_NAME: LSA}

ROWS: Mapping[str, tuple[str, ...]] = {"artifacts/kriging": ("factor", "mean")}
COLUMNS = (f"artifacts/{ANCHORS}",)
"""Artifacts with a value for each item: a row of these arrays, or a column of `scores`. The latter
are exact scores, which are stale once items are `added`, until they are collected again."""

_OF_SCORERS = "artifacts/", "vectors/"
"""Kinds of parts that belong to a cross-encoder if they were made with its scores."""

_READERS: Mapping[str, Callable[[Artifact, str], Any]] = {
    "vectors": ItemVectors.of,
    "words": lambda part, name: WORDS[name].of(part),
    "late": LateStates.of,
}
_DIGEST = re.compile(r"-[0-9a-f]{12}$")


@dataclass(frozen=True, eq=False)
class Parts:
    """The items of an index and its parts: a change makes another value.

    Args:
        items: The items (n).
        anchor_items: Positions of items, in a random order.
        held: The other parts by key, opened or as they are kept.
        build: Names this building of the index.
        encode: Functions that make query vectors, by the names of the vectors.
        folder: Where the index is kept, if it is.
        added: Retrievers of the user, by name.
        lists: Approximate indexes of vectors in memory, by name, and these vectors' `fingerprint`.
        cache: What was computed from these parts.
        scorers: The cross-encoders whose parts are seen, by fingerprint; None among them stands
            for an unknown one. By default the parts of all are seen.
    """

    items: Items
    anchor_items: Any
    held: dict[str, Any]
    build: str
    encode: Mapping[str, EncodeQueries]
    folder: IndexFolder | None = None
    added: dict[str, Retriever] = field(default_factory=dict)
    lists: dict[str, tuple[str, Any]] = field(default_factory=dict)
    cache: Cache = field(default_factory=Cache)
    scorers: frozenset[str | None] | None = None

    @classmethod
    def read(cls, folder: IndexFolder, encode: Mapping[str, EncodeQueries]) -> Parts:
        """The parts that a folder keeps."""
        return cls.of(*folder.read(), encode, folder)

    @classmethod
    def of(
        cls,
        build: str,
        stored: Mapping[str, Artifact],
        encode: Mapping[str, EncodeQueries],
        folder: IndexFolder | None,
    ) -> Parts:
        """The parts as they are `stored`."""
        if "items" not in stored:
            raise IndexFormatError(
                f"{folder and folder.path} keeps what belongs to items in a database: open it with "
                "ItemIndex.over(store, texts, folder=...)"
            )
        part = stored["items"]
        with refusing("items"):
            check_kinds_of_items(part.arrays)
            columns = {name: part.arrays[name] for name in ("ids", "texts", "titles")}
            if "deleted" in part.arrays:
                columns["alive"] = np.ones(len(columns["ids"]), np.bool_)
                columns["alive"][part.arrays["deleted"]] = False
            extra = StoredRecords(part.arrays["extra"], part.arrays)
            items = Items(**columns, extra=extra, template=str(part.meta["template"]))
            anchor_items = rows_of(part.arrays, "anchor_items")
        others = {key: part for key, part in stored.items() if key != "items"}
        for key, part in others.items():
            with refusing(plain(key)):
                check_meta(plain(key), part.meta)
        return cls(items, anchor_items, others, build, encode, folder)

    @property
    def path(self) -> Path | None:
        """The folder's path, if there is a folder."""
        return None if self.folder is None else self.folder.path

    def stored(self) -> dict[str, Artifact]:
        """What is kept of all parts."""
        parts = {key: as_artifact(part, key) for key, part in self.held.items()}
        columns = {**columns_of(self.items), "anchor_items": np.asarray(self.anchor_items)}
        return parts | {"items": Artifact({"template": self.items.template}, columns)}

    def put(self, parts: Mapping[str, Any]) -> Parts:
        """With more parts, or without those that are None; in the folder first, if there is one."""
        keys = self.keys
        parts = {
            keys.get(key, key) if part is None else _full_key(key, part): part
            for key, part in parts.items()
        }
        stored = {key: part and as_artifact(part, key) for key, part in parts.items()}
        if self.folder is not None and parts:
            self.folder.write(stored, self.build, keep=True)
        held = {key: part for key, part in self.held.items() if key not in parts}
        new = {
            key: stored[key] if isinstance(part, Artifact) else part for key, part in parts.items()
        }
        held |= {key: part for key, part in new.items() if part is not None}
        return replace(self, held=held, cache=Cache())

    @property
    def keys(self) -> dict[str, str]:
        """The key of each part that is seen, by kind and name, the latest last."""
        return self.keys_among(self.held)

    def keys_among(self, held: Mapping[str, Any]) -> dict[str, str]:
        """`keys` of these parts: of several of one name the cross-encoder's own, or the latest."""
        keys = dict[str, str]()
        for key, part in held.items():
            name, scorer = plain(key), fingerprint_of(part)
            if self.scorers is not None and key.startswith(_OF_SCORERS):
                is_foreign = scorer not in self.scorers
                if is_foreign and key.startswith("artifacts/"):
                    continue
                if name in keys and (is_foreign or scorer is None):
                    continue  # the one before is the cross-encoder's own
            keys.pop(name, None)
            keys[name] = key
        return keys

    def keys_of_others(self, name: str) -> list[str]:
        """The keys of the parts of this kind and name that are another cross-encoder's."""
        named = [key for key in self.held if plain(key) == name]
        return [key for key in named if fingerprint_of(self.held[key]) not in (self.scorers or ())]

    def names(self, kind: str) -> list[str]:
        """Names of the parts of a kind, the latest last."""
        return [name.partition("/")[2] for name in self.keys if name.startswith(f"{kind}/")]

    def open(self, kind: str, name: str) -> Any:
        """A part, read and checked when it is first asked for."""
        key = self.keys.get(f"{kind}/{name}")
        if key is None:
            raise unknown(kind, name, self.names(kind))
        return self.opened(key)

    def opened(self, key: str) -> Any:
        """The part of a full key."""
        part, (kind, name) = self.held[key], plain(key).split("/", 1)
        if isinstance(part, Artifact):
            with refusing(f"{kind}/{name}"):
                self._check_items()
                check_part(plain(key), part, len(self.items))
                if kind in _READERS:
                    part = self.held[key] = _READERS[kind](part, name)
        return part

    def all_opened(self) -> dict[str, Any]:
        """All parts, opened, by their keys."""
        return {key: self.opened(key) for key in self.held}

    def named(self, kind: str, get: Callable[[Any], Value]) -> Named[Value]:
        """What `get` takes from the parts of a kind, by name."""
        return Named(self.names(kind), lambda name: get(self.open(kind, name)))

    def newest(self, kind: str, name: str) -> Artifact | None:
        """The part as the folder has it now, where another process may have put it."""
        held = self.held if self.folder is None else self.folder.read(self.build)[1]
        key = self.keys_among(held).get(f"{kind}/{name}")
        return None if key is None else as_artifact(held[key], key)

    def same_items(self, other: Parts) -> bool:
        """Whether the positions are of the same items, deleted or not."""
        ours, theirs = self.items, other.items
        return ours is theirs or all(
            len(one) == len(two) and all(map(eq, one, two))
            for one, two in ((ours.ids, theirs.ids), (ours.texts, theirs.texts))
        )

    @property
    def metas(self) -> dict[str, Mapping[str, Any]]:
        """The `meta` of each part: by kind and name, or by key where it is another
        cross-encoder's."""
        names = {key: name for name, key in self.keys.items()}
        return {names.get(k, k): as_artifact(part, k).meta for k, part in self.held.items()}

    @property
    def tokenizer(self) -> str | None:
        """Name of the tokenizer of the word models; None if an older version made them."""
        models = [meta for key, meta in self.metas.items() if key.startswith("words/")]
        return models[0].get("tokenizer") if models else UNICODE.name

    def _check_items(self) -> None:
        items = self.items
        counts = [len(column) for column in (items.ids, items.texts, items.titles, items.extra)]
        if len(set(counts)) > 1:
            raise ValueError(f"there are {counts} ids, texts, titles and fields")


def plain(key: str) -> str:
    """Kind and name of a part, without the digest of the cross-encoder that it belongs to.

    >>> plain("artifacts/kriging-0123456789ab")
    'artifacts/kriging'
    """
    return _DIGEST.sub("", key)


def n_items(key: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> int | None:
    """The number of items of an artifact; None for one without values for each item."""
    if plain(key) in COLUMNS and "scores" in arrays:
        return int(np.shape(arrays["scores"])[1]) + int(meta.get("added", 0))
    return next((len(arrays[name]) for name in ROWS.get(plain(key), ()) if name in arrays), None)


def fingerprint_of(part: Any) -> str | None:
    """The fingerprint of the cross-encoder with whose scores a part was made, if it is known."""
    fingerprint: str | None = (
        part.meta.get("fingerprint")
        if isinstance(part, Artifact)
        else getattr(part, "fingerprint", None)
    )
    return fingerprint


def as_artifact(part: Any, key: str) -> Artifact:
    """What is kept of a part; `InputError` for `meta` that is no JSON."""
    made = part if isinstance(part, Artifact) else part.artifact()
    return Artifact(parse_json(as_json(made.meta, plain(key))), made.arrays)


def unknown(what: str, name: str, known: Collection[str]) -> InputError:
    """The error that says that the index lacks something."""
    return InputError(f"the index has no {what} {name!r} ({nearest(name, known)})")


def _full_key(key: str, part: Any) -> str:
    """`kind/name` with the digest of the part's cross-encoder, if it has one."""
    scorer = fingerprint_of(part) if key.startswith(_OF_SCORERS) else None
    return plain(key) if scorer is None else f"{plain(key)}-{text_digest(scorer).hex()[:12]}"


# What stored parts must hold. A folder may come from a stranger, whose manifest and files agree
# with each other and with nothing else, so kinds and lengths are checked when a part is opened, by
# the headers of its files.

_COLUMNS: Mapping[str, str] = {
    "words": "terms:t idf:t:f weights:p:f items:p:iu starts:s:iu components:td:f "
    "added.counts:c:iu added.terms:q:iu added.weights:q:f",
    "vectors": "values:nd:f",
    "late": "values:sd:f starts:m:iu",
    "artifacts/anchors": "queries:q scores:qN:f",
    "artifacts/kriging": "factor:Nr:f mean:N:f",
    "artifacts/calibration": "weights:3:f at:b:f chance:b:f top:e:f found:e:f",
}
"""Columns by kind, or key, of a part: name, axes, and NumPy's kinds of their type, without which
they are texts. n is the number of items, N that of before some were added."""

_TEXTS_OF_ITEMS = dict.fromkeys(("ids", "texts", "titles", "extra"), True)
_TEXTS_OF_ITEMS |= {"anchor_items": False, "deleted": False}
"""Whether the columns of the part `items` are texts."""

_REQUIRED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "artifacts/anchors": (("queries", "scores"), ("scales", "fingerprint")),
    "artifacts/fusion": ((), ("weights", "queries")),
    "artifacts/calibration": ((), ("fusion", "fingerprint")),
    "artifacts/learning": ((), ("fits",)),
}
"""Columns, and entries of `meta`, that are read without looking whether they are there."""


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _scale(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_number, value))


def _each(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_META: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "": {"fingerprint": _text, "added": _count, "queries": _count, "pairs": _count},
    "words": {
        "n": _count,
        "tokenizer": _text,
        "mean_length": lambda value: value is None or (_number(value) and value > 0),
    },
    "vectors": {
        "method": _text,
        "base": _text,
        "map": _text,
        "cost": _each(_number),
        "scale": lambda value: value is None or _scale(value),
    },
    "artifacts/anchors": {"scales": lambda value: _each(_scale)(value) and "center" in value},
    "artifacts/fusion": {"weights": _each(_number)},
    "artifacts/calibration": {"fusion": lambda value: isinstance(value, list)},
    "artifacts/learning": {
        "fits": lambda value: (
            isinstance(value, list) and all(isinstance(fit, dict) for fit in value)
        )
    },
}
"""What entries of `meta` must be: of every part, and by kind or key."""


def check_meta(key: str, meta: Mapping[str, Any]) -> None:
    """`ValueError` for a wrong entry in the `meta` of a part; `key` is without a digest."""
    for kind in ("", key.partition("/")[0], key):
        for name, is_right in _META.get(kind, {}).items():
            if name in meta and not is_right(meta[name]):
                raise ValueError(f"its {name} is {str(meta[name])!r:.80}")


def check_part(key: str, part: Artifact, n: int) -> None:
    """`ValueError` or `LookupError` for a part of an index of n items that lacks something or has
    it of another kind. Parts in memory were checked when they were made."""
    if not isinstance(part.arrays, StoredColumns):
        return
    check_meta(key, part.meta)
    kind, columns = key.partition("/")[0], part.arrays.columns
    required_columns, required_meta = _REQUIRED.get(key) or _REQUIRED.get(kind) or ((), ())
    for name in required_columns:
        columns[name]
    for name in required_meta:
        part.meta[name]
    sizes = {"n": n, "3": 3} | ({} if part.meta.get("added") else {"N": n})
    for rule in (_COLUMNS.get(key) or _COLUMNS.get(kind) or "").split():
        name, axes, kinds = (*rule.split(":"), "")[:3]
        if (column := columns.get(name)) is not None:
            _check_column(name, column, axes, kinds, sizes)
    for name, column in columns.items():
        if isinstance(column, StoredArray) and column.dtype.kind not in "biuf":
            raise ValueError(f"{name} are an array of {column.dtype}")


def check_kinds_of_items(columns: Mapping[str, Any]) -> None:
    """`ValueError` unless the columns of items are texts and arrays as they must be; reads no
    file."""
    if isinstance(columns, StoredColumns):
        for name, column in columns.columns.items():
            texts = _TEXTS_OF_ITEMS.get(name)
            if texts is not None and isinstance(column, StoredTexts) != texts:
                raise ValueError(f"{name} are {'numbers' if texts else 'texts'}")


def check_positions(values: Any, n: int) -> IntArray:
    """The array (a,); `ValueError` unless it holds positions of n items."""
    if values.ndim != 1 or values.dtype.kind not in "iu" or ((values < 0) | (values >= n)).any():
        raise ValueError(f"they are no positions of {n} items")
    positions: IntArray = values
    return positions


def _check_column(
    name: str, column: StoredArray | StoredTexts, axes: str, kinds: str, sizes: dict[str, int]
) -> None:
    """`ValueError` for another type or other lengths; `sizes` gets those of axes that are new."""
    if isinstance(column, StoredTexts) == bool(kinds):
        raise ValueError(f"{name} are {'texts' if kinds else 'numbers'}")
    shape = (len(column),) if isinstance(column, StoredTexts) else column.shape
    fits = len(shape) == len(axes) and all(
        sizes.setdefault(axis, size) == size for axis, size in zip(axes, shape, strict=True)
    )
    if not fits or (isinstance(column, StoredArray) and column.dtype.kind not in kinds):
        what = getattr(column, "dtype", "text")
        raise ValueError(f"{name} are {what} of the shape {shape}")
