"""Several corpora joined into one, and hard negatives (ANNCUR, 3.1 and A.1) or ranked lists of
candidates (CMC, 3.2) from a retriever.

Axes: m queries, n items, b queries of a step, c candidates of a query, p the maximum number of
relevant items of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossknn.data.queries import own_items, without_own
from crossknn.errors import InputError
from crossknn.linalg import mask, top_k
from crossknn.models.tokens import Row, token_batches
from crossknn.retrievers.base import (
    AllScores,
    ArrayStore,
    CandidateLists,
    DenseRetriever,
    RandomItems,
    Retriever,
)
from crossknn.retrievers.lexical import BM25, tfidf_of
from crossknn.retrievers.words import UNICODE
from crossknn.scorers.base import Encoder
from crossknn.types import (
    NO_ITEM,
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    Progress,
    Queries,
)
from crossknn_train.loop import digest_of
from crossknn_train.models.base import TorchModel
from crossknn_train.reading import Dataset, read_labelled, unmarked
from crossknn_train.settings import NegativesSettings, RunSettings

WORDS = ("bm25", "tfidf")
LISTS = "lists"
UNIT_SCALE = 20.0
"""Factor of cosines in a softmax: for values between -1 and 1 it would be nearly uniform."""
_QUERIES_AT_ONCE = 256


class TFIDF(AllScores):
    """Retrieves items by the cosine similarity of TF-IDF vectors; see `tfidf_of`."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.vocabulary, self.idf, weights = tfidf_of(texts, UNICODE)
        self.columns = weights.tocsc()

    def of_all(self, queries: Queries) -> FloatArray:
        """Compute the similarities (m, n)."""
        rows = []
        for text in queries.texts:
            terms, weights = self.vocabulary.tfidf(text, self.idf)
            rows.append(self.columns[:, terms] @ weights)
        return np.array(rows, np.float32)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """Return the best allowed items that share a word with the query; rows may have fewer."""
        scores = self.of_all(queries)
        scores[scores <= 0] = -np.inf
        return top_k(mask(scores, None, allowed), count)


