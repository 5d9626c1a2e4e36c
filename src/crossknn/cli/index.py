"""`crossknn index`: build an index and save it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossknn.cli.common import (
    AsJson,
    CacheFile,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    Seed,
    check_positive,
    open_scorer,
    print_json,
    progress,
    say,
)
from crossknn.errors import IndexFormatError, InputError

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex

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
    graph: Annotated[
        int | None,
        typer.Option(help="Keep so many nearest items of every item (for gar, ladr and greedy)."),
    ] = None,
    graph_from: Annotated[
        str | None,
        typer.Option(
            help="What they are nearest by: dense, lsa, bm25, ...; the vectors by default."
        ),
    ] = None,
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
    item_scores: Annotated[
        int | None,
        typer.Option(help="Score so many items, as queries, with every item (itemcur, fixeditem)."),
    ] = None,
    max_calls: Annotated[
        int | None, typer.Option(help="Stop paying after so many cross-encoder calls.")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Drop anchors that another cross-encoder has scored."),
    ] = False,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    cache: CacheFile = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Build an index of SOURCE and save it in FOLDER.

    With --anchors, run again after an interruption and no pair is paid twice. In the folder of an
    index of other items, what was paid stays: only pairs with new items are paid for again.
    """
    from crossknn.data.reading import read_items, read_queries
    from crossknn.fitting.anchors import collect_anchors, collect_item_scores, fit_scales
    from crossknn.fitting.log import fit_from_log
    from crossknn.index.item_index import ItemIndex
    from crossknn.scores.collect import Limits

    check_positive(
        {"limit": limit, "max-calls": max_calls, "item-scores": item_scores, "graph": graph}
    )
    if graph_from is not None and graph is None:
        raise InputError("--graph-from says what --graph N is made of: give that, too")
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
    paying = queries is not None or item_scores is not None
    judge = open_scorer(scorer, cache, model, scorer_option) if paying else None
    previous = _previous(folder)
    with progress("encoding", "items") as report:
        index = ItemIndex.build(
            items,
            encoder=None if encoder == "none" else encoder,
            lsa=lsa,
            tfidf=tfidf,
            seed=seed,
            previous=previous,
            progress=report,
        )
    if graph is not None:
        with progress("finding neighbours", "items") as report:
            index.add_graph(graph_from, graph, progress=report)
    index.save(folder)
    if previous is not None:
        fit_scales(index)
    calls = 0
    if judge is not None and queries is not None:
        with progress("scoring anchor queries", "pairs") as report:
            done = collect_anchors(
                index,
                judge,
                queries.texts,
                limits=Limits(max_calls=max_calls),
                replace=replace,
                progress=report,
            )
        calls += done.calls
        if len(index.anchor_queries) > 1 and index.retrievers and index.vectors:
            with progress("learning", "sweeps") as report:
                fit_from_log(index, judge.fingerprint, progress=report)
    if judge is not None and item_scores is not None:
        positions = index.anchor_items[:item_scores]
        left = None if max_calls is None else max_calls - calls
        with progress("scoring items with items", "pairs") as report:
            done = collect_item_scores(
                index,
                judge,
                positions,
                limits=Limits(max_calls=left),
                replace=replace,
                progress=report,
            )
        calls += done.calls
    stages = sorted({*index.retrievers, *index.vectors})
    graphs = {name: kept.shape[1] for name, kept in index.graphs.items()}
    summary = {
        "index": str(folder),
        "items": index.n,
        "vectors": sorted(index.vectors),
        "first_stages": stages,
        "graphs": graphs,
        "anchor_queries": 0 if index.anchors is None else len(index.anchors.scores),
        "calls": calls,
        "seconds": round(time.perf_counter() - began, 2),
    }
    if json:
        print_json(summary)
        return
    neighbours = [f"{k} neighbours by {name}; " for name, k in graphs.items()]
    say(
        f"{index.n} items in {folder}: retrievers {', '.join(stages)}; {''.join(neighbours)}"
        f"{summary['anchor_queries']} anchor queries, {calls} cross-encoder calls, "
        f"{summary['seconds']} s"
    )


def _previous(folder: Path) -> ItemIndex | None:
    """The index that is in `folder` now, if there is one that can be read."""
    from crossknn.index.item_index import ItemIndex

    try:
        return ItemIndex.load(folder)
    except IndexFormatError:
        return None
