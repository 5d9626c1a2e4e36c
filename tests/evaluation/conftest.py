"""A small world of texts whose exact scores and judgements are known."""

from __future__ import annotations

import numpy as np
import pytest

import crossknn as ck


@pytest.fixture(scope="session")
def world():
    """An index of texts, 70 queries, all exact scores, and judgements of all but one."""
    rng = np.random.default_rng(0)
    words = np.array(["zip", "sort", "list", "lock", "thread", "file", "queue", "archive"])
    texts = [" ".join(row) + f" {i}" for i, row in enumerate(rng.choice(words, (150, 5)))]
    index = ck.ItemIndex.build(texts[:80], lsa=6)
    queries = ck.QuerySet(tuple(f"q{i}" for i in range(70)), tuple(texts[80:]))
    of_words = [{w: text.split().count(w) for w in words} for text in texts]
    counts = np.array([list(row.values()) for row in of_words])
    scores = counts[80:] @ counts[:80].T + rng.normal(size=(70, 80))
    noisy = scores + rng.normal(size=scores.shape)
    best = np.argsort(-noisy, axis=1)[:, :3]
    qrels = {f"q{q}": {str(i): 1 for i in best[q]} for q in range(69)}
    return index, queries, scores.astype(np.float32), qrels
