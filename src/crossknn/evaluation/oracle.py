"""Retrievers that know the exact scores: what anchor items would be best (ADACUR 3.2, figure 5).

For analysis only: no search can have them. Wherever all exact scores are known (`replay`, sweeps,
`compare`) they can be named like any retriever:

    adacur(retriever=oracle_topk(masked=10, epsilon=0.5), rounds=1, split=0.5)

paper                       here
TopK^O_{k_m, epsilon}       oracle_topk(masked=k_m, epsilon=epsilon)
SoftMax^O_{k_m, epsilon}    oracle_softmax(masked=k_m, epsilon=epsilon)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from crossknn.errors import InputError, SpecError
from crossknn.index.base import Index
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import AllScores, Retriever
from crossknn.spec import Spec, build
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Queries


@dataclass(frozen=True, kw_only=True)
class OracleTopK:
    """The best items after the first `masked`, but a share `epsilon` of them at random."""

    name: ClassVar[str] = "oracle_topk"
    by_softmax: ClassVar[bool] = False
    masked: int = 0
    epsilon: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OracleSoftMax(OracleTopK):
    """The same, sampled without replacement by softmax of the exact scores."""

    name: ClassVar[str] = "oracle_softmax"
    by_softmax: ClassVar[bool] = True


ORACLES: dict[str, type[OracleTopK]] = {kind.name: kind for kind in (OracleTopK, OracleSoftMax)}


class OracleRetriever(AllScores):
    """Samples by exact scores (m, n): row r belongs to the r-th query of the batch.

    Of `count` items, `round(epsilon * count)` are uniformly random among those neither masked nor
    chosen before. Where fewer than `count` are not masked, rows are short. Randomness is by the
    query's text and the seed.
    """

    def __init__(self, options: OracleTopK, exact: FloatArray, seed: int) -> None:
        self.options, self.exact, self.seed = options, exact, seed

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        left = top_k(mask(self.of_all(queries), None, allowed), self.exact.shape[1])
        rows = []
        for q, (items, scores) in enumerate(zip(left.items, left.scores, strict=True)):
            pool = items != NO_ITEM
            chosen = self._sample(scores[pool], count, queries.generator(q, self.seed))
            rows.append((items[pool][chosen], scores[pool][chosen]))
        return Candidates.from_rows(rows)

    def of_all(self, queries: Queries) -> FloatArray:
        """The exact scores (m, n) float32, -inf for the masked items."""
        scores = np.array(self.exact, np.float32)
        return mask(scores, top_k(scores, self.options.masked).items, None)

    def _sample(self, scores: FloatArray, count: int, generator: np.random.Generator) -> IntArray:
        """Which of these to take: exact scores (c,), best first -> positions (<=count,)."""
        count = min(count, len(scores))
        random = round(self.options.epsilon * count)
        if self.options.by_softmax:  # the top of scores with Gumbel noise samples from the softmax
            scores = scores + generator.gumbel(size=len(scores))
        order = np.argsort(-scores, kind="stable")
        chosen, rest = order[: count - random], order[count - random :]
        return np.concatenate([chosen, generator.choice(rest, random, replace=False)])


class OracleIndex:
    """An index that offers, beside its own retrievers, those that know the exact scores (m, n).

    It stands for the index while a search of the m queries is planned.
    """

    def __init__(self, index: Index, exact: FloatArray) -> None:
        self._index, self._exact = index, exact

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def offered(self, spec: Spec, seed: int) -> Retriever | None:
        """The oracle's retriever of that name.

        Raises:
            SpecError: for options that it does not have.
            InputError: if it masks every item.
        """
        if spec.name not in ORACLES:
            return None
        options = build(spec, ORACLES, "retriever")
        if not 0 <= options.epsilon <= 1:
            raise SpecError(f"{spec}: epsilon must lie between 0 and 1")
        if options.masked < 0:
            raise SpecError(f"{spec}: masked must be 0 or more")
        if options.masked >= self._exact.shape[1]:
            raise InputError(f"{spec} masks all {self._exact.shape[1]} items")
        return OracleRetriever(options, self._exact, seed)
