"""What an index and a search will cost here, from a probe of a second or two."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.data.items import Items
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.scorers.base import Encoder, Scorer
from crossknn.types import Pairs

_FIRST_BATCH = 8
_LARGEST_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Predicted calls and seconds; seconds are None where nothing was probed.

    `index_calls` are for `n_anchors` anchor queries against all `n` items, `index_seconds` for
    these and for encoding the items; `search_calls` and `search_seconds` are for one query. The
    probe itself made `probe_calls`.
    """

    n: int
    pairs_per_second: float | None
    items_per_second: float | None
    index_calls: int
    index_seconds: float | None
    search_calls: int
    search_seconds: float | None
    probe_calls: int


def estimate(
    items: Items | ItemIndex,
    *,
    scorer: Scorer | None = None,
    encoder: Encoder | None = None,
    n_anchors: int = 0,
    budget: int = 100,
    queries: Sequence[str] | None = None,
    seconds: float = 2.0,
    seed: int = 0,
) -> Estimate:
    """Time the scorer and the encoder on random items, for about `seconds` in all.

    `queries` are typical queries; without them the first words of items stand in, which is about
    right for short queries. The probe's pairs are real calls: a `StoredScorer` that knows them
    answers at once, so give the scorer inside it.

    Raises `InputError` if `budget` is less than 1, or `n_anchors` less than 0.
    """
    if budget < 1:
        raise InputError(f"budget is {budget}; it must be 1 or more")
    if n_anchors < 0:
        raise InputError(f"the number of anchors is {n_anchors}; it must be 0 or more")
    items = items.items if isinstance(items, ItemIndex) else items
    n, rng = len(items), np.random.default_rng(seed)
    share = seconds / max(1, (scorer is not None) + (encoder is not None))
    pair_rate = item_rate = None
    probe_calls = 0
    if scorer is not None:
        asked = queries or [_words(items.texts[int(p)]) for p in rng.integers(n, size=16)]

        def score(size: int) -> None:
            nonlocal probe_calls
            pairs = Pairs(rng.integers(len(asked), size=size), rng.integers(n, size=size))
            for _ in scorer.score(pairs, asked, items.texts):
                pass
            probe_calls += size

        pair_rate = _rate(score, share)
    if encoder is not None:

        def encode(size: int) -> None:
            encoder.encode_items([items.texts[int(p)] for p in rng.integers(n, size=size)])

        item_rate = _rate(encode, share)
    index_calls, search_calls = n_anchors * n, min(budget, n)
    parts = [index_calls / pair_rate] if pair_rate and index_calls else []
    parts += [n / item_rate] if item_rate else []
    unknown = bool(index_calls) and pair_rate is None
    return Estimate(
        n=n,
        pairs_per_second=pair_rate,
        items_per_second=item_rate,
        index_calls=index_calls,
        index_seconds=sum(parts) if parts and not unknown else None,
        search_calls=search_calls,
        search_seconds=search_calls / pair_rate if pair_rate else None,
        probe_calls=probe_calls,
    )


def _rate(run: Callable[[int], None], seconds: float) -> float:
    """Things per second of `run(size)`, in growing batches; the first, which warms up, is left out.

    A batch is only begun if, by the rate so far, it ends in time.
    """
    end = time.perf_counter() + seconds
    size, done, spent = _FIRST_BATCH, 0, 0.0
    start = time.perf_counter()
    run(1)
    cold = max(time.perf_counter() - start, 1e-9)
    while True:
        left = end - time.perf_counter()
        each = spent / done if done else 0.0
        size = min(size, int(left / each)) if each else size
        if size < 1 or left <= 0:
            return done / spent if done else 1 / cold
        start = time.perf_counter()
        run(size)
        spent += max(time.perf_counter() - start, 1e-9)
        done += size
        size = min(2 * size, _LARGEST_BATCH)


def _words(text: str, count: int = 10) -> str:
    return " ".join(text.split()[:count])
