"""`crossknn demo`: compare a search with reranking, on stored scores."""

from __future__ import annotations

import time
from typing import Annotated

from typer import Option

from crossknn.cli import options as o
from crossknn.cli.output import err, note, say
from crossknn.cli.trial import show
from crossknn.errors import counted

EPILOG = o.examples("crossknn demo", "crossknn demo --budget 100")


def command(
    budget: Annotated[int, Option(min=1, max=1000, help="Cross-encoder calls per query.")] = 50,
    json: o.AsJson = False,
) -> None:
    """Show what reranking misses and searching finds with equally many cross-encoder calls.

    The package contains a sample: sentences with a marked word, 11,587 meanings, and stored scores
    of a real cross-encoder, so that the demo takes seconds.
    """
    from crossknn.sample import sample
    from crossknn.trial.result import Trial

    began = time.perf_counter()
    with err.status("opening the sample"):
        data = sample()
    if not json:
        say(
            f"{len(data.queries)} sentences with a marked word, {data.index.n:,} meanings of "
            f"nouns: which is meant? {counted(budget, 'cross-encoder call')} for each."
        )
        say("")
    given = data.index, data.queries, data.scores, data.qrels
    with err.status("searching"):
        trial = Trial.run(*given, budget=budget)
    show(trial, json)
    note(f"{time.perf_counter() - began:.0f} s; next, with your own texts: crossknn try FILE")
