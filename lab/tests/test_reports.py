"""Reports: every figure of the papers once; experiments that search nothing twice; answers by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sweep_helpers import TINY, experiment, matrices

from crossknn.errors import InputError
from crossknn_lab import experiment as experiment_module
from crossknn_lab.cli import run
from crossknn_lab.experiment import PAPERS, PLANS, Experiment, preset
from crossknn_lab.reproduce import FIGURES, PaperFigure, checklist, reproduce

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]


def of(paper: str, label: str) -> PaperFigure:
    return next(f for f in FIGURES if (f.paper, f.label) == (paper, label))


FEW = [of("AXN", "figure 8"), of("ANNCUR", "table 3b"), of("CMC", "table 1")]


def test_figures_are_made_in_one_way_of_sweeps_that_exist():
    for figure in FIGURES:
        assert sum(map(bool, (figure.kind, figure.elsewhere, figure.why_not))) == 1, figure
        assert bool(figure.here) == bool(figure.kind), figure
    assert {name for figure in FIGURES for name in figure.sweeps} == set(PLANS)
    assert {figure.paper for figure in FIGURES} == set(PAPERS["papers"])


def test_the_checklist_in_the_docs_is_up_to_date():
    page = ROOT / "docs/evidence/papers.md"
    if os.environ.get("CROSSKNN_WRITE_DOCS"):
        page.write_text(checklist(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == checklist(), "set CROSSKNN_WRITE_DOCS=1"


def test_what_does_not_fit_is_left_out_and_said(tmp_path):
    large = replace(TINY, k=(1, 10, 100), budgets=(20, 500), matrices=1)
    made = experiment(tmp_path, large, names=("alpha", "beta"))
    assert (made.k, made.budgets, [d.name for d in made.data]) == ((1, 10), (20,), ["alpha"])
    assert all(any(word in note for note in made.notes) for word in ("k 100", "budget 500", "beta"))
    with pytest.raises(InputError, match="no matrix"):
        Experiment([], tmp_path, TINY)


@pytest.mark.parametrize("name", ["small", "full"])
def test_the_sweeps_of_a_preset_are_valid_on_a_matrix_of_the_real_ones_size(tmp_path, name):
    made = experiment(tmp_path, preset(name), n=1100, anchors=90)
    assert min(len(sweep.settings()) for sweep in made.sweeps("rivals")) > 14
    assert all(made.sweeps(plan) for plan in PLANS if plan not in ("items", "second-encoder"))


def test_what_a_matrix_lacks_is_said_in_the_figures_place_and_noted(tmp_path):
    (path,) = matrices(tmp_path)
    with np.load(path) as file:
        np.savez(path, **{key: file[key] for key in file.files if "vectors" not in key})
    bare = Experiment([path], tmp_path / "bare", TINY)
    (text,) = of("AXN", "figure 1").section(bare).blocks
    assert text.startswith("Left out here: no matrix has both anchor queries and vectors")
    assert any("AXN, figure 1" in note for note in bare.notes)
    assert not of("ANNCUR", "table 3b").section(bare).blocks[0].startswith("Left out here")


def test_killed_and_run_again_it_searches_nothing_twice_and_says_the_same(
    tmp_path, monkeypatch, capsys
):
    paths, whole, killed = matrices(tmp_path), tmp_path / "whole", tmp_path / "killed"
    straight = reproduce(paths, whole, preset=TINY, wanted=FEW)

    def kill(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(paths, killed, preset=TINY, wanted=FEW, progress=kill)
    monkeypatch.setattr(experiment_module, "preset", lambda name: TINY)
    monkeypatch.setitem(reproduce.__kwdefaults__, "wanted", FEW)
    again = ["reproduce", "--data", str(tmp_path), "--out", str(killed), "--workers", "1"]
    for left in (straight.spent.searched - 3, 0):
        assert run(again) == 0
        assert f" {left} searches now" in capsys.readouterr().out
    tables = list(whole.rglob("*.csv"))
    assert tables
    for path in tables:
        assert path.read_bytes() == (killed / path.relative_to(whole)).read_bytes()
    page = (whole / "index.html").read_text(encoding="utf-8")
    for said in ("alpha", "seeds 0", "python", "Left out, and why", "late-interaction.md", "<svg"):
        assert said in page


@pytest.mark.slow
def test_every_figure_is_made_of_small_matrices(tmp_path):
    paths = matrices(tmp_path, n=420, anchors=40)
    made = reproduce(paths, tmp_path / "out", preset=replace(TINY, budgets=(20, 60)))
    assert not made.spent.failed
    left_out = [note for note in made.notes if "left out" in note]
    assert len(left_out) == 2  # no scores of items with items, no second dual encoder
    assert "nan" not in (tmp_path / "out" / "page.md").read_text(encoding="utf-8").lower()
