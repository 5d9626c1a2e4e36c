"""`crossknn mcp`: serve an index as tools of a language model."""

from __future__ import annotations

import logging
import os

from crossknn.cli import options as o
from crossknn.cli.output import INTERRUPTED, note
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, parse_method
from crossknn.search.searcher import Budget, Searcher

EPILOG = o.examples(
    "crossknn mcp docs.index", "claude mcp add docs -- crossknn mcp /path/to/docs.index --budget 50"
)


@o.grouped
def command(
    folder: o.Folder,
    *,
    budget: o.PerQuery = None,
    deadline: o.Deadline = "30s",  # type: ignore[assignment]
    method: o.Method = DEFAULT,
    scorer: o.ScorerOptions,
) -> None:
    """Serve an index over MCP, on standard input and output: for Claude, ChatGPT, editors.

    The tools are `search`, which finds texts under the budget, and `fetch`, which
    reads one text. Exact scores are stored in the index.
    """
    from crossknn.adapters.mcp import create_server

    limits, chosen = Budget(per_query=budget, deadline=deadline), parse_method(method)
    index = ItemIndex.load(folder)
    scorers = [o.stored(each, index) for each in scorer.open_all()] if chosen.calls else []
    searcher = Searcher(index, scorers or None, chosen)
    searcher.check_scorer(chosen)
    limits.of_each(searcher.scorers)
    server = create_server(searcher, folder.resolve().name, limits)
    # A repeated interrupt cuts asyncio's shutdown short, which asyncio would report as an error.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        server.run()
    except BaseExceptionGroup as errors:  # of the threads that read and write
        _, others = errors.split(BrokenPipeError)
        if others is not None:
            raise
        os._exit(0)  # the client has gone; a thread waits for standard input
    except KeyboardInterrupt:
        note(f"crossknn: {INTERRUPTED}")
        os._exit(130)  # a thread waits for standard input, and would keep the process
