"""The contents of an index, as one immutable value: items, and parts such as `vectors/dense`
(`ItemVectors`), `words/bm25` (BM25, LSA), `words/sparse` (`SparseVectors`), `late/cmc`
(`LateStates`), `artifacts/anchors` (`Artifact`), each read from the folder when it is first
needed. A part that was made with a cross-encoder's scores is stored once per cross-encoder, under
`kind/name-<digest of the fingerprint>`. Axes: n items, d dimensions."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import eq
from typing import Any

import numpy as np

from crossknn.data.items import Items
from crossknn.data.passages import Passages
from crossknn.errors import IndexFormatError, InputError, nearest
from crossknn.files import parse_json, text_digest
from crossknn.index.columns import StoredArray, StoredColumns, StoredRecords, StoredTexts, refusing
from crossknn.index.storage import IndexFolder, as_json, columns_of
from crossknn.index.vectors import EncodeQueries, ItemVectors, LateStates
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.lexical import BM25, LSA, SparseVectors
from crossknn.retrievers.specs import SPARSE
from crossknn.retrievers.words import UNICODE
from crossknn.types import Artifact, Cache, Named, Value

DUAL_ENCODER, LSA_NAME, GIVEN = "dense", "lsa", "vectors"
PASSAGES = "passages/settings"
"""Key of the part that says how documents were cut into the items."""
ANCHORS = "anchors"
"""Name of the artifact with the exact scores of anchor (train) queries for every item."""

WORDS: Mapping[str, Callable[[Artifact], Any]] = {
    "bm25": BM25.of,
    LSA_NAME: LSA.of,
    SPARSE: lambda part: SparseVectors(*LateStates.of(part, SPARSE)),
}

ROWS: Mapping[str, tuple[str, ...]] = {"artifacts/kriging": ("factor", "mean")}
COLUMNS = (f"artifacts/{ANCHORS}",)
"""Artifacts with values per item: one row of these arrays, or one column of the array `scores`."""

_OF_SCORERS = "artifacts/", "vectors/"
"""Kinds of parts that may belong to one cross-encoder, because they were made with its scores."""

_READERS: Mapping[str, Callable[[Artifact, str], Any]] = {
    "vectors": ItemVectors.of,
    "words": lambda part, name: WORDS[name](part),
    "late": LateStates.of,
    "passages": Passages.of,
}
_DIGEST = re.compile(r"-[0-9a-f]{12}$")


@dataclass(frozen=True, eq=False)
class Parts:
    """The n items of an index and its other parts; each change makes a new object.

    Args:
        held: The other parts by key, either opened or as stored.
        encode: Functions that make query vectors, by the names of the vectors.
        added: The user's retrievers, by name.
        scorers: Fingerprints of the cross-encoders whose parts are visible, by default all; None
            stands for an unknown cross-encoder.
    """

    items: Items
    held: dict[str, Any]
    build: str
    encode: Mapping[str, EncodeQueries]
    folder: IndexFolder | None = None
    added: dict[str, Retriever] = field(default_factory=dict)
    cache: Cache = field(default_factory=Cache)
    scorers: frozenset[str | None] | None = None

    @classmethod
    def read(cls, folder: IndexFolder, encode: Mapping[str, EncodeQueries]) -> Parts:
        return cls.of(*folder.read(), encode, folder)

    @classmethod
    def of(
        cls,
        build: str,
        stored: Mapping[str, Artifact],
        encode: Mapping[str, EncodeQueries],
        folder: IndexFolder | None,
    ) -> Parts:
        if "items" not in stored:
            raise IndexFormatError(
                f"{folder and folder.path} belongs to items in a database: open it with "
                "ItemIndex.over(store, texts, folder=...)"
            )
        part = stored["items"]
        with refusing("items"):
            for name in ("ids", "texts", "titles", "extra"):
                if isinstance(part.rows(name), StoredArray):
                    raise ValueError(f"{name} are numbers")
            columns = {name: part.arrays[name] for name in ("ids", "texts", "titles")}
            if "deleted" in part.arrays:
                columns["alive"] = np.ones(len(columns["ids"]), np.bool_)
                columns["alive"][part.arrays["deleted"]] = False
            extra = StoredRecords(part.arrays["extra"], part.arrays)
            items = Items(**columns, extra=extra, template=str(part.meta["template"]))
        others = {key: part for key, part in stored.items() if key != "items"}
        for key, part in others.items():
            with refusing(plain(key)):
                check_meta(part.meta)
        return cls(items, others, build, encode, folder)

    def stored(self) -> dict[str, Artifact]:
        parts = {key: as_artifact(part, key) for key, part in self.held.items()}
        meta, columns = {"template": self.items.template}, columns_of(self.items)
        return parts | {"items": Artifact(meta, columns)}

    def put(self, parts: Mapping[str, Any]) -> Parts:
        """Write changed parts to the folder, and return the new parts."""
        parts = {_full_key(key, part): part for key, part in parts.items()}
        stored = {key: as_artifact(part, key) for key, part in parts.items()}
        if self.folder is not None and parts:
            self.folder.write(stored, self.build, keep=True)
        held = {key: part for key, part in self.held.items() if key not in parts}
        for key, part in parts.items():
            held[key] = stored[key] if isinstance(part, Artifact) else part
        return replace(self, held=held, cache=Cache())

    @cached_property
    def keys(self) -> dict[str, str]:
        """Full keys of the visible parts by `kind/name`, the latest last."""
        return self.keys_among(self.held)

    def keys_among(self, held: Mapping[str, Any]) -> dict[str, str]:
        """Choose a key for each name: the current cross-encoder's part, or else the latest."""
        keys = dict[str, str]()
        for key, part in held.items():
            name, scorer = plain(key), fingerprint_of(part)
            if self.scorers is not None and key.startswith(_OF_SCORERS):
                is_foreign = scorer not in self.scorers
                if is_foreign and key.startswith("artifacts/"):
                    continue
                if name in keys and (is_foreign or scorer is None):
                    continue  # the earlier part is the cross-encoder's own
            keys.pop(name, None)
            keys[name] = key
        return keys

    def names(self, kind: str) -> list[str]:
        """Return the names of the parts of a kind, the latest last."""
        return [name.partition("/")[2] for name in self.keys if name.startswith(f"{kind}/")]

    def open(self, kind: str, name: str) -> Any:
        key = self.keys.get(f"{kind}/{name}")
        if key is None:
            raise unknown(kind, name, self.names(kind))
        return self.opened(key)

    def opened(self, key: str) -> Any:
        """Return the part with a full key, which is read and checked at its first use."""
        part, (kind, name) = self.held[key], plain(key).split("/", 1)
        if isinstance(part, Artifact):
            with refusing(f"{kind}/{name}"):
                items = self.items
                lengths = [*map(len, (items.ids, items.texts, items.titles, items.extra))]
                if len({*lengths}) > 1:
                    said = f"the numbers of ids, texts, titles and fields differ: {lengths}"
                    raise ValueError(said)
                check_part(plain(key), part, len(self.items))
                if kind in _READERS:
                    part = self.held[key] = _READERS[kind](part, name)
        return part

    def all_opened(self) -> dict[str, Any]:
        return {key: self.opened(key) for key in self.held}

    def named(self, kind: str, get: Callable[[Any], Value]) -> Named[Value]:
        """Return the results of `get` for each part of a kind, by name."""
        return Named(self.names(kind), lambda name: get(self.open(kind, name)))

    def newest(self, kind: str, name: str) -> Artifact | None:
        held = self.held if self.folder is None else self.folder.read(self.build)[1]
        key = self.keys_among(held).get(f"{kind}/{name}")
        return None if key is None else as_artifact(held[key], key)

    def same_items(self, other: Parts) -> bool:
        ours, theirs = self.items, other.items
        return ours is theirs or all(
            len(one) == len(two) and all(map(eq, one, two))
            for one, two in ((ours.ids, theirs.ids), (ours.texts, theirs.texts))
        )

    @property
    def metas(self) -> dict[str, Mapping[str, Any]]:
        """The `meta` of each part, by name, or by full key for parts of other cross-encoders."""
        names = {key: name for name, key in self.keys.items()}
        return {names.get(k, k): as_artifact(part, k).meta for k, part in self.held.items()}

    @property
    def passages(self) -> Passages | None:
        """How documents were cut into the items; None if the items are not passages."""
        settings: Passages | None = self.opened(PASSAGES) if PASSAGES in self.held else None
        return settings

    @property
    def tokenizer(self) -> str:
        """Name of the word models' tokenizer."""
        models = (f"words/{name}" for name in self.names("words") if name != SPARSE)
        return next((str(self.metas[key].get("tokenizer")) for key in models), UNICODE.name)


