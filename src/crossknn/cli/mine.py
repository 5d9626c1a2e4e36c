"""`crossknn mine`: training rows for a student of the cross-encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, progress
from crossknn.errors import InputError
from crossknn.methods import DEFAULT

EPILOG = o.examples(
    "crossknn mine docs.index --queries train.jsonl --out rows.jsonl",
    "crossknn mine docs.index --queries train.jsonl --qrels train.tsv --format n-tuple "
    "--absolute-margin 1 --out rows.jsonl",
)


def command(
    folder: o.Folder,
    queries: Annotated[Path, Option(help="Train queries: a file; - is standard input.")],
    file: Annotated[Path, Option("--out", help="Write the rows, as JSON lines.")],
    format: Annotated[
        Literal["margin", "triplet", "n-tuple", "list"],
        Option(
            help="margin for MarginMSELoss, n-tuple for DistillKLDivLoss, list for ListNetLoss."
        ),
    ] = "margin",
    qrels: Annotated[
        Path | None, Option(help="Judgements: relevant items are positives, beside the budget.")
    ] = None,
    budget: Annotated[int, Option(help="Distinct pairs to score per query.")] = 100,
    positives: Annotated[int, Option(help="Without --qrels: positives per query, its best.")] = 1,
    negatives: Annotated[int, Option(help="Hard negatives per query.")] = 8,
    range_min: Annotated[int, Option(help="Leave out so many of the best candidates.")] = 0,
    range_max: Annotated[
        int | None, Option(help="End of the range of candidates; all by default.")
    ] = None,
    max_score: Annotated[float | None, Option(help="Highest score of a negative.")] = None,
    absolute_margin: Annotated[
        float, Option(help="A negative scores at least so far below its query's lowest positive.")
    ] = 0.0,
    relative_margin: Annotated[
        float | None, Option(help="The same, as a share of the size of the positive's score.")
    ] = None,
    sampling_strategy: Annotated[
        Literal["top", "random"], Option(help="The best candidates, or random ones.")
    ] = "top",
    method: o.Method = DEFAULT,
    fuse: o.Fused = "none",
    scorer: o.ScorerName = "bundled",
    model: o.ScorerModel = None,
    scorer_option: o.ScorerOptions = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Mine training rows: each query's top items by the cross-encoder, and its hard negatives.

    Scores are kept in the index: after an interruption the same command computes what is missing.
    """
    from crossknn.data.reading import read_qrels
    from crossknn.fitting.mining import TrainingRows, mine
    from crossknn.index.item_index import ItemIndex

    if not file.absolute().parent.is_dir():
        raise InputError(f"--out {file}: there is no folder {file.parent}")
    wanted = TrainingRows(
        format=format,
        positives=positives,
        negatives=negatives,
        range_min=range_min,
        range_max=range_max,
        max_score=max_score,
        absolute_margin=absolute_margin,
        relative_margin=relative_margin,
        sampling_strategy=sampling_strategy,
    )
    index = ItemIndex.load(folder)
    with progress("scoring", "pairs") as report:
        mined = mine(
            index,
            o.open_scorer(scorer, model, scorer_option),
            o.read_queries(queries),
            wanted,
            qrels=None if qrels is None else read_qrels(qrels),
            budget=budget,
            method=method,
            fuse=o.fuse_of(fuse),
            seed=seed,
            progress=report,
        )
    mined.save(file)
    answer(vars(mined) | {"rows": len(mined.rows), "out": str(file)}, json)
    if mined.error is not None:
        note(f"crossknn: {mined.error}; run the same command again for the queries that failed")
        raise typer.Exit(3)
