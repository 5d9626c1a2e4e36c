"""Files that sweeps and reports read: matrices with labels, TOML, a small preset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from synthetic import matrix

from crossknn_lab.experiment import Experiment, Preset


def write_matrix(path: Path, *, labelled: bool = True, **options) -> Path:
    """A synthetic matrix; the label of every third query is missing."""
    made = matrix(**options)
    labels = {"labels": np.where(np.arange(len(made.scores)) % 3, made.scores.argmax(1), -1)}
    np.savez(
        path,
        scores=made.scores,
        n_anchors=made.n_anchors,
        item_vectors=made.dense_items,
        query_vectors=made.dense_queries,
        first_bm25=made.firsts["bm25"],
        anchor_items=made.anchor_items,
        query_ids=np.array(made.query_ids),
        **(labels if labelled else {}),
    )
    return path


def write_sweep(path: Path, *, grid: dict | None = None, **keys) -> Path:
    """A sweep's file; JSON's lists, numbers and texts are TOML's, too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    if grid is not None:
        lines += ["[grid]", *(f"{key} = {json.dumps(value)}" for key, value in grid.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a finished sweep, cells left out."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


TINY = Preset(
    name="tiny",
    budgets=(8, 20),
    k=(1, 5),
    rounds=(1, 2),
    seeds=(0,),
    queries=3,
    shares=(0.3, 0.6),
    blends=(0.0, 0.5),
    settings=False,
    sizes=2,
    draws=1,
)


def matrices(folder: Path, names: tuple[str, ...] = ("alpha",), **options) -> list[Path]:
    """Labelled matrices of 90 items and 18 anchors, each by its own seed."""
    size = {"n": 90, "anchors": 18, "tests": 4} | options
    return [
        write_matrix(folder / f"{name}.npz", seed=seed, **size) for seed, name in enumerate(names)
    ]


def experiment(folder: Path, preset: Preset = TINY, **options) -> Experiment:
    """An experiment on one matrix, found in `folder`."""
    return Experiment(matrices(folder, **options), folder / "work", preset)
