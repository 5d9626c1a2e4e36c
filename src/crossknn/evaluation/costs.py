"""What an index of n items costs, and a search of it: measured on a few, by laws of growth.

    encoding, words and texts   as n
    approximate index           as n^1.5: each vector is compared with all 4 sqrt(n) centroids, and
                                coded; centroids come from 10 passes over 40 vectors for each
    a search's rounds           as n up to 50,000 items; a pool beyond, whatever n is
    its nearest vectors         64,000 codes, of more than a million items 256 lists of
                                sqrt(n) / 4 codes, and 4 sqrt(n) centroids; without an
                                approximate index as n
    its words                   as n: postings of common words

One thread, and vectors that the system keeps in memory: with less memory than the index has on
disk, the disk decides. Axes: n items, p probed ones, d dimensions.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import inf, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from crossknn.errors import MissingExtraError
from crossknn.index.item_index import ItemIndex
from crossknn.index.nearest import LARGE, FaissStore, build_lists, items_read
from crossknn.methods.base import PER_CALL, POOL
from crossknn.methods.kriging import Kriging
from crossknn.retrievers.dense import WHOLE, ArrayStore
from crossknn.scorers.base import Encoder
from crossknn.search.loop import simulate
from crossknn.types import FloatArray, Queries

ROWS = 25_600
"""Vectors of the probe of approximate search: the fewest that have 4 sqrt(n) lists."""

TEXTS, SMALL, ENCODED = 10_000, 2_000, 64
"""Texts of the probes of words and rounds, of their growth and memory, and of encoding."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one thing: seconds, bytes of memory and on disk, calls of the cross-encoder, and what the
    figures are based on."""

    seconds: float
    memory: float = 0.0
    disk: float = 0.0
    calls: int = 0
    basis: str = ""


def estimate(
    n: int,
    texts: Sequence[str],
    encoder: Encoder,
    pairs_per_second: float,
    *,
    budget: int = 100,
    dimensions: int | None = None,
) -> dict[str, Cost]:
    """What it costs to index n items like `texts`, and to search them once.

    Args:
        encoder: Its speed is measured, for vectors with as many dimensions as it has, by default.
        budget: Cross-encoder calls of a search.

    Returns:
        Costs by what they are for.
    """
    d, rng = dimensions or encoder.dimensions, np.random.default_rng(0)
    sample, rows = list(islice(cycle(texts), TEXTS)), rng.standard_normal((ROWS, d), np.float32)
    few, ask = Queries(sample[-1:]), lambda texts: rows[: len(texts)]
    encode = seconds(lambda: encoder.encode_items(sample[:ENCODED])) / ENCODED
    began = time.perf_counter()
    index = ItemIndex.build(sample, vectors=rows[:TEXTS], query_vectors=ask)
    words = (time.perf_counter() - began) / TEXTS
    tracemalloc.start()
    small = ItemIndex.build(sample[:SMALL], vectors=rows[:SMALL], query_vectors=ask)
    held = tracemalloc.get_traced_memory()[1] / SMALL
    tracemalloc.stop()
    width = small.vectors["vectors"].itemsize * d
    method = Kriging(shortlist=None if n <= WHOLE else max(POOL, PER_CALL * budget))

    def grown(work: Callable[[ItemIndex], object]) -> float:
        """Seconds of `work` on n items: a line through those on few and on more."""
        least, most = seconds(lambda: work(small)), seconds(lambda: work(index))
        return most + max(most - least, 0) / (TEXTS - SMALL) * max(n - TEXTS, 0)

    def search(known: ItemIndex) -> None:
        simulate(method.plan(known, budget, 0), few, scores[:, : known.n])

    scores = rng.standard_normal((1, TEXTS), np.float32)
    word = grown(lambda known: known.retrievers["bm25"].top(few, 100))
    rounds = grown(search) if n <= WHOLE else seconds(lambda: search(index))
    times = 1 if n <= WHOLE else len(method.plan(index, budget, 0).batches)
    near, lists = nearest(n, rows)
    with TemporaryDirectory() as folder:
        small.save(folder)
        files = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    some, calls = f"an index of {TEXTS:,} texts; as n", min(budget, n)
    found = {
        "encoding": Cost(n * encode, n * 4 * d, n * width, basis=f"{ENCODED} texts; as n"),
        "texts and words": Cost(n * words, n * held, n * (files / SMALL - width), basis=some),
    }
    if lists is not None:
        found["approximate index"] = lists
    basis = f"{ROWS:,} vectors, {times} in a search; as {'n' if lists is None else 'sqrt(n)'}"
    return found | {
        "query: encoding": Cost(
            seconds(lambda: encoder.encode_queries(few.texts)), basis="a query"
        ),
        "query: words": Cost(word, basis=some),
        "query: nearest vectors": Cost(times * near, basis=basis),
        "query: rounds": Cost(
            rounds, basis=some if n <= WHOLE else f"{TEXTS:,} texts; the same for all n"
        ),
        "query: scoring": Cost(calls / pairs_per_second, calls=calls, basis="a second of scoring"),
    }


def nearest(n: int, rows: FloatArray) -> tuple[float, Cost | None]:
    """Seconds of a search for nearest vectors, and the cost of an approximate index: None where
    there is none, or faiss is missing."""
    p, d = rows.shape
    many = np.tile(rows, (4 if n > 2 * p else 1, 1))  # more than a processor keeps at hand
    exact = seconds(lambda: ArrayStore(many).top(rows[:1], POOL)) * n / len(many)
    if n < LARGE:
        return exact, None
    try:
        began = time.perf_counter()
        lists: Any = build_lists(rows)
        built = time.perf_counter() - began
    except MissingExtraError:
        return exact, None
    count, among = lists.nlist * sqrt(n / p), 40 * lists.nlist
    compared = seconds(lambda: rows[:4096] @ rows[: lists.nlist].T) / 4096 / lists.nlist
    store, code = FaissStore(rows, lists), lists.code_size + 8
    top = seconds(lambda: store.top(rows[:1], POOL))
    one = seconds(lambda: lists.search(rows[:1], POOL))  # of one list, and then of all
    lists.nprobe = lists.nlist
    per_code = max(seconds(lambda: lists.search(rows[:1], POOL)) - one, 0) / p
    adding = seconds(lambda: lists.add(rows), 0) / p
    training = max(built - p * adding - 10 * among * lists.nlist * compared, 0)
    comparing = compared * count * (10 * 40 * count + n)
    coding = max(adding - lists.nlist * compared, 0) * n
    size = n * code + count * 4 * d
    more = items_read(n, count) - items_read(p, lists.nlist)
    search = top + more * per_code + (count - lists.nlist) * compared
    basis = f"one of {p:,} vectors; as n^1.5"
    return search, Cost(training + comparing + coding, size, size, basis=basis)


def seconds(work: Callable[[], object], least: float = 0.3) -> float:
    """Of the fastest run, in `least` seconds of runs: others may use the machine, too."""
    began, best = time.perf_counter(), inf
    while best == inf or time.perf_counter() - began < least:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
