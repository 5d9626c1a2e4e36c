"""The file of a sweep: what it stands for, and what is wrong with it in a sentence."""

from __future__ import annotations

from pathlib import Path

from sweep_helpers import write_sweep

from crossknn_lab.sweep_file import Sweep, read_sweep

GOOD = {"matrices": ["m.npz"], "methods": ["rerank(retriever=dense)"]}


def test_placeholders_take_every_combination_of_the_values_they_name():
    methods = "axn(rounds={rounds}, retriever={stage})", "rerank(retriever={stage})", "exact"
    grid = {"rounds": (2, 5), "stage": ("dense", "hybrid(bm25, dense)")}
    found = Sweep(matrices=(Path("m.npz"),), methods=methods, grid=grid).settings()
    assert [setting.spec for setting in found] == [
        "axn(rounds=2, retriever=dense)",
        "axn(rounds=2, retriever=hybrid(bm25, dense))",
        "axn(rounds=5, retriever=dense)",
        "axn(rounds=5, retriever=hybrid(bm25, dense))",
        "rerank(retriever=dense)",
        "rerank(retriever=hybrid(bm25, dense))",
        "exact",
    ]
    assert found[1].values == {"rounds": 2, "stage": "hybrid(bm25, dense)"}
    assert (found[1].template, found[1].method.rounds) == (methods[0], 2)
    assert found[-1].values == {}


def test_a_file_has_defaults_and_its_matrices_lie_beside_it(tmp_path):
    (tmp_path / "folder").mkdir()
    found = read_sweep(write_sweep(tmp_path / "folder" / "s.toml", **GOOD))
    assert found.matrices == (tmp_path / "folder" / "m.npz",)
    assert (found.budgets, found.k, found.seeds) == ((50, 100, 200, 500), (1, 10, 100), (0,))
    assert (found.anchors, found.queries, found.redraw, found.choose) == ((), None, False, False)
