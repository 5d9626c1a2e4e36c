"""Several corpora as one, and wrong items that look right: random, by TF-IDF, or by a dual encoder
(ANNCUR, 3.1 and A.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crossknn.data.dataset import Labelled
from crossknn.data.queries import QuerySet, unmarked
from crossknn.data.reading import read_labelled
from crossknn.errors import InputError
from crossknn.models.tokens import Row, token_batches
from crossknn.retrievers.base import DenseRetriever, Retriever
from crossknn.retrievers.lexical import BM25, TFIDF
from crossknn.scorers.base import Encoder
from crossknn.training.checkpoint import digest_of
from crossknn.training.settings import DataSettings, NegativesSettings
from crossknn.types import NO_ITEM, BoolArray, IntArray, Pairs, Queries

TOKENS_PER_PASS = 2048
"""A pass through a model holds rows of similar lengths, so many tokens with their padding."""
_AT_ONCE = 256


class Corpora:
    """The texts of several corpora in one numbering, and each query's right items (one or more)."""

    def __init__(self, parts: Sequence[Labelled]) -> None:
        if not parts or not any(len(part) for part in parts):
            raise InputError("there are no train queries")
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(len(part.items) for part in parts)])
        self.queries = [text for part in parts for text in part.queries.texts]
        self.ids = [f"{part.name}/{i}" for part in parts for i in part.queries.ids]
        self.items = [text for part in parts for text in part.items.texts]
        self.positives = tuple(
            found + start
            for part, start in zip(parts, self.starts, strict=False)
            for found in part.positives
        )

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def digest(self) -> str:
        """Hash of every query, item and positive."""
        arrays = (positives.astype(np.int64) for positives in self.positives)
        return digest_of(*self.ids, *self.queries, *self.items, arrays=arrays)

    def together(self, wrong: Sequence[IntArray]) -> IntArray:
        """Item positions of each corpus (m_i, depth) -> of all (m, depth)."""
        width = max(found.shape[1] for found in wrong)
        rows = np.full((len(self), width), NO_ITEM, dtype=np.int64)
        done = 0
        for found, start in zip(wrong, self.starts, strict=False):
            block = rows[done : done + len(found), : found.shape[1]]
            block[:] = np.where(found == NO_ITEM, NO_ITEM, found + start)
            done += len(found)
        return rows

    def nearest(self, kind: str, count: int, encoder: Encoder | None) -> IntArray:
        """Every query's nearest items, right ones included, from its own corpus: (m, count)."""
        return self.together([nearest(part, kind, count, encoder) for part in self.parts])

    def wrong(self, settings: NegativesSettings, seed: int, encoder: Encoder | None) -> IntArray:
        """`nearest_wrong` of every corpus: (m, depth)."""
        return self.together([nearest_wrong(part, settings, seed, encoder) for part in self.parts])

    def lists(self, rows: Sequence[int], wrong: IntArray, count: int, seed: int) -> IntArray:
        """A right item and `count` of the `wrong` ones (m, depth), drawn by the seed:
        (b, 1 + count)."""
        lists = np.full((len(rows), 1 + count), NO_ITEM, dtype=np.int64)
        for place, row in enumerate(rows):
            generator = np.random.default_rng([seed, row])
            lists[place, 0] = generator.choice(self.positives[row])
            known = wrong[row][wrong[row] != NO_ITEM]
            drawn = generator.permutation(len(known))[:count]
            lists[place, 1 : 1 + len(drawn)] = known[drawn]
        return lists

    def pairs(self, rows: Sequence[int], lists: IntArray) -> Pairs:
        """The pairs of b queries with their lists (b, c), row by row, without `NO_ITEM`."""
        kept = lists != NO_ITEM
        return Pairs(np.repeat(np.asarray(rows), kept.sum(1)), lists[kept])

    def holds_right(self, lists: IntArray) -> BoolArray:
        """Which queries have a right item in their list: (m, c) -> (m,)."""
        both = zip(lists, self.positives, strict=True)
        return np.array([bool(np.isin(found, positives).any()) for found, positives in both])


def in_passes(rows: Sequence[Row], run: Callable[[list[Row]], Tensor]) -> Tensor:
    """`run` on all rows (b), in passes of similar lengths; its outputs (b, ...) in their order."""
    lengths = np.array([len(row.ids) for row in rows])
    batches = list(token_batches(lengths, TOKENS_PER_PASS))
    found = torch.cat([run([rows[r] for r in batch]) for batch in batches])
    order = torch.from_numpy(np.argsort(np.concatenate(batches)))
    return found[order.to(found.device)]


def checked_rows(rows: Sequence[Row | InputError]) -> list[Row]:
    """The rows, or the error of the first that could not be made."""
    for row in rows:
        if isinstance(row, InputError):
            raise row
    return [row for row in rows if isinstance(row, Row)]


