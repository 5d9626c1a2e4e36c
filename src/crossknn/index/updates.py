"""Adding and deleting items without building an index again.

An item that is added gets the next position, and one that is deleted keeps its own until the index
is compacted; an update deletes and adds. What is made of an item comes by its text and its vectors:

    vectors     by the encoder, LSA folds in; your own come with the items
    words       by the idf and the average length that the model was fitted with
    fitted      by the map of items, if the fit has one (MF_IND), or else by ridge regression on the
                item vectors that are not fitted, from those who were there when it was fitted; so
                are the rows of kriging's prior
    anchors     nothing: exact scores are stale, and not used, until they are collected again

Everything fitted says in `added` how many of its items came after the fit.

Axes: n items, k new items, d dimensions, r values of an item.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.items import Items
from crossknn.errors import InputError
from crossknn.index.base import COLUMNS, ROWS, plain
from crossknn.index.filters import field_columns
from crossknn.index.late import LateStates, encode_states
from crossknn.index.parts import Parts
from crossknn.index.storage import Growth, changing, columns_of, commit, read_parts
from crossknn.index.vectors import ItemVectors, check_vectors
from crossknn.retrievers.lexical import WordMatcher
from crossknn.retrievers.specs import unfitted
from crossknn.types import (
    NO_ITEM,
    Artifact,
    BoolArray,
    FloatArray,
    IntArray,
    Named,
    Progress,
)

LEARN_FROM = 20_000
"""Items that a regression on item vectors is fitted to, at most."""

RIDGE = 30.0
"""Items of average length that the ridge counts for, as in kriging's prior."""


Change: TypeAlias = Callable[[Parts], Mapping[str, Growth | Artifact]]
"""Says what becomes of the parts of an index: each anew, or what is added to it."""


def changed(parts: Parts, make: Change, *, whole: bool = False) -> Parts:
    """The newest parts, changed, in the folder first: all of them if `whole`, or else some."""
    folder, build = parts.folder, secrets.token_hex(8)
    if folder is None:
        stored = parts.stored()
        for key, part in make(parts).items():
            made = part.of(stored[key]) if isinstance(part, Growth) else part
            stored[key] = Artifact(made.meta, dict(made.arrays))
        return Parts.of(build, stored, parts.encode, None).after(parts)
    with changing(folder):
        before, known = read_parts(folder)
        newest = Parts.of(before, known, parts.encode, folder).after(parts)
        commit(folder, make(newest), build, None if whole else before)
        return Parts.of(*read_parts(folder), parts.encode, folder).after(parts)


def deletion(index: Parts, ids: Sequence[str]) -> dict[str, Growth]:
    """What deleting items adds to the parts of an index; `InputError` for an unknown id."""
    items = index.items
    return {"items": Growth({"template": items.template}, {"deleted": items.positions(ids)})}


def growth(
    index: Parts,
    new: Items,
    given: Mapping[str, FloatArray],
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, Growth]:
    """What k new items add to each part of an index of n items.

    Args:
        given: Vectors (k, d) of the new items, by name: those that nothing else makes.
        replace: Items whose ids the index has take the place of these.
        progress: Called with (items encoded, k).

    Raises:
        InputError: For an id that the index has (unless `replace`), without the vectors that must
            be given, or for others that do not fit.
    """
    parts, items, base = index.opened, index.items, unfitted(index)
    n, k = len(items), len(new)
    old = [items.position(i) for i in new.ids if i in items]
    if old and not replace:
        raise InputError(
            f"the index has an item {items.ids[old[0]]!r} already: give another id, or "
            "replace it (replace=True, --replace)"
        )
    own = {key[8:]: part for key, part in parts.items() if _is_own(key, part)}
    if unknown := sorted(set(given) - set(own)):
        raise InputError(
            f"vectors are given for {unknown[0]!r}, but the index has {', '.join(own) or 'none'}"
        )
    made = {name: _vectors(parts, name, new, given, progress, index.folder) for name in own}
    deleted = {"deleted": np.array(old, np.int64)} if old else {}
    grown = {"items": Growth({"template": items.template}, columns_of(new) | deleted)}

    known, vectors = (None, None) if base is None else (own[base].values, made[base])
    regressed = cache(lambda added: regression(known, vectors, k, n - added))

    for key, part in parts.items():
        kind, _, name = key.partition("/")
        if kind == "vectors":
            meta = part.artifact().meta
            if name in own:
                grown[key] = Growth(meta, {"values": made[name]})
                continue
            if part.item_map is not None and part.base in made:
                values = part.item_map(made[part.base])
            else:
                values = regressed(part.added)(part.values)
            grown[key] = Growth({**meta, "added": part.added + k}, {"values": values})
        elif isinstance(part, WordMatcher):
            grown[key] = Growth(*part.rows(new.texts))
        elif isinstance(part, LateStates):
            states = encode_states(part.encoder, new.texts, None, progress)
            total = len(part.states.values)
            rows = {"values": states.values, "starts": states.starts[1:] + total}
            grown[key] = Growth(
                {**part.artifact().meta, "states": total + len(states.values)}, rows
            )
        elif plain(key) in {*ROWS, *COLUMNS}:
            added, arrays = part.meta.get("added", 0), part.arrays
            values = {name: arrays[name] for name in ROWS.get(plain(key), ()) if name in arrays}
            rows = {name: regressed(added)(each) for name, each in values.items()}
            grown[key] = Growth({**part.meta, "added": added + k}, rows)
    return grown


