"""Add and delete items without building the index again.

An added item gets the next position; a deleted one keeps its position until the index is compacted.
BM25 keeps its idf and average length. Fitted vectors and kriging's prior are extended by ridge
regression on the unfitted vectors. Axes: n items, k new items, d dimensions, r values of an item.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import getitem
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.data.items import Items
from crossknn.data.passages import cut, positions_of
from crossknn.errors import InputError
from crossknn.index.filters import FEW, field_columns
from crossknn.index.parts import COLUMNS, ROWS, Parts, new_build, plain
from crossknn.index.storage import Growth, columns_of
from crossknn.index.vectors import ItemVectors, LateStates, RememberedModel, check_vectors
from crossknn.index.view import IndexView
from crossknn.retrievers.lexical import BM25, SparseVectors
from crossknn.retrievers.specs import unfitted
from crossknn.types import Artifact, FloatArray, IntArray, Named, Progress

logger = logging.getLogger(__name__)

LEARN_FROM = 20_000
"""Maximum number of items on which the regression on item vectors is trained."""

RIDGE = 30.0
"""The ridge, as a multiple of the average squared length of a vector, as in kriging's prior."""

_Predictor: TypeAlias = Callable[[int], Callable[[FloatArray], FloatArray]]
"""For a fit of n items, returns the function from old items' values to new items' values."""

Change: TypeAlias = Callable[[Parts], Mapping[str, Growth | Artifact]]
"""Returns the changed parts of an index, each complete or as a `Growth`."""


def changed(parts: Parts, make: Change, *, whole: bool = False) -> Parts:
    """Apply a change to the newest parts, also in the folder; `whole` replaces all parts."""
    folder, build = parts.folder, new_build()
    if folder is None:
        stored = parts.stored()
        for key, part in make(parts).items():
            made = part.of(stored[key]) if isinstance(part, Growth) else part
            stored[key] = Artifact(made.meta, dict(made.arrays))
        return carried_over(parts, Parts.of(build, stored, parts.encode, None))
    with folder.changing():
        newest = carried_over(parts, Parts.read(folder, parts.encode))
        folder.commit(make(newest), build, None if whole else newest.build)
        return carried_over(parts, Parts.read(folder, parts.encode))


def carried_over(before: Parts, now: Parts) -> Parts:
    """Copy the models and retrievers that `before` has in memory to the parts `now`."""
    for key, part in before.held.items():
        model = getattr(part, "encoder", None)
        if model is not None and model.opened is not None and key in now.held:
            same: RememberedModel | None = now.opened(key).encoder
            if same is not None and same.state() == model.state():
                same.opened = model.opened
    added = before.added
    if added and not now.same_items(before):
        added = {}
        logger.warning("dropped the retrievers %s: add them again", ", ".join(before.added))
    return replace(now, added=added)


def deletion(parts: Parts, ids: Sequence[str]) -> dict[str, Growth]:
    """Return the parts that change when items are deleted; `InputError` for an unknown id."""
    items = parts.items
    if parts.passages is None:
        deleted = items.positions(ids)
    else:  # the ids are those of documents
        found = [positions_of(items, document) for document in ids]
        if [] in found:
            hint = f" (ids look like {items.ids[0].rpartition('#')[0]!r})" if len(items) else ""
            raise InputError(f"there is no document with the id {ids[found.index([])]!r}{hint}")
        deleted = np.concatenate([np.empty(0, np.int64), *map(np.array, found)])
    return {"items": Growth({"template": items.template}, {"deleted": deleted})}


def growth(
    parts: Parts,
    new: Items,
    given: Mapping[str, FloatArray],
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, Growth]:
    """Return the rows that k `new` items add to each part; `given` are their own vectors (k, d)."""
    items, opened = parts.items, parts.all_opened()
    if (settings := parts.passages) is None:
        known = {i: [items.position(i)] for i in new.ids if i in items}
    else:
        known = {i: positions_of(items, i) for i in new.ids}
        known, new = {i: found for i, found in known.items() if found}, cut(new, settings)
    if known and not replace:
        what = "an item" if settings is None else "a document"
        raise InputError(
            f"the index already has {what} {next(iter(known))!r}: give another id, or replace "
            "it (replace=True, --replace)"
        )
    old = [position for found in known.values() for position in found]
    vectors = {key[8:]: part for key, part in opened.items() if key.startswith("vectors/")}
    own = [name for name, part in vectors.items() if part.method is None]
    if unknown := sorted(set(given) - set(own)):
        raise InputError(
            f"vectors are given for {unknown[0]!r}, but the user's own vectors in the index "
            f"are {', '.join(own) or 'none'}"
        )
    place = None if parts.folder is None else parts.folder.path
    new_vectors = {name: _vectors(opened, name, new, given, progress, place) for name in own}
    base = unfitted(IndexView(parts))
    old_base = None if base is None else opened[f"vectors/{base}"].values
    predictor = cache(partial(regression, old_base, new_vectors.get(base or ""), len(new)))

    deleted = {"deleted": np.array(old, np.int64)} if old else {}
    grown = {"items": Growth({"template": items.template}, columns_of(new) | deleted)}
    for key, part in opened.items():
        if key.startswith("vectors/") and key[8:] in new_vectors:
            grown[key] = Growth(part.artifact().meta, {"values": new_vectors[key[8:]]})
        elif (rows := _fitted_rows(key, part, len(items), len(new), predictor)) is not None:
            grown[key] = rows
        elif isinstance(part, BM25):
            grown[key] = Growth(*part.rows(new.texts))
        elif isinstance(part, LateStates | SparseVectors):
            states, total = part.encoder.encode(new.texts, progress, None), len(part.states.values)
            rows_of_items = {"values": states.values, "starts": states.starts[1:] + total}
            grown[key] = Growth(part.artifact().meta, rows_of_items)
    return grown


