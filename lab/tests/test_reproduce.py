"""Everything in one command: on small matrices, killed and run again, and wrong input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commands import run
from study_helpers import TINY, matrices

from crossknn.errors import InputError
from crossknn_lab.report.exhibits import EXHIBITS
from crossknn_lab.report.presets import PRESETS
from crossknn_lab.report.reproduce import matrices_of, reproduce

pytest.importorskip("matplotlib")

FEW = [
    exhibit
    for exhibit in EXHIBITS
    if (exhibit.paper, exhibit.label)
    in {("AXN", "figure 8"), ("ANNCUR", "table 3b"), ("ANNCUR", "figure 1a"), ("CMC", "table 1")}
]


def tables(folder: Path) -> dict[str, bytes]:
    """The tables of all sweeps, but for what was measured."""
    found = (folder / "work" / "tables").glob("*/*.csv")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in found
        if path.name != "seconds.csv"
    }


def test_a_report_says_what_it_is_made_of_and_what_was_left_out(tmp_path):
    paths = matrices(tmp_path)
    made = reproduce(paths, tmp_path / "out", preset=TINY, exhibits=FEW)
    page = made.html.read_text(encoding="utf-8")
    text = made.markdown.read_text(encoding="utf-8")
    for said in ("alpha", "seeds 0", "python", "Left out, and why", "a drawing of models"):
        assert said in page
        assert said in text
    assert "<svg" in page
    assert "docs/results.md" in text


def test_killed_and_run_again_it_searches_nothing_twice_and_says_the_same(tmp_path):
    paths, whole, killed = matrices(tmp_path), tmp_path / "whole", tmp_path / "killed"
    straight = reproduce(paths, whole, preset=TINY, exhibits=FEW)

    def kill(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(paths, killed, preset=TINY, exhibits=FEW, progress=kill)
    again = reproduce(paths, killed, preset=TINY, exhibits=FEW)
    assert again.study.spent.kept == 3
    assert again.study.spent.searched + 3 == straight.study.spent.searched
    assert tables(killed) == tables(whole)
    assert tables(whole)


def test_the_estimate_comes_before_the_searches(tmp_path):
    order: list[str] = []
    reproduce(
        matrices(tmp_path),
        tmp_path / "out",
        preset=TINY,
        exhibits=FEW,
        progress=lambda done, total: order.append("search"),
        said=order.append,
    )
    assert "of searches with 1 processes" in order[0]
    assert order[1] == "search"


@pytest.mark.slow
def test_every_exhibit_is_made_of_small_matrices(tmp_path):
    paths = matrices(tmp_path, n=420, anchors=40)
    made = reproduce(paths, tmp_path / "out", preset=replace(TINY, budgets=(20, 60)))
    assert not made.study.spent.failed
    left_out = [note for note in made.study.notes if "left out" in note]
    assert len(left_out) == 2  # no scores of items with items, no second dual encoder
    page = made.markdown.read_text(encoding="utf-8")
    assert "nan" not in page.lower().replace("annan", "")


def test_the_command_writes_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PRESETS, "small", TINY)
    monkeypatch.setattr("crossknn_lab.report.reproduce.EXHIBITS", FEW)
    matrices(tmp_path)
    command = ["reproduce", "--data", str(tmp_path), "--out", str(tmp_path / "r"), "--workers", "1"]
    assert run(command) == 0
    assert (tmp_path / "r" / "index.html").exists()
    assert (tmp_path / "r" / "page.md").exists()
    shown = capsys.readouterr()
    assert "searches now" in shown.out
    assert "minutes" in shown.err
    assert run(command) == 0
    assert " 0 searches now" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "nowhere", "--out", "{}/r"], "there is no folder nowhere"),
        (["--data", "{}", "--out", "{}/r"], "holds no .npz file"),
        (["--data", "{}", "--out", "{}/a/b"], "there is no folder"),
        (["--data", "{}", "--out", "{}/file"], "is a file"),
        (["--data", "{}/m", "--out", "{}/r", "--preset", "ful"], "did you mean full"),
        (["--data", "{}/m", "--out", "{}/r", "--workers", "0"], "workers is 0"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, capsys, arguments, said):
    (tmp_path / "file").write_text("x")
    (tmp_path / "m").mkdir()
    matrices(tmp_path / "m", n=220)
    code = run(["reproduce", *(a.format(tmp_path) for a in arguments)])
    assert code == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "r" / "index.html").exists()


def test_a_file_is_a_matrix_too(tmp_path):
    (path,) = matrices(tmp_path)
    assert matrices_of(path) == [path]
    assert matrices_of(tmp_path) == [path]
    with pytest.raises(InputError, match="there is no folder"):
        matrices_of(tmp_path / "none")
