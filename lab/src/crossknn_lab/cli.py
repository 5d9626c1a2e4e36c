"""The command line `crossknn-lab`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from crossknn.cli import options as o
from crossknn.cli.app import run as run_app
from crossknn.cli.options import AsJson, Neighbours, Seed, check_path, neighbours, numbers
from crossknn.cli.output import answer, err, note, print_json, progress, say, show_table
from crossknn.errors import TRAIN, InputError, needs_extra
from crossknn_lab.stored import StoredMatrix

Workers = Annotated[
    int | None, typer.Option(help="Processes, one thread each; as many as cores by default.")
]

app = typer.Typer(
    name="crossknn-lab",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options() -> None:
    """Sweeps, reports and the papers' figures on stored score matrices."""


def run(arguments: list[str]) -> int:
    """Run one command; the exit code."""
    return run_app(arguments, app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `crossknn-lab`; errors become one sentence on stderr and an exit code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


@app.command("replay")
def _replay(
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
        typer.Option(help="Judgements by id, in place of those that the file may have."),
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
    from crossknn.data.qrels import read_qrels
    from crossknn.evaluation.outcome import check
    from crossknn.evaluation.task import LABELLED, TaskMeasures, measure_names
    from crossknn.methods import parse_methods
    from crossknn_lab.replay import judgements_of, parts_of, replay

    chosen, costs = parse_methods(methods), numbers(budgets, "budgets")
    matrix = StoredMatrix.load(file)
    check(parts_of(matrix, queries), chosen, costs[0], seed)
    ks = neighbours(k, matrix.scores.shape[1], file)
    judged = judgements_of(matrix, read_qrels(qrels) if qrels is not None else None)
    if judged is None and measures is not None:
        raise InputError(f"--measures needs judgements: give --qrels, or 'qrels' in {file}")
    task = None
    if judged is not None:
        task = TaskMeasures(judged, LABELLED if measures is None else measure_names(measures))
        for sentence in judged.take(range(len(judged))[:queries]).notes():
            err.print(sentence, soft_wrap=True)
    for row in replay(matrix, chosen, costs, ks, seed=seed, queries=queries, task=task):
        print_json(row)


@app.command("collect-matrix")
@o.grouped
def _collect_matrix(
    folder: o.Folder,
    *,
    queries: Annotated[Path, typer.Option(help="Queries to score with every item.")],
    file: Annotated[Path, typer.Option("--out", help="The matrix file to write (.npz).")],
    n_anchors: Annotated[
        int | None,
        typer.Option(help="The first so many queries are anchor queries; by default half."),
    ] = None,
    qrels: Annotated[Path | None, typer.Option(help="Judgements to save in the file.")] = None,
    item_scores: Annotated[
        int,
        typer.Option(min=0, help="Score so many items, as if they were queries, with every item."),
    ] = 0,
    limits: o.LimitOptions,
    scorer: o.ScorerOptions,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Score queries with every item of an index, and write all scores to a matrix file.

    The scores are stored in the index as they are computed: run the same command again to resume.
    """
    from crossknn.data.qrels import read_qrels
    from crossknn.index.item_index import ItemIndex
    from crossknn_lab.collecting import collect_matrix

    check_path("--out", file)
    index = ItemIndex.load(folder)
    with progress("scoring queries", "pairs") as report:
        found = collect_matrix(
            file,
            index,
            scorer.open(workers=o.threads(limits.workers)),
            o.read_queries(queries),
            n_anchors=n_anchors,
            qrels=None if qrels is None else read_qrels(qrels),
            item_scores=item_scores,
            seed=seed,
            limits=limits.limits(),
            progress=report,
        )
    answer({**asdict(found), "complete": found.complete, "matrix": str(file)}, as_json)
    if not found.complete:
        note("not finished: run the same command again to resume")


@app.command("fit")
@o.grouped
def _fit(
    folder: o.Folder,
    method: Annotated[str, typer.Argument(help="mf-trns, mf-ind or cur, also with options.")],
    *,
    queries: Annotated[Path, typer.Option(help="Training queries.")],
    per: Annotated[int, typer.Option(min=1, help="Items to score per query.")] = 100,
    limits: o.LimitOptions,
    scorer: o.ScorerOptions,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fit item vectors in one of the papers' ways; `crossknn fit` has ALS and more options."""
    from crossknn.fitting.fit import fit
    from crossknn.index.item_index import ItemIndex
    from crossknn_lab.fits import fit_method

    chosen, index = fit_method(method), ItemIndex.load(folder)
    given = scorer.open(workers=o.threads(limits.workers))
    how: dict[str, Any] = {"per": per, "limits": limits.limits(), "seed": seed}
    made = fit(index, given, o.read_queries(queries).texts, chosen, progress=progress, **how)
    details = dict(made.vectors.details)
    answer({"name": made.name, "calls": made.collected.calls, "details": details}, as_json)


@app.command("sweep")
def _sweep(
    file: Annotated[Path, typer.Argument(help="What to try (.toml; see the docs, sweeps).")],
    folder: Annotated[Path, typer.Option("--out", help="A folder for the table and the cells.")],
    workers: Workers = None,
    as_json: AsJson = False,
) -> int:
    """Search with many methods, settings, budgets and seeds: one tidy table of recall and calls.

    Run again after an interruption, or with more in the file, and no cell is searched twice. The
    exit code is 1 if some could not be searched; the table says why.
    """
    from crossknn_lab.sweep import failures, run_sweep
    from crossknn_lab.sweep_file import read_sweep

    check_path("--out", folder, folder=True)
    sweep, began = read_sweep(file), time.perf_counter()
    with progress("sweep", "cells") as report:
        done = run_sweep(sweep, folder, workers=_processes(workers), progress=report)
    failed = sum(done.failed.values())
    summary = {
        "table": str(folder / "table.csv"),
        "rows": len(done.table.entries) * len(sweep.k),
        "searched": done.searched,
        "kept": done.kept,
        "failed": failed,
        "older": done.older,
        "seconds": round(time.perf_counter() - began, 2),
    }
    for sentence in (*done.table.notes, *failures(done.failed)):
        note(sentence)
    if done.older:
        note(
            f"{done.older} cells were searched by other source files of crossknn: remove "
            f"{folder / 'cells'} to search them again"
        )
    answer(summary, as_json)
    return int(failed > 0)


@app.command("report")
def _report(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep (--out).")],
    to: Annotated[Path, typer.Option("--out", help="A folder for index.html, page.md, images/.")],
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """A page about a sweep: pictures, tables, paired differences, costs, the task's measures.

    One HTML file that needs nothing beside it, and the same in Markdown. Nothing is searched.
    """
    from crossknn_lab.table import read_table

    check_path("--out", to, folder=True)
    table = read_table(folder)
    from crossknn_lab.curves import write_report
    from crossknn_lab.sweep_report import sweep_page

    with err.status("writing the report"):
        write_report(sweep_page(table, title or f"Sweep: {folder.absolute().name}"), to)
    say(f"{to / 'index.html'}, {to / 'page.md'}")


@app.command("reproduce")
def _reproduce(
    data: Annotated[Path, typer.Option("--data", help="A folder of score matrices (.npz).")],
    folder: Annotated[Path, typer.Option("--out", help="A folder for the report.")],
    preset: Annotated[
        str, typer.Option(help="'small': minutes. 'full': every grid, seed and matrix; hours.")
    ] = "small",
    workers: Workers = None,
) -> int:
    """Every figure and table that can be made of stored scores, in one command: a page about all.

    Writes index.html, page.md with its images, and the tables of all sweeps. Run again after an
    interruption, and nothing is searched twice. The exit code is 1 if some searches failed.
    """
    from crossknn_lab.experiment import preset as named
    from crossknn_lab.reproduce import matrices_of, reproduce
    from crossknn_lab.sweep import failures

    check_path("--out", folder, folder=True)
    began = time.perf_counter()
    with progress("searches", "cells") as report:
        made = reproduce(
            matrices_of(data),
            folder,
            preset=named(preset),
            workers=_processes(workers),
            progress=report,
        )
    spent = made.spent
    for sentence in (*made.notes, *failures(spent.failed)):
        note(sentence)
    say(
        f"{folder / 'index.html'}, {folder / 'page.md'}: {spent.searched} searches now, "
        f"{spent.kept} kept from before, {time.perf_counter() - began:.0f} s"
    )
    return int(bool(spent.failed))


@app.command("public")
def _public(
    data: Annotated[
        str, typer.Option("--set", help="A name in ir_datasets (beir/nfcorpus), or a data folder.")
    ],
    scorer: Annotated[str, typer.Option(help="Cross-encoder: a hub name or a folder.")],
    retriever: Annotated[str, typer.Option(help="Dual encoder: a hub name or a folder.")],
    folder: Annotated[Path, typer.Option("--out", help="A folder for the scores and the page.")],
    budgets: Annotated[str, typer.Option(help="Calls per query.")] = "20,50,100,200",
    measure: Annotated[str, typer.Option(help="The measure, of judged queries.")] = "nDCG@10",
    queries: Annotated[
        int | None, typer.Option(min=1, help="Use the first so many judged queries only.")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Use a GPU, in bfloat16.")] = False,
) -> None:
    """Compare search with reranking on a public data set: one table and one picture.

    Nothing is scored twice: run the same command again after an interruption, or with more budgets.
    """
    from crossknn_lab.public import PublicRun

    check_path("--out", folder, folder=True)
    costs = numbers(budgets, "budgets")
    run = PublicRun(
        data=data, scorer=scorer, retriever=retriever, budgets=costs, measure=measure, gpu=gpu
    )
    show_table(run.table(run.run(folder, queries, progress)))
    note(f"{folder / 'page.md'}, {folder / 'index.html'}, {folder / 'results.json'}")


def _processes(workers: int | None) -> int:
    from crossknn.linalg import available_threads

    return available_threads() if workers is None else workers


@app.command("convert")
def _convert(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint's file, folder or hub name; pickles are not run.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where to write the model folder.")],
    encoder: Annotated[
        str, typer.Option(help="The model that it was trained from: bert-base-uncased.")
    ],
    as_json: AsJson = False,
) -> None:
    """Convert a CHECKPOINT of ANNCUR's ZESHEL models or of CMC to FOLDER."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already and not empty: choose another folder")
    with needs_extra("converting a checkpoint", TRAIN):
        from crossknn_lab.checkpoints import open_checkpoint
        from crossknn_train.models.cross_encoder import CrossEncoderModel
        from crossknn_train.models.late import LateInteractionModel

    model = open_checkpoint(checkpoint, encoder=encoder)
    card = f"Converted by crossknn from {Path(checkpoint).name}; its licence is its own.\n"
    written = model.save_pretrained(folder, card=card)
    head, use = "dual encoder", "--encoder"
    if isinstance(model, CrossEncoderModel):
        head, use = f"[{model.config.head.upper()}] cross-encoder", "--scorer"
    elif isinstance(model, LateInteractionModel):
        head, use = "late-interaction model (cmc)", "crossknn index prepare INDEX --late"
    answer({"model": str(written), "kind": head, "settings": vars(model.config)}, as_json)
    note(f"use it with  {use} {written}")
