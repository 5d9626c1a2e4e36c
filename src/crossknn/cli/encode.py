"""`crossknn encode`: the items' states of a late-interaction model, kept in the index."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.common import AsJson, out, print_json, progress

NAME = "encode"


def command(
    folder: Annotated[Path, typer.Argument(help="An index made by `crossknn index`.")],
    model: Annotated[
        str,
        typer.Argument(help="A late-interaction model: a trained folder, or its ONNX export."),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="The retriever's name; by default its kind: cmc, poly, som, ..."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the states of another model of this name.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Encode the items of an index with a late-interaction model (CMC and its rivals).

    Stop it any time: the same command goes on.

    Afterwards it is a retriever over another one: --method "rerank(retriever=cmc(retriever=bm25))".
    """
    from crossknn.index.item_index import ItemIndex

    began = time.perf_counter()
    index = ItemIndex.load(folder)
    with progress("encoding", "items") as report:
        name = index.add_late(model, name, replace=replace, progress=report)
    states = index.late[name].states
    size = states.values.nbytes + states.starts.nbytes
    summary = {
        "index": str(folder),
        "name": name,
        "items": index.n,
        "states": len(states.values),
        "bytes": size,
        "seconds": round(time.perf_counter() - began, 2),
    }
    if json:
        print_json(summary)
        return
    out.print(
        f"{index.n} items in {folder}: {summary['states']:,} states of {name}, "
        f"{size / 1e6:.1f} MB, {summary['seconds']} s; search with  "
        f'--method "rerank(retriever={name}(retriever=hybrid, depth=512))"',
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
