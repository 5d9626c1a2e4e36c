"""A late-interaction model of NumPy: states by word, scores that depend on the whole list."""

import zlib

import numpy as np

from crossknn.types import NO_ITEM, States


def vector(text, d=4):
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    return rng.normal(size=d).astype(np.float32)


class WordStates:
    """Every word is a state; an item scores the sum of its best matches, less the list's mean."""

    def __init__(self, kind="cmc", fingerprint="words", dimensions=4):
        self.kind, self.fingerprint, self.dimensions = kind, fingerprint, dimensions
        self.encoded, self.compared = [], []

    def encode_queries(self, texts):
        self.encoded.append(list(texts))
        return self._states(texts, np.float32)

    def encode_items(self, texts, progress=None):
        if progress:
            progress(len(texts), len(texts))
        return self._states(texts, np.float16)

    def _states(self, texts, dtype):
        rows = [[vector(word, self.dimensions) for word in text.split()] for text in texts]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return States(np.array([v for row in rows for v in row], dtype), starts)

    def compare(self, queries, items, lists):
        self.compared.append(lists)
        asked, mask = queries.padded(np.arange(len(lists)))
        found, known = items.padded(lists)
        matches = np.einsum("mqd,mctd->mcqt", asked, found)
        matches[~np.broadcast_to(known[:, :, None], matches.shape)] = -np.inf
        best = np.where(mask[:, None], matches.max(-1), 0).sum(-1)
        there = lists != NO_ITEM
        mean = np.where(there, best, 0).sum(1) / np.maximum(there.sum(1), 1)
        return np.where(there, best - mean[:, None], -np.inf).astype(np.float32)
