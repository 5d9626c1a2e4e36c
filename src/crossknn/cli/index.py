"""`crossknn index`: build an index and save it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.common import (
    AsJson,
    CacheFile,
    ScorerName,
    Seed,
    open_scorer,
    out,
    print_json,
    progress,
)
from crossknn.errors import InputError

NAME = "index"


def command(
    source: Annotated[
        Path, typer.Argument(help="JSON lines, CSV, TSV, text lines, or a BEIR folder.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where to save the index.")],
    encoder: Annotated[
        str,
        typer.Option(
            help="The dual encoder: 'bundled', an ONNX or sentence-transformers folder, a hub "
            "name, or 'none'."
        ),
    ] = "bundled",
    lsa: Annotated[
        int | None, typer.Option(help="Dimensions of latent semantic analysis; 0 for none.")
    ] = None,
    tfidf: Annotated[bool, typer.Option("--tfidf", help="Also fit TF-IDF.")] = False,
    template: Annotated[str, typer.Option(help="How an item's text is made.")] = "{title}\\n{text}",
    id_field: Annotated[str | None, typer.Option(help="Name of the id field.")] = None,
    title_field: Annotated[str | None, typer.Option(help="Name of the title field.")] = None,
    text_field: Annotated[str | None, typer.Option(help="Name of the text field.")] = None,
    limit: Annotated[int | None, typer.Option(help="Keep the first items only.")] = None,
    anchors: Annotated[
        Path | None,
        typer.Option(
            help="Train queries to score against every item (for anncur, adacur, axn's scale)."
        ),
    ] = None,
    max_calls: Annotated[
        int | None, typer.Option(help="Stop the anchors' scoring after so many calls.")
    ] = None,
    scorer: ScorerName = "bundled",
    cache: CacheFile = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Build an index of SOURCE and save it in FOLDER.

    With --anchors, run again after an interruption and no pair is paid twice.
    """
    from crossknn.data.items import read_items
    from crossknn.data.queries import read_queries
    from crossknn.indexes.item_index import ItemIndex

    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be 1 or more")
    if max_calls is not None and max_calls < 1:
        raise InputError(f"max-calls is {max_calls}; it must be 1 or more")
    began = time.perf_counter()
    items = read_items(
        source,
        id_field=id_field,
        title_field=title_field,
        text_field=text_field,
        template=template.replace("\\n", "\n"),
        limit=limit,
    )
    queries = read_queries(anchors) if anchors is not None else None
    judge = open_scorer(scorer, cache) if queries is not None else None
    with progress("encoding", "items") as report:
        index = ItemIndex.build(
            items,
            encoder=None if encoder == "none" else encoder,
            lsa=lsa,
            tfidf=tfidf,
            seed=seed,
            progress=report,
        )
    index.save(folder)
    calls = 0
    if queries is not None and judge is not None:
        with progress("scoring anchor queries", "pairs") as report:
            done = index.add_anchors(judge, queries.texts, max_calls=max_calls, progress=report)
        calls = done.calls
    summary = {
        "index": str(folder),
        "items": index.n,
        "vectors": sorted(index.vector_names),
        "first_stages": sorted({*index.first_names, *index.vector_names}),
        "anchor_queries": 0 if index.anchors is None else len(index.anchors.scores),
        "calls": calls,
        "seconds": round(time.perf_counter() - began, 2),
    }
    if json:
        print_json(summary)
        return
    out.print(
        f"{index.n} items in {folder}: first stages {', '.join(summary['first_stages'])}; "
        f"{summary['anchor_queries']} anchor queries, {calls} cross-encoder calls, "
        f"{summary['seconds']} s"
    )
