"""Build the contents of an index from its items.

Axes: n items, d dimensions, k neighbours.
"""

from __future__ import annotations

import logging
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossknn.data.items import Items, read_items
from crossknn.data.records import Entries
from crossknn.errors import IndexFormatError, InputError
from crossknn.files import as_path
from crossknn.index.database import DatabaseStore, TextsOf, items_in
from crossknn.index.late import LateStates, encode_states
from crossknn.index.parts import (
    ANCHORS,
    DUAL_ENCODER,
    GIVEN,
    LSA_NAME,
    WORDS,
    Parts,
    plain,
)
from crossknn.index.storage import MANIFEST, IndexFolder
from crossknn.index.vectors import (
    EncodeQueries,
    GivenModel,
    ItemVectors,
    RememberedModel,
    check_vectors,
)
from crossknn.index.view import IndexView
from crossknn.retrievers.lexical import BM25, LSA, LSA_DIMENSIONS
from crossknn.retrievers.specs import unfitted
from crossknn.retrievers.words import as_tokenizer
from crossknn.types import Artifact, FloatArray, IntArray, Progress, States, as_count

logger = logging.getLogger(__name__)

COMPOSED = ("random", "fixed", "hybrid")
"""Names of the built-in retrievers, which nothing else may take."""
_TAKEN = {DUAL_ENCODER, *WORDS, "lists", "auto", ANCHORS, *COMPOSED}
N_ANCHOR_ITEMS = 10_000
_ITEMS_OF_STORE = "store/items"


class Recipe(NamedTuple):
    """The options of a new index; see `ItemIndex.build`."""

    encoder: GivenModel | None
    vectors: FloatArray | Mapping[str, FloatArray] | None
    query_vectors: EncodeQueries | Mapping[str, EncodeQueries] | None
    lsa: int | None
    bm25: bool
    tokenizer: str | Callable[[str], Sequence[str]]
    seed: int
    progress: Progress | None


def build_parts(
    items: Items | str | Path | Entries, recipe: Recipe, folder: IndexFolder | None
) -> Parts:
    """Make the parts of a new index; `folder` is where it will be saved, perhaps over an older
    index."""
    tokenizer = as_tokenizer(recipe.tokenizer)
    items = items if isinstance(items, Items) else read_items(items)
    previous = None if folder is None else _previous(folder)
    parts = _vectors(items, recipe, folder, previous)
    default_lsa = 0 if parts else LSA_DIMENSIONS
    lsa = as_count(default_lsa if recipe.lsa is None else recipe.lsa, "lsa", 0)
    if recipe.bm25:
        parts["words/bm25"] = BM25.fit(items.texts, tokenizer)
    if lsa:
        words, values = LSA.fit(items.texts, tokenizer, dimensions=lsa)
        parts |= {f"words/{LSA_NAME}": words, f"vectors/{LSA_NAME}": ItemVectors(values=values)}
    encode = by_name(recipe.query_vectors, GIVEN)
    built = Parts(items, _drawn(len(items), recipe.seed), parts, secrets.token_hex(8), encode)
    return built if previous is None else _keeping_fits(built, previous)


def _vectors(
    items: Items, recipe: Recipe, folder: IndexFolder | None, previous: Parts | None
) -> dict[str, Any]:
    """Make the parts that hold the user's own vectors and the encoder's."""
    n, parts, given = len(items), dict[str, Any](), by_name(recipe.vectors, GIVEN)
    encoded = None if recipe.encoder is None else given.pop(DUAL_ENCODER, None)
    for name, values in given.items():
        check_name(name, "your own vectors")
        values = check_vectors(values, n, None, f"the vectors {name!r}", half=True)
        parts[f"vectors/{name}"] = ItemVectors(values=values)
    if recipe.encoder is not None:
        model = RememberedModel.of("dual encoder", recipe.encoder)
        if encoded is None:
            encoded = _encode_items(model, items.texts, recipe, folder, previous)
        values = check_vectors(encoded, n, model.dimensions, "the encoder's vectors")
        parts[f"vectors/{DUAL_ENCODER}"] = ItemVectors(values=values, encoder=model)
    return parts


def parts_over(
    store: DatabaseStore,
    texts: str | TextsOf,
    folder: str | Path | None,
    encoder: GivenModel | None,
    encode: EncodeQueries | None,
    seed: int,
) -> Parts:
    """Make the parts of an index whose items stay in a database; see `ItemIndex.over`."""
    model = None if encoder is None else RememberedModel.of("dual encoder", encoder)
    n, d = store.shape
    if model is not None and model.dimensions != d:
        raise InputError(
            f"the encoder makes vectors of {model.dimensions} dimensions, but the vectors in "
            f"{store.name} have {d}: give the encoder that made them"
        )
    values: Any = store
    name, build, parts = DUAL_ENCODER if model else GIVEN, secrets.token_hex(8), dict[str, Any]()
    place = None
    if folder is not None:
        place = IndexFolder(as_path(folder, "the folder of the index"))
        build, parts = _parts_beside(place, store, build)
    parts = {f"vectors/{name}": ItemVectors(values=values, encoder=model)} | parts
    given = {} if encode is None else {name: encode}
    return Parts(items_in(store, texts), _drawn(n, seed), parts, build, given, place)


