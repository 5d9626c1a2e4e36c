"""What a score matrix file holds of its queries beside their scores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossknn.data.queries import Qrels, QuerySet
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import DUAL_ENCODER, narrowed
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, IntArray, Queries

logger = logging.getLogger(__name__)

_AT_ONCE = 64


def vectors(index: ItemIndex, queries: QuerySet) -> dict[str, Any]:
    """`item_vectors` and `query_vectors` of the dual encoder; of fitted ones, by name."""
    found = dict[str, FloatArray]()
    for name in (DUAL_ENCODER, *index.fitted_names):
        end = "" if name == DUAL_ENCODER else f"_{name}"
        if name in index.vector_names:
            found[f"item_vectors{end}"] = index.vectors(name)
        if name in index.query_vector_names:
            made = index.query_vectors(Queries(queries.texts), name)
            found[f"query_vectors{end}"] = made
    return {key: narrowed(values) for key, values in found.items()}


def graphs(index: ItemIndex) -> dict[str, Any]:
    """`graph_<name>` (n, k): the item graphs of the index."""
    return {f"graph_{name}": graph.neighbours for name, graph in index.graphs.items()}


def first_stages(index: ItemIndex, queries: QuerySet) -> dict[str, Any]:
    """`first_<name>` (q, n): scores of the retrievers whose vectors are not in the file."""
    found = {}
    for name in dict.fromkeys([*index.retriever_names, *index.vector_names]):
        if name in (DUAL_ENCODER, *index.fitted_names):
            continue
        stage, parts = open_retriever(index, Spec(name), seed=0), []
        try:
            for start in range(0, len(queries), _AT_ONCE):
                texts = queries.texts[start : start + _AT_ONCE]
                parts.append(narrowed(stage.scores(Queries(texts))))
        except InputError as error:
            logger.warning("no retriever %s in the score matrix: %s", name, error)
            continue
        found[f"first_{name}"] = np.concatenate(parts)
    return found


def labels_of(queries: QuerySet, qrels: Qrels, item_ids: Sequence[str]) -> IntArray:
    """Position of each query's first relevant item (grade above 0), -1 without one: (q,).

    Raises InputError if no query is judged.
    """
    position = {item: i for i, item in enumerate(item_ids)}
    judged = [qrels.get(query, {}) for query in queries.ids]
    if not any(judged):
        raise InputError("no query is judged in the qrels: do their ids agree?")
    relevant = (
        (position[item] for item, grade in found.items() if grade > 0 and item in position)
        for found in judged
    )
    return np.array([next(items, NO_ITEM) for items in relevant], dtype=np.int64)
