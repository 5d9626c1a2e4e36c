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
_WORDS = 10


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
    n, rng, probed = len(items), np.random.default_rng(seed), list[int]()
    share = seconds / max(1, (scorer is not None) + (encoder is not None))

    def draw(size: int) -> list[str]:
        return [items.texts[int(p)] for p in rng.integers(n, size=size)]

    pair_rate = item_rate = None
    if scorer is not None:
        score = scorer.score
        asked = queries or [" ".join(text.split()[:_WORDS]) for text in draw(16)]

        def probe(size: int) -> None:
            pairs = Pairs(rng.integers(len(asked), size=size), rng.integers(n, size=size))
            probed.extend(len(where) for where, _ in score(pairs, asked, items.texts))

        pair_rate = _rate(probe, share)
    if encoder is not None:
        encode = encoder.encode_items
        item_rate = _rate(lambda size: encode(draw(size)), share)
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
        probe_calls=sum(probed),
    )


def _rate(run: Callable[[int], object], seconds: float) -> float:
    """Things per second of `run(size)`, in growing batches; the first, which warms up, is left out.

    A batch is only begun if, by the rate so far, it ends in time.
    """
    end, size, done, spent = time.perf_counter() + seconds, _FIRST_BATCH, 0, 0.0
    cold = _time(run, 1)
    while True:
        left = end - time.perf_counter()
        size = min(size, int(left * done / spent)) if done else size
        if size < 1 or left <= 0:
            return done / spent if done else 1 / cold
        spent += _time(run, size)
        done += size
        size = min(2 * size, _LARGEST_BATCH)


def _time(run: Callable[[int], object], size: int) -> float:
    start = time.perf_counter()
    run(size)
    return max(time.perf_counter() - start, 1e-9)
