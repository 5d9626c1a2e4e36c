"""`crossknn estimate`: what anchor queries and a search will cost, from a short measurement."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, err, plain
from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.evaluation.costs import Cost
    from crossknn.scorers.base import Scorer

EPILOG = o.examples(
    "crossknn estimate docs.jsonl --anchor-queries 100",
    "crossknn estimate docs.jsonl --items 100M --dimensions 384",
)
_BATCH, _WORDS, _SECONDS = 16, 10, 1.0
_POWERS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def command(
    items: Annotated[
        Path | None,
        Argument(
            metavar="ITEMS_OR_INDEX",
            help="File of items, index folder, or - for standard input; with --items, examples of "
            "them, by default the package's sample.",
        ),
    ] = None,
    count: Annotated[
        str | None,
        Option(
            "--items",
            metavar="N",
            help="Estimate what an index of so many items costs, and a search of it: 100M, 20k, "
            "3000.",
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        Option(min=1, help="With --items: of item vectors; by default the encoder's."),
    ] = None,
    encoder: Annotated[
        str, Option(help="With --items: dual encoder that makes the item vectors.")
    ] = "bundled",
    budget: Annotated[
        int, Option(min=1, help="Budget of the search: cross-encoder calls per query.")
    ] = 100,
    anchor_queries: Annotated[
        int, Option(min=0, help="Number of anchor queries to score with every item.")
    ] = 0,
    text_field: o.TextField = None,
    scorer: o.ScorerName = "bundled",
    model: o.ScorerModel = None,
    scorer_option: o.ScorerOptions = None,
    json: o.AsJson = False,
) -> None:
    """Estimate what anchor queries and a search cost, in cross-encoder calls and seconds.

    The command scores random items for a second, with the first words of other
    items as queries. With --items it also measures encoding, word models,
    approximate search and the rounds of a search on a few items, for some ten
    seconds, and says what that comes to for N items.
    """
    from crossknn.data.reading import read_items
    from crossknn.index.item_index import ItemIndex
    from crossknn.index.storage import MANIFEST

    if items is None and count is None:
        raise InputError("name a file of items or an index, or a number of items with --items")
    if items is None:
        from crossknn.sample import FOLDER

        items = FOLDER / "corpus.jsonl"
    saved = (items / MANIFEST).is_file()
    given = ItemIndex.load(items).items if saved else None
    texts = (given or read_items(o.source(items), text_field=text_field)).texts
    if count is not None:
        from crossknn.evaluation.costs import Cost, estimate
        from crossknn.scorers.opening import DualEncoder

        n, opened = number(count), DualEncoder(encoder)
        speed = pairs_per_second(o.open_scorer(scorer, model, scorer_option), texts)
        with err.status("measuring encoding, words and searches"):
            costs = estimate(n, texts, opened, speed, budget=budget, dimensions=dimensions)
        if calls := anchor_queries * n:
            costs["anchors"] = Cost(calls / speed, calls=calls, basis="a second of scoring")
        answer({k: asdict(cost) if json else written(cost) for k, cost in costs.items()}, json)
        return
    n, speed = len(texts), pairs_per_second(o.open_scorer(scorer, model, scorer_option), texts)
    found: dict[str, Any] = {"n": n, "pairs_per_second": speed}
    for name, calls in (("anchors", anchor_queries * n), ("search", min(budget, n)), ("exact", n)):
        if calls or json:
            found |= {f"{name}_calls": calls, f"{name}_seconds": calls / speed}
    answer(found, json)


def number(text: str) -> int:
    """Of items, as people write it.

    >>> number("100M"), number("2.5k"), number("1,000")
    (100000000, 2500, 1000)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmb]?)", text.replace(",", "").lower())
    found = 0 if match is None else int(float(match[1]) * _POWERS[match[2]])
    if not 0 < found <= 10**12:
        raise InputError(f"--items is {text!r}; it must be a number such as 3000, 20k or 100M")
    return found


def written(cost: Cost) -> str:
    """A cost as a person reads it, but for what is 0."""
    short, spent = cost.seconds < 1, plain(cost.seconds, "seconds")
    found = [f"{1000 * cost.seconds:,.3g} ms" if short else spent + " s" * spent[-1].isdigit()]
    sizes = {"in memory": cost.memory, "on disk": cost.disk}
    found += [f"{size / 1e9:,.3g} GB {where}" for where, size in sizes.items() if size]
    found += [f"{cost.calls:,} calls"] * bool(cost.calls)
    return f"{', '.join(found)} (from {cost.basis})"


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
