"""Sweeps: the same table whatever was killed, however many processes, and no cell twice."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_helpers import contents, write_matrix, write_sweep
from synthetic import aligned_matrix
from synthetic import matrix as synthetic_matrix

from crossknn.errors import InputError
from crossknn.evaluation.task import TaskMeasures
from crossknn.files import exclusive_lock
from crossknn.methods import parse_methods
from crossknn_lab import cells as cell_module
from crossknn_lab.cells import divided
from crossknn_lab.replay import judgements_of, replay
from crossknn_lab.stored import StoredMatrix
from crossknn_lab.sweep import run_sweep
from crossknn_lab.sweep_file import Sweep, read_sweep
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
    given = {"matrices": ["small.npz", "large.npz"], "methods": METHODS, "budgets": [10, 20]}
    given |= {"k": [1, 5], "seeds": [0, 1], "grid": {"rounds": [2, 4]}}
    return write_sweep(where / name, **(given | keys))


def run(file: Path, out: str = "out", **options):
    return run_sweep(read_sweep(file), file.parent / out, **options)


def cells(folder: Path) -> dict[str, int]:
    """The cells of a sweep, and which file each is: another one after it was written again."""
    return {path.name: path.stat().st_ino for path in (folder / "cells").glob("*.json")}


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_are_those_of_a_replay(folder):
    specs = ["axn(retriever=random, rounds=2)", "adacur(retriever=dense)"]
    done = run(a_sweep(folder, methods=specs, grid={}))
    found = rows_of(folder / "out")
    assert len(found) == done.searched * 2 == 2 * 2 * 2 * 2 * 2
    for row in found:
        matrix = StoredMatrix.load(folder / f"{row['data']}.npz")
        judged = judgements_of(matrix)
        options = {"seed": int(row["seed"]), "task": judged and TaskMeasures(judged, ["accuracy"])}
        budgets, ks = [int(row["budget"])], [int(row["k"])]
        (same,) = replay(matrix, parse_methods(row["spec"]), budgets, ks, **options)
        same["ci_low"], same["ci_high"] = same["ci"]
        for name in ("recall", "ci_low", "ci_high", "calls", "index_calls", "n_queries"):
            assert float(row[name]) == same[name]
        assert row["accuracy"] == (str(same["measures"]["accuracy"]) if judged else "")
        assert int(row["accuracy_n"]) == (same["measures_n"]["accuracy"] if judged else 0)
        assert int(row["accuracy_n"]) < same["n_queries"]


def test_a_method_without_calls_has_one_budget_and_settings_have_columns(folder):
    run(folder / "s.toml", "one")
    axn = [f"axn(retriever=random, rounds={rounds})" for rounds in (2, 4)]
    searched = [(spec, b) for spec in ("rerank(retriever=dense)", *axn) for b in ("10", "20")]
    searched.append(("retrieve(retriever=dense)", "0"))
    rows = rows_of(folder / "one")
    small = [(r["spec"], r["budget"], r["seed"]) for r in rows if r["data"] == "small"]
    assert small[::2] == [(*pair, seed) for pair in searched for seed in "01"]
    assert (rows[0]["rounds"], rows[0]["chosen"], rows[0]["anchors"]) == ("", "false", "9")
    assert (rows[16]["spec"], rows[16]["rounds"]) == (axn[1], "4")
    run(folder / "s.toml", "two", workers=2)  # several processes: the same bytes
    assert contents(folder / "one") == contents(folder / "two")


def test_what_a_method_lacks_is_in_the_table_and_the_rest_goes_on(folder):
    done = run(a_sweep(folder, methods=["itemcur", *METHODS]))
    (small, large) = done.failed
    assert small.startswith("small, itemcur: itemcur needs item x item scores, and there are none")
    assert (done.searched, done.failed[small], done.failed[large]) == (36, 4, 4)
    rows = rows_of(folder / "out")
    assert [row["method"] for row in rows if row["error"]] == ["itemcur"] * 16
    lacking = {(row["recall"], row["n_queries"]) for row in rows if row["error"]}
    assert (lacking, len(rows)) == ({("", "0")}, 72)


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


def test_what_is_there_is_kept_and_what_is_damaged_searched_again(folder, monkeypatch, caplog):
    out, first = folder / "out", run(folder / "s.toml")
    before = contents(out), cells(out)
    again = run(folder / "s.toml")
    assert (first.searched, first.kept, first.older) == (28, 0, 0)
    assert (again.searched, again.kept) == (0, 28)
    assert (contents(out), cells(out)) == before
    with monkeypatch.context() as context:
        context.setattr("crossknn_lab.sweep.code", lambda: "of other source files")
        assert run(folder / "s.toml").older == 28
    paths = sorted((out / "cells").iterdir())
    paths[0].write_bytes(paths[0].read_bytes()[:-40])
    paths[1].write_text("[]")
    whole = json.loads(paths[2].read_text())
    paths[2].write_text(json.dumps(whole | {"queries": whole["queries"][1:]}))
    with pytest.raises(InputError, match="holds a damaged sweep"):
        read_table(out)
    with exclusive_lock(out), pytest.raises(InputError, match="another process is adding cells"):
        run(folder / "s.toml")
    assert run(folder / "s.toml").searched == 3
    assert caplog.text.count("is damaged") == 3
    assert contents(out)["table.csv"] == before[0]["table.csv"]
    paths[0].unlink()
    with pytest.raises(InputError, match=r"it lacks [0-9a-f]+\.json"):
        read_table(out)
    written = json.loads((out / "sweep.json").read_text())
    (out / "sweep.json").write_text(json.dumps(written | {"format": 99}))
    with pytest.raises(InputError, match="in the format 99, and this one reads 1: run the sweep"):
        read_table(out)


def test_settings_are_chosen_on_dev_queries_for_each_budget(folder):
    grid = {"rounds": [2, 4], "blend": [0.0, 1.0]}
    template = "axn(retriever=bm25, rounds={rounds}, blend={blend})"
    a_sweep(folder, methods=[METHODS[0], template], choose=True, grid=grid, measures=[])
    table = run(folder / "s.toml").table
    assert (len(table.entries), len(table.dev)) == (2 * 2 * 2 * 2, 2 * 4 * 2 * 2)
    assert "small: settings are chosen on 3 of its anchor queries" in table.notes
    for entry in table.entries:
        assert entry.chosen == (entry.method == template)
        rivals = {
            dev.spec: np.mean([v.mean() for v in dev.result.outcome.recall.values()])
            for dev in table.dev
            if (dev.data, dev.budget, dev.seed) == (entry.data, entry.budget, entry.seed)
        }
        if entry.chosen:
            assert entry.spec == max(rivals, key=rivals.get)  # of equals the first
    assert all(dev.anchors == (6 if dev.data == "small" else 8) for dev in table.dev)
    assert (folder / "out" / "dev.csv").read_text().count("\n") == 1 + 32 * 2
    # The test queries have no say.
    arrays = dict(np.load(folder / "small.npz"))
    arrays["scores"][9:] *= -1
    np.savez(folder / "small.npz", **arrays)
    again = run(folder / "s.toml").table.entries
    assert [entry.spec for entry in again] == [entry.spec for entry in table.entries]


def runs(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, process: subprocess.Popen | None = None) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "nothing happened in a minute"
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the processes")
@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGINT, 130, ""),
        (None, 1, "a process that searched was killed"),  # a worker dies
    ],
)
def test_ended_halfway_and_started_again_no_cell_is_searched_twice(folder, sent, code, words):
    keys = {"seeds": list(range(10)), "measures": [], "methods": METHODS[:2]}
    a_sweep(folder, "many.toml", grid={"rounds": [2, 3, 4, 5]}, **keys)
    total = 2 * 5 * 2 * 10
    command = [sys.executable, "-m", "crossknn_lab", "sweep", "many.toml", "--out", "out"]
    given = {"cwd": folder, "env": {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, "--workers", "2"], **given, **pipes)
    until(lambda: len(cells(folder / "out")) >= 30, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    workers = [*map(int, children.split())]
    os.kill(process.pid if sent else workers[-1], sent or signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert words in said
    assert "Traceback" not in said
    until(lambda: not any(map(runs, workers)))  # no worker lives on after who started it
    before = cells(folder / "out")
    assert 30 <= len(before) < total
    assert not (folder / "out" / "table.csv").exists()
    done = run(folder / "many.toml", workers=2)
    assert (done.kept, done.searched) == (len(before), total - len(before))
    assert before.items() <= cells(folder / "out").items()


def test_placeholders_take_every_combination_of_the_values_they_name():
    methods = "axn(rounds={rounds}, retriever={stage})", "rerank(retriever={stage})", "exact"
    stages = "dense", "hybrid(bm25, dense)"
    grid = {"rounds": (2, 5), "stage": stages}
    found = Sweep(matrices=(Path("m.npz"),), methods=methods, grid=grid).settings()
    axn = [f"axn(rounds={rounds}, retriever={stage})" for rounds in (2, 5) for stage in stages]
    rerank = [f"rerank(retriever={stage})" for stage in stages]
    assert [setting.spec for setting in found] == [*axn, *rerank, "exact"]
    assert found[1].values == {"rounds": 2, "stage": "hybrid(bm25, dense)"}
    assert (found[1].template, found[1].method.rounds) == (methods[0], 2)
    assert found[-1].values == {}


# Anchors, tests and dev queries of a matrix

QRELS = np.array([[q, item, q % 3] for q in range(14) for item in (q, q + 1, -1)])
DATA = replace(synthetic_matrix(anchors=9, tests=5), qrels=QRELS)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.none(), st.integers(0, 99)), st.integers(1, 9), st.booleans())
def test_every_query_keeps_its_scores_and_is_an_anchor_or_a_test(seed, anchors, dev):
    made, rows = divided(DATA, anchors=anchors, seed=seed, dev=dev)
    assert len(set(rows.tolist())) == len(rows)
    assert made.n_anchors == min(anchors, 6 if dev else 9)
    assert made.n_tests == (3 if dev else 5)
    assert (made.scores == DATA.scores[rows]).all()
    assert (made.dense_queries == DATA.dense_queries[rows]).all()
    assert (made.firsts["bm25"] == DATA.firsts["bm25"][rows]).all()
    assert made.query_ids == tuple(DATA.query_ids[row] for row in rows)
    assert (made.anchor_items is None) == (seed is not None)
    judged = np.column_stack([rows[made.qrels[:, 0]], made.qrels[:, 1:]])
    assert judged.tolist() == QRELS[np.isin(QRELS[:, 0], rows)].tolist()
    # Tests are the same whatever the anchors are, and never among dev queries and their anchors.
    whole, all_rows = divided(DATA, seed=seed, dev=dev)
    assert (rows[made.n_anchors :] == all_rows[whole.n_anchors :]).all()
    assert not dev or not {*divided(DATA, seed=seed)[1][9:]} & {*all_rows}


def test_what_is_not_divided_is_passed_on_as_it_is():
    assert divided(DATA)[0] is divided(DATA, anchors=9)[0] is DATA
    assert divided(fitted := aligned_matrix(anchors=9))[0] is fitted
