"""`crossknn compare`: methods at equal budgets on your own queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from crossknn.cli.common import (
    AsJson,
    CacheFile,
    Lists,
    Neighbours,
    ScorerModel,
    ScorerName,
    ScorerOptions,
    Seed,
    add_lists,
    check_plots,
    err,
    neighbours,
    note,
    numbers,
    open_scorer,
    out,
    print_json,
    progress,
)
from crossknn.errors import InputError
from crossknn.evaluation.replay import RecallRow
from crossknn.methods import in_full

NAME = "compare"

METHODS = (
    "rerank(retriever=bm25), rerank(retriever=hybrid), axn(retriever=hybrid, rounds=10, blend=0.5), "
    "axn(retriever=hybrid, rounds=10, ridge=0.3)"
)


def command(
    folder: Annotated[Path, typer.Argument(help="An index made by `crossknn index`.")],
    queries: Annotated[Path, typer.Option(help="A file of queries, or a BEIR folder.")],
    qrels: Annotated[
        Path | None, typer.Option(help="Judgements, for the task's own measures.")
    ] = None,
    budgets: Annotated[str, typer.Option(help="Calls per query.")] = "50,100,200",
    methods: Annotated[str, typer.Option(help="Specs separated by commas.")] = METHODS,
    k: Neighbours = None,
    measures: Annotated[
        str | None,
        typer.Option(
            help="The task's own: names of ir-measures, 'accuracy'; nDCG@10,R@100,RR@10 by default."
        ),
    ] = None,
    lists: Lists = None,
    limit: Annotated[int | None, typer.Option(help="Use the first so many queries.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Save a PNG of recall against cost.")] = None,
    plot_offline: Annotated[
        Path | None,
        typer.Option(help="Save a PNG of recall against the calls paid for the index."),
    ] = None,
    scorer: ScorerName = "bundled",
    model: ScorerModel = None,
    scorer_option: ScorerOptions = None,
    cache: CacheFile = None,
    exact: Annotated[
        Path | None,
        typer.Option(help="Keep the exact scores in this file, not in the index."),
    ] = None,
    seed: Seed = 0,
    json: AsJson = False,
) -> None:
    """Compare methods against exact search, which scores every item for every query once.

    The exact scores cost (queries x items) calls: see `crossknn estimate`. The index keeps them, so
    that an interrupted run goes on where it stopped, and the next one scores nothing.
    """
    from crossknn.data.reading import read_qrels, read_queries
    from crossknn.evaluation.compare import compare, task_measures
    from crossknn.evaluation.task import DEFAULT, measure_names
    from crossknn.index.item_index import ItemIndex
    from crossknn.methods import methods as parse_methods
    from crossknn.scores.collect import dense_scores
    from crossknn.scores.store import ScoreStore

    for option, path in (("--plot", plot), ("--plot-offline", plot_offline)):
        if path is not None:
            _check_plot(option, path)
    if measures is not None and qrels is None:
        raise InputError("--measures needs judgements: give --qrels FILE")
    chosen = parse_methods(methods)
    costs = numbers(budgets, "budgets")
    index = ItemIndex.load(folder)
    ks = neighbours(k, index.n, folder)
    asked = read_queries(queries, limit=limit)
    add_lists(index, lists, asked)
    judged = read_qrels(qrels) if qrels is not None else None
    wanted = DEFAULT if measures is None else measure_names(measures)
    if judged is not None:  # what is wrong with them is said before anything is paid
        for sentence in task_measures(index, asked, judged, wanted).judgements.notes():
            note(sentence)
    judge = open_scorer(scorer, cache, model, scorer_option)
    with progress("exact search", "pairs") as report:
        store = index.scores if exact is None else ScoreStore.open(exact)
        scores = dense_scores(store, judge, asked.texts, index.items.texts, progress=report)
    with err.status("searching"):
        best, found = compare(
            index, asked, scores, chosen, costs, ks, qrels=judged, measures=wanted, seed=seed
        )
        ceiling, table = list(best.rows()), [list(each.rows()) for each in found]
    rows = [row for cells in table for row in cells]
    if json:
        for row in (*ceiling, *rows):
            print_json(row.as_dict())
    else:
        show([ceiling, *table], ks)
    title = f"{index.n} items, {len(asked)} queries"
    if plot is not None:
        from crossknn.plots import recall_against_cost

        recall_against_cost(rows, plot, title=title)
        note(f"recall against cost: {plot}")
    if plot_offline is not None:
        from crossknn.plots import recall_against_indexing

        recall_against_indexing(rows, plot_offline, title=title)
        note(f"recall against what the index cost: {plot_offline}")


def _check_plot(option: str, path: Path) -> None:
    """Before anything is paid: the extra, the suffix and the folder."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"{option} {path}: the name must end in .png, .pdf or .svg")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")
    check_plots(option)


def show(table: Sequence[Sequence[RecallRow]], ks: Sequence[int]) -> None:
    """Print a block for each method: recall against exact search in % [95% interval].

    `table` has the rows of each method and budget, one for each k.
    """
    measures = list(table[0][0].measures)
    paid = any(rows[0].index_calls for rows in table)
    heads = ["calls", *["offline"] * paid, *(f"k={k}" for k in ks), *measures]
    widths = [
        7,
        *[11] * paid,
        *[15] * len(ks),
        *(len(m) + 2 for m in measures),
    ]
    _line(heads, widths, "dim")
    previous = None
    for rows in table:
        first = rows[0]
        if first.method != previous:
            out.print(Text(first.method, style="bold"), soft_wrap=True)
            if (full := in_full(first.method)) != first.method:
                out.print(Text(f"  = {full}", "dim"), soft_wrap=True)
        previous = first.method
        cells = [f"{first.calls:.0f}", *[f"{first.index_calls:,}"] * paid]
        cells += [f"{100 * r.recall:.1f} [{100 * r.ci[0]:.0f}-{100 * r.ci[1]:.0f}]" for r in rows]
        values = (first.measures[measure] for measure in measures)
        _line([*cells, *("-" if v is None else f"{v:.3f}" for v in values)], widths)
    legend = "k=...: recall of the true neighbours under the cross-encoder, % [95%]"
    if paid:
        legend += "; offline: calls paid once, for the index"
    out.print(Text(legend, "dim"), soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> None:
    text = " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    out.print(Text(text, style), soft_wrap=True)
