"""The command line `crossknn-lab`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from crossknn.cli.app import run as run_app
from crossknn.cli.options import (
    AsJson,
    Neighbours,
    Seed,
    check_out,
    check_plots,
    neighbours,
    numbers,
)
from crossknn.cli.output import err, note, out, print_json, progress, say
from crossknn.errors import InputError
from crossknn.index.stored import StoredMatrix
from crossknn.types import FloatArray

SIZES = (25, 50, 100, 200, 500, 1000, 2000)
HEADS = ("queries", "items", "mean", "std", "skew", "rank", "eff. rank", "90%", "99%")

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
    """Sweeps, reports, the papers' figures and analyses on stored score matrices."""


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
    from crossknn.methods import methods as parse_methods

    chosen, costs = parse_methods(methods), numbers(budgets, "budgets")
    matrix = StoredMatrix.load(file)
    check(parts_of(matrix, queries), chosen, costs[0], seed)
    ks = neighbours(k, matrix.scores.shape[1], file)
    judged = Judgements.of_matrix(matrix, read_qrels(qrels) if qrels is not None else None)
    if judged is None and measures is not None:
        raise InputError(f"--measures needs judgements: give --qrels, or 'labels' in {file}")
    task = None
    if judged is not None:
        task = TaskMeasures(judged, LABELLED if measures is None else measure_names(measures))
        for sentence in judged.take(0, queries or len(judged)).notes():
            err.print(sentence, soft_wrap=True)
    for row in replay(matrix, chosen, costs, ks, seed=seed, queries=queries, task=task):
        print_json(row.as_dict())


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
    from crossknn_lab.sweep import run_sweep
    from crossknn_lab.sweep_file import read_sweep

    check_out(folder)
    sweep, began = read_sweep(file), time.perf_counter()
    with progress("sweep", "cells") as report:
        done = run_sweep(sweep, folder, workers=_processes(workers), progress=report)
    failed = sum(done.failed.values())
    summary = {
        "table": str(folder / "table.csv"),
        "rows": len(done.table.entries) * len(sweep.k),
        "cells": done.cells,
        "searched": done.searched,
        "kept": done.kept,
        "failed": failed,
        "older": done.older,
        "notes": list(done.table.notes),
        "seconds": round(time.perf_counter() - began, 2),
    }
    if as_json:
        print_json(summary | {"errors": dict(done.failed)})
        return int(failed > 0)
    for sentence in done.table.notes:
        note(sentence)
    _note_failures(done.failed)
    if done.older:
        note(
            f"{done.older} cells were searched by other source files of crossknn: remove "
            f"{folder / 'cells'} to search them again"
        )
    say(
        f"{summary['table']}: {summary['rows']} rows; {done.searched} searched now, {done.kept} "
        f"kept from before, {failed} failed, {summary['seconds']} s"
    )
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

    check_out(to)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}: give one that  crossknn-lab sweep  has written"
        )
    table = read_table(folder)
    check_plots("report")
    from crossknn_lab.page import write_page
    from crossknn_lab.sweep_report import sweep_page

    with err.status("writing the report"):
        write_page(sweep_page(table, title or f"Sweep: {folder.absolute().name}"), to)
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

    check_out(folder)
    with progress("searches", "cells") as report:
        made = reproduce(
            matrices_of(data),
            folder,
            preset=named(preset),
            workers=_processes(workers),
            progress=report,
            tell=note,
        )
    spent = made.experiment.spent
    for sentence in made.experiment.notes:
        note(sentence)
    _note_failures(spent.failed)
    say(
        f"{made.html}, {made.markdown}: {spent.searched} searches now, {spent.kept} kept from "
        f"before, {made.seconds:.0f} s"
    )
    return int(bool(spent.failed))


def _note_failures(failed: Mapping[str, int]) -> None:
    for sentence, count in failed.items():
        note(f"failed: {sentence}" + (f" ({count} searches)" if count > 1 else ""))


def _processes(workers: int | None) -> int:
    from crossknn_lab.sweep_report import cores

    return cores() if workers is None else workers