def read_corpora(
    data: DataSettings, seed: int, *, lists: bool = False
) -> tuple[list[Labelled], list[Labelled]]:
    """The train and dev corpora of the settings, with the lists that come with them if asked for.

    Raises InputError if train and dev share a query; of the same split, dev is held out.
    """
    train = _read(data.train_folders, data.train, data.train_domains, lists)
    dev = sampled(
        _read(data.dev_folders, data.dev, data.dev_domains, lists), data.dev_queries, seed
    )
    if data.same_split:
        train = [part.without(held.queries.ids) for part, held in zip(train, dev, strict=True)]
    train = sampled(train, data.train_queries, seed)
    known = {(part.name, *query) for part in train for query in _queries(part)}
    for part in dev:
        for query, text in _queries(part):
            if (part.name, query, text) in known:
                raise InputError(f"the query {query!r} of {part.name} is in train and in dev")
    return train, dev


def sampled(parts: list[Labelled], count: int | None, seed: int) -> list[Labelled]:
    """`count` queries over all parts, in proportion to their sizes."""
    total = sum(len(part) for part in parts)
    if count is None or count >= total:
        return parts
    sizes = [max(1, round(count * len(part) / total)) for part in parts]
    return [part.sample(size, seed) for part, size in zip(parts, sizes, strict=True)]


def _read(
    folders: tuple[Path, ...], split: str, domains: tuple[str, ...] | None, lists: bool
) -> list[Labelled]:
    """The corpora of all folders; `domains` are of those that have some."""
    having = [folder for folder in folders if (folder / "documents").is_dir()] or folders
    return [
        part
        for folder in folders
        for part in read_labelled(folder, split, domains if folder in having else None, lists=lists)
    ]


def _queries(part: Labelled) -> Iterator[tuple[str, str]]:
    return zip(part.queries.ids, part.queries.texts, strict=True)


def nearest_wrong(
    corpus: Labelled, settings: NegativesSettings, seed: int = 0, encoder: Encoder | None = None
) -> IntArray:
    """Wrong items of each query, nearest first: (m, depth), `NO_ITEM` where a corpus ends.

    Where fewer items are near at all (no common word), random ones follow.
    """
    wrong = np.full((len(corpus), settings.depth), NO_ITEM, dtype=np.int64)
    if settings.kind == "random":
        for row in range(len(corpus)):
            drawn = _random(corpus, row, settings.depth, [seed, row])
            wrong[row, : len(drawn)] = drawn
        return wrong
    count = settings.skip + settings.depth
    most_right = max(len(positives) for positives in corpus.positives)
    found = nearest(corpus, settings.kind, count + most_right, encoder)
    for row, (items, positives) in enumerate(zip(found, corpus.positives, strict=True)):
        near = items[~np.isin(items, positives) & (items != NO_ITEM)][:count]
        if len(near) < count:
            drawn = _random(corpus, row, count + len(near), [seed, 0])
            near = np.concatenate([near, drawn[~np.isin(drawn, near)]])[:count]
        wrong[row, : len(near[settings.skip :])] = near[settings.skip :]
    return wrong


def _random(corpus: Labelled, row: int, count: int, seed: list[int]) -> IntArray:
    """Up to `count` wrong items of a query, in random order."""
    n, positives = len(corpus.items), corpus.positives[row]
    generator = np.random.default_rng(seed)
    drawn = generator.choice(n, size=min(n, count + len(positives)), replace=False)
    return drawn[~np.isin(drawn, positives)][:count]


def nearest(corpus: Labelled, kind: str, count: int, encoder: Encoder | None = None) -> IntArray:
    """The nearest items of each query by "tfidf" or a "dual-encoder", right ones too: (m,
    count).
    """
    corpus = plain(corpus) if kind == "tfidf" else corpus
    return candidates(corpus, retriever_of(corpus, kind, encoder), count)


def candidates(corpus: Labelled, retriever: Retriever, count: int) -> IntArray:
    """The retriever's best items of each query: (m, count)."""
    found = np.full((len(corpus), count), NO_ITEM, dtype=np.int64)
    for start in range(0, len(corpus), _AT_ONCE):
        texts = corpus.queries.texts[start : start + _AT_ONCE]
        top = retriever.top(Queries(texts), count).items
        found[start : start + len(texts), : top.shape[1]] = top
    return found


def retriever_of(corpus: Labelled, kind: str, encoder: Encoder | None = None) -> Retriever:
    """BM25, TF-IDF (of `plain` texts) or a dual encoder over the corpus."""
    if kind == "bm25":
        return BM25.fit(corpus.items.texts)
    if kind == "tfidf":
        return TFIDF.fit(corpus.items.texts)
    if encoder is None:
        raise InputError(
            "negatives of kind 'dual-encoder' need one: set negatives.encoder to its folder"
        )
    items = encoder.encode_items(corpus.items.texts)
    return DenseRetriever(items, lambda queries: encoder.encode_queries(queries.texts))


def plain(corpus: Labelled) -> Labelled:
    """The corpus without marks, as words and encoders that know no marks read it."""
    queries = QuerySet(corpus.queries.ids, tuple(map(unmarked, corpus.queries.texts)))
    items = replace(corpus.items, texts=list(map(unmarked, corpus.items.texts)))
    return replace(corpus, queries=queries, items=items)


def reads_marks(encoder: Encoder) -> bool:
    """One that does takes no query without them."""
    try:
        encoder.encode_queries(["a"])
    except InputError:
        return True
    return False
