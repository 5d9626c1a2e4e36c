"""`crossknn estimate`: what anchor queries and a search will cost, from a short measurement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, err

if TYPE_CHECKING:
    from crossknn.scorers.base import Scorer

EPILOG = o.examples(
    "crossknn estimate docs.jsonl --anchor-queries 100",
    "crossknn estimate docs.index --budget 200 --scorer bundled",
)
_BATCH, _WORDS, _SECONDS = 16, 10, 1.0


@o.grouped
def command(
    items: Annotated[
        Path,
        Argument(
            metavar="ITEMS_OR_INDEX",
            help="File of items, index folder, or - for standard input.",
        ),
    ],
    *,
    budget: Annotated[
        int, Option(min=1, help="Budget of the search: cross-encoder calls per query.")
    ] = 100,
    anchor_queries: Annotated[
        int, Option(min=0, help="Number of anchor queries to score with every item.")
    ] = 0,
    fields: o.FieldOptions,
    scorer: o.ScorerOptions,
    json: o.AsJson = False,
) -> None:
    """Estimate what anchor queries and a search cost, in cross-encoder calls and seconds.

    The command scores random items for a second, with the first words of other
    items as queries.
    """
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST

    given = ItemIndex.load(items).items if (items / MANIFEST).is_file() else None
    texts = (given or fields.read(items)).texts
    n, speed = len(texts), pairs_per_second(scorer.open(), texts)
    found: dict[str, Any] = {"n": n, "pairs_per_second": speed}
    for name, calls in (("anchors", anchor_queries * n), ("search", min(budget, n)), ("exact", n)):
        if calls or json:
            found |= {f"{name}_calls": calls, f"{name}_seconds": calls / speed}
    answer(found, json)


def pairs_per_second(scorer: Scorer, texts: Sequence[str]) -> float:
    """How fast random items are scored with the first words of others, in a second's probe."""
    from crossknn.types import Pairs

    n, rng = len(texts), np.random.default_rng(0)

    def probe() -> int:
        queries = [" ".join(texts[p].split()[:_WORDS]) for p in rng.integers(n, size=_BATCH)]
        pairs = Pairs(np.arange(_BATCH), rng.integers(n, size=_BATCH))
        return sum(len(where) for where, _ in scorer.score(pairs, queries, texts))

    with err.status("measuring the cross-encoder"):
        probe()  # what opens the model is not counted
        began, scored = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < _SECONDS or not scored:
            scored += probe()
    return scored / spent


def texts_per_second(encoder: str, texts: Sequence[str]) -> float:
    """How fast a dual encoder encodes random items."""
    from crossknn.scorers.opening import DualEncoder

    model, rng = DualEncoder(encoder), np.random.default_rng(0)
    some = [texts[p] for p in rng.integers(len(texts), size=2 * _BATCH)]
    with err.status("measuring the encoder"):
        model.encode_items(some[:1])
        began = time.perf_counter()
        model.encode_items(some)
    return len(some) / (time.perf_counter() - began)
