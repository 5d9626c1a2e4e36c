"""The sample that comes with the package: real texts, and every score of a real cross-encoder.

The items are 11,587 meanings of nouns from WordNet 3.0 (`noun.artifact`: things people make), the
queries sentences with one marked word, whose meaning is the right item. The scores come from a
cross-encoder of six layers that was trained on other data. `lab/recipes/sample` made the sample;
`bundled/sample/README.md` has its licence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.data.items import read_items
from crossknn.data.qrels import Qrels, read_qrels
from crossknn.data.queries import QuerySet, read_queries
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.models.folder import bundled_folder
from crossknn.scorers.plain import CallableScorer
from crossknn.types import FloatArray

FOLDER = bundled_folder("sample")


@dataclass(frozen=True, eq=False, repr=False)
class Sample:
    """An index of n items, m queries with their relevance judgements, and all scores (m, n), which
    `scorer` looks up; it refuses other queries and items."""

    index: ItemIndex
    queries: QuerySet
    qrels: Qrels
    scorer: CallableScorer
    scores: FloatArray


def sample() -> Sample:
    """Open the package's sample, in a second or two: index, queries, judgements, stored scores."""
    items, queries = read_items(FOLDER), read_queries(FOLDER)
    scores = np.load(FOLDER / "scores.npy").astype(np.float32)
    vectors = np.load(FOLDER / "vectors.npy").astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    row = {text: q for q, text in enumerate(queries.texts)}
    column = {text: i for i, text in enumerate(items.texts)}

    def stored(pairs: Sequence[tuple[str, str]]) -> FloatArray:
        try:
            return scores[[row[query] for query, _ in pairs], [column[item] for _, item in pairs]]
        except KeyError as error:
            raise InputError(
                f"the sample has no stored score for {error.args[0]!r}: search for its own "
                "queries, or use a real cross-encoder such as ck.CrossEncoder()"
            ) from None

    index = ItemIndex.build(items, encoder="bundled", vectors={"dense": vectors})
    scorer = CallableScorer(stored, "the sample's stored scores")
    return Sample(index, queries, read_qrels(FOLDER), scorer, scores)