@app.command("analyze")
def _analyze(
    file: Annotated[Path, typer.Argument(help="A score matrix (.npz; see the docs).")],
    folder: Annotated[Path, typer.Option("--out", help="Where to write the figures.")],
    other: Annotated[
        Path | None, typer.Argument(help="Another one to put beside it, of another head say.")
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="What to call them, e.g. '[CLS]-CE, [EMB]-CE'.")
    ] = None,
    k_q: Annotated[
        str | None, typer.Option("--k-q", help="Numbers of anchor queries, e.g. '50,100,200'.")
    ] = None,
    k_i: Annotated[
        str | None, typer.Option("--k-i", help="Numbers of anchor items, e.g. '50,100,200'.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Neighbours to find.")] = 10,
    retrieved: Annotated[
        int | None,
        typer.Option(help="Items retrieved; 500, or a tenth of the items if that is less."),
    ] = None,
    draws: Annotated[int, typer.Option(help="Random choices of anchors to average over.")] = 3,
    raw: Annotated[
        bool, typer.Option("--raw", help="Approximate the scores as they are, as the paper does.")
    ] = False,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="CUR with U from the whole matrix (ANNCUR B.2).")
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Rank and distribution of stored scores, and how well ANNCUR approximates them.

    Prints a table and writes recall.png, error.png, histogram.png, singular-values.png and
    analysis.json to the folder.
    """
    from crossknn_lab.analysis import cur_grid, summarize

    matrices = _named_scores([file] if other is None else [file, other], names)
    smallest = [min(shape) for shape in zip(*(m.shape for m in matrices.values()), strict=True)]
    k_qs = numbers(k_q, "k-q") if k_q else [s for s in SIZES if s <= 0.75 * smallest[0]] or [1]
    k_is = numbers(k_i, "k-i") if k_i else [s for s in SIZES if s <= 0.5 * smallest[1]] or [1]
    depth = min(500, max(k, smallest[1] // 10)) if retrieved is None else retrieved
    check_plots("analyze")
    check_out(folder)
    options: dict[str, Any] = {
        "k": k,
        "retrieved": depth,
        "draws": draws,
        "oracle": oracle,
        "seed": seed,
    }
    sizes = sorted(set(k_qs)), sorted(set(k_is))
    with err.status("analyzing"):
        grids = {n: cur_grid(m, *sizes, center=not raw, **options) for n, m in matrices.items()}
        found = {name: summarize(scores) for name, scores in matrices.items()}
        folder.mkdir(exist_ok=True)
        _draw_analysis(folder, found, grids, options | {"raw": raw})
    made = {
        name: {
            **{key: value for key, value in asdict(summary).items() if key != "density"},
            "skewness": summary.density.skewness,
            "density": {n: getattr(summary.density, n) for n in ("edges", "density", "unit")},
            "grid": [asdict(cell) for cell in grids[name]],
        }
        for name, summary in found.items()
    }
    text = json.dumps(
        {"options": options | {"raw": raw}, "matrices": made},
        ensure_ascii=False,
        indent=1,
        default=np.ndarray.tolist,
    )
    (folder / "analysis.json").write_text(text + "\n", encoding="utf-8")
    if as_json:
        few = ("singular_values", "density", "grid")
        for name, values in made.items():
            print_json({"matrix": name, **{key: v for key, v in values.items() if key not in few}})
        return
    _show_analysis(found)
    say(f"figures: {folder}")


def _named_scores(files: Sequence[Path], names: str | None) -> dict[str, FloatArray]:
    called = [n.strip() for n in names.split(",")] if names else [file.stem for file in files]
    if len(called) != len(files) or not all(called):
        raise InputError(f"--names {names!r}: give {len(files)}, separated by commas")
    if len(set(called)) < len(called):
        if names:
            raise InputError(f"--names {names!r}: the names must differ")
        called = [str(file) for file in files]
    if len(set(called)) < len(called):
        raise InputError(f"{files[0]} is given twice")
    return {name: StoredMatrix.load(file).scores for name, file in zip(called, files, strict=True)}


def _draw_analysis(
    folder: Path, found: Mapping[str, Any], grids: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    from crossknn_lab.plots import heat_map, score_histogram, singular_values

    who = "oracle CUR" if options["oracle"] else "ANNCUR"
    means = f", means over {options['draws']} draws" if options["draws"] > 1 else ""
    note = f"Anchors at random{means}; tested on the other queries."
    to = "|scores|" if options["raw"] else "|scores less their mean|"
    title = f"{who}: top-{options['k']} recall in {options['retrieved']} retrieved items (%)"
    heat_map(grids, folder / "recall.png", what="recall", title=title, note=note)
    title = f"{who}: approximation error, relative to {to}"
    heat_map(grids, folder / "error.png", what="error", title=title, note=note)
    densities = {name: summary.density for name, summary in found.items()}
    title = "Scores of a query with all items"
    score_histogram(densities, folder / "histogram.png", title=title)
    spectra = {name: summary.singular_values for name, summary in found.items()}
    title = "Singular values, each query's mean score subtracted"
    singular_values(spectra, folder / "singular-values.png", title=title)


def _show_analysis(found: Mapping[str, Any]) -> None:
    width = max(len(name) for name in found)
    rows: list[tuple[str, Sequence[str]]] = [("", HEADS)]
    for name, s in found.items():
        figures = (f"{s.mean:.2f}", f"{s.std:.2f}", f"{s.density.skewness:.1f}", f"{s.rank}")
        spectrum = (f"{s.effective_rank:.0f}", f"{s.components[90]}", f"{s.components[99]}")
        rows.append((name, (f"{s.n_queries}", f"{s.n_items}", *figures, *spectrum)))
    for name, cells in rows:
        line = name.ljust(width) + "".join(cell.rjust(11) for cell in cells)
        out.print(Text(line, "dim" if cells is HEADS else ""), soft_wrap=True)
    text = "rank: NumPy's, in float32; eff. rank and components of 90% and 99% of the squared norm:"
    out.print(Text(f"{text} each query's mean subtracted", "dim"), soft_wrap=True)


UNVERIFIED = "msmarco-emb is unverified: compare its scores with some of its authors' own"


@app.command("convert")
def _convert(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint's file, folder or hub name; pickles are not run.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where to write the model folder.")],
    layout: Annotated[
        str | None,
        typer.Option(
            help="zeshel-emb, zeshel-cls, zeshel-dual or cmc, by default told from the keys, or "
            "msmarco-emb, which must be said, and is unverified."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Whose tokenizer a pickled checkpoint goes with: bert-base-uncased."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a CHECKPOINT of ANNCUR's ZESHEL models, CMC or the MS MARCO [EMB]-CE to FOLDER."""
    from crossknn.scorers.opening import needs_torch

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already and not empty: choose another folder")
    with needs_torch("converting a checkpoint"):
        from crossknn.models.cross_encoder import CrossEncoderModel
        from crossknn.models.late.model import LateInteractionModel
        from crossknn_lab.checkpoints import open_checkpoint

    given: Any = layout  # any text: what is not a layout is refused there
    model = open_checkpoint(checkpoint, layout=given, encoder=encoder)
    card = f"Converted by crossknn from {Path(checkpoint).name}; its licence is its own.\n"
    if layout == "msmarco-emb":
        note(UNVERIFIED)
        card += f"The layout {UNVERIFIED}.\n"
    written = model.save_pretrained(folder, card=card)
    head, use = "dual encoder", "--encoder"
    if isinstance(model, CrossEncoderModel):
        head, use = f"[{model.config.head.upper()}] cross-encoder", "--scorer"
    elif isinstance(model, LateInteractionModel):
        head, use = "late-interaction model (cmc)", "crossknn index add INDEX --late"
    if as_json:
        print_json({"model": str(written), "kind": head, "settings": vars(model.config)})
        return
    out.print(f"{written}: a {head}; use it with  {use} {written}", soft_wrap=True, markup=False)
