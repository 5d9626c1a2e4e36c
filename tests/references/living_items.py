"""What an index with additions and deletions must answer: a dictionary, searched by brute force."""

import numpy as np


class LivingItems:
    """Ids -> (text, vector), in the order in which they were last added."""

    def __init__(self, texts, vectors):
        """`texts` by id; `vectors` (n, d)."""
        self.items = {}
        self.add(texts, vectors)

    def add(self, texts, vectors):
        for item_id, vector in zip(texts, vectors, strict=True):
            self.items.pop(item_id, None)
            self.items[item_id] = texts[item_id], vector

    def delete(self, ids):
        for item_id in ids:
            del self.items[item_id]

    def nearest(self, query, k):
        """The k ids of the largest inner products, ties to what was added first."""
        products = np.array([query @ vector for _, vector in self.items.values()])
        order = np.argsort(-products, kind="stable")[:k]
        return [list(self.items)[place] for place in order]
