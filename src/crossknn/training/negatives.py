"""Wrong items that look right: random, by TF-IDF, or by a dual encoder (ANNCUR, 3.1 and A.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.data.dataset import Labelled
from crossknn.data.marks import unmarked
from crossknn.errors import InputError
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.dense import DenseRetriever
from crossknn.retrievers.lexical import BM25, TFIDF
from crossknn.scorers.base import Encoder
from crossknn.training.corpora import Corpora
from crossknn.training.settings import NegativesSettings
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Progress, Queries

_AT_ONCE = 256


def nearest_wrong(
    corpus: Labelled,
    kind: str,
    depth: int,
    *,
    seed: int = 0,
    skip: int = 0,
    encoder: Encoder | None = None,
    progress: Progress | None = None,
) -> IntArray:
    """Wrong items of each query, nearest first: (m, depth), `NO_ITEM` where a corpus ends.

    kind: "random" (in no order), "tfidf", or "dual-encoder" with `encoder`. The first `skip` are
    left out. Where fewer items are near at all (no common word), random ones follow.
    """
    if kind == "random":
        return _random(corpus, depth, seed)
    found = candidates(
        corpus, stage_of(corpus, kind, encoder), depth + skip + _most_positives(corpus), progress
    )
    wrong = np.full((len(corpus), depth), NO_ITEM, dtype=np.int64)
    for row, (items, positives) in enumerate(zip(found, corpus.positives, strict=True)):
        near = items[~np.isin(items, positives) & (items != NO_ITEM)][: skip + depth]
        if len(near) < skip + depth:
            near = _filled(near, skip + depth, corpus.take([row]), seed)
        wrong[row, : len(near[skip:])] = near[skip:]
    return wrong


def _filled(near: IntArray, count: int, query: Labelled, seed: int) -> IntArray:
    """The near items of one query, then random wrong ones, up to `count`."""
    drawn = _random(query, count + len(near), seed)[0]
    fresh = drawn[(drawn != NO_ITEM) & ~np.isin(drawn, near)]
    return np.concatenate([near, fresh[: count - len(near)]])


def mined(
    train: Corpora, settings: NegativesSettings, seed: int, encoder: Encoder | None
) -> IntArray:
    """`nearest_wrong` of every corpus, in one numbering: (m, depth)."""
    return train.together(
        [
            nearest_wrong(
                part, settings.kind, settings.depth, seed=seed, skip=settings.skip, encoder=encoder
            )
            for part in train.parts
        ]
    )


def candidates(
    corpus: Labelled, stage: Retriever, count: int, progress: Progress | None = None
) -> IntArray:
    """The `count` nearest items of each query, right ones included: (m, count)."""
    found = np.full((len(corpus), count), NO_ITEM, dtype=np.int64)
    for start in range(0, len(corpus), _AT_ONCE):
        texts = corpus.queries.texts[start : start + _AT_ONCE]
        top = stage.top(Queries(texts), count).items
        found[start : start + len(texts), : top.shape[1]] = top
        if progress:
            progress(start + len(texts), len(corpus))
    return found


def stage_of(corpus: Labelled, kind: str, encoder: Encoder | None = None) -> Retriever:
    """BM25, TF-IDF or a dual encoder over the corpus, as a retriever that reads its queries."""
    if kind in ("bm25", "tfidf"):
        texts = [unmarked(text) for text in corpus.items.texts]
        return _Unmarked(BM25.fit(texts) if kind == "bm25" else TFIDF.fit(texts))
    if encoder is None:
        raise InputError(
            "negatives of kind 'dual-encoder' need one: set negatives.encoder to its folder"
        )
    items = encoder.encode_items(corpus.items.texts)
    return DenseRetriever(items, lambda queries: encoder.encode_queries(queries.texts))


def reader(encoder: Encoder) -> Encoder:
    """The encoder if it reads marks, or else one that is given texts without them.

    One that reads marks takes no query without them.
    """
    try:
        encoder.encode_queries(["a"])
    except InputError:
        return encoder
    return _UnmarkedEncoder(encoder)


class _UnmarkedEncoder:
    """An encoder of plain text, which reads marked texts without their marks."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner

    @property
    def fingerprint(self) -> str | None:
        return self._inner.fingerprint

    @property
    def dimensions(self) -> int:
        return self._inner.dimensions

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        return self._inner.encode_queries([unmarked(text) for text in texts])

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        return self._inner.encode_items([unmarked(text) for text in texts], progress)


class _Unmarked:
    """A retriever of words, which reads marked queries without their marks."""

    def __init__(self, inner: Retriever) -> None:
        self._inner = inner

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        return self._inner.top(Queries([unmarked(text) for text in queries.texts]), count, allowed)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        return self._inner.scores(Queries([unmarked(text) for text in queries.texts]), items)


def _random(corpus: Labelled, depth: int, seed: int) -> IntArray:
    n = len(corpus.items)
    wrong = np.full((len(corpus), depth), NO_ITEM, dtype=np.int64)
    for row, positives in enumerate(corpus.positives):
        generator = np.random.default_rng([seed, row])
        drawn = generator.choice(n, size=min(n, depth + len(positives)), replace=False)
        kept = drawn[~np.isin(drawn, positives)][:depth]
        wrong[row, : len(kept)] = kept
    return wrong


def _most_positives(corpus: Labelled) -> int:
    return max(len(positives) for positives in corpus.positives)
