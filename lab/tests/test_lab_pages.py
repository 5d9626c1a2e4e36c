"""The pages about the lab: their Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sweep_helpers import write_matrix
from typer.testing import CliRunner

from crossknn_lab.cli import app
from crossknn_lab.reproduce import FIGURES, reproduce

DOCS = Path(__file__).parents[2] / "docs"
FOUND = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / "how-to" / page).read_text(encoding="utf-8")
    return [block for kind, block in FOUND.findall(text) if kind == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The matrices and the sweep that the pages name, and what the sweep found."""
    pytest.importorskip("matplotlib")
    where = tmp_path_factory.mktemp("pages")
    (where / "matrices").mkdir()
    write_matrix(where / "matrices/small.npz", n=110, anchors=30, tests=8)
    for name in ("scifact", "wordnet-act"):
        write_matrix(where / f"{name}.npz", n=210, anchors=12, tests=4)
    [sweep] = [block for block in blocks("sweeps.md", "toml") if block.startswith("matrices")]
    assert "seeds = [0, 1, 2]" in sweep  # one is enough here
    quick = sweep.replace("seeds = [0, 1, 2]", "seeds = [0]")
    (where / "sweep.toml").write_text(quick, encoding="utf-8")
    run = ["sweep", str(where / "sweep.toml"), "--out", str(where / "results"), "--workers", "1"]
    assert CliRunner().invoke(app, run).exit_code == 0
    return where


@pytest.mark.parametrize("page", ["sweeps.md", "reports.md", "reproduce.md"])
def test_the_python_of_a_page_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    few = [figure for figure in FIGURES if figure.sweeps == ("methods",)]
    monkeypatch.setitem(reproduce.__kwdefaults__, "wanted", few)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    if page == "reproduce.md":
        assert (folder / "report/index.html").exists()
        assert names["run"].table("methods").entries
