"""`crossknn index`: build an index, add to it, look at it, check it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossknn.cli.options import (
    AsJson,
    Folder,
    Replace,
    Seed,
    Template,
    check_positive,
    examples,
    source,
)
from crossknn.cli.output import answer, progress
from crossknn.errors import IndexFormatError, InputError

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex

app = typer.Typer(help="Build an index, add to it, look at it, check it.", no_args_is_help=True)

GraphFrom = Annotated[
    str | None,
    typer.Option(help="What neighbours are nearest by: dense, lsa, bm25, ...; vectors by default."),
]


@app.command(
    "build",
    epilog=examples(
        "crossknn index build docs.jsonl docs.index",
        "zcat docs.jsonl.gz | crossknn index build - docs.index --encoder none --tfidf",
    ),
)
def build(
    items: Annotated[
        Path,
        typer.Argument(
            help="JSON lines, CSV, TSV, text lines, a BEIR folder, or - for standard input."
        ),
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
    graph_from: GraphFrom = None,
    template: Template = "{title}\\n{text}",
    id_field: Annotated[str | None, typer.Option(help="Name of the id field.")] = None,
    title_field: Annotated[str | None, typer.Option(help="Name of the title field.")] = None,
    text_field: Annotated[str | None, typer.Option(help="Name of the text field.")] = None,
    limit: Annotated[int | None, typer.Option(help="Keep the first items only.")] = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Build an index of ITEMS and save it in FOLDER.

    In the folder of an index it takes its place: vectors of unchanged texts are not made again,
    and every exact score stays.
    """
    from crossknn.data.reading import read_items
    from crossknn.index.item_index import ItemIndex

    check_positive({"limit": limit, "graph": graph})
    if graph_from is not None and graph is None:
        raise InputError("--graph-from says what --graph N is made of: give that, too")
    began = time.perf_counter()
    read = read_items(
        source(items),
        id_field=id_field,
        title_field=title_field,
        text_field=text_field,
        template=template.replace("\\n", "\n"),
        limit=limit,
    )
    previous = _previous(folder)
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
    if graph is not None:
        _add_graph(index, graph, graph_from)
    index.save(folder)
    if previous is not None:
        from crossknn.fitting.anchors import fit_scales

        fit_scales(index)
    _answer(index, folder, began, json)


@app.command(
    "add",
    epilog=examples(
        "crossknn index add docs.index --graph 16",
        "crossknn index add docs.index --late models/cmc",
    ),
)
def add(
    folder: Folder,
    tfidf: Annotated[bool, typer.Option("--tfidf", help="Fit TF-IDF.")] = False,
    graph: Annotated[
        int | None, typer.Option(help="Find so many nearest items of every item.")
    ] = None,
    graph_from: GraphFrom = None,
    late: Annotated[
        str | None,
        typer.Option(
            help="Encode all items with this late-interaction model (CMC and its rivals): a "
            "trained folder, or its ONNX export."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What to call --late; by default its kind: cmc, poly, ...")
    ] = None,
    replace: Replace = False,
    json: AsJson = False,
) -> None:
    """Add to an index what is made of its items; nothing is encoded again.

    Stop it any time: the same command goes on. A late-interaction model is a retriever over
    another one afterwards: --method "rerank(retriever=cmc(retriever=bm25))".
    """
    from crossknn.index.item_index import ItemIndex

    check_positive({"graph": graph})
    if not (tfidf or graph or late):
        raise InputError("nothing to add: give --tfidf, --graph N or --late MODEL")
    for option, given, needs, there in (
        ("--graph-from", graph_from, "--graph", graph),
        ("--name", name, "--late", late),
    ):
        if given is not None and there is None:
            raise InputError(f"{option} belongs to {needs}: give that, too")
    began = time.perf_counter()
    index = ItemIndex.load(folder)
    if tfidf:
        index.add_words("tfidf")
    if graph is not None:
        _add_graph(index, graph, graph_from)
    if late is not None:
        with progress("encoding", "items") as report:
            index.add_late(late, name, replace=replace, progress=report)
    _answer(index, folder, began, json)


@app.command(
    "info", epilog=examples("crossknn index info docs.index", "crossknn index info d.index --json")
)
def info(folder: Folder, json: AsJson = False) -> None:
    """Print what an index holds."""
    from crossknn.index.item_index import ItemIndex

    index = ItemIndex.load(folder)
    summary = _summary(index, folder)
    lines = [f"{summary['items']} items in {folder}"]
    lines += [f"{key}: {_plain(value)}" for key, value in summary.items() if key not in _HEAD]
    answer(summary | {"details": index.description()}, "\n".join(lines), json)


@app.command(
    "verify",
    epilog=examples("crossknn index verify docs.index", "crossknn index verify d.index --repair"),
)
def verify(
    folder: Folder,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged exact scores: they are scored again.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check every byte of an index against its checksums; exit code 6 if some are damaged."""
    from crossknn.index.item_index import ItemIndex

    damages = ItemIndex.load(folder).verify(repair=repair)
    found = "\n".join(damages) or f"{folder} is whole"
    answer({"index": str(folder), "damages": damages, "repaired": repair}, found, json)
    if damages:
        raise typer.Exit(6)


_HEAD = ("index", "items")


def _previous(folder: Path) -> ItemIndex | None:
    from crossknn.index.item_index import ItemIndex

    try:
        return ItemIndex.load(folder)
    except IndexFormatError:
        return None  # `save` says what is wrong with the folder


def _add_graph(index: ItemIndex, neighbours: int, name: str | None) -> None:
    with progress("finding neighbours", "items") as report:
        index.add_graph(name, neighbours, progress=report)


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


def _plain(value: Any) -> str:
    """A value of the summary as a person writes it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} ({number})" for name, number in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}"


def _answer(index: ItemIndex, folder: Path, began: float, json: bool) -> None:
    seconds = round(time.perf_counter() - began, 2)
    summary = _summary(index, folder)
    graphs = [f"{k} neighbours by {name}; " for name, k in summary["graphs"].items()]
    answer(
        summary | {"seconds": seconds},
        f"{index.n} items in {folder}: retrievers {', '.join(summary['retrievers'])}; "
        f"{''.join(graphs)}{summary['anchor_queries']} anchor queries, "
        f"{summary['scores']:,} exact scores, {seconds} s",
        json,
    )
