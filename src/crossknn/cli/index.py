"""`crossknn index`: build, extend, inspect and verify an index."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, plain, print_json, progress, say
from crossknn.data.passages import count_longer, n_documents
from crossknn.errors import InputError, MissingExtraError, counted
from crossknn.index.item_index import ItemIndex
from crossknn.index.nearest import CENTROIDS, LARGE
from crossknn.methods.kriging import Kriging
from crossknn.scorers.opening import reading_of

OF_SCORERS = "anchors", "kriging", "fusion", "calibration"
"""Artifacts that belong to one cross-encoder."""
SHOWN = "queries", "pairs", "n_anchor_queries", "weights", "ndcg", "note", "ece", "added"
"""Their metadata that `crossknn index info` shows."""

app = typer.Typer(help="Build, extend, inspect and verify an index.", no_args_is_help=True)

Items = Annotated[
    Path, Argument(metavar="ITEMS", help="JSON lines, CSV, TSV, text, a BEIR folder, or - (stdin).")
]
Nearest = Annotated[
    bool | None,
    Option(help="Approximate index of the vectors (extra faiss); by default from 200,000 items."),
]
Encoder = Annotated[
    str, Option(help="Dual encoder of the item vectors: 'bundled', a folder, a hub name, or none.")
]
Sparse = Annotated[
    str | None, Option(help="Sparse encoder (SPLADE), a folder or hub name: the retriever sparse.")
]
Lsa = Annotated[
    int | None, Option(min=0, help="LSA dimensions, 0 for none; by default 128 without an encoder.")
]
Tokenizer = Annotated[
    str,
    Option(
        help="'unicode' (every script), 'whitespace', or your 'module:function', which searches "
        "need in the environment variable CROSSKNN_TOKENIZER."
    ),
]
Overlap = Annotated[
    int | None, Option(min=0, help="Tokens that neighbouring passages share; by default a fifth.")
]
OfScorer = Annotated[
    str | None,
    Option(help="Cross-encoder whose tokens are counted: 'bundled', a folder or a hub name."),
]


@app.command(
    epilog=o.examples(
        "crossknn index build docs.jsonl docs.index --passages 200 --overlap 40",
        "zcat docs.jsonl.gz | crossknn index build - docs.index --encoder none",
    )
)
@o.grouped
def build(
    items: Items,
    folder: Annotated[Path, Argument(metavar="INDEX", help="Folder to save the index in.")],
    *,
    encoder: Encoder = "bundled",
    sparse: Sparse = None,
    lsa: Lsa = None,
    tokenizer: Tokenizer = "unicode",
    nearest: Nearest = None,
    template: Annotated[
        str, Option(help="Template that makes the text of an item from its fields.")
    ] = "{title}\\n{text}",
    passages: o.Passages = None,
    overlap: Overlap = None,
    scorer: OfScorer = None,
    fields: o.FieldOptions,
    json: o.AsJson = False,
) -> None:
    """Build an index of ITEMS and save it in the folder INDEX.

    If INDEX exists already, it is replaced. Vectors of unchanged texts and all
    exact scores are kept.
    """
    _check_nearest(nearest)
    if nearest and encoder == "none" and lsa == 0:
        raise InputError("--nearest needs item vectors: give an --encoder, or --lsa 128")
    began = time.perf_counter()
    read = fields.read(items, template=template.replace("\\n", "\n"))
    with progress("encoding", "items") as report:
        index = ItemIndex.build(
            read,
            encoder=None if encoder == "none" else encoder,
            sparse=sparse,
            lsa=lsa,
            tokenizer=tokenizer,
            passages=passages,
            overlap=overlap,
            scorer=scorer,
            folder=folder,
            progress=report,
        )
    if nearest is None:
        nearest = index.n >= LARGE and bool(index.vectors) and find_spec("faiss") is not None
    _add_nearest(index, nearest)
    _answer(index, folder, json, began)
    if passages is None:
        note_long(index)
    note(f'next: crossknn search {folder} "your query"')


@app.command(
    epilog=o.examples(
        "crossknn index prepare docs.index --nearest",
        "crossknn index prepare docs.index --late models/cmc",
    )
)
def prepare(
    folder: o.Folder,
    nearest: Annotated[
        bool, Option("--nearest", help="Approximate index of the vectors (extra faiss).")
    ] = False,
    late: Annotated[
        str | None, Option(help="Late-interaction model: a folder of `crossknn-train run`.")
    ] = None,
    json: o.AsJson = False,
) -> None:
    """Add an approximate index, or items encoded by a late-interaction model, to the index.

    Run the same command again to resume. Searches name the model in --method
    "rerank(retriever=cmc(retriever=bm25))".
    """
    if not (late or nearest):
        raise InputError("nothing to add was named: give --nearest or --late MODEL")
    _check_nearest(nearest)
    with _changing(folder, json) as index:
        _add_nearest(index, nearest)
        if late is not None:
            with progress("encoding", "items") as report:
                index.add_late(late, replace=True, progress=report)


@app.command(
    epilog=o.examples(
        "crossknn index insert docs.index new.jsonl",
        "crossknn index insert docs.index changed.jsonl --replace",
    )
)
@o.grouped
def insert(
    folder: o.Folder,
    items: Items,
    *,
    replace: Annotated[
        bool, Option("--replace", help="Replace items whose ids are already in the index.")
    ] = False,
    fields: o.FieldOptions,
    json: o.AsJson = False,
) -> None:
    """Add ITEMS to an index, or replace some, without building it again.

    Running searches are not affected. Fits are extended to the new items.
    """
    with _changing(folder, json) as index:
        new = fields.read(items, template=index.items.template)
        with progress("encoding", "items") as report:
            index.add(new, replace=replace, progress=report)


@app.command(
    epilog=o.examples(
        "crossknn index delete docs.index 17 42", "crossknn index delete docs.index --ids gone.txt"
    )
)
def delete(
    folder: o.Folder,
    ids: Annotated[list[str] | None, Argument(metavar="ID...", help="Ids of items.")] = None,
    file: Annotated[
        Path | None,
        Option("--ids", help="Text file with one id per line, or - for standard input."),
    ] = None,
    json: o.AsJson = False,
) -> None:
    """Delete items of an index. They take up space until `crossknn index compact`."""
    given = o.typed(ids or []) + ([] if file is None else o.read_ids(file))
    if not given:
        raise InputError("no items to delete were named: give ids, or a file of them with --ids")
    with _changing(folder, json) as index:
        index.delete(given)


@app.command()
def compact(folder: o.Folder, json: o.AsJson = False) -> None:
    """Rewrite an index without its deleted items, while searches go on."""
    with _changing(folder, json) as index:
        index.compact()


@app.command()
def info(folder: o.Folder, json: o.AsJson = False) -> None:
    """Show what an index contains: items, retrievers, vectors and exact scores."""
    from crossknn.fitting.learning import FIRST_FIT

    index = ItemIndex.load(folder)
    made = [artifact for name in OF_SCORERS for artifact in index.each(name)]
    names = dict.fromkeys(artifact.meta.get("fingerprint") for artifact in made)
    views = {name: index.for_scorer(name) for name in names}
    if json:
        fits: dict[str, Any] = {}
        for name, view in views.items():
            fits[str(name)] = {kind: dict(fit.meta) for kind, fit in view.artifacts.items()}
            fits[str(name)]["anchor_queries"] = len(view.anchor_queries)
        print_json(_summary(index, folder) | {"cross_encoders": fits})
        return
    _print(_summary(index, folder))
    for name, view in views.items():
        say(f"from the cross-encoder {name or 'without a name'}:")
        for kind, fit in view.artifacts.items():
            about = {key: fit.meta[key] for key in SHOWN if fit.meta.get(key)}
            say(f"  {kind}: {plain(about)}")
            if gain := fit.meta.get("gain"):
                saved = "it saves {:.0%} [{:.0%}, {:.0%}] of the squared error of predictions"
                unused = "" if Kriging().prior(view) else ", so searches do not use it"
                say(f"    {saved.format(*gain)}{unused}")
    if not index.each("kriging") and index.vectors:
        say(f"nothing learned yet: learning needs the scores of {FIRST_FIT} searched queries")


@app.command(
    epilog=o.examples(
        "crossknn index prune docs.index --keep 10000", "crossknn index prune docs.index --private"
    )
)
def prune(
    folder: o.Folder,
    keep: Annotated[
        int | None, Option(min=0, help="Keep the scores of this many queries, the most recent.")
    ] = None,
    private: Annotated[
        bool, Option("--private", help="Drop the texts of all queries, but keep their digests.")
    ] = False,
    json: o.AsJson = False,
) -> None:
    """Drop stored scores of old queries, which searches compute again when needed.

    The store takes at most 2 GB (CROSSKNN_STORE_LIMIT, in MB) in any case.
    """
    if keep is None and not private:
        raise InputError("nothing to prune was named: give --keep N or --private")
    index = ItemIndex.load(folder)
    dropped = index.scores.prune(keep=keep, private=private)
    _print({"index": str(folder), "dropped_queries": dropped, **_store(index)}, json)


@app.command()
def verify(
    folder: o.Folder,
    repair: Annotated[
        bool, Option("--repair", help="Remove damaged exact scores; searches compute them again.")
    ] = False,
    json: o.AsJson = False,
) -> None:
    """Check all files of an index against their checksums; exit with code 6 if any is damaged."""
    damages = ItemIndex.load(folder).verify(repair=repair)
    answer({"index": str(folder), "damages": damages, "repaired": repair}, json)
    if damages:
        raise typer.Exit(6)


@contextmanager
def _changing(folder: Path, json: bool) -> Iterator[ItemIndex]:
    """Let the caller change an index, and print its summary."""
    began, index = time.perf_counter(), ItemIndex.load(folder)
    yield index
    _answer(index, folder, json, began)


def _check_nearest(nearest: bool | None) -> None:
    if nearest and find_spec("faiss") is None:
        raise MissingExtraError("--nearest", "faiss")


def _add_nearest(index: ItemIndex, wanted: bool) -> None:
    from crossknn.fitting.kriging import add_points

    if wanted:
        with progress("building the approximate index", "items") as report:
            index.add_nearest(progress=report)
            if index.n >= CENTROIDS:
                add_points(index, report)


def note_long(index: ItemIndex) -> None:
    """Say how many items the bundled cross-encoder would not read to the end."""
    reading = reading_of()
    longer, is_exact = count_longer(index.items.texts, reading.room)
    if longer:
        note(
            f"{'' if is_exact else 'about '}{longer:,} of {counted(index.n, 'item')} are longer "
            f"than the {reading.room} tokens that {reading.name} reads beside a short query: cut "
            "them into passages with --passages 200"
        )


def _answer(index: ItemIndex, folder: Path, json: bool, began: float) -> None:
    if index.passages is not None:
        documents = counted(n_documents(index.items), "document")
        note(f"{counted(len(index), 'passage')} of {documents}")
    _print(_summary(index, folder) | {"seconds": round(time.perf_counter() - began, 2)}, json)


def _print(summary: dict[str, Any], json: bool = False) -> None:
    """Print the summary as JSON, or one line per entry that is not empty."""
    answer(summary if json else {name: value for name, value in summary.items() if value}, json)


def _summary(index: ItemIndex, folder: Path) -> dict[str, Any]:
    cutting = index.passages
    return {
        "index": str(folder),
        "items": len(index),
        **({} if cutting is None else {"documents": n_documents(index.items)}),
        **({"deleted": index.n - len(index)} if len(index) < index.n else {}),
        **({"added_since_fit": index.added} if index.added else {}),
        "vectors": sorted(index.vectors),
        "retrievers": sorted({*index.retrievers, *index.vectors}),
        "tokenizer": index.tokenizer,
        **({} if cutting is None else {"passages": cutting.artifact().meta}),
        "late": sorted(index.late),
        "anchor_queries": len(index.anchor_queries),
        **_store(index),
    }


def _store(index: ItemIndex) -> dict[str, Any]:
    sizes = index.scores.sizes()
    return {
        "scores": sizes["scores"],
        "scored_queries": sizes["queries"],
        "query_texts_kept": sizes["texts"],
        "store_mb": round(sizes["bytes"] / 2**20, 1),
        "store_limit_mb": sizes["limit"] // 2**20,
    }
