"""Build the contents of an index from its items (n), or over a database."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crossknn.data.items import Items
from crossknn.data.passages import LENGTH, SHARE, Passages
from crossknn.errors import IndexFormatError, InputError
from crossknn.index.database import DatabaseStore, TextsOf, items_in
from crossknn.index.parts import ANCHORS, DUAL_ENCODER, GIVEN, LSA_NAME, WORDS, Parts, new_build
from crossknn.index.storage import MANIFEST, IndexFolder
from crossknn.index.vectors import (
    EncodeQueries,
    GivenModel,
    ItemVectors,
    RememberedModel,
    check_vectors,
)
from crossknn.retrievers.lexical import BM25, LSA, LSA_DIMENSIONS, SparseVectors
from crossknn.retrievers.specs import SEARCH, SPARSE
from crossknn.retrievers.words import Tokenizer
from crossknn.scorers.opening import reading_of
from crossknn.types import Artifact, FloatArray, Progress, as_count

logger = logging.getLogger(__name__)

COMPOSED = ("random", "fixed", "hybrid", SEARCH)
"""Names of the built-in retrievers, which no vectors or other retrievers may have."""
_TAKEN = {DUAL_ENCODER, *WORDS, "lists", "auto", ANCHORS, *COMPOSED}
_ITEMS_OF_STORE = "store/items"


def parts_of(
    items: Items,
    folder: IndexFolder | None,
    *,
    encoders: Mapping[str, GivenModel],
    sparse: Any,
    vectors: Mapping[str, FloatArray],
    lsa: int | None,
    bm25: bool,
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> dict[str, Any]:
    """Make the vectors and word models of a new index; see `ItemIndex.build`."""
    n, parts = len(items), dict[str, Any]()
    for name in dict.fromkeys([*vectors, *encoders]):
        if name != DUAL_ENCODER or name not in encoders:
            check_name(name, "your own vectors")
        if name not in encoders:
            values = check_vectors(vectors[name], n, None, f"the vectors {name!r}", half=True)
            parts[f"vectors/{name}"] = ItemVectors(values=values)
    previous = None if folder is None else _previous(folder)
    for name, given in encoders.items():
        model = RememberedModel.of("dual encoder", given, name)
        if name in vectors:
            values = check_vectors(vectors[name], n, model.dimensions, "the encoder's vectors")
        else:
            values = _encoded(model, items.texts, folder, previous, progress)
        parts[f"vectors/{name}"] = ItemVectors(values=values, encoder=model)
    lsa = as_count((0 if parts else LSA_DIMENSIONS) if lsa is None else lsa, "lsa", 0)
    if bm25:
        parts["words/bm25"] = BM25.fit(items.texts, tokenizer)
    if lsa:
        words, values = LSA.fit(items.texts, tokenizer, dimensions=lsa)
        parts |= {f"words/{LSA_NAME}": words, f"vectors/{LSA_NAME}": ItemVectors(values=values)}
    if sparse is not None:
        model = RememberedModel.of("sparse encoder", sparse, SPARSE)
        states = model.encode(items.texts, progress, None if folder is None else folder.path)
        parts[f"words/{SPARSE}"] = SparseVectors(states, model)
    return parts


def cutting_of(
    length: bool | int | None, overlap: int | None, scorer: Any, vectors: Any
) -> Passages | None:
    """Make the settings of passages; see `ItemIndex.build`. The length true is 200 tokens, or as
    many as the scorer reads."""
    if length is None or length is False:
        if overlap is not None or scorer is not None:
            given = "overlap" if overlap is not None else "scorer"
            raise InputError(
                f"{given} is only for passages: give their length too (passages=200, "
                "--passages 200)"
            )
        return None
    if vectors is not None:
        raise InputError(
            "vectors of documents are given, but the items are their passages: leave out vectors, "
            "and give an encoder"
        )
    reading = reading_of(scorer)
    if length is True:
        length = min(LENGTH, reading.room)
    length = as_count(length, "the length of passages")
    if length > reading.room:
        raise InputError(
            f"passages of {length:,} tokens are longer than the {reading.room:,} that "
            f"{reading.name} reads beside a short query: give at most {reading.room}"
        )
    return Passages(length, length // SHARE if overlap is None else overlap, reading.tokenizer)


def parts_over(
    store: DatabaseStore,
    texts: str | TextsOf,
    folder: IndexFolder | None,
    encoder: GivenModel | None,
    encode: EncodeQueries | None,
) -> Parts:
    """Make the parts of an index whose items stay in a database; see `ItemIndex.over`."""
    items = items_in(store, texts)
    model = None if encoder is None else RememberedModel.of("dual encoder", encoder)
    d = store.shape[1]
    if model is not None and model.dimensions != d:
        raise InputError(
            f"the encoder makes vectors of {model.dimensions} dimensions, but the vectors in "
            f"{store.name} have {d}: give the encoder that made them"
        )
    values: Any = store
    name, build, parts = DUAL_ENCODER if model else GIVEN, new_build(), dict[str, Any]()
    if folder is not None:  # of fits, beside the database
        ids = zlib.crc32(np.ascontiguousarray(store.keys).tobytes())
        meta: dict[str, Any] = {"n": store.shape[0], "ids": ids}
        if not (folder.path / MANIFEST).exists():
            folder.write({_ITEMS_OF_STORE: Artifact(meta, {})}, build)
        build, parts = folder.read()
        made_for = parts.pop(_ITEMS_OF_STORE, None)
        if made_for is None or made_for.meta != meta:
            what = f"of {made_for.meta['n']:,} items" if made_for else "an index of its own"
            raise InputError(
                f"the folder {folder.path} is {what}, but {store.name} has {store.shape[0]:,} "
                "items, whose ids do not match: give another folder, or collect and fit again in "
                "a new folder"
            )
    parts = {f"vectors/{name}": ItemVectors(values=values, encoder=model)} | parts
    given = {} if encode is None else {name: encode}
    return Parts(items, parts, build, given, folder)


def check_name(name: str, what: str) -> None:
    """Raise `InputError` for a name that a method's specification would read as another."""
    if not name.isidentifier() or name in _TAKEN:
        raise InputError(f"{what} cannot be named {name!r}; use another name")


