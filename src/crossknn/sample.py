"""The sample that comes with the package: real texts, and every score of a real cross-encoder.

The items are 11,587 meanings of nouns from WordNet 3.0 (`noun.artifact`: things people make), the
queries sentences with one marked word, whose meaning is the right item. The scores come from a
cross-encoder that was trained on other data; those of a second one stand for a cheap scorer.
`lab/recipes/sample` made the sample; `bundled/sample/README.md` has its licence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

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
    `scorer` looks up; `cheap` looks up another cross-encoder's. Both refuse other queries and
    items."""

    index: ItemIndex
    queries: QuerySet
    qrels: Qrels
    scorer: CallableScorer
    cheap: CallableScorer
    scores: FloatArray


def sample() -> Sample:
    """Open the package's sample, in a second or two: index, queries, judgements, stored scores."""
    items, queries = read_items(FOLDER), read_queries(FOLDER)
    scores, cheap = (
        np.load(FOLDER / f"{name}.npy").astype(np.float32) for name in ("scores", "cheap")
    )
    vectors = np.load(FOLDER / "vectors.npy").astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    row = {text: q for q, text in enumerate(queries.texts)}
    column = {text: i for i, text in enumerate(items.texts)}

    def stored(pairs: Sequence[tuple[str, str]], of: FloatArray) -> FloatArray:
        try:
            return of[[row[query] for query, _ in pairs], [column[item] for _, item in pairs]]
        except KeyError as error:
            raise InputError(
                f"the sample has no stored score for {error.args[0]!r}: search for its own "
                "queries, or use a real cross-encoder such as ck.CrossEncoder()"
            ) from None

    index = ItemIndex.build(items, encoder="bundled", vectors={"dense": vectors})
    large = CallableScorer(partial(stored, of=scores), "the sample's stored scores")
    small = CallableScorer(partial(stored, of=cheap), "the sample's cheap scores")
    return Sample(index, queries, read_qrels(FOLDER), large, small, scores)
