"""`crossknn-lab analyze`: what a score matrix is like."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.text import Text

from crossknn.cli.options import AsJson, Seed, check_out, check_plots, numbers
from crossknn.cli.output import err, out, print_json, say
from crossknn.errors import InputError
from crossknn.types import FloatArray

if TYPE_CHECKING:
    from crossknn_lab.score_matrix import CurCell, MatrixSummary

NAME = "analyze"

SIZES = (25, 50, 100, 200, 500, 1000, 2000)
RETRIEVED = 500
HEADS = ("queries", "items", "mean", "std", "skew", "rank", "eff. rank", "90%", "99%")


def command(
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
    json: AsJson = False,
) -> None:
    """Rank and distribution of stored scores, and how well ANNCUR approximates them.

    Prints a table and writes recall.png, error.png, histogram.png, singular-values.png and
    analysis.json to the folder.
    """
    from crossknn_lab.score_matrix import cur_grid, summarize

    matrices = _read([file] if other is None else [file, other], names)
    smallest = [min(shape) for shape in zip(*(m.shape for m in matrices.values()), strict=True)]
    k_qs = numbers(k_q, "k-q") if k_q else [s for s in SIZES if s <= 0.75 * smallest[0]] or [1]
    k_is = numbers(k_i, "k-i") if k_i else [s for s in SIZES if s <= 0.5 * smallest[1]] or [1]
    depth = min(RETRIEVED, max(k, smallest[1] // 10)) if retrieved is None else retrieved
    check_plots("analyze")
    check_out(folder)
    summaries, grids = {}, {}
    with err.status("analyzing"):
        for name, scores in matrices.items():
            grids[name] = cur_grid(
                scores,
                sorted(set(k_qs)),
                sorted(set(k_is)),
                k=k,
                retrieved=depth,
                center=not raw,
                oracle=oracle,
                draws=draws,
                seed=seed,
            )
            summaries[name] = summarize(scores)
        folder.mkdir(exist_ok=True)
        _draw(folder, summaries, grids, k=k, depth=depth, raw=raw, oracle=oracle, draws=draws)
    options = {
        "k": k,
        "retrieved": depth,
        "draws": draws,
        "raw": raw,
        "oracle": oracle,
        "seed": seed,
    }
    made = {
        name: {**_figures(summary), "grid": [asdict(cell) for cell in grids[name]]}
        for name, summary in summaries.items()
    }
    text = json_format.dumps({"options": options, "matrices": made}, ensure_ascii=False, indent=1)
    (folder / "analysis.json").write_text(text + "\n", encoding="utf-8")
    if json:
        few = ("singular_values", "density", "grid")
        for name, found in made.items():
            print_json({"matrix": name, **{key: v for key, v in found.items() if key not in few}})
        return
    _show(summaries)
    say(f"figures: {folder}")


def _read(files: Sequence[Path], names: str | None) -> dict[str, FloatArray]:
    from crossknn.index.stored import StoredMatrix

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


def _draw(
    folder: Path,
    summaries: Mapping[str, MatrixSummary],
    grids: Mapping[str, Sequence[CurCell]],
    *,
    k: int,
    depth: int,
    raw: bool,
    oracle: bool,
    draws: int,
) -> None:
    from crossknn_lab.plots import heat_map, score_histogram, singular_values

    who = "oracle CUR" if oracle else "ANNCUR"
    means = f", means over {draws} draws" if draws > 1 else ""
    note = f"Anchors at random{means}; tested on the other queries."
    heat_map(
        grids,
        folder / "recall.png",
        what="recall",
        title=f"{who}: top-{k} recall in {depth} retrieved items (%)",
        note=note,
    )
    to = "|scores|" if raw else "|scores less their mean|"
    heat_map(
        grids,
        folder / "error.png",
        what="error",
        title=f"{who}: approximation error, relative to {to}",
        note=note,
    )
    score_histogram(
        {name: found.density for name, found in summaries.items()},
        folder / "histogram.png",
        title="Scores of a query with all items",
    )
    singular_values(
        {name: found.singular_values for name, found in summaries.items()},
        folder / "singular-values.png",
        title="Singular values, each query's mean score subtracted",
    )


def _figures(found: MatrixSummary) -> dict[str, Any]:
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in asdict(found).items()
        if key != "density"
    } | {
        "skewness": found.density.skewness,
        "density": {
            "edges": found.density.edges.tolist(),
            "density": found.density.density.tolist(),
            "unit": found.density.unit,
        },
    }


def _show(summaries: Mapping[str, MatrixSummary]) -> None:
    width = max(len(name) for name in summaries)
    rows = [("", HEADS)]
    for name, s in summaries.items():
        figures = (
            f"{s.n_queries}",
            f"{s.n_items}",
            f"{s.mean:.2f}",
            f"{s.std:.2f}",
            f"{s.density.skewness:.1f}",
            f"{s.rank}",
            f"{s.effective_rank:.0f}",
            f"{s.components[90]}",
            f"{s.components[99]}",
        )
        rows.append((name, figures))
    for name, cells in rows:
        line = name.ljust(width) + "".join(cell.rjust(11) for cell in cells)
        out.print(Text(line, "dim" if cells is HEADS else ""), soft_wrap=True)
    said = "rank: NumPy's, in float32; eff. rank and components of 90% and 99% of the squared norm:"
    out.print(Text(f"{said} each query's mean subtracted", "dim"), soft_wrap=True)