def new_build() -> str:
    """Make a random name of a build."""
    return secrets.token_hex(8)


def plain(key: str) -> str:
    """Return the kind and name of a part without the digest of its cross-encoder.

    >>> plain("artifacts/kriging-0123456789ab")
    'artifacts/kriging'
    """
    return _DIGEST.sub("", key)


def n_items(key: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> int | None:
    """Return the number of items in an artifact; None if it has no values per item."""
    if plain(key) in COLUMNS and "scores" in arrays:
        return int(np.shape(arrays["scores"])[1]) + int(meta.get("added", 0))
    return next((len(arrays[name]) for name in ROWS.get(plain(key), ()) if name in arrays), None)


def fingerprint_of(part: Any) -> str | None:
    """Return the fingerprint of the cross-encoder whose scores a part was made with, if known."""
    if isinstance(part, Artifact):
        return part.meta.get("fingerprint")
    fingerprint: str | None = getattr(part, "fingerprint", None)
    return fingerprint


def as_artifact(part: Any, key: str) -> Artifact:
    made = part if isinstance(part, Artifact) else part.artifact()
    return Artifact(parse_json(as_json(made.meta, plain(key))), made.arrays)


def unknown(what: str, name: str, known: Collection[str]) -> InputError:
    return InputError(f"the index has no {what} {name!r} ({nearest(name, known)})")


def _full_key(key: str, part: Any) -> str:
    scorer = fingerprint_of(part) if key.startswith(_OF_SCORERS) else None
    return plain(key) if scorer is None else f"{plain(key)}-{text_digest(scorer).hex()[:12]}"


# Checks of stored parts. A folder may come from a stranger who made its manifest and files
# consistent with each other but invalid, so kinds and lengths are checked when a part is opened,
# from the headers of its files.

_COLUMNS: Mapping[str, str] = {
    "words": "terms:t idf:t:f weights:p:f items:p:iu starts:s:iu components:td:f "
    "added.counts:c:iu added.terms:q:iu added.weights:q:f",
    f"words/{SPARSE}": "values:s2:f starts:m:iu",
    "vectors": "values:nd:f",
    "late": "values:sd:f starts:m:iu",
    "passages": "tokenizer:b",
    "artifacts/anchors": "queries:q scores:qN:f",
    "artifacts/kriging": "factor:Nr:f mean:N:f",
    "artifacts/calibration": "weights:3:f at:b:f chance:b:f top:e:f found:e:f",
}
"""The columns of each part: name, axes (n items, N items of a fit), kinds of types (or texts)."""


def _number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _scale(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return value is None or (is_pair and all(map(_number, value)))


def _each(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_META: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("fingerprint", "tokenizer", "method", "base", "map"),
        lambda value: value is None or isinstance(value, str),
    ),
    **dict.fromkeys(
        ("added", "queries", "pairs", "n", "length", "overlap"),
        lambda value: type(value) is int and 0 <= value < 2**31,
    ),
    "mean_length": lambda value: _number(value) and value > 0,
    "scale": _scale,
    "scales": lambda value: _each(_scale)(value) and value.get("center") is not None,
    **dict.fromkeys(("cost", "weights"), _each(_number)),
    "fusion": lambda value: isinstance(value, list),
}
"""Checks of `meta` entries of any part."""

_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "artifacts/anchors": ("scales", "fingerprint"),
    "artifacts/fusion": ("weights", "queries"),
    "artifacts/calibration": ("fusion", "fingerprint"),
}
"""`meta` entries that the code reads unconditionally."""


