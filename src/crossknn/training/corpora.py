"""Several corpora as one, and what a retriever finds for their queries: wrong items that look right
(ANNCUR, 3.1 and A.1), and candidates to compare (CMC, 3.2).

Axes: m queries, n items, p right items of a query at most, b queries of a step, c items of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossknn.data.dataset import Dataset
from crossknn.data.queries import unmarked
from crossknn.data.reading import read_labelled
from crossknn.errors import InputError
from crossknn.models.base import TorchModel
from crossknn.models.tokens import Row, token_batches
from crossknn.retrievers.base import DenseRetriever, RandomItems, Retriever
from crossknn.retrievers.lexical import BM25, TFIDF
from crossknn.scorers.base import Encoder
from crossknn.training.loop import digest_of
from crossknn.training.settings import NegativesSettings, RunSettings
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, Queries

WORDS = ("bm25", "tfidf")
LISTS = "lists"
UNIT_SCALE = 20.0
"""What cosines are multiplied by before a softmax."""
_QUERIES_AT_ONCE = 256


class Corpora:
    """The texts of several corpora in one numbering, and each query's right items (one or more)."""

    def __init__(self, parts: Sequence[Dataset]) -> None:
        if not any(len(part) for part in parts):
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

    @property
    def digest(self) -> str:
        """Hash of every query, item and positive."""
        return digest_of(*self.ids, *self.queries, *self.items, *map(str, self.positives))

    def first_ranks(self, lists: IntArray) -> FloatArray:
        """The rank of the best right item in lists (m, c), infinity if there is none: (m,)."""
        pairs = zip(lists, self.positives, strict=True)
        places = [np.flatnonzero(np.isin(items, right)) for items, right in pairs]
        return np.array([found[0] + 1 if len(found) else np.inf for found in places])

    def lists(self, rows: Sequence[int], wrong: IntArray, count: int, seed: int) -> IntArray:
        """A right item and `count` of the `wrong` (m, depth), drawn by the seed: (b, 1 + count)."""
        lists = np.full((len(rows), 1 + count), NO_ITEM, dtype=np.int64)
        for row, drawn in zip(rows, lists, strict=True):
            generator = np.random.default_rng([seed, row])
            drawn[0] = generator.choice(self.positives[row])
            known = generator.permutation(wrong[row][wrong[row] != NO_ITEM])[:count]
            drawn[1 : 1 + len(known)] = known
        return lists


def read_corpora(settings: RunSettings) -> tuple[list[Dataset], list[Dataset]]:
    """Train and dev queries; InputError if they share one."""
    data, candidates = settings.data, getattr(settings, "candidates", None)
    lists = candidates is not None and candidates.retriever == LISTS

    def read(folders: Sequence[Path], split: str) -> list[Dataset]:
        return [part for folder in folders for part in read_labelled(folder, split, lists=lists)]

    train = read(data.folder, data.train)
    dev = read(data.dev_folder or data.folder, data.dev)
    dev = sampled(dev, data.dev_queries, settings.training.seed)
    known, held = ({(p.name, q) for p in parts for q in p.queries.ids} for parts in (train, dev))
    for name, query in sorted(known & held):
        raise InputError(f"the query {query!r} of {name} is in train and in dev")
    return train, dev


def sampled(parts: list[Dataset], count: int, seed: int) -> list[Dataset]:
    """`count` queries over all parts, in proportion to their sizes."""
    total = sum(len(part) for part in parts)
    if count >= total:
        return parts
    sizes = [max(1, round(count * len(part) / total)) for part in parts]
    return [part.sample(size, seed) for part, size in zip(parts, sizes, strict=True)]


def found_items(
    corpora: Corpora, kind: str, count: int, encoder: Encoder | None = None, seed: int = 0
) -> IntArray:
    """Every query's best items of its own corpus, right ones included: (m, count).

    kind: "bm25", "tfidf", "random", "lists" (those that come with the queries) or, for any other,
    the dual encoder that is given.
    """
    found = np.full((len(corpora), count), NO_ITEM, dtype=np.int64)
    ranked = _rankings(corpora, kind, count, encoder, seed)
    for row, (items, _, _) in zip(found, ranked, strict=True):
        row[: len(items)] = items
    return found


def found_wrong(
    corpora: Corpora, kind: str, depth: int, encoder: Encoder | None = None, seed: int = 0
) -> tuple[Candidates, Candidates]:
    """Every query's right items (m, p) and best wrong ones (m, depth), from its own corpus.

    Their scores are the retriever's, cosines times 20. Words find only items that share one with
    the query. `kind` is that of `found_items`.
    """
    right, wrong = [], []
    n_right = max(map(len, corpora.positives))
    ranked = _rankings(corpora, kind, depth + n_right, encoder, seed)
    for positives, (items, scores, known) in zip(corpora.positives, ranked, strict=True):
        is_wrong = ~np.isin(items, positives)
        right.append((positives, known))
        wrong.append((items[is_wrong][:depth], scores[is_wrong][:depth]))
    return Candidates.from_rows(right), Candidates.from_rows(wrong)


