"""Small matrices and a small preset for reports."""

from __future__ import annotations

from pathlib import Path

from sweep_helpers import write_matrix

from crossknn_lab.experiment import Experiment, Preset

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