def check_meta(meta: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a wrong entry in the `meta` of a part."""
    for name, value in meta.items():
        if name in _META and not _META[name](value):
            raise ValueError(f"its metadata entry {name} is {str(value)!r:.80}")


def check_part(key: str, part: Artifact, n: int) -> None:
    """Raise `ValueError` or `LookupError` for a missing or wrong column of an index of n items."""
    if not isinstance(part.arrays, StoredColumns):  # parts in memory were checked when made
        return
    kind, columns = key.partition("/")[0], part.arrays.data
    for name in _REQUIRED.get(key, ()):
        part.meta[name]
    sizes = {"n": n, "2": 2, "3": 3} | ({} if part.meta.get("added") else {"N": n})
    for rule in (_COLUMNS.get(key) or _COLUMNS.get(kind) or "").split():
        name, axes, kinds = (*rule.split(":"), "")[:3]
        if name in columns or key == f"artifacts/{ANCHORS}":
            _check_column(name, columns[name], axes, kinds, sizes)
    for name, column in columns.items():
        if isinstance(column, StoredArray) and column.dtype.kind not in "biuf":
            raise ValueError(f"{name} are an array of {column.dtype}")


def _check_column(
    name: str, column: StoredArray | StoredTexts, axes: str, kinds: str, sizes: dict[str, int]
) -> None:
    if isinstance(column, StoredTexts) == bool(kinds):
        raise ValueError(f"{name} are {'texts' if kinds else 'numbers'}")
    shape = (len(column),) if isinstance(column, StoredTexts) else column.shape
    fits = len(shape) == len(axes) and all(
        sizes.setdefault(axis, size) == size for axis, size in zip(axes, shape, strict=True)
    )
    if not fits or (isinstance(column, StoredArray) and column.dtype.kind not in kinds):
        what = getattr(column, "dtype", "text")
        raise ValueError(f"{name} are {what} of the shape {shape}")
