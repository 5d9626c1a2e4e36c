"""A small corpus, and a cross-encoder that is a formula and counts what it is asked."""

import json
import zlib

import numpy as np

from crossknn.index.storage import MANIFEST, checksum_of

WORDS = ["cat", "dog", "bird", "fish", "tree", "house", "river", "stone", "cloud", "light"]


def corpus(n):
    return [
        {"id": f"i{i}", "title": WORDS[i % 7], "text": f"{WORDS[i % 10]} {WORDS[i // 3 % 10]} {i}"}
        for i in range(n)
    ]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def score_of(query, item):
    return zlib.crc32(f"{query}|{item}".encode()) / 2**31 - 1


class FormulaScorer:
    """Scores by a checksum of the two texts, in batches, backwards; some items have none."""

    def __init__(self, fingerprint="formula", *, skip=()):
        self.fingerprint, self.skip, self.asked = fingerprint, set(skip), []

    def score(self, pairs, queries, items, **limits):
        for start in reversed(range(0, len(pairs), 7)):
            where = np.arange(start, min(start + 7, len(pairs)))
            texts = [(queries[pairs.query[p]], items[pairs.item[p]]) for p in where]
            self.asked += texts
            kept = [k for k, (_, item) in enumerate(texts) if item not in self.skip]
            yield where[kept], np.array([score_of(*texts[k]) for k in kept], dtype=np.float32)


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


def rewrite_manifest(folder, change):
    """Change an index's manifest as somebody does who knows how its checksum is made."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    change(manifest)
    manifest["checksum"] = checksum_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