def by_name(given: Any, default_name: str) -> dict[str, Any]:
    """Return values by name; a single value gets the default name."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {default_name: given}


def _previous(folder: IndexFolder) -> Parts | None:
    try:
        previous = Parts.read(folder, {})
        fits = [n for n in previous.names("vectors") if previous.open("vectors", n).method]
    except IndexFormatError:
        return None
    if fits or previous.names("artifacts"):
        logger.warning(
            "%s is replaced, and its anchors and fits are dropped: collect and fit them again; "
            "stored scores are used again",
            folder.path,
        )
    return previous


def _encoded(
    model: RememberedModel,
    texts: Sequence[str],
    folder: IndexFolder | None,
    previous: Parts | None,
    progress: Progress | None,
) -> FloatArray:
    """Encode the items (n, d), except texts that `previous` has encoded with the same model."""
    path = None if folder is None else folder.path
    old = None
    if previous is not None and model.name in previous.names("vectors"):
        old = previous.open("vectors", model.name)
    if previous is None or old is None or old.encoder is None or not old.encoder.same_as(model):
        return model.encode(texts, progress, path).values
    rows = {text: row for row, text in enumerate(previous.items.texts)}
    old_rows = np.array([rows.get(text, -1) for text in texts])
    vectors: FloatArray = np.asarray(old.values)[old_rows]
    new = np.flatnonzero(old_rows < 0)
    if len(new):
        vectors[new] = model.encode([texts[p] for p in new.tolist()], progress, path).values
    return vectors