class Corpora:
    """The queries and items of several data sets, numbered together, and each query's relevant
    items. `own` (m,) is the item that is the query itself (`own_items`), never its negative."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        if not any(map(len, datasets)):
            raise InputError("there are no train queries")
        self.datasets = tuple(datasets)
        self.starts = np.cumsum([0, *(len(data.items) for data in datasets)])
        self.queries = [text for data in datasets for text in data.queries.texts]
        self.ids = [f"{data.name}/{i}" for data in datasets for i in data.queries.ids]
        self.items = [text for data in datasets for text in data.items.texts]
        positives: list[IntArray] = []
        own: list[IntArray] = []
        for data, start in zip(datasets, self.starts, strict=False):
            positives += [items + start for items in data.positives]
            of_data = own_items(data.queries, data.items.ids, data.qrels)
            own.append(np.where(of_data >= 0, of_data + start, of_data))
        self.positives, self.own = tuple(positives), np.concatenate(own)

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def digest(self) -> str:
        """Hash of all queries, items and relevant items."""
        return digest_of(*self.ids, *self.queries, *self.items, *map(str, self.positives))

    def first_ranks(self, lists: IntArray) -> FloatArray:
        """The rank (m,) of the best relevant item in lists (m, c), infinity if there is none."""
        pairs = zip(without_own(lists, self.own), self.positives, strict=True)
        ranks = [1 + np.flatnonzero(np.isin(items, right)) for items, right in pairs]
        return np.array([of_right[0] if len(of_right) else np.inf for of_right in ranks])

    def lists(self, rows: Sequence[int], wrong: IntArray, count: int, seed: int) -> IntArray:
        """Draw a relevant item and `count` irrelevant items from `wrong` (m, depth) for each query:
        (b, 1 + count)."""
        lists = np.full((len(rows), 1 + count), NO_ITEM, dtype=np.int64)
        for row, drawn in zip(rows, lists, strict=True):
            generator = np.random.default_rng([seed, row])
            drawn[0] = generator.choice(self.positives[row])
            negatives = generator.permutation(wrong[row][wrong[row] != NO_ITEM])[:count]
            drawn[1 : 1 + len(negatives)] = negatives
        return lists


def read_corpora(settings: RunSettings) -> tuple[list[Dataset], list[Dataset]]:
    """Read train and dev queries; InputError if a query is in both."""
    data, candidates = settings.data, getattr(settings, "candidates", None)
    lists = candidates is not None and candidates.retriever == LISTS

    def read(folders: Sequence[Path], split: str) -> list[Dataset]:
        return [data for folder in folders for data in read_labelled(folder, split, lists=lists)]

    train = read(data.folder, data.train)
    dev = read(data.dev_folder or data.folder, data.dev)
    dev = sampled(dev, data.dev_queries, settings.training.seed)
    ids = [{(data.name, i) for data in split for i in data.queries.ids} for split in (train, dev)]
    for name, query in sorted(ids[0] & ids[1]):
        raise InputError(f"the query {query!r} of {name} is in both train and dev")
    return train, dev


def sampled(datasets: list[Dataset], count: int, seed: int) -> list[Dataset]:
    """Sample `count` queries over all data sets, in proportion to their sizes."""
    total = sum(map(len, datasets))
    if count >= total:
        return datasets
    return [data.sample(max(1, round(count * len(data) / total)), seed) for data in datasets]


def retrieved(
    corpora: Corpora, kind: str, count: int, encoder: Encoder | None = None, seed: int = 0
) -> tuple[Candidates, Candidates]:
    """Return every query's relevant items (m, p) and the best items of its corpus (m, count), both
    with the scores of a retriever: "bm25", "tfidf", "random", "lists" (the ranked lists in the data
    folder), or else `encoder`. Cosines are multiplied by 20."""
    right: list[tuple[IntArray, FloatArray]] = []
    best: list[tuple[IntArray, FloatArray]] = []
    for data, first in zip(corpora.datasets, corpora.starts, strict=False):
        texts, items = data.queries.texts, data.items.texts
        if kind in WORDS or (encoder is not None and not _reads_marks(encoder)):
            texts, items = tuple(map(unmarked, texts)), tuple(map(unmarked, items))
        retriever, scale = _retriever(data, items, kind, encoder, seed)
        for start in range(0, len(data), _QUERIES_AT_ONCE):
            rows = slice(start, start + _QUERIES_AT_ONCE)
            queries, positives = Queries(texts[rows]), data.positives[rows]
            right_items = Candidates.from_rows([(p, 0.0 * p) for p in positives]).items
            right_scores = scale * retriever.scores(queries, right_items)
            for own, scores in zip(positives, right_scores, strict=True):
                right.append((own + first, scores[: len(own)]))
            top = retriever.top(queries, count)
            top_items = np.where(top.items == NO_ITEM, NO_ITEM, top.items + first)
            best += zip(top_items, scale * top.scores, strict=True)
    return Candidates.from_rows(right), Candidates.from_rows(best)


def retrieved_wrong(
    corpora: Corpora, kind: str, depth: int, encoder: Encoder | None = None, seed: int = 0
) -> tuple[Candidates, Candidates]:
    """Return every query's relevant items (m, p) and its best irrelevant items (m, depth), with
    the retriever's scores, as in `retrieved`."""
    n_right = max(map(len, corpora.positives)) + int((corpora.own != NO_ITEM).any())
    right, best = retrieved(corpora, kind, depth + n_right, encoder, seed)
    wrong = []
    rows = zip(corpora.positives, corpora.own, best.items, best.scores, strict=True)
    for positives, own, items, scores in rows:
        is_wrong = ~np.isin(items, [NO_ITEM, own, *positives])
        wrong.append((items[is_wrong][:depth], scores[is_wrong][:depth]))
    return right, Candidates.from_rows(wrong)


