"""Small matrices and a small preset for reports."""

from __future__ import annotations

from pathlib import Path

from sweep_helpers import write_matrix

from crossknn_lab.report.exhibits import SWEEPS
from crossknn_lab.report.presets import Preset
from crossknn_lab.report.study import Study

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


def study(folder: Path, preset: Preset = TINY, **options) -> Study:
    """A study of one matrix, found in `folder`."""
    paths = matrices(folder, **options)
    return Study(paths, folder / "work", preset, SWEEPS)