def _parts_beside(
    folder: IndexFolder, store: DatabaseStore, build: str
) -> tuple[str, dict[str, Artifact]]:
    """Read, or create, the folder that keeps fits and scores beside a database; return its build
    and its parts. Raise `InputError` if the folder belongs to other items."""
    meta = {"n": store.shape[0], "ids": zlib.crc32(np.ascontiguousarray(store.keys).tobytes())}
    if not (folder.path / MANIFEST).exists():
        folder.write({_ITEMS_OF_STORE: Artifact(meta, {})}, build)
    build, parts = folder.read()
    items = parts.pop(_ITEMS_OF_STORE, None)
    if items is None or items.meta != meta:
        what = "an index of its own" if items is None else f"of {items.meta['n']:,} items"
        raise InputError(
            f"the folder {folder.path} is {what}, but {store.name} has {store.shape[0]:,} "
            "items, whose ids do not match: give another folder, or collect and fit anew in a "
            "new one"
        )
    return build, parts


def states_of(
    parts: Parts, model: RememberedModel, replace: bool, progress: Progress | None
) -> States:
    """Encode all items with a late-interaction model; see `ItemIndex.add_late`."""
    before = None if replace else parts.newest("late", model.name)
    if before is None:
        return encode_states(model, parts.items.texts, parts.path, progress)
    late = LateStates.of(before, model.name)
    if not late.encoder.same_as(model):
        raise InputError(
            f"the index has states named {model.name!r} from another model (fingerprint "
            f"{late.encoder.fingerprint}): use another name, or replace them (--replace)"
        )
    return late.states


def checked_folder(folder: str | Path | None) -> IndexFolder | None:
    """Open the folder, if one is given; raise `InputError` if it holds something else than an
    index."""
    if folder is None:
        return None
    place = IndexFolder(as_path(folder, "the folder of the index"))
    place.check_target()
    return place


def check_name(name: str, what: str) -> None:
    """Refuse a name that cannot be written in a method's specification, or that has another meaning
    there."""
    if not name.isidentifier() or name in _TAKEN:
        raise InputError(f"{what} cannot be named {name!r}; use another name")


def by_name(given: Any, default_name: str) -> dict[str, Any]:
    """Return a dictionary by name; a single value gets the default name."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {default_name: given}


def _previous(folder: IndexFolder) -> Parts | None:
    """Read the index that is to be replaced, whatever its tokenizer; None if none can be read."""
    try:
        return Parts.read(folder, {})
    except IndexFormatError:
        return None


def _drawn(n: int, seed: int) -> IntArray:
    """Draw the anchor items."""
    return np.random.default_rng(seed).permutation(n)[:N_ANCHOR_ITEMS]


def _encode_items(
    model: RememberedModel,
    texts: Sequence[str],
    recipe: Recipe,
    folder: IndexFolder | None,
    previous: Parts | None,
) -> FloatArray:
    """Encode the items (n, d); texts that `previous` has encoded with the same model are not
    encoded again."""

    def encode(texts: Sequence[str]) -> FloatArray:
        path = None if folder is None else folder.path
        return model.encode_items(texts, recipe.progress, path)

    before = None if previous is None else IndexView(previous)
    old_model = None if before is None else before.model_of(DUAL_ENCODER)
    if before is None or old_model is None or not old_model.same_as(model):
        return encode(texts)
    rows = {text: row for row, text in enumerate(before.items.texts)}
    old_rows = np.array([rows.get(text, -1) for text in texts])
    vectors: FloatArray = before.vectors[DUAL_ENCODER][old_rows]
    new = np.flatnonzero(old_rows < 0)
    if len(new):
        vectors[new] = encode([texts[p] for p in new.tolist()])
    return vectors


def _keeping_fits(built: Parts, previous: Parts) -> Parts:
    """Keep those fits of the replaced index that are still valid for the new one."""
    pairs = ((built.items.ids, previous.items.ids), (built.items.texts, previous.items.texts))
    same_items = all([*new] == [*old] for new, old in pairs)
    words = {key for key in previous.held if key.startswith("words/")}  # of whatever tokenizer
    others = {key: part for key, part in previous.held.items() if key not in words}
    opened = replace(previous, held=others).all_opened()
    for key in sorted(opened, key=lambda key: not key.startswith("vectors/")):
        kind, _, name = plain(key).partition("/")
        part, now = opened[key], IndexView(built)
        if kind == "vectors" and part.method is None:
            continue
        if not (same_items and _still_holds(now, IndexView(previous), kind, name, part)):
            logger.warning(
                "dropped %s: its items, or the vectors or words it was fitted to, have changed",
                plain(key),
            )
        else:
            built = built.put({key: part})
    return built


def _still_holds(built: IndexView, previous: IndexView, kind: str, name: str, part: Any) -> bool:
    """Whether a part of the previous index is still valid in the new index of the same items."""
    if kind == "artifacts":
        if name == ANCHORS:
            return True
        words = [index.tokenizer if "bm25" in index.matchers else "" for index in (built, previous)]
        base = unfitted(previous)
        same_base = base == unfitted(built) and _same_space(built, previous, base)
        return words[0] == words[1] and same_base
    base = part.base if kind == "vectors" else None
    own = {own for own in built.vectors if own not in built.fitted}
    is_free = name not in {*own, *built.matchers}
    return is_free and (base is None or _same_space(built, previous, base))


def _same_space(one: IndexView, two: IndexView, name: str | None) -> bool:
    """Whether two indexes have the same vectors `name`: either from the same encoder, or equal in
    value."""
    if name is None or name not in one.vectors or name not in two.vectors:
        return False
    model, other = one.model_of(name), two.model_of(name)
    if model is not None and other is not None and model.fingerprint and other.fingerprint:
        return model.same_as(other)
    return np.array_equal(one.vectors[name], two.vectors[name])
