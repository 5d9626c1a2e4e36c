"""`crossknn serve`: an HTTP service over indexes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from crossknn.cli import options as o
from crossknn.cli.output import note
from crossknn.errors import InputError, needs_extra
from crossknn.files import read_given
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, parse_method

KEYS_VARIABLE = "CROSSKNN_SERVE_KEYS"
EPILOG = o.examples(
    "crossknn serve docs.index",
    "crossknn serve docs.index faq.index --host 0.0.0.0 --keys keys.txt --deadline 2s",
)
Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="INDEX...", help="Index folders, the first for requests that name none."
    ),
]
Keys = Annotated[
    Path | None, Option(help=f"File of API keys, one per line; else those in {KEYS_VARIABLE}.")
]


@o.grouped
def command(
    folders: Folders,
    *,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    keys: Keys = None,
    budget: o.PerQuery = None,
    most_pairs: Annotated[int, Option(min=1, help="Most calls per request.")] = 10_000,
    deadline: o.Deadline = "10s",  # type: ignore[assignment]
    method: o.Method = DEFAULT,
    offer: Annotated[
        list[str] | None, Option(help="Another method that requests may name; repeatable.")
    ] = None,
    scorer: o.ScorerOptions,
    private: o.Private = False,
) -> None:
    """Serve indexes over HTTP: searches under a budget, for many clients on one scorer.

    POST /search is crossknn's own interface, and /rerank that of reranking
    services; / is a search page, and /openapi.json describes every request. An
    index has the name of its folder.
    """
    with needs_extra("crossknn serve", "serve"):
        from crossknn.service import app, connections, engine

    api_keys = keys_of(keys)
    if private:  # indexes are opened again when they change
        os.environ["CROSSKNN_PRIVATE"] = "1"
    for spec in (method, *(offer or ())):
        parse_method(spec)  # before an index is made or opened
    with connections.listening(host, port) as sockets:
        how: dict[str, Any] = {"method": method, "methods": offer or (), "most_pairs": most_pairs}
        indexes = _open(folders)
        how |= {"budget": budget or [100], "deadline": deadline}
        served = engine.Engine(indexes, scorer.open_all(), **how)
        url = connections.url_of(host, sockets)
        if not api_keys and host not in app.LOCAL:
            note(f"anyone who can reach {url} may search: give --keys or {KEYS_VARIABLE}")
        note(f"serving {', '.join(indexes)} at {url}")
        # Let searches yield to the thread that answers, which otherwise waits for each in turn.
        sys.setswitchinterval(0.001)
        app.serve(served, sockets, keys=api_keys, local=not api_keys and host in app.LOCAL)


def _open(folders: list[Path]) -> dict[str, Any]:
    """Open indexes, named by their folders."""
    indexes: dict[str, Any] = {}
    for folder in folders:
        name = folder.resolve().name
        if name in indexes:
            raise InputError(f"two indexes are called {name!r}: rename one of their folders")
        indexes[name] = ItemIndex.load(folder)
    return indexes


def keys_of(path: Path | None) -> list[str]:
    """Read API keys from the file, or else the environment variable; empty if neither is set."""
    text = os.environ.get(KEYS_VARIABLE)
    if path is not None:
        text = read_given(path).decode("utf-8", "replace")
    if text is None:
        return []
    keys = text.split()
    if not keys or not all(key.isascii() and key.isprintable() and len(key) >= 8 for key in keys):
        needed = "must contain API keys of 8 printable ASCII characters or more"
        raise InputError(f"{path or KEYS_VARIABLE} {needed}")
    return keys
