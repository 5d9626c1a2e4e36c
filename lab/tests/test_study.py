"""Studies: nothing is searched or computed twice, and what does not fit is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from study_helpers import TINY, matrices, study

from crossknn.errors import InputError
from crossknn_lab.report.estimate import hours
from crossknn_lab.report.exhibits import SWEEPS
from crossknn_lab.report.presets import PRESETS, preset
from crossknn_lab.report.study import TABLES, Study
from crossknn_lab.table import read_table


def test_a_second_study_of_the_same_folder_searches_nothing(tmp_path):
    first, names = study(tmp_path), ["blend", "query-vectors"]
    first.run(names)
    again = Study([d.file.path for d in first.data], first.folder, TINY, SWEEPS)
    again.run(names)
    assert first.spent.searched > 0
    assert (again.spent.searched, again.spent.kept) == (0, first.spent.searched + first.spent.kept)
    assert [e.labels() for e in again.table("blend").entries] == [
        e.labels() for e in first.table("blend").entries
    ]


def test_a_sweep_shares_the_searches_of_another(tmp_path):
    made = study(tmp_path)
    made.run(["query-vectors"])
    before = made.spent.searched
    made.run(["questions"])
    assert made.spent.searched - before < len(made.table("questions").entries)


def test_progress_counts_all_sweeps_together(tmp_path):
    seen = []
    made = study(tmp_path)
    made.run(["blend", "splits"], lambda done, total: seen.append((done, total)))
    totals = {total for _, total in seen}
    assert len(totals) == 1
    assert seen[-1][0] == totals.pop()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_tables_can_be_read_as_sweeps(tmp_path):
    made = study(tmp_path)
    made.run(["blend"])
    table = read_table(made.folder / TABLES / "blend")
    assert len(table.entries) == len(made.table("blend").entries)
    assert table.entries[0].found is not None


def test_computed_once_for_the_same_options_and_again_for_others_or_if_damaged(tmp_path):
    made, calls = study(tmp_path), []

    def of():
        calls.append(1)
        return {"x": [1.5, None]}

    data = made.data[0]
    assert made.once("thing", data, of, k=1) == {"x": [1.5, None]}
    made.once("thing", data, of, k=1)
    assert len(calls) == 1
    made.once("thing", data, of, k=2)
    assert len(calls) == 2
    kept = next((made.folder / "analyses").glob("thing-alpha-*"))
    kept.write_text("{half", encoding="utf-8")
    made.once("thing", data, of, k=1)
    made.once("thing", data, of, k=2)
    assert len(calls) == 3


def test_another_content_of_the_file_is_another_matrix(tmp_path):
    made = study(tmp_path)
    assert made.once("thing", made.data[0], lambda: 1) == 1
    matrices(tmp_path, noise=0.9)
    other = Study([made.data[0].file.path], made.folder, TINY, SWEEPS)
    assert other.once("thing", other.data[0], lambda: 2) == 2


def test_k_and_budgets_without_room_are_left_out_and_said(tmp_path):
    made = study(tmp_path, replace(TINY, k=(1, 10, 100), budgets=(20, 500)))
    assert (made.k, made.budgets) == ((1, 10), (20,))
    assert any("k 100" in note for note in made.notes)
    assert any("budget 500" in note for note in made.notes)
    with pytest.raises(InputError, match="too few for any k"):
        study(tmp_path, replace(TINY, k=(50, 100)))


def test_matrices_beyond_the_presets_number_are_left_out_and_said(tmp_path):
    made = study(tmp_path, replace(TINY, matrices=1), names=("alpha", "beta"))
    assert [data.name for data in made.data] == ["alpha"]
    assert any("beta" in note for note in made.notes)


def test_matrices_with_as_many_anchors_are_in_one_sweep_and_others_apart(tmp_path):
    together = study(tmp_path, names=("alpha", "beta"))
    assert [len(sweep.matrices) for sweep in together.sweeps("methods")] == [2]
    matrices(tmp_path, ("beta",), anchors=30)
    apart = Study([d.file.path for d in together.data], tmp_path / "w", TINY, SWEEPS)
    assert [len(sweep.matrices) for sweep in apart.sweeps("methods")] == [1, 1]
    assert [len(sweep.matrices) for sweep in apart.sweeps("blend")] == [2]


def test_a_matrix_with_aligned_vectors_is_searched_as_it_is_stored(tmp_path):
    (path,) = matrices(tmp_path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, item_vectors_mf=arrays["item_vectors"], **arrays)
    made = Study([path], tmp_path / "w", replace(TINY, seeds=(0, 1)), SWEEPS)
    assert not made.sweeps("rivals")
    assert [sweep.redraw for sweep in made.sweeps("blend")] == [False]
    assert made.sweeps("methods")[0].anchors == (18,)
    made.run(["methods", "blend"])
    assert not made.spent.failed


def test_several_seeds_draw_the_queries(tmp_path):
    made = study(tmp_path, replace(TINY, seeds=(0, 1)))
    assert all(sweep.redraw for sweep in made.sweeps("blend"))
    drawn = {tuple(e.found.queries) for e in made.table("blend").entries}
    assert len(drawn) == 2


@pytest.mark.parametrize("name", PRESETS)
def test_the_sweeps_of_a_preset_are_valid_on_a_matrix_of_the_real_ones_size(tmp_path, name):
    paths = matrices(tmp_path, n=1100, anchors=90, tests=4)
    made = Study(paths, tmp_path / "w", preset(name), SWEEPS)
    made.sweeps("rivals")
    sizes = {len(sweep.settings()) for sweep in made.sweeps("rivals")}
    assert min(sizes) > 14
    assert made.k == preset(name).k


def test_the_estimate_counts_what_is_left(tmp_path):
    made = study(tmp_path)
    names = ["blend", "query-vectors"]
    assert hours(made, names) > 0
    made.run(names)
    assert hours(made, names) == 0


def test_unknown_presets_are_said():
    with pytest.raises(InputError, match="did you mean small"):
        preset("smal")


def test_an_empty_study_is_said(tmp_path):
    with pytest.raises(InputError, match="no matrix"):
        Study([], tmp_path, TINY, SWEEPS)
