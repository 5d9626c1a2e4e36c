"""A few texts, and a scorer that counts common words."""

from __future__ import annotations

import numpy as np

TEXTS = [
    {
        "id": f"{verb}-{noun}",
        "title": f"{verb} {noun}",
        "text": f"how to {verb} a {noun} {'very ' * (n % 3)}fast",
        "lang": "en" if n % 2 else "de",
        "year": 2000 + n,
    }
    for n, (verb, noun) in enumerate(
        (verb, noun)
        for verb in ("zip", "sort", "copy", "lock", "read", "send")
        for noun in ("file", "list", "folder", "thread", "page")
    )
]


def overlap(pairs):
    return [len({*q.split()} & {*t.split()}) + len(t) / 100 for q, t in pairs]


def embedding(text):
    """Counts of its words, as a vector (d,)."""
    names = sorted({word for item in TEXTS for word in item["text"].split()})
    return np.array([text.split().count(name) for name in names], np.float32)