def nearest_wrong(
    corpora: Corpora, negatives: NegativesSettings, encoder: Encoder | None = None, seed: int = 0
) -> IntArray:
    """Return each query's hard negatives (m, depth): its nearest irrelevant items after the first
    `skip`, followed by random items if the retriever returns too few."""
    if negatives.kind == "mixed":
        shares = {"dual-encoder": 2, "bm25": 4, "random": 4}
        each = [
            negatives.model_copy(update={"kind": kind, "depth": negatives.depth // share})
            for kind, share in shares.items()
        ]
        found = np.hstack([nearest_wrong(corpora, part, encoder, seed) for part in each])
        for row in found:
            row[np.setdiff1d(np.arange(len(row)), np.unique(row, return_index=True)[1])] = NO_ITEM
        return found
    is_random = negatives.kind == "random"
    skip = 0 if is_random else negatives.skip
    wrong = np.full((len(corpora), skip + negatives.depth), NO_ITEM, dtype=np.int64)
    if not is_random:
        near = retrieved_wrong(corpora, negatives.kind, wrong.shape[1], encoder)[1].items
        wrong[:, : near.shape[1]] = near
    for row, items in enumerate(wrong):
        n_near = int((items != NO_ITEM).sum())
        if n_near < len(items):
            generator = np.random.default_rng([seed, row if is_random else 0])
            excluded = [*corpora.positives[row]]
            excluded += [int(corpora.own[row])] if corpora.own[row] != NO_ITEM else []
            of_data = np.searchsorted(corpora.starts, excluded[0], side="right") - 1
            start, n = corpora.starts[of_data], len(corpora.datasets[of_data].items)
            # Draw as many more as may be excluded or drawn twice.
            size = min(n, len(items) + n_near + len(excluded))
            drawn = start + generator.choice(n, size=size, replace=False)
            drawn = drawn[~np.isin(drawn, [*excluded, *items])][: len(items) - n_near]
            items[n_near : n_near + len(drawn)] = drawn
    return wrong[:, skip:]


def _reads_marks(encoder: Encoder) -> bool:
    """Whether an encoder requires marks, that is, refuses a query without them."""
    try:
        encoder.encode_queries(["a"])
    except InputError:
        return True
    return False


def _retriever(
    data: Dataset, texts: Sequence[str], kind: str, encoder: Encoder | None, seed: int
) -> tuple[Retriever, float]:
    """Return a retriever over n texts, and the factor by which a softmax multiplies its scores."""
    if kind == LISTS:
        run, queries = data.candidates or {}, data.queries
        lists = {t: run.get(i, []) for i, t in zip(queries.ids, queries.texts, strict=True)}
        return CandidateLists(lists, data.items.ids), 1.0
    if kind == "random":
        return RandomItems(len(texts), seed), 1.0
    if kind in WORDS:
        return (BM25.fit(texts), 1.0) if kind == "bm25" else (TFIDF(texts), UNIT_SCALE)
    assert encoder is not None
    vectors = encoder.encode_items(texts)
    lengths = np.linalg.norm(vectors[:256].astype(np.float32), axis=1)
    store = ArrayStore(vectors)
    retriever = DenseRetriever(store, lambda queries: encoder.encode_queries(queries.texts))
    return retriever, UNIT_SCALE if np.allclose(lengths, 1.0, atol=1e-2) else 1.0


class Once:
    """An encoder that encodes each text once and keeps the vectors."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.fingerprint = encoder, encoder.fingerprint
        self.dimensions = encoder.dimensions
        self._kept: tuple[dict[str, FloatArray], dict[str, FloatArray]] = {}, {}

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        return self._encode(self._kept[0], self.encoder.encode_queries, texts)

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        return self._encode(self._kept[1], self.encoder.encode_items, texts)

    def _encode(
        self,
        kept: dict[str, FloatArray],
        encode: Callable[[Sequence[str]], FloatArray],
        texts: Sequence[str],
    ) -> FloatArray:
        if new := [text for text in dict.fromkeys(texts) if text not in kept]:
            kept.update(zip(new, encode(new), strict=True))
        return np.stack([kept[text] for text in texts])


def log_shares(scores: Tensor, present: Tensor) -> Tensor:
    """Compute the log softmax of each row of scores (b, c), -inf where `present` is false."""
    return scores.float().masked_fill(~present, float("-inf")).log_softmax(-1)


def divergence(p: Tensor, q: Tensor, present: Tensor) -> Tensor:
    """Mean over rows of KL(p || q), both logarithms (b, c) as of `log_shares`."""
    # At padding the difference would be -inf - -inf.
    return (p.exp() * (p - q).masked_fill(~present, 0.0)).sum(-1).mean()


def in_passes(model: TorchModel, rows: Sequence[Row], run: Callable[[list[Row]], Tensor]) -> Tensor:
    """Run a model on b rows in passes of similar lengths; return the outputs (b, ...) in order,
    those per token (b, t, d) padded with zeros."""
    lengths = np.array([len(row.ids) for row in rows])
    batches = list(token_batches(lengths, model.tokens_per_run))
    outputs = [run([rows[r] for r in batch]) for batch in batches]
    if outputs[0].ndim == 3:
        width = max(values.shape[1] for values in outputs)
        outputs = [functional.pad(v, (0, 0, 0, width - v.shape[1])) for v in outputs]
    order = torch.from_numpy(np.argsort(np.concatenate(batches)))
    return torch.cat(outputs)[order.to(model.device)]
