"""`crossknn mine`: training rows for distilling the cross-encoder into a smaller model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from crossknn.cli import options as o
from crossknn.cli.output import answer, note, progress
from crossknn.methods import DEFAULT

EPILOG = o.examples(
    "crossknn mine docs.index --queries train.jsonl --out rows.jsonl",
    "crossknn mine docs.index --queries train.jsonl --qrels train.tsv --format n-tuple "
    "--absolute-margin 1 --out rows.jsonl",
)


def command(
    folder: o.Folder,
    queries: Annotated[Path, Option(help="File of training queries, or - for standard input.")],
    file: Annotated[Path, Option("--out", help="File to write the rows to, as JSON lines.")],
    format: Annotated[
        Literal["margin", "triplet", "n-tuple", "list"],
        Option(
            help="Layout of the rows: margin for MarginMSELoss, triplet without scores, n-tuple "
            "for DistillKLDivLoss, list for ListNetLoss."
        ),
    ] = "margin",
    qrels: Annotated[
        Path | None,
        Option(
            help="Relevance judgements: relevant items are the positives, scored in addition to "
            "--budget."
        ),
    ] = None,
    budget: o.PerQuery = 100,
    positives: Annotated[
        int, Option(help="Without --qrels: how many of a query's best items are positives.")
    ] = 1,
    negatives: Annotated[int, Option(help="Largest number of hard negatives per query.")] = 8,
    range_min: Annotated[
        int, Option(help="Skip this many of the best candidates for negatives.")
    ] = 0,
    range_max: Annotated[
        int | None, Option(help="Consider candidates before this rank only; all by default.")
    ] = None,
    max_score: Annotated[
        float | None, Option(help="Largest score that a negative may have.")
    ] = None,
    absolute_margin: Annotated[
        float,
        Option(help="Least distance of a negative's score below the query's lowest positive."),
    ] = 0.0,
    relative_margin: Annotated[
        float | None, Option(help="The same distance, as a fraction of the positive's score.")
    ] = None,
    sampling_strategy: Annotated[
        Literal["top", "random"],
        Option(help="Take the best candidates as negatives, or random ones."),
    ] = "top",
    method: o.Method = DEFAULT,
    fuse: o.Fused = "none",
    scorer: o.ScorerName = "bundled",
    model: o.ScorerModel = None,
    scorer_option: o.ScorerOptions = None,
    seed: o.Seed = 0,
    json: o.AsJson = False,
) -> None:
    """Mine training rows for distillation: positives and hard negatives, with their scores.

    Exact scores are stored in the index: run the same command again to resume
    after an interruption.
    """
    from crossknn.data.reading import read_qrels
    from crossknn.fitting.mining import TrainingRows, mine
    from crossknn.index.item_index import ItemIndex

    o.check_path("--out", file)
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
        note(
            f"crossknn: {mined.error}; run the same command again to score the queries that failed"
        )
        raise typer.Exit(3)
