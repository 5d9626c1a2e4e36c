"""Pairs a CPU second of the bundled cross-encoder by how many are given at once, padded and not.

    OMP_NUM_THREADS=1 python lab/benchmarks/batches.py

Eight searches of the sample in turn give five pairs each, as the rounds of `auto` do in a service.
`mixed` pads the pairs of a run to the longest, `one width` makes a run of each width of 8 tokens.
Both take turns; the fastest of five passes over 800 pairs counts.
"""

from __future__ import annotations

import time

import numpy as np

import crossknn as ck
from crossknn.scorers.token_models import TokenScorer
from crossknn.types import Pairs

SIZES = 5, 16, 40, 64, 800


def main() -> None:
    sample, scorer = ck.sample(), ck.CrossEncoder(threads=1)
    queries, items = sample.queries.texts[:8], sample.index.items
    results = ck.Searcher(sample.index, sample.scorer).search(queries, budget=100, trace=True)
    texts = [[items.texts[items.position(pick.id)] for pick in picks] for picks in results.trace]
    order = [(q, 5 * r + i) for r in range(20) for q in range(8) for i in range(5)]
    pairs = [(queries[q], texts[q][place]) for q, place in order]
    print("| pairs at once | mixed | one width |\n|---|---|---|")
    for size in SIZES:
        least = {False: np.inf, True: np.inf}
        for _ in range(5):
            for one_width in least:
                scorer.runtime.one_width = one_width
                least[one_width] = min(least[one_width], seconds(scorer, pairs, size))
        rates = " | ".join(f"{len(pairs) / least[one]:.0f}" for one in (False, True))
        print(f"| {size} | {rates} |", flush=True)


def seconds(scorer: TokenScorer, pairs: list[tuple[str, str]], size: int) -> float:
    """CPU seconds of all pairs, `size` at once."""
    began = time.process_time()
    for start in range(0, len(pairs), size):
        queries, items = zip(*pairs[start : start + size], strict=True)
        each = np.arange(len(queries))
        assert sum(len(found) for _, found in scorer.score(Pairs(each, each), queries, items))
    return time.process_time() - began


if __name__ == "__main__":
    main()
