"""`crossknn-lab replay`: methods on a stored score matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.options import Neighbours, Seed, neighbours, numbers
from crossknn.cli.output import err, print_json
from crossknn.errors import InputError

NAME = "replay"


def command(
    file: Annotated[Path, typer.Argument(help="A score matrix (.npz; see the docs).")],
    methods: Annotated[
        str,
        typer.Option(
            help="Specs separated by commas, e.g. 'rerank(retriever=dense), axn(retriever=dense)'."
        ),
    ],
    budgets: Annotated[str, typer.Option(help="Calls per query, e.g. '50,100'.")] = "50,100",
    k: Neighbours = None,
    qrels: Annotated[
        Path | None,
        typer.Option(help="Judgements by id, in place of the labels that the file may have."),
    ] = None,
    measures: Annotated[
        str | None,
        typer.Option(help="The task's own, of judged queries; 'accuracy,nDCG@10' and others."),
    ] = None,
    seed: Seed = 0,
    queries: Annotated[
        int | None, typer.Option(help="Use the first so many test queries only.")
    ] = None,
) -> None:
    """Replay methods on stored scores: one JSON object per line for each method, budget and k."""
    from crossknn.data.reading import read_qrels
    from crossknn.evaluation.replay import check, parts_of, replay
    from crossknn.evaluation.task import LABELLED, Judgements, TaskMeasures, measure_names
    from crossknn.index.stored import StoredMatrix
    from crossknn.methods import methods as parse_methods

    chosen = parse_methods(methods)
    costs = numbers(budgets, "budgets")
    matrix = StoredMatrix.load(file)
    check(parts_of(matrix, queries), chosen, costs[0], seed)
    ks = neighbours(k, matrix.scores.shape[1], file)
    judged = Judgements.of_matrix(matrix, read_qrels(qrels) if qrels is not None else None)
    if judged is None and measures is not None:
        raise InputError(f"--measures needs judgements: give --qrels, or 'labels' in {file}")
    task = None
    if judged is not None:
        task = TaskMeasures(judged, LABELLED if measures is None else measure_names(measures))
        for note in judged.take(0, queries or len(judged)).notes():
            err.print(note, soft_wrap=True)
    for row in replay(matrix, chosen, costs, ks, seed=seed, queries=queries, task=task):
        print_json(row.as_dict())
