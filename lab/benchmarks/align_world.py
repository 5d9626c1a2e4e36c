"""What `align.py` measures on: a stored score matrix, apart in train, dev and test queries; and
pools of train queries with their scores."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from domain_matrix import corpus_of, scorer_of, subset

from crossknn.data.marks import unmarked
from crossknn.data.reading import read_queries
from crossknn.evaluation.measures import bootstrap, recall
from crossknn.evaluation.replay import answer, parts_of, truth_of
from crossknn.fitting.pseudo_queries import pseudo_queries
from crossknn.index.stored import StoredMatrix, StoredVectors
from crossknn.methods import methods
from crossknn.scorers import DualEncoder
from crossknn.scores.collect import collect
from crossknn.scores.store import ScoreStore
from crossknn.types import FloatArray, Pairs
from crossknn_lab.score_matrix import components

GOALS = ((100, 1), (100, 10), (500, 100))  # (calls, k): the paper's, and one between
DEV = 40
LONG = 500  # calls
SEED = 0
FITTED = "fitted"


class World:
    """A matrix: its first rows are train queries, the last anchors dev, the others test queries."""

    def __init__(self, matrix: StoredMatrix) -> None:
        anchors = matrix.n_anchors
        self.matrix = matrix
        self.dev = np.arange(anchors - min(DEV, anchors // 5), anchors)
        self.tests = np.arange(anchors, len(matrix.scores))
        self.train = anchors - len(self.dev)
        if matrix.item_vectors is None or matrix.query_vectors is None:
            raise SystemExit("the matrix has no item_vectors and query_vectors to start from")
        self.items, self.queries = matrix.item_vectors, matrix.query_vectors

    def about(self) -> dict[str, Any]:
        """Sizes, and what the scores are made of (see `shares`)."""
        return {
            "items": len(self.items),
            "train": self.train,
            "dev": len(self.dev),
            "tests": len(self.tests),
            **self.shares(),
        }

    def shares(self) -> dict[str, Any]:
        """Shares of the variance within a test query that the dual encoder, and the items' mean
        scores with train queries, account for; and how many dimensions hold 90% of what train
        queries have beside both means."""
        train, tests = self.matrix.scores[: self.train], self.matrix.scores[self.tests]
        liked = train.mean(0) - train.mean()
        products = self.queries[self.tests] @ self.items.T
        within = tests - tests.mean(1, keepdims=True)
        products = products - products.mean(1, keepdims=True)
        slope = (products * within).sum() / (products**2).sum()
        rest = train - train.mean(1, keepdims=True) - liked
        return {
            "of_encoder": round(
                1 - float(((within - slope * products) ** 2).mean() / within.var()), 3
            ),
            "of_items": round(1 - float(((within - liked) ** 2).mean() / within.var()), 3),
            "components_90": components(rest, 0.9),
        }

    def part(self, rows: np.ndarray, space: StoredVectors | None, train: int) -> StoredMatrix:
        """The first `train` queries as anchors, and `rows` as tests; `space` is of all queries."""
        chosen = np.concatenate([np.arange(train), rows])
        made = replace(
            self.matrix,
            scores=self.matrix.scores[chosen],
            n_anchors=train,
            query_vectors=self.queries[chosen],
            firsts={name: scores[chosen] for name, scores in self.matrix.firsts.items()},
            query_ids=tuple(self.matrix.query_ids[q] for q in chosen),
            labels=None,
        )
        if space is None:
            return made
        queries = None if space.queries is None else space.queries[chosen]
        return made.with_vectors(FITTED, np.asarray(space.items, np.float32), queries, space.scale)

    def found(
        self, spec: str, budget: int, k: int, space: StoredVectors | None = None, train: int = 0
    ) -> dict[str, Any]:
        """Recall of the tests, its interval, and how many of k each test query got."""
        counts = recalls(self.part(self.tests, space, train or self.train), spec, budget, k)
        estimate = bootstrap(counts / k)
        return {
            "recall": round(estimate.mean, 5),
            "ci": [round(estimate.low, 5), round(estimate.high, 5)],
            "found": counts.tolist(),
        }

    def chosen(
        self, spec: str, values: Sequence[float], budget: int, k: int, space: StoredVectors | None
    ) -> tuple[float, float]:
        """The value that, put in the spec, is best on the dev queries, and its recall there.

        On half of them where a search is long.
        """
        rows = self.dev if budget < LONG else self.dev[::2]
        dev = self.part(rows, space, self.train)
        on_dev = [recalls(dev, spec.format(value), budget, k).mean() / k for value in values]
        best = int(np.argmax(on_dev))
        return values[best], round(float(on_dev[best]), 5)


def recalls(matrix: StoredMatrix, spec: str, budget: int, k: int) -> np.ndarray:
    """How many of its true k each test query (m,) gets."""
    (method,) = methods(spec).values()
    parts, options = parts_of(matrix), {"budget": budget, "k": k, "seed": SEED}
    found = np.concatenate([answer(method, *part, **options).items for part in parts])
    return np.rint(recall(found, truth_of(parts, k)) * k).astype(int)


class Pool(ABC):
    """Train queries: their vectors (q, d), exact scores of pairs of them and items, their texts."""

    def __init__(self, name: str, vectors: FloatArray, texts: Sequence[str] | None) -> None:
        self.name, self.vectors, self.texts = name, vectors, texts

    def __len__(self) -> int:
        return len(self.vectors)

    @abstractmethod
    def scores(self, pairs: Pairs) -> FloatArray:
        """Exact scores (p,) of pairs of these queries and the items."""


class StoredPool(Pool):
    """The train queries of a matrix."""

    def __init__(self, world: World, texts: Sequence[str] | None) -> None:
        super().__init__("", world.queries[: world.train], texts)
        self.matrix = world.matrix

    def scores(self, pairs: Pairs) -> FloatArray:
        return self.matrix.scores[pairs.query, pairs.item]


class ScoredPool(Pool):
    """Texts that the cross-encoder scores, once."""

    def __init__(
        self,
        name: str,
        texts: list[str],
        vectors: FloatArray,
        items: list[str],
        options: argparse.Namespace,
    ) -> None:
        super().__init__(name, vectors, texts)
        self.items = items
        self.scorer = scorer_of(options)
        self.store = ScoreStore.open(options.work / f"pairs-{options.matrices[0].stem}.db")

    def scores(self, pairs: Pairs) -> FloatArray:
        assert self.texts is not None
        collect(self.store, self.scorer, self.texts, self.items, pairs)
        return self.store.get(self.scorer.fingerprint, self.texts, self.items, pairs)


class Texts:
    """The texts of a matrix, from the data set that it is of."""

    def __init__(self, world: World, options: argparse.Namespace) -> None:
        corpus = corpus_of(options)
        place = {item: i for i, item in enumerate(corpus.items.ids)}
        known = corpus.queries if options.domain else read_queries(options.data)
        text = dict(zip(known.ids, known.texts, strict=True))
        with np.load(options.matrices[0]) as file:
            self.items = subset(corpus.items, [place[str(item)] for item in file["item_ids"]])
        self.queries = [text[query] for query in world.matrix.query_ids]
        kept_out = {world.matrix.query_ids[q] for q in (*world.dev, *world.tests)}
        others = [q for q in corpus.queries.ids if q not in kept_out]
        order = np.random.default_rng(SEED).permutation(len(others))
        self.others = [text[others[q]] for q in order]


def pools(world: World, options: argparse.Namespace, texts: Texts | None) -> list[Pool]:
    """The matrix's train queries; queries that are neither dev nor test ones, as `more`; as many
    pseudo-queries."""
    made: list[Pool] = []
    for name in options.pools.split(","):
        if name == "own":
            made.append(StoredPool(world, texts and texts.queries[: world.train]))
            continue
        if texts is None:
            raise SystemExit(f"the pool {name} needs --data and --work")
        found, marked = texts.others, options.domain is not None
        if name == "pseudo":
            found = pseudo_queries(texts.items, len(found), marked=marked, seed=SEED)
        encoder = DualEncoder(options.encoder)
        vectors = encoder.encode_queries([unmarked(text) for text in found])
        made.append(ScoredPool(name, found, vectors, list(texts.items.texts), options))
    return made