def nearest_wrong(
    corpora: Corpora, wanted: NegativesSettings, encoder: Encoder | None = None, seed: int = 0
) -> IntArray:
    """Wrong items of each query, the nearest but for the first `skip`: (m, depth).

    Where fewer items are near at all (no common word), random ones follow.
    """
    kind, depth, is_random = wanted.kind, wanted.depth, wanted.kind == "random"
    skip = 0 if is_random else wanted.skip
    found = np.full((len(corpora), skip + depth), NO_ITEM, dtype=np.int64)
    if not is_random:
        near = found_wrong(corpora, kind, skip + depth, encoder)[1].items
        found[:, : near.shape[1]] = near
    for row, items in enumerate(found):
        known = int((items != NO_ITEM).sum())
        if known < len(items):
            generator = np.random.default_rng([seed, row if is_random else 0])
            positives = corpora.positives[row]
            part = np.searchsorted(corpora.starts, positives[0], side="right") - 1
            start, n = corpora.starts[part], len(corpora.parts[part].items)
            size = min(n, len(items) + known + len(positives))
            drawn = start + generator.choice(n, size=size, replace=False)
            drawn = drawn[~np.isin(drawn, [*positives, *items])][: len(items) - known]
            items[known : known + len(drawn)] = drawn
    return found[:, skip:]


Ranked: TypeAlias = Iterator[tuple[IntArray, FloatArray, FloatArray]]
"""A query's best items and their scores, best first, and the scores of its right items."""


def _rankings(
    corpora: Corpora, kind: str, count: int, encoder: Encoder | None, seed: int
) -> Ranked:
    """As a retriever ranks each query's own corpus, in the numbering of all."""
    for part, start in zip(corpora.parts, corpora.starts, strict=False):
        found = _listed(part, count) if kind == LISTS else _ranked(part, kind, count, encoder, seed)
        yield from ((items + start, scores, right) for items, scores, right in found)


def _listed(part: Dataset, count: int) -> Ranked:
    """By the queries' own lists; a right item that is not in them scores as the last, 0 at most."""
    rows = zip(part.lists.items, part.lists.scores, part.positives, strict=True)
    for items, scores, positives in rows:
        items, scores = items[items != NO_ITEM], scores[items != NO_ITEM]
        known = dict(zip(items.tolist(), scores.tolist(), strict=True))
        last = float(scores.min(initial=0.0))
        right = np.array([known.get(item, last) for item in positives.tolist()])
        yield items[:count], scores[:count], right


def _ranked(part: Dataset, kind: str, count: int, encoder: Encoder | None, seed: int) -> Ranked:
    """By a retriever over the corpus, which reads no marks if it knows none."""
    texts, items = list(part.queries.texts), part.items.texts
    if kind in WORDS or (encoder is not None and not _reads_marks(encoder)):
        texts, items = [unmarked(text) for text in texts], [unmarked(text) for text in items]
    retriever, scale = _retriever(items, kind, encoder, seed)
    for start in range(0, len(part), _QUERIES_AT_ONCE):
        at = slice(start, start + _QUERIES_AT_ONCE)
        queries, positives = Queries(texts[at]), part.positives[at]
        found = retriever.top(queries, count)
        right = Candidates.from_rows([(wanted, 0.0 * wanted) for wanted in positives]).items
        known = scale * retriever.scores(queries, right)
        for row, wanted in enumerate(positives):
            there = found.items[row] != NO_ITEM
            best = found.items[row][there], scale * found.scores[row][there]
            yield *best, known[row, : len(wanted)]


def _reads_marks(encoder: Encoder) -> bool:
    """One that does takes no query without them."""
    try:
        encoder.encode_queries(["a"])
    except InputError:
        return True
    return False


def _retriever(
    texts: Sequence[str], kind: str, encoder: Encoder | None, seed: int
) -> tuple[Retriever, float]:
    """The retriever over n texts, and what its scores are multiplied by before a softmax."""
    if kind == "random":
        return RandomItems(len(texts), seed), 1.0
    if kind in WORDS:
        return (BM25.fit(texts), 1.0) if kind == "bm25" else (TFIDF.fit(texts), UNIT_SCALE)
    assert encoder is not None
    vectors = encoder.encode_items(texts)
    lengths = np.linalg.norm(vectors[:256].astype(np.float32), axis=1)
    retriever = DenseRetriever(vectors, lambda queries: encoder.encode_queries(queries.texts))
    return retriever, UNIT_SCALE if np.allclose(lengths, 1.0, atol=1e-2) else 1.0


def in_passes(model: TorchModel, rows: Sequence[Row], run: Callable[[list[Row]], Tensor]) -> Tensor:
    """`run` on rows (b) in passes of similar lengths: its outputs (b, ...) in their order.

    Outputs for each token, (b, t, d), are filled up with zeros.
    """
    lengths = np.array([len(row.ids) for row in rows])
    batches = list(token_batches(lengths, model.tokens_per_run))
    found = [run([rows[r] for r in batch]) for batch in batches]
    if found[0].ndim == 3:
        width = max(values.shape[1] for values in found)
        found = [functional.pad(v, (0, 0, 0, width - v.shape[1])) for v in found]
    order = torch.from_numpy(np.argsort(np.concatenate(batches)))
    return torch.cat(found)[order.to(model.device)]
