"""Oracles: retrievers that know the exact scores, to ask what anchor items would be best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import AllScores, Retriever
from crossknn.spec import Spec, build
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, Queries


@dataclass(frozen=True, kw_only=True)
class OracleTopK:
    """The best items after the first `masked`, but a share `epsilon` of them at random.

    What anchor items would be best (ADACUR 3.2, figure 5): in replays of stored
    matrices it can be named like any retriever. ADACUR writes
    TopK^O_{k_m, epsilon} and SoftMax^O_{k_m, epsilon}, where k_m is `masked`.
    """

    masked: int = 0
    epsilon: float = 0.0


class OracleSoftMax(OracleTopK):
    """The same, sampled without replacement by softmax of the exact scores."""


_ORACLES = {"oracle_topk": OracleTopK, "oracle_softmax": OracleSoftMax}


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
            items, scores = items[items != NO_ITEM], scores[items != NO_ITEM]
            generator, order = queries.generator(q, self.seed), np.arange(len(items))
            if isinstance(self.options, OracleSoftMax):  # Gumbel noise: the top is a softmax sample
                order = np.argsort(-scores - generator.gumbel(size=len(items)), kind="stable")
            found = min(count, len(items))
            random = round(self.options.epsilon * found)
            drawn = generator.choice(order[found - random :], random, replace=False)
            chosen = np.concatenate([order[: found - random], drawn])
            rows.append((items[chosen], scores[chosen]))
        return Candidates.from_rows(rows)

    def of_all(self, queries: Queries) -> FloatArray:
        """The exact scores (m, n) float32, -inf for the masked items."""
        scores = np.array(self.exact, np.float32)
        return mask(scores, top_k(scores, self.options.masked).items, None)


class WithOracles:
    """An index for queries whose exact scores (m, n) are known: it offers the oracles, too."""

    def __init__(self, index: Index, exact: FloatArray) -> None:
        self._index, self._exact = index, exact

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def offered(self, spec: Spec, seed: int) -> Retriever | None:
        """The oracle's retriever of that name; `SpecError` for options that it does not have."""
        if spec.name not in _ORACLES:
            return None
        options, n = build(spec, _ORACLES, "retriever"), self._exact.shape[1]
        if not (0 <= options.epsilon <= 1 and 0 <= options.masked < n):
            raise SpecError(f"{spec}: epsilon must lie in 0 to 1, and masked in 0 to {n - 1}")
        return OracleRetriever(options, self._exact, seed)
