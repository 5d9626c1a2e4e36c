"""The registry: every figure and table of the papers once, and what became of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from study_helpers import TINY, study

from crossknn.errors import InputError
from crossknn_lab.report.exhibits import EXHIBITS, PAPERS, SWEEPS, Exhibit, checklist
from crossknn_lab.report.exhibits.base import CENTRED
from crossknn_lab.report.numbers import points
from crossknn_lab.report.page import Figure
from crossknn_lab.report.study import Study
from crossknn_lab.table import compared

ROOT = Path(__file__).parents[2]


def figures(*numbers) -> list[str]:
    return [f"figure {n}" for n in numbers]


def tables(*numbers) -> list[str]:
    return [f"table {n}" for n in numbers]


IN_THE_PAPERS = {
    "ANNCUR": figures("1a", "1b", 2, "3a", "3b", 4, 5, 6, 7, 8, "9a", "9b", *range(10, 25))
    + tables(1, 2, "3a", "3b"),
    "ADACUR": figures(1, 2, 3, 4, "5a", "5b", "5c", *range(6, 21)) + tables(1),
    "AXN": figures(*range(1, 17)) + tables(1, 2, 3),
    "CMC": figures(1, 2, 3, 4) + tables(*range(1, 14)),
}


@pytest.mark.parametrize("paper", IN_THE_PAPERS)
def test_every_figure_and_table_of_a_paper_is_there_once(paper):
    covered = [label for e in EXHIBITS if e.paper == paper for label in e.covers]
    assert Counter(covered) == Counter(IN_THE_PAPERS[paper])


def test_what_the_issue_wants_made_is_made():
    made = {(e.paper, label) for e in EXHIBITS if e.build for label in e.covers}
    wanted = {
        "ANNCUR": figures("1b", "3a", "3b", *range(4, 9), "9a", "9b") + tables(2, "3b"),
        "ADACUR": figures(1, 2, 3, 4, "5a", "5b", "5c", *range(6, 21)),
        "AXN": figures(1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 16),
    }
    assert {(p, label) for p, labels in wanted.items() for label in labels} <= made


def test_exhibits_name_sweeps_that_exist_and_every_sweep_serves_one():
    used = {name for e in EXHIBITS for name in e.sweeps}
    assert used == set(SWEEPS)
    assert {e.paper for e in EXHIBITS} == set(PAPERS)


def test_files_that_exhibits_point_to_exist():
    told = " ".join(e.elsewhere + e.here + e.why_not for e in EXHIBITS)
    named = set(re.findall(r"(?:docs|lab/benchmarks)/[\w-]+\.\w+", told))
    assert "docs/results.md" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_checklist_in_the_docs_is_up_to_date():
    there = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert there == checklist(), "run  python lab/benchmarks/make_docs.py"


def test_rows_of_the_checklist_have_three_cells():
    rows = [line for line in checklist().splitlines() if line.startswith("|")]
    assert len(rows) > 60
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {5}


def test_an_exhibit_is_made_in_one_way_only():
    with pytest.raises(ValueError, match="give"):
        Exhibit(paper="AXN", label="figure 1", title="t")
    with pytest.raises(ValueError, match="give"):
        Exhibit(paper="AXN", label="figure 1", title="t", why_not="no.", elsewhere="there.")
    with pytest.raises(ValueError, match="give"):
        Exhibit(paper="AXN", label="figure 1", title="t", build=lambda study: [])


def test_what_a_matrix_lacks_is_said_in_the_exhibits_place_and_noted(tmp_path):
    def build(study):
        raise InputError("no matrix has wings")

    made = study(tmp_path)
    exhibit = Exhibit(paper="AXN", label="figure 1", title="wings", here="Here.", build=build)
    section = exhibit.section(made)
    assert section.blocks == ["Left out here: no matrix has wings."]
    assert any("AXN, figure 1" in note and "wings" in note for note in made.notes)


def of(paper: str, label: str) -> Exhibit:
    return next(e for e in EXHIBITS if (e.paper, e.label) == (paper, label))


def test_the_statistics_are_those_of_the_file(tmp_path):
    section = of("ANNCUR", "table 1").section(study(tmp_path))
    row = dict(zip(section.blocks[1].head, section.blocks[1].rows[0], strict=True))
    assert row["items"] == "90"
    assert (row["anchor queries"], row["test queries"]) == (18, 4)
    assert row["with a label"] == 2  # of rows 18 to 21, each third has none


def test_a_matrix_without_vectors_leaves_out_what_needs_them_and_nothing_else(tmp_path):
    pytest.importorskip("matplotlib")
    made = study(tmp_path)
    path = made.data[0].file.path
    with np.load(path) as file:
        kept = {key: file[key] for key in file.files if "vectors" not in key}
    np.savez(path, **kept)
    bare = Study([path], tmp_path / "bare", TINY, SWEEPS)
    assert of("AXN", "figure 1").section(bare).blocks[0].startswith("Left out here")
    assert not of("ANNCUR", "table 3b").section(bare).blocks[0].startswith("Left out here")


def test_questions_compare_the_methods_they_name(tmp_path):
    made = study(tmp_path)
    section = of("Ours", "question 1").section(made)
    table = section.blocks[-1]
    said = {(row[0], row[1]) for row in table.rows}
    assert ("ADACUR_de over ANNCUR_de", 20) in said
    assert ("ANNCUR_bm25 over RNR_bm25", 8) in said
    group = made.table("questions").group
    options = {"data": "alpha", "budget": 20, "anchors": 18}
    ours = group("adacur(retriever=dense, rounds=5, rcond=0.03)", **options)
    theirs = group("anncur(anchors=0.5, retriever=dense, rcond=0.03)", **options)
    row = next(r for r in table.rows if (r[0], r[1]) == ("ADACUR_de over ANNCUR_de", 20))
    said = row[list(table.head).index("k = 1")]
    assert said == points(compared(ours, theirs, 1))
    counted = section.blocks[1]
    assert counted.head == ["clearly better / worse", "alpha"]
    assert counted.caption == "Over calls 8, 20 and k 1."
    assert counted.rows[0][0] == "ADACUR_de over ANNCUR_de"
    assert re.fullmatch(r"\d / \d of 2", counted.rows[0][1])  # two budgets, one k


def pictures(section) -> list[str]:
    return [block.image for block in section.blocks if isinstance(block, Figure)]


def test_the_tasks_measures_are_drawn_against_the_calls_paid_for_the_index(tmp_path):
    pytest.importorskip("matplotlib")
    section = of("AXN", "figure 3").section(study(tmp_path))
    (picture,) = pictures(section)
    for said in ("accuracy", "cross-encoder calls for the index", "exact search", "adacur"):
        assert f">{said}<" in picture
    table = section.blocks[-1]
    assert list(table.head[-3:]) == ["accuracy", "nDCG@10", "R@100"]
    paid = {row[0]: [r[3] for r in table.rows if r[0] == row[0]] for row in table.rows}
    assert paid["adacur"] == ["540", "1,620"]  # 6 and 18 train queries, 90 items
    assert paid["exact"] == ["0"]
    assert len(paid["axn of fitted vectors"]) > 1


def test_ways_to_find_the_querys_vector_are_compared_by_the_task_too_if_there_are_labels(tmp_path):
    pytest.importorskip("matplotlib")
    ways = of("AXN", "figure 7")
    recall, task = pictures(ways.section(study(tmp_path)))
    assert ">accuracy<" in task
    assert ">accuracy<" not in recall
    bare = study(tmp_path, names=("bare",), labelled=False)
    assert len(pictures(ways.section(bare))) == 1


def test_each_paper_with_cur_says_once_that_it_is_centred_here():
    said = Counter(e.paper for e in EXHIBITS if CENTRED in e.here)
    assert said == {"ANNCUR": 1, "ADACUR": 1, "AXN": 1}
    assert "Rules" in CENTRED
    assert "## Rules" in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
