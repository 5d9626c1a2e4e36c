"""`crossknn serve`: an HTTP service over indexes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from crossknn.cli import options as o
from crossknn.cli.demo import FOLDER, python_index
from crossknn.cli.output import note
from crossknn.errors import InputError, needs_extra
from crossknn.files import read_given
from crossknn.methods import DEFAULT, parse_method

KEYS_VARIABLE = "CROSSKNN_SERVE_KEYS"
EPILOG = o.examples(
    "crossknn serve docs.index",
    "crossknn serve docs.index faq.index --host 0.0.0.0 --keys keys.txt --deadline 2s",
)


@o.grouped
def command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INDEX...",
            help="Index folders, the first for requests that name none; without one, the "
            "documentation of your Python, as `crossknn demo --live` has it.",
        ),
    ] = None,
    *,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    keys: Annotated[
        Path | None,
        Option(help=f"File of API keys, one per line; or the variable {KEYS_VARIABLE}."),
    ] = None,
    budget: o.PerQuery = 100,
    most_pairs: Annotated[
        int, Option(min=1, help="Cross-encoder calls that one request may ask for.")
    ] = 10_000,
    deadline: Annotated[
        float,
        Option(
            parser=o.duration,
            metavar="DURATION",
            help="The longest that a request may take, from its arrival; and what it may take if "
            "it does not say.",
        ),
    ] = "10s",  # type: ignore[assignment]
    requests: Annotated[
        int, Option(min=1, help="Requests at once; more are answered with 429.")
    ] = 64,
    method: o.Method = DEFAULT,
    methods: Annotated[
        list[str] | None,
        Option(
            "--offer", help="Another method that requests may name; can be given several times."
        ),
    ] = None,
    scorer: o.ScorerOptions,
    private: o.Private = False,
    self_test: Annotated[
        bool, Option(help="At the start, score three English texts and check their order.")
    ] = True,
) -> None:
    """Serve indexes over HTTP: searches under a budget, for many clients on one scorer.

    POST /search is our own interface, /rerank that of reranking services; / is a page to look at,
    /openapi.json says the rest. An index is named as its folder.
    """
    with needs_extra("crossknn serve", "serve"):
        from crossknn.service import address, app, engine
    from crossknn.index.item_index import ItemIndex

    known = keys_of(keys)
    if private:  # indexes are opened again when they change
        os.environ["CROSSKNN_PRIVATE"] = "1"
    for spec in (method, *(methods or ())):
        parse_method(spec)  # before an index is made or opened
    with address.bound_to(host, port) as sockets:
        indexes: dict[str, Any] = {}
        for folder in folders or [python_index(FOLDER)]:
            name = folder.resolve().name
            if name in indexes:
                raise InputError(f"two indexes are called {name!r}: rename the folder of one")
            indexes[name] = ItemIndex.load(folder)
        exact = scorer.open()
        if self_test:
            engine.self_test(exact)
        settings = engine.Settings(
            method=method,
            methods=methods or (),
            budget=budget,
            most_pairs=most_pairs,
            deadline=deadline,
            requests=requests,
        )
        served = engine.Engine(indexes, exact, settings)
        where = address.url(host, sockets)
        address.listen(sockets)
        if not known and host not in app.LOCAL:
            note(f"anyone who can reach {where} may search: give --keys or {KEYS_VARIABLE}")
        note(f"serving {', '.join(indexes)} at {where}")
        # Searches give way sooner to the thread that answers: it waited for each in turn.
        sys.setswitchinterval(0.001)
        app.serve(served, sockets, keys=known, local=not known and host in app.LOCAL)


def keys_of(path: Path | None) -> list[str]:
    """The keys of a file or of the environment; none is allowed only if neither is given."""
    if path is None:
        text = os.environ.get(KEYS_VARIABLE)
        if text is None:
            return []
        where = KEYS_VARIABLE
    else:
        where = str(path)
        try:
            text = read_given(path).decode()
        except UnicodeDecodeError as error:
            raise InputError(f"the keys in {path} cannot be read: {error}") from error
    keys = text.split()
    if not keys or not all(key.isascii() and key.isprintable() and len(key) >= 8 for key in keys):
        raise InputError(f"{where} must hold API keys of 8 printable ASCII characters or more")
    return keys
