"""Sweeps: the same table whatever was killed, however many processes, and no cell twice."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sweep_helpers import contents, write_matrix, write_sweep

from crossknn.errors import InputError
from crossknn.evaluation.replay import replay
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.files import exclusive_lock as alone
from crossknn.index.stored import StoredMatrix
from crossknn.methods import methods
from crossknn_lab import cells as cell_module
from crossknn_lab.cells import divided
from crossknn_lab.sweep import run_sweep
from crossknn_lab.sweep_file import read_sweep
from crossknn_lab.table import read_table

METHODS = [
    "rerank(retriever=dense)",
    "axn(retriever=random, rounds={rounds})",
    "retrieve(retriever=dense)",
]


@pytest.fixture
def folder(tmp_path):
    """A folder with two matrices of different sizes and a sweep of both."""
    write_matrix(tmp_path / "small.npz", n=40, anchors=9, tests=5)
    write_matrix(tmp_path / "large.npz", n=60, anchors=12, tests=7, labelled=False, seed=1)
    a_sweep(tmp_path)
    return tmp_path


def a_sweep(where: Path, name: str = "s.toml", **keys) -> Path:
    given = {
        "matrices": ["small.npz", "large.npz"],
        "methods": METHODS,
        "budgets": [10, 20],
        "k": [1, 5],
        "seeds": [0, 1],
        "grid": {"rounds": [2, 4]},
    }
    return write_sweep(where / name, **(given | keys))


def run(file: Path, out: str = "out", **options):
    return run_sweep(read_sweep(file), file.parent / out, **options)


def cells(folder: Path) -> dict[str, int]:
    """The cells of a sweep, and which file each is: another one after it was written again."""
    return {path.name: path.stat().st_ino for path in (folder / "cells").glob("*.json")}


def rows_of(folder: Path, name: str = "table.csv") -> list[dict[str, str]]:
    with (folder / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_are_those_of_a_replay(folder):
    specs = ["axn(retriever=random, rounds=2)", "adacur(retriever=dense)"]
    done = run(a_sweep(folder, methods=specs, grid={}))
    found = rows_of(folder / "out")
    assert len(found) == done.cells * 2 == 2 * 2 * 2 * 2 * 2
    for row in found:
        matrix = StoredMatrix.load(folder / f"{row['data']}.npz")
        judged = Judgements.of_matrix(matrix)
        options = {"seed": int(row["seed"]), "task": judged and TaskMeasures(judged, ["accuracy"])}
        budgets, ks = [int(row["budget"])], [int(row["k"])]
        (same,) = replay(matrix, methods(row["spec"]), budgets, ks, **options)
        names = ("recall", "ci_low", "ci_high", "calls", "index_calls", "n_queries")
        expected = (same.recall, *same.ci, same.calls, same.index_calls, same.n_queries)
        assert tuple(float(row[name]) for name in names) == expected
        assert row["accuracy"] == (str(same.measures["accuracy"]) if judged else "")
        assert int(row["accuracy_n"]) == (same.measures_n["accuracy"] if judged else 0)
        assert int(row["accuracy_n"]) < same.n_queries


def test_a_method_without_calls_has_one_budget_and_settings_have_columns(folder):
    done = run(folder / "s.toml")
    axn = [f"axn(retriever=random, rounds={rounds})" for rounds in (2, 4)]
    searched = [(spec, b) for spec in ("rerank(retriever=dense)", *axn) for b in (10, 20)]
    searched.append(("retrieve(retriever=dense)", 0))
    small = [(e.spec, e.budget, e.seed) for e in done.table.entries if e.data == "small"]
    assert small == [(*pair, seed) for pair in searched for seed in (0, 1)]
    rows = rows_of(folder / "out")
    assert (rows[0]["rounds"], rows[0]["chosen"], rows[0]["anchors"]) == ("", "false", "9")
    assert (rows[16]["spec"], rows[16]["rounds"]) == (axn[1], "4")


def test_what_is_there_is_not_searched_again_and_the_files_stay_the_same(folder, monkeypatch):
    first = run(folder / "s.toml")
    before = contents(folder / "out"), cells(folder / "out")
    again = run(folder / "s.toml")
    assert (first.searched, first.kept, first.older) == (28, 0, 0)
    assert (again.searched, again.kept) == (0, 28)
    assert (contents(folder / "out"), cells(folder / "out")) == before
    monkeypatch.setattr("crossknn_lab.sweep.code", lambda: "of other source files")
    assert run(folder / "s.toml").older == 28


def test_several_processes_give_the_same_bytes_as_one(folder):
    run(folder / "s.toml", "one")
    run(folder / "s.toml", "two", workers=2)
    one, two = contents(folder / "one"), contents(folder / "two")
    assert one == two
    assert one.keys() >= {"table.csv", "means.csv", "sweep.json"}


def test_what_a_method_lacks_is_in_the_table_and_the_rest_goes_on(folder):
    done = run(a_sweep(folder, methods=["itemcur", *METHODS]))
    assert (done.cells, done.kept) == (36, 0)
    (small, large) = done.failed
    assert small.startswith("small, itemcur: itemcur needs item x item scores, and there are none")
    assert (done.failed[small], done.failed[large]) == (4, 4)
    rows = rows_of(folder / "out")
    lacking = [row for row in rows if row["error"]]
    assert [row["method"] for row in lacking] == ["itemcur"] * 16
    assert all((row["recall"], row["n_queries"]) == ("", "0") for row in lacking)
    assert len(rows) == 72
    table = read_table(folder / "out")
    assert [e.error for e in table.entries] == [e.error for e in done.table.entries]


def test_an_error_nobody_thought_of_is_one_cell_and_is_tried_again(folder, monkeypatch):
    def broken(name, *rest, budget, **options):
        if budget == 20 and "rerank" in name:
            raise ZeroDivisionError("by nothing")
        return outcome(name, *rest, budget=budget, **options)

    outcome = cell_module.outcome
    monkeypatch.setattr(cell_module, "outcome", broken)
    done = run(folder / "s.toml")
    assert sum(done.failed.values()) == 4
    assert "ZeroDivisionError: by nothing (test_sweep.py, line" in next(iter(done.failed))
    monkeypatch.setattr(cell_module, "outcome", outcome)
    done = run(folder / "s.toml")
    assert (done.searched, done.kept, done.failed) == (4, 24, {})


def test_a_damaged_cell_is_searched_again(folder, caplog):
    run(folder / "s.toml")
    before = contents(folder / "out")
    paths = sorted((folder / "out" / "cells").iterdir())
    paths[0].write_bytes(paths[0].read_bytes()[:-40])
    paths[1].write_text("[]")
    whole = json.loads(paths[2].read_text())
    paths[2].write_text(json.dumps(whole | {"queries": whole["queries"][1:]}))
    with pytest.raises(InputError, match="holds a damaged sweep"):
        read_table(folder / "out")
    assert run(folder / "s.toml").searched == 3
    assert caplog.text.count("is damaged") == 3
    assert contents(folder / "out")["table.csv"] == before["table.csv"]


def test_redrawn_seeds_search_different_queries(folder):
    done = run(a_sweep(folder, redraw=True, seeds=[0, 1, 2]))
    group = done.table.group("rerank(retriever=dense)", data="large", budget=20)
    drawn = [tuple(entry.result.queries) for entry in group.entries]
    assert len(set(drawn)) == 3
    matrix = StoredMatrix.load(folder / "large.npz")
    for seed, (rows, entry) in enumerate(zip(drawn, group.entries, strict=True)):
        made, order = divided(matrix, seed=seed)
        assert rows == tuple(order[made.n_anchors :])
        (same,) = replay(made, methods("rerank(retriever=dense)"), [20], [5], seed=seed)
        assert entry.result.rows[1].recall == same.recall


def test_settings_are_chosen_on_dev_queries_for_each_budget(folder):
    grid = {"rounds": [2, 4], "blend": [0.0, 1.0]}
    keys = {"choose": True, "grid": grid, "measures": []}
    template = "axn(retriever=bm25, rounds={rounds}, blend={blend})"
    done = run(a_sweep(folder, methods=["rerank(retriever=dense)", template], **keys))
    assert len(done.table.entries) == 2 * 2 * 2 * 2
    assert len(done.table.dev) == 2 * 4 * 2 * 2
    assert "small: settings are chosen on 3 of its anchor queries" in done.table.notes
    for entry in done.table.entries:
        assert entry.chosen == (entry.method == template)
        rivals = {
            dev.spec: np.mean([v.mean() for v in dev.result.outcome.recall.values()])
            for dev in done.table.dev
            if (dev.data, dev.budget, dev.seed) == (entry.data, entry.budget, entry.seed)
        }
        if entry.chosen:
            assert entry.spec == max(rivals, key=rivals.get)  # of equals the first
    assert all(dev.anchors == (6 if dev.data == "small" else 8) for dev in done.table.dev)
    assert (folder / "out" / "dev.csv").read_text().count("\n") == 1 + 32 * 2


def test_test_queries_have_no_say_in_what_is_chosen(folder):
    keys = {"matrices": ["small.npz"], "grid": {"blend": [0.0, 0.3, 1.0]}, "choose": True}
    keys["methods"] = ["axn(retriever=bm25, rounds=2, blend={blend})"]
    before = [entry.spec for entry in run(a_sweep(folder, **keys)).table.entries]
    arrays = dict(np.load(folder / "small.npz"))
    arrays["scores"][9:] = np.random.default_rng(0).normal(size=(5, 40))
    np.savez(folder / "small.npz", **arrays)
    assert [entry.spec for entry in run(a_sweep(folder, **keys)).table.entries] == before


def test_two_sweeps_in_one_folder_at_a_time_are_refused(folder):
    (folder / "out").mkdir()
    with alone(folder / "out"), pytest.raises(InputError, match="another process is adding cells"):
        run(folder / "s.toml")


def test_a_sweep_of_another_format_or_without_a_cell(folder):
    run(folder / "s.toml")
    path = folder / "out" / "sweep.json"
    written = path.read_text()
    path.write_text(json.dumps(json.loads(written) | {"format": 99}))
    with pytest.raises(InputError, match="in the format 99, and this one reads 1: run the sweep"):
        read_table(folder / "out")
    path.write_text(written)
    next((folder / "out" / "cells").iterdir()).unlink()
    with pytest.raises(InputError, match=r"it lacks [0-9a-f]+\.json"):
        read_table(folder / "out")


def children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in found.split()]


def runs(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begun(folder: Path, out: str, count: int) -> subprocess.Popen:
    """A sweep by two processes of its own that has searched `count` cells at least."""
    command = [sys.executable, "-m", "crossknn_lab", "sweep", "many.toml", "--out", out]
    process = subprocess.Popen(
        [*command, "--workers", "2"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )
    deadline = time.monotonic() + 60
    while len(list((folder / out / "cells").glob("*.json"))) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "no cell was searched in a minute"
        time.sleep(0.002)
    return process


@pytest.fixture
def many(folder):
    """Some hundred small cells."""
    grid = {"rounds": [2, 3, 4, 5]}
    keys = {"seeds": list(range(10)), "measures": [], "methods": METHODS[:2], "grid": grid}
    a_sweep(folder, "many.toml", **keys)
    return folder


TOTAL = 2 * 5 * 2 * 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the processes")
def test_killed_halfway_and_started_again_no_cell_is_searched_twice(many):
    process = begun(many, "out", 30)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while any(map(runs, workers)):
        assert time.monotonic() < deadline, "workers live on after who started them"
        time.sleep(0.02)
    before = cells(many / "out")
    assert 30 <= len(before) < TOTAL
    assert not (many / "out" / "table.csv").exists()
    done = run(many / "many.toml", workers=2)
    assert (done.kept, done.searched) == (len(before), TOTAL - len(before))
    after = cells(many / "out")
    assert len(after) == TOTAL
    assert before.items() <= after.items()
    run(many / "many.toml", "whole")
    assert contents(many / "out") == contents(many / "whole")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the processes")
@pytest.mark.parametrize("what", ["interrupt", "a worker dies"])
def test_what_was_searched_is_kept_whole_and_said_without_a_traceback(many, what):
    process = begun(many, "out", 10)
    if what == "interrupt":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(children(process.pid)[-1], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if what == "interrupt" else 1), said
    assert ("a process that searched was killed" in said) == (what != "interrupt")
    assert "Traceback" not in said
    assert 10 <= len(cells(many / "out")) < TOTAL
    assert not list((many / "out" / "cells").glob("*.part"))