def regression(
    known: FloatArray | None, new: FloatArray | None, k: int, n: int
) -> Callable[[FloatArray], FloatArray]:
    """Ridge regression on vectors: from values (n or more, r) of items, or (n or more,), to those
    of the k new ones, (k, r) or (k,).

    With X the vectors of the first n items, or of `LEARN_FROM` of them, about their mean, and Y the
    values about theirs: mean + (new - mean X) (X'X + ridge I)^-1 X'Y. Without vectors, the mean.

    Args:
        known: Vectors (n or more, d) of the items.
        new: Those of the new ones, (k, d).
    """
    chosen: IntArray | slice = slice(0, n)
    if n > LEARN_FROM:
        chosen = np.sort(np.random.default_rng(0).choice(n, LEARN_FROM, replace=False))
    if known is not None and new is not None:
        vectors = np.asarray(known[chosen], np.float64)
        centre = vectors.mean(axis=0)
        vectors -= centre
        products = vectors.T @ vectors
        # A ridge above 0 even where all vectors are equal.
        ridge = RIDGE * np.trace(products) / len(vectors) + np.finfo(np.float32).tiny
        products[np.diag_indices_from(products)] += ridge
        inverse = np.linalg.inv(products)

    def predicted(values: FloatArray) -> FloatArray:
        target = np.asarray(values[chosen], np.float64)
        middle = target.mean(axis=0)
        found = np.broadcast_to(middle, (k, *target.shape[1:]))
        if new is not None:
            found = found + (new - centre) @ (inverse @ (vectors.T @ (target - middle)))
        return found.astype(np.float32)

    return predicted


def compacted(index: Parts) -> dict[str, Artifact]:
    """The parts of an index without its deleted items, in the same order; each array is made when
    it is asked for. Word models are fitted again, and so forget which items were added.
    """
    parts, items, order = index.opened, index.items, np.asarray(index.anchor_items)
    n = len(items)
    alive = np.ones(n, np.bool_) if items.alive is None else items.alive
    rows, place = np.flatnonzero(alive), np.full(n + 1, NO_ITEM)  # the last one for NO_ITEM
    place[rows] = np.arange(len(rows))
    texts, left = [items.texts[row] for row in rows.tolist()], items.take(rows.tolist())
    columns = columns_of(left) | {"anchor_items": place[order[alive[order]]]}
    columns |= field_columns(left.extra)
    found = {"items": Artifact({"template": items.template}, columns)}
    for key, part in parts.items():
        artifact = part if isinstance(part, Artifact) else part.artifact()
        arrays, taken = artifact.arrays, dict[str, Callable[[], Any]]()
        meta = dict(artifact.meta)
        if "added" in meta:
            meta["added"] = int(alive[n - meta["added"] :].sum())
        if isinstance(part, WordMatcher):
            found[key] = type(part).fit(texts, part.vocabulary.tokenizer).artifact()  # type: ignore[attr-defined]
            continue
        if isinstance(part, ItemVectors):
            taken["values"] = partial(_rows, part.values, rows)
        elif isinstance(part, LateStates):
            counts, values = part.states.counts, part.states.values
            meta["states"] = int(counts[rows].sum())
            taken["values"] = partial(_rows, values, np.repeat(alive, counts))
            taken["starts"] = partial(np.append, 0, np.cumsum(counts[rows]))
        elif plain(key) in COLUMNS and "scores" in arrays:
            kept = np.ones(len(arrays["scores"]), np.bool_)
            taken["scores"] = partial(_scores, arrays, kept, rows)
            taken["queries"] = partial(list, compress(arrays["queries"], kept))
        for name in set(ROWS.get(plain(key), ())) & set(arrays):
            taken[name] = partial(_rows, arrays[name], rows)
        found[key] = Artifact(meta, Named(list(arrays), partial(_made, taken, arrays)))
    return found


def _is_own(key: str, part: Any) -> bool:
    return key.startswith("vectors/") and part.method is None


def _vectors(
    parts: Mapping[str, Any],
    name: str,
    new: Items,
    given: Mapping[str, FloatArray],
    progress: Progress | None,
    folder: Path | None,
) -> FloatArray:
    """Vectors (k, d) of the new items that are not fitted."""
    part: ItemVectors = parts[f"vectors/{name}"]
    k, d = len(new), part.values.shape[1]
    if name in given:
        made = given[name]
    elif part.encoder is not None:
        made = part.encoder.encode_items(new.texts, progress, folder=folder)
    elif f"words/{name}" in parts:
        made = parts[f"words/{name}"].encode_queries(new.texts)
    else:
        raise InputError(
            f"the item vectors {name!r} are your own: give those of the new items, "
            f"vectors={{{name!r}: array of the shape ({k}, {d})}}"
        )
    return check_vectors(made, k, d, f"the vectors {name!r} of the new items", half=True)


def _rows(values: Any, rows: Any) -> Any:
    return values[rows]


def _scores(arrays: Mapping[str, Any], kept: BoolArray, rows: IntArray) -> FloatArray:
    return arrays["scores"][kept][:, rows[rows < arrays["scores"].shape[1]]]


def _made(taken: Mapping[str, Callable[[], Any]], arrays: Mapping[str, Any], name: str) -> Any:
    return taken[name]() if name in taken else arrays[name]
