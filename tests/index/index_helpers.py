"""A small corpus, and a cross-encoder that is a formula and counts what it is asked."""

import os
import signal
import zlib

import numpy as np

WORDS = ["cat", "dog", "bird", "fish", "tree", "house", "river", "stone", "cloud", "light"]


def corpus(n):
    return [
        {"id": f"i{i}", "title": WORDS[i % 7], "text": f"{WORDS[i % 10]} {WORDS[i // 3 % 10]} {i}"}
        for i in range(n)
    ]


def score_of(query, item):
    return zlib.crc32(f"{query}|{item}".encode()) / 2**31 - 1


class FormulaScorer:
    """Scores by a checksum of the two texts, in batches, backwards; may fail or die on the way."""

    def __init__(self, fingerprint="formula", *, batch=7, skip=(), die_after=None, log=None):
        self.fingerprint = fingerprint
        self.batch, self.skip, self.die_after, self.log = batch, set(skip), die_after, log
        self.asked = []

    def score(self, pairs, queries, items, **limits):
        for start in reversed(range(0, len(pairs), self.batch)):
            where = np.arange(start, min(start + self.batch, len(pairs)))
            texts = [(queries[pairs.query[p]], items[pairs.item[p]]) for p in where]
            if self.die_after is not None and len(self.asked) >= self.die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            self.asked += texts
            if self.log:
                with open(self.log, "a") as file:
                    file.writelines(f"{query}|{item!r}\n" for query, item in texts)
            kept = [k for k, (_, item) in enumerate(texts) if item not in self.skip]
            scores = np.array([score_of(*texts[k]) for k in kept], dtype=np.float32)
            yield where[kept], scores


class LengthEncoder:
    """Vectors (words, characters, 1)."""

    fingerprint = "length"
    dimensions = 3

    def encode_queries(self, texts):
        return np.array([[len(t.split()), len(t), 1] for t in texts], dtype=np.float32)

    def encode_items(self, texts, progress=None):
        if progress:
            progress(len(texts), len(texts))
        return self.encode_queries(texts)
