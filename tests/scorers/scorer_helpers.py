"""What the tests of scorers share."""

import numpy as np

from crossknn.types import Pairs


def grid(m, n):
    """All pairs of m queries and n items."""
    return Pairs(np.repeat(np.arange(m), n), np.tile(np.arange(n), m))


def collect(scorer, pairs, queries, items):
    """Scores (p,), NaN where a pair was left out; every pair at most once."""
    scores = np.full(len(pairs), np.nan)
    for positions, values in scorer.score(pairs, queries, items):
        assert values.dtype == np.float32
        assert len(positions) == len(values)
        assert np.isnan(scores[positions]).all()
        scores[positions] = values
    return scores
