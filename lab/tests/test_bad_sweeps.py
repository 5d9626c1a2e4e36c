"""Wrong and doubtful input of `sweep`, `report` and `reproduce`: refused, or said and counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sweep_helpers import write_matrix, write_sweep

from crossknn_lab import cli as app

GOOD = {"matrices": ["large.npz"], "methods": ["rerank(retriever=dense)"], "budgets": [5], "k": [1]}
BOTH = {"matrices": ["small.npz", "large.npz"]}
BLENDS = {"methods": ["axn(retriever=dense, blend={blend})"]}
TWO = BLENDS | {"grid": {"blend": [0.0, 0.5]}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with good and bad matrices, and folders that hold no sweep."""
    where = tmp_path_factory.mktemp("sweeps")
    for folder in ("folder", "no-matrices", "broken", "foreign"):
        (where / folder).mkdir()
    write_matrix(where / "large.npz")
    write_matrix(where / "folder" / "large.npz")
    write_matrix(where / "small.npz", n=40, anchors=9)
    write_matrix(where / "none.npz", anchors=0)
    arrays = dict(np.load(where / "large.npz"))
    np.savez(where / "fitted.npz", **arrays, item_vectors_x=arrays["item_vectors"])
    (where / "damaged.npz").write_bytes(b"not a zip")
    (where / "broken" / "large.npz").write_bytes(b"not a zip")
    (where / "foreign" / "sweep.json").write_text("[1, 2]")
    (where / "toml.toml").write_text("matrices = [")
    (where / "nothing.toml").write_text('methods = ["exact"]')
    write_sweep(where / "good.toml", **GOOD | {"measures": []})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        yield where


def sweep(name: str, out: str = "out", workers: str = "1") -> list[str]:
    return ["sweep", f"{name}.toml", "--out", out, "--workers", workers]


def reproduce(data: str, *more: str) -> list[str]:
    return ["reproduce", "--data", data, "--out", "out", "--workers", "1", *more]


REFUSED = [
    (sweep("no"), "no.toml cannot be read: No such file"),
    (sweep("toml"), "toml.toml is not TOML: "),
    (sweep("nothing"), "nothing.toml: matrices is missing: give matrices = [...]"),
    ({"budgts": [5]}, "unknown key 'budgts': did you mean budgets?"),
    ({"budgets": "5"}, "budgets is '5'; it must be a list, [...]"),
    ({"budgets": [50, 0]}, "budgets has 0; it must be a whole number from 1"),
    ({"redraw": "yes"}, "redraw is 'yes'; it must be true or false"),
    ({"methods": ["axn(round=5)"]}, "no option 'round': did you mean rounds"),
    (BLENDS, "add blend = [...] to [grid]"),
    ({"grid": {"blend": [0.5]}}, "grid.blend is used by no method"),
    (TWO | {"grid": {"blend": [0.5], "anchors": [1]}}, "have a column 'anchors' already"),
    ({"baseline": "rerank(retriever=bm25)"}, "is none of the methods that are tested: did you"),
    ({"matrices": ["damaged.npz"]}, "damaged.npz"),
    ({"matrices": ["large.npz", "folder/large.npz"]}, "two matrices have one name"),
    (BOTH | {"k": [1, 60]}, "k is 60, but small has 40 items"),
    ({"anchors": [30]}, "nothing is left of large: it has 20 anchor queries"),
    (TWO | {"matrices": ["none.npz"], "choose": True}, "none has 0 anchor queries: choose holds"),
    ({"matrices": ["fitted.npz"], "redraw": True}, "(x) were fitted to all its anchor queries"),
    (sweep("good", out="large.npz"), "large.npz"),
    (["report", "folder", "--out", "out"], "folder holds no finished sweep, it lacks sweep.json"),
    (["report", "foreign", "--out", "out"], "foreign holds a damaged sweep"),
    (reproduce("no-matrices"), "no-matrices holds no .npz file"),
    (reproduce("folder", "--preset", "smal"), "did you mean small"),
    (reproduce("folder"), "too few for any"),
]
SAID = [
    (BOTH | {"anchors": [5, 20]}, "small has 9 anchor queries: anchors = 20 left", 0),
    ({"methods": ["itemcur", "exact"]}, "itemcur needs item x item scores", 1),
    ({"methods": ["rerank(retriever=bm52)"]}, "bm52", 1),
]


def arguments(given, out: str = "out") -> list[str]:
    """A command as it is, or a sweep of a file with these keys."""
    if isinstance(given, list):
        return given
    write_sweep(Path("tried.toml"), **GOOD | given)
    return sweep("tried", out)


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_one_sentence_and_nothing_begun(place, capsys, given, words):
    command = arguments(given)
    before = sorted(path.name for path in place.rglob("*"))
    assert app.run(command) == 2
    said = capsys.readouterr()
    (sentence,) = said.err.splitlines()
    assert sentence.startswith("crossknn: ")
    assert words in sentence
    assert said.out == ""
    assert sorted(path.name for path in place.rglob("*")) == before


@pytest.mark.parametrize(("given", "words", "code"), SAID, ids=[words for _, words, _ in SAID])
def test_what_a_sweep_goes_on_with_is_said(place, capsys, given, words, code):
    assert app.run(arguments(given | {"measures": []}, "said")) == code
    said = capsys.readouterr()
    assert words in said.err
    assert "table: said/table.csv" in said.out
