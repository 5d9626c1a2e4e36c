"""`crossknn replay`: methods on a stored score matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossknn.cli.common import Seed, numbers, print_json
from crossknn.errors import InputError

NAME = "replay"


def command(
    file: Annotated[Path, typer.Argument(help="A score matrix (.npz; see the docs).")],
    methods: Annotated[
        str, typer.Option(help="Specs separated by commas, e.g. 'rnr(first=de), axn(first=de)'.")
    ],
    budgets: Annotated[str, typer.Option(help="Calls per query, e.g. '50,100'.")] = "50,100",
    k: Annotated[str, typer.Option("-k", "--k", help="Neighbours, e.g. '1,10,100'.")] = "1,10,100",
    seed: Seed = 0,
    queries: Annotated[
        int | None, typer.Option(help="Use the first so many test queries only.")
    ] = None,
) -> None:
    """Replay methods on stored scores: one JSON object per line for each method, budget and k."""
    from crossknn.evaluation.replay import replay
    from crossknn.indexes.stored import StoredMatrix
    from crossknn.methods import methods as parse_methods

    if queries is not None and queries < 1:
        raise InputError(f"queries is {queries}; it must be 1 or more")
    chosen = parse_methods(methods)
    costs, ks = numbers(budgets, "budgets"), numbers(k, "k")
    matrix = StoredMatrix.load(file)
    index, _, _ = matrix.rows(0, 1)
    for method in chosen.values():  # what a method lacks is said before any row is printed
        method.plan(index, costs[0], seed)
    for row in replay(matrix, chosen, costs, ks, seed=seed, queries=queries):
        print_json(row.as_dict())