def _fitted_rows(key: str, part: Any, n: int, k: int, predictor: _Predictor) -> Growth | None:
    """Predict a fit's rows for k new items; None if the part is no fit."""
    if isinstance(part, ItemVectors):
        values = predictor(n - part.added)(part.values)
        return Growth({**part.artifact().meta, "added": part.added + k}, {"values": values})
    if plain(key) in {*ROWS, *COLUMNS}:
        added, arrays = part.meta.get("added", 0), part.arrays
        names = [name for name in ROWS.get(plain(key), ()) if name in arrays]
        predict = predictor(n - added)
        rows = {name: predict(arrays[name]) for name in names}
        return Growth({**part.meta, "added": added + k}, rows)
    return None


def regression(
    old: FloatArray | None, new: FloatArray | None, k: int, n: int
) -> Callable[[FloatArray], FloatArray]:
    """Fit a ridge regression on vectors, and return the function from values of old items,
    (n or more, r) or (n or more,), to values of the new items, (k, r) or (k,).

    X are the vectors of the first n `old` items, or of `LEARN_FROM` of these items, and Y their
    values, both centred. The prediction is mean Y + (new - mean X) (X'X + ridge I)^-1 X'Y, or mean
    Y without vectors.
    """
    chosen: IntArray | slice = slice(0, n)
    if n > LEARN_FROM:
        chosen = np.sort(np.random.default_rng(0).choice(n, LEARN_FROM, replace=False))
    if old is not None and new is not None:
        vectors = np.asarray(old[chosen], np.float64)
        centre = vectors.mean(axis=0)
        vectors -= centre
        products = vectors.T @ vectors
        # Keep the ridge above 0 even if all vectors are equal.
        ridge = RIDGE * np.trace(products) / len(vectors) + np.finfo(np.float32).tiny
        products[np.diag_indices_from(products)] += ridge
        inverse = np.linalg.inv(products)

    def predicted(values: FloatArray) -> FloatArray:
        target = np.asarray(values[chosen], np.float64)
        middle = target.mean(axis=0)
        predictions = np.broadcast_to(middle, (k, *target.shape[1:]))
        if new is not None:
            slopes = inverse @ (vectors.T @ (target - middle))
            predictions = predictions + (new - centre) @ slopes
        return predictions.astype(np.float32)

    return predicted


def compacted(parts: Parts) -> dict[str, Artifact]:
    """Return the parts without deleted items, BM25 fitted again; each array is made on demand."""
    items, n = parts.items, len(parts.items)
    alive = np.ones(n, np.bool_) if items.alive is None else items.alive
    rows = np.flatnonzero(alive)
    texts, left = [items.texts[row] for row in rows.tolist()], items.take(rows.tolist())
    columns = columns_of(left)
    columns |= field_columns(left.extra) if len(left) >= FEW else {}
    compact = {"items": Artifact({"template": items.template}, columns)}
    for key, part in parts.all_opened().items():
        if isinstance(part, BM25):
            compact[key] = BM25.fit(texts, part.vocabulary.tokenizer).artifact()
            continue
        artifact = part if isinstance(part, Artifact) else part.artifact()
        arrays, taken = artifact.arrays, dict[str, Callable[[], Any]]()
        meta = dict(artifact.meta)
        if "added" in meta:
            meta["added"] = int(alive[n - meta["added"] :].sum())
        if isinstance(part, ItemVectors):
            taken["values"] = partial(getitem, part.values, rows)
        elif isinstance(part, LateStates | SparseVectors):
            counts, values = part.states.counts, part.states.values
            taken["values"] = partial(getitem, values, np.repeat(alive, counts))
            taken["starts"] = partial(np.append, 0, np.cumsum(counts[rows]))
        elif plain(key) in COLUMNS and "scores" in arrays:
            columns_kept = rows[rows < arrays["scores"].shape[1]]
            taken["scores"] = partial(getitem, arrays["scores"], np.s_[:, columns_kept])
        for name in set(ROWS.get(plain(key), ())) & set(arrays):
            taken[name] = partial(getitem, arrays[name], rows)
        for name in arrays.keys() - taken.keys():
            taken[name] = partial(getitem, arrays, name)

        def made(name: str, of: Mapping[str, Callable[[], Any]] = taken) -> Any:
            return of[name]()

        compact[key] = Artifact(meta, Named(list(arrays), made))
    return compact


def _vectors(
    parts: Mapping[str, Any],
    name: str,
    new: Items,
    given: Mapping[str, FloatArray],
    progress: Progress | None,
    folder: Path | None,
) -> FloatArray:
    part: ItemVectors = parts[f"vectors/{name}"]
    k, d = len(new), part.values.shape[1]
    if name in given:
        made = given[name]
    elif part.encoder is not None:
        made = part.encoder.encode(new.texts, progress, folder).values
    elif f"words/{name}" in parts:
        made = parts[f"words/{name}"].encode_queries(new.texts)
    else:
        raise InputError(
            f"the index has your own item vectors {name!r}: give vectors of the new items, "
            f"vectors={{{name!r}: array of the shape ({k}, {d})}}"
        )
    return check_vectors(made, k, d, f"the vectors {name!r} of the new items", half=True)
