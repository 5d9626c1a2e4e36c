"""`crossknn index`: build an index, add to it, look at it, check it."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, print_json, progress, say
from crossknn.errors import IndexFormatError, InputError

if TYPE_CHECKING:
    from crossknn.fitting.learning import Learned
    from crossknn.index.item_index import ItemIndex

LATEST = 5
"""Fits to searches that `index info` shows, at most."""

app = typer.Typer(help="Build an index, add to it, look at it, check it.", no_args_is_help=True)

Tfidf = Annotated[bool, Option("--tfidf", help="Also fit TF-IDF.")]
Graph = Annotated[
    int | None,
    Option(min=1, help="Keep so many nearest items of every item (for gar, ladr and greedy)."),
]
GraphFrom = Annotated[
    str | None,
    Option(
        help="What neighbours are nearest by: dense, lsa, bm25, ...; unfitted vectors by default."
    ),
]


@app.command(
    "build",
    epilog=o.examples(
        "crossknn index build docs.jsonl docs.index",
        "zcat docs.jsonl.gz | crossknn index build - docs.index --encoder none --tfidf",
    ),
)
def build(
    items: Annotated[
        Path,
        Argument(
            metavar="ITEMS",
            help="JSON lines, CSV, TSV, text lines, a BEIR folder, or - for standard input.",
        ),
    ],
    folder: Annotated[Path, Argument(metavar="INDEX", help="Where to save it.")],
    encoder: Annotated[
        str, Option(help="'bundled', a model folder, a hub name, or none.")
    ] = "bundled",
    lsa: Annotated[int | None, Option(min=0, help="Dimensions of LSA; 0 for none.")] = None,
    tfidf: Tfidf = False,
    graph: Graph = None,
    graph_from: GraphFrom = None,
    template: o.Template = "{title}\\n{text}",
    id_field: Annotated[str | None, Option(help="Name of the id field.")] = None,
    title_field: Annotated[str | None, Option(help="Name of the title field.")] = None,
    text_field: Annotated[str | None, Option(help="Name of the text field.")] = None,
    limit: Annotated[int | None, Option(min=1, help="Keep the first items only.")] = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Build an index of ITEMS and save it in the folder INDEX.

    If FOLDER holds an index already, the new one replaces it: vectors of unchanged texts are not
    computed again, and every exact score stays.
    """
    from crossknn.data.reading import read_items
    from crossknn.index.item_index import ItemIndex

    if graph_from is not None and graph is None:
        raise InputError("--graph-from says what --graph N is made of: give that, too")
    began = time.perf_counter()
    read = read_items(
        o.source(items),
        id_field=id_field,
        title_field=title_field,
        text_field=text_field,
        template=template.replace("\\n", "\n"),
        limit=limit,
    )
    try:
        previous = ItemIndex.load(folder)
    except IndexFormatError:
        previous = None  # `save` says what is wrong with the folder
    with progress("encoding", "items") as report:
        index = ItemIndex.build(
            read,
            encoder=None if encoder == "none" else encoder,
            lsa=lsa,
            tfidf=tfidf,
            seed=seed,
            previous=previous,
            progress=report,
        )
    _add_graph(index, graph, graph_from)
    index.save(folder)
    if previous is not None:
        from crossknn.fitting.anchors import fit_scales

        fit_scales(index)
    _answer(index, folder, json, began)


@app.command(
    "add",
    epilog=o.examples(
        "crossknn index add docs.index --graph 16",
        "crossknn index add docs.index --late models/cmc",
    ),
)
def add(
    folder: o.Folder,
    tfidf: Tfidf = False,
    graph: Graph = None,
    graph_from: GraphFrom = None,
    late: Annotated[
        str | None,
        Option(
            help="Encode all items with this late-interaction model (CMC and its rivals): a "
            "trained folder, or its ONNX export."
        ),
    ] = None,
    name: Annotated[str | None, Option(help="The name of --late; by default its kind.")] = None,
    replace: o.Replace = False,
    json: o.AsJson = False,
) -> None:
    """Add TF-IDF, an item graph or a late-interaction model to an index.

    Nothing that the index has is computed again, and an interrupted command resumes where it
    stopped. A late-interaction model reorders what another retriever finds:
    --method "rerank(retriever=cmc(retriever=bm25))".
    """
    from crossknn.index.item_index import ItemIndex

    if not (tfidf or graph or late):
        raise InputError("nothing to add: give --tfidf, --graph N or --late MODEL")
    if (graph_from and not graph) or (name and not late):
        raise InputError("--graph-from belongs to --graph N, and --name to --late MODEL")
    began = time.perf_counter()
    index = ItemIndex.load(folder)
    if tfidf:
        index.add_words("tfidf")
    _add_graph(index, graph, graph_from)
    if late is not None:
        with progress("encoding", "items") as report:
            index.add_late(late, name, replace=replace, progress=report)
    _answer(index, folder, json, began)


@app.command(
    "info",
    epilog=o.examples("crossknn index info docs.index", "crossknn index info d.index --json"),
)
def info(folder: o.Folder, json: o.AsJson = False) -> None:
    """Print what an index holds."""
    from crossknn.fitting.learning import history
    from crossknn.index.item_index import ItemIndex

    index = ItemIndex.load(folder)
    fits = history(index)
    if json:
        learned = {"learned": [asdict(fit) for fit in fits]}
        print_json(_summary(index, folder) | learned | {"details": index.description()})
        return
    answer(_summary(index, folder), json)
    for fit in fits[-LATEST:]:
        say(f"learned from {fit.queries:,} queries, {fit.pairs:,} pairs{_worth(fit)}")


@app.command(
    "verify",
    epilog=o.examples("crossknn index verify docs.index", "crossknn index verify d.index --repair"),
)
def verify(
    folder: o.Folder,
    repair: Annotated[bool, Option("--repair", help="Remove damaged exact scores.")] = False,
    json: o.AsJson = False,
) -> None:
    """Check every byte of an index against its checksums; the exit code is 6 if any is damaged."""
    from crossknn.index.item_index import ItemIndex

    damages = ItemIndex.load(folder).verify(repair=repair)
    answer({"index": str(folder), "damages": damages, "repaired": repair}, json)
    if damages:
        raise typer.Exit(6)


def _add_graph(index: ItemIndex, neighbours: int | None, name: str | None) -> None:
    if neighbours is not None:
        with progress("finding neighbours", "items") as report:
            index.add_graph(name, neighbours, progress=report)


def _answer(index: ItemIndex, folder: Path, json: bool, began: float) -> None:
    answer(_summary(index, folder) | {"seconds": round(time.perf_counter() - began, 2)}, json)


def _summary(index: ItemIndex, folder: Path) -> dict[str, Any]:
    return {
        "index": str(folder),
        "items": index.n,
        "vectors": sorted(index.vectors),
        "retrievers": sorted({*index.retrievers, *index.vectors}),
        "graphs": {name: int(graph.shape[1]) for name, graph in index.graphs.items()},
        "late": sorted(index.late),
        "anchor_queries": len(index.anchor_queries),
        "scores": len(index.scores),
    }


def _worth(fit: Learned) -> str:
    """What the fit before this one was worth, if that was measured."""
    if fit.explained is None or fit.without is None:
        return ""
    return (
        f"; the fit before explained {fit.explained:.0%} of the variance of {fit.measured} new "
        f"queries' scores, given half of them, and no fit {fit.without:.0%}"
    )
