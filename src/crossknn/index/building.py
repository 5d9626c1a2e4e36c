"""Building an index: from items, and what is given of them, to its parts.

Axes: n items, d dimensions, k neighbours.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.items import Items
from crossknn.errors import InputError
from crossknn.files import as_path
from crossknn.index.base import plain
from crossknn.index.database import ItemStore, TextsOf, items_in, parts_beside
from crossknn.index.late import LateStates, encode_states
from crossknn.index.parts import (
    ANCHORS,
    DUAL_ENCODER,
    GIVEN,
    LSA_NAME,
    WORDS,
    Parts,
    unknown,
)
from crossknn.index.vectors import (
    EncodeQueries,
    GivenModel,
    ItemVectors,
    RememberedModel,
    check_vectors,
)
from crossknn.retrievers.lexical import Tokenizer, tokenizer_named
from crossknn.retrievers.lsa import LSA, LSA_DIMENSIONS
from crossknn.retrievers.specs import unfitted
from crossknn.scores.collect import Limits
from crossknn.types import FloatArray, IntArray, Progress, States, as_count

logger = logging.getLogger(__name__)

COMPOSED = ("random", "fixed", "hybrid")
"""Retrievers that every index has; nothing else may have their names."""
_TAKEN = {DUAL_ENCODER, *WORDS, "lists", "auto", ANCHORS, *COMPOSED}
N_ANCHOR_ITEMS = 10_000


def build_parts(
    items: Items,
    encoder: GivenModel | None,
    vectors: Mapping[str, FloatArray],
    encode: Mapping[str, EncodeQueries],
    words: Sequence[str],
    tokenizer: Tokenizer,
    lsa: int | None,
    seed: int,
    previous: Parts | None,
    progress: Progress | None,
    limits: Limits | None,
    folder: Path | None,
) -> Parts:
    """The parts of a new index; see `ItemIndex.build`. `words` names the word models, whose words
    `tokenizer` makes."""
    if limits is not None and (limits.max_calls, limits.deadline) != (None, None):
        raise InputError("building an index encodes all items: limits may have ray and workers")
    n, made, vectors = len(items), dict[str, Any](), dict(vectors)
    encoded = None if encoder is None else vectors.pop(DUAL_ENCODER, None)
    for name, values in vectors.items():
        check_name(name, "your own vectors")
        values = check_vectors(values, n, None, f"the vectors {name!r}", half=True)
        made[f"vectors/{name}"] = ItemVectors(values=values)
    if encoder is not None:
        model = RememberedModel.of("dual encoder", encoder)
        if encoded is None:
            how: dict[str, Any] = {"progress": progress, "limits": limits, "folder": folder}
            encode_new = partial(model.encode_items, **how)
            encoded = _encode_items(model, items.texts, previous, encode_new)
        values = check_vectors(encoded, n, model.dimensions, "the encoder's vectors")
        made[f"vectors/{DUAL_ENCODER}"] = ItemVectors(values=values, encoder=model)
    if lsa is None:
        lsa = 0 if made else LSA_DIMENSIONS
    as_count(lsa, "lsa", 0)
    for name in words:
        made[f"words/{name}"] = WORDS[name].fit(items.texts, tokenizer)
    if lsa:
        made[f"words/{LSA_NAME}"], values = LSA.fit(items.texts, tokenizer, dimensions=lsa)
        made[f"vectors/{LSA_NAME}"] = ItemVectors(values=values)
    parts = Parts(items, _drawn(n, seed), made, secrets.token_hex(8), encode)
    return parts if previous is None else _keeping(parts, previous)


def parts_over(
    store: ItemStore,
    texts: str | TextsOf,
    folder: str | Path | None,
    encoder: GivenModel | None,
    encode: EncodeQueries | None,
    seed: int,
) -> Parts:
    """The parts of an index whose items stay in a database; see `ItemIndex.over`."""
    if not hasattr(store, "records"):
        raise InputError(f"{store!r:.80} is not a database of items: give a QdrantStore, say")
    model = None if encoder is None else RememberedModel.of("dual encoder", encoder)
    n, d = store.shape
    if model is not None and model.dimensions != d:
        raise InputError(
            f"the encoder makes vectors of {model.dimensions} dimensions, and those of "
            f"{store.name} have {d}: give the encoder that made them"
        )
    values: Any = store
    items = items_in(store, texts)
    name, build, parts = DUAL_ENCODER if model else GIVEN, secrets.token_hex(8), dict[str, Any]()
    if folder is not None:
        folder = as_path(folder, "the folder of the index")
        build, parts = parts_beside(folder, store, build)
    parts = {f"vectors/{name}": ItemVectors(values=values, encoder=model)} | parts
    given = {} if encode is None else {name: encode}
    return Parts(items, _drawn(n, seed), parts, build, given, folder)


def states_of(
    parts: Parts, model: RememberedModel, replace: bool, progress: Progress | None
) -> States:
    """The states of all items by a late-interaction model; see `ItemIndex.add_late`."""
    before = None if replace else parts.newest("late", model.name)
    if before is None:
        return encode_states(model, parts.items.texts, parts.folder, progress)
    known = LateStates.of(before, model.name)
    if not known.encoder.same_as(model):
        raise InputError(
            f"the index has states {model.name!r} of another model (fingerprint "
            f"{known.encoder.fingerprint}); use another name, or replace them (--replace)"
        )
    return known.states


def matcher_of(parts: Parts, name: str) -> Any:
    """A word model of the items that is a retriever itself."""
    if name not in WORDS or name == LSA_NAME:
        raise unknown("word model", name, set(WORDS) - {LSA_NAME})
    return WORDS[name].fit(parts.items.texts, tokenizer_named(parts.tokenizer))


def check_name(name: str, what: str) -> None:
    """Refuse a name that a spec could not say, or that means something else there."""
    if not name.isidentifier() or name in _TAKEN:
        raise InputError(f"{what} cannot be named {name!r}; use another name")


def by_name(given: Any, alone: str) -> dict[str, Any]:
    """What was given by name; what was given `alone` has that name."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {alone: given}


