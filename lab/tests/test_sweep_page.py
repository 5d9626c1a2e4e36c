"""The page of a sweep says what its table says: means, differences, choices, failures."""

from __future__ import annotations

import pytest
from sweep_helpers import write_matrix, write_sweep

from crossknn_lab.cli import run
from crossknn_lab.page import Page
from crossknn_lab.page import Table as TableOf
from crossknn_lab.sweep import run_sweep
from crossknn_lab.sweep_file import read_sweep
from crossknn_lab.sweep_report import in_full, percent, sweep_page
from crossknn_lab.table import compared, read_table

AXN = "axn(retriever=random, rounds={rounds})"
RERANK, ADACUR = "rerank(retriever=dense)", "adacur(retriever=dense)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("sweeps")
    write_matrix(where / "small.npz", n=40, anchors=9, tests=5)
    write_matrix(where / "large.npz", n=60, anchors=5, tests=7, labelled=False, seed=1)
    keys = {
        "matrices": ["small.npz", "large.npz"],
        "methods": [RERANK, ADACUR, "exact", "retrieve(retriever=dense)", "itemcur", AXN],
    }
    keys |= {"budgets": [10, 20], "k": [1, 5], "seeds": [0, 1], "anchors": [4, 9]}
    keys |= {"choose": True, "baseline": RERANK, "grid": {"rounds": [2, 4]}}
    run_sweep(read_sweep(write_sweep(where / "s.toml", **keys)), where / "out")
    return where


@pytest.fixture(scope="module")
def table(folder):
    return read_table(folder / "out")


@pytest.fixture(scope="module")
def page(table):
    return sweep_page(table, "A sweep")


def tables(page: Page, *titles: str) -> list[TableOf]:
    """The tables of a section, found by the titles that lead to it."""
    sections, blocks = page.sections, []
    for title in titles:
        (here,) = [section for section in sections if section.title == title]
        sections, blocks = here.sections, here.blocks
    return [block for block in blocks if isinstance(block, TableOf)]


def test_recall_is_that_of_the_table(page, table):
    one, five = tables(page, "Recall against cost", "small, 9 anchor queries")
    assert (one.folded, five.folded) == (True, False)
    assert five.head == ["method", "10 calls", "20 calls"]
    asked = {in_full(entry.method): entry.method for entry in table.entries}
    for row in five.rows:
        name = asked[row[0].strip("`")]  # tables print every setting
        for budget, cell in zip((10, 20), row[1:], strict=True):
            at = 0 if name.startswith("retrieve") else budget
            found = table.group(name, data="small", budget=at, anchors=9).mean(5)
            assert cell == percent(found)
    assert f"`{in_full('itemcur')}`" not in [row[0] for row in five.rows]
    assert all(five.rows[n][0] != "`exact`" for n, _ in five.best)


def test_differences_are_paired_with_the_baseline_at_the_same_calls(page, table):
    *_, found = tables(page, "Against the baseline")
    assert found.caption.startswith("large: ")
    assert {row[0] for row in found.rows} == {f"`{AXN}`", f"`{ADACUR}`"}
    at = {"data": "large", "budget": 20, "anchors": 4}
    expected = compared(table.group(ADACUR, **at), table.group(RERANK, **at), 5)
    (row,) = [row for row in found.rows if row[:3] == [f"`{ADACUR}`", 20, 5]]
    assert row[3].strip("*").startswith(f"{100 * expected.difference:+.1f} [")
    assert row[3].startswith("**") == bool(expected.sign)
    assert row[5] == expected.n


def test_failures_and_costs_are_there_with_their_numbers(page):
    (failed,) = tables(page, "What could not be searched")
    found = {(row[0], row[1]): row[3] for row in failed.rows}
    assert found == {("small", "`itemcur`"): 8, ("large", "`itemcur`"): 4}
    cost, *_ = tables(page, "Cost")
    spent = {row[0]: row[1:] for row in cost.rows}
    assert (spent[f"`{ADACUR}`"][0], spent[f"`{RERANK}`"][0]) == (4 * 40, 0)
    assert [cell.partition(",")[0] for cell in spent["`exact`"][1:]] == ["40 calls"] * 2


def test_the_command_writes_both(folder):
    out = folder / "page"
    assert run(["report", str(folder / "out"), "--out", str(out), "--title", "Mine"]) == 0
    assert "<h1>Mine</h1>" in (out / "index.html").read_text(encoding="utf-8")
    assert (out / "page.md").read_text(encoding="utf-8").startswith("# Mine\n")