def _drawn(n: int, seed: int) -> IntArray:
    """Anchor items."""
    return np.random.default_rng(seed).permutation(n)[:N_ANCHOR_ITEMS]


def _encode_items(
    model: RememberedModel,
    texts: Sequence[str],
    previous: Parts | None,
    encode: Callable[[Sequence[str]], FloatArray],
) -> FloatArray:
    """Vectors (n, d) of the items; those of texts that `previous` has by this model are its own."""
    before = None if previous is None else previous.model_of(DUAL_ENCODER)
    if previous is None or before is None or not before.same_as(model):
        return encode(texts)
    rows = {text: row for row, text in enumerate(previous.items.texts)}
    places = np.array([rows.get(text, -1) for text in texts])
    vectors: FloatArray = previous.vectors[DUAL_ENCODER][places]
    new = np.flatnonzero(places < 0)
    if len(new):
        vectors[new] = encode([texts[p] for p in new.tolist()])
    return vectors


def _keeping(mine: Parts, other: Parts) -> Parts:
    """The parts with what was fitted to those that they replace, as far as it still fits."""
    same_items = [*mine.items.ids, *mine.items.texts] == [*other.items.ids, *other.items.texts]
    words = [key for key in other.held if key.startswith("words/")]  # of whatever tokenizer
    parts = replace(
        other, held={k: part for k, part in other.held.items() if k not in words}
    ).opened
    for key in sorted(parts, key=lambda key: not key.startswith("vectors/")):
        kind, _, name = plain(key).partition("/")
        if kind == "vectors" and parts[key].method is None:
            continue
        part = parts[key] if _fits(mine, other, kind, name, parts[key]) else None
        if part is not None and not same_items:
            part = part.of_items(mine.vectors) if kind == "vectors" else None
        if part is None:
            logger.warning("dropped %s: the items have changed, or what it is made of", plain(key))
        else:
            mine = mine.put({key: part})
    return mine


def _fits(mine: Parts, other: Parts, kind: str, name: str, part: Any) -> bool:
    """Whether a part of other parts of the same items fits what these are made of."""
    if kind == "artifacts":
        base = unfitted(other)
        has_words = "bm25" in mine.matchers
        same_words = has_words == ("bm25" in other.matchers)
        same_words &= not has_words or mine.tokenizer == other.tokenizer
        same = base == unfitted(mine) and _same_space(mine, other, base) and same_words
        return same or name == ANCHORS
    base = part.base if kind == "vectors" else None
    own = {own for own in mine.vectors if own not in mine.fitted}
    free = name not in {*own, *mine.matchers}
    return free and (base is None or _same_space(mine, other, base))


def _same_space(one: Parts, two: Parts, name: str | None) -> bool:
    """Whether both make the same vectors `name`: by one encoder, or else the items' agree."""
    if name is None or name not in one.vectors or name not in two.vectors:
        return False
    mine, other = one.model_of(name), two.model_of(name)
    if mine is not None and other is not None and mine.fingerprint and other.fingerprint:
        return mine.same_as(other)
    return np.array_equal(one.vectors[name], two.vectors[name])
