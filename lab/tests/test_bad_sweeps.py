"""Wrong and doubtful input of `sweep`, `report` and `reproduce`: refused, or said and counted.

The last table of `docs/errors.md` is made of what happens here:

    CROSSKNN_WRITE_DOCS=1 python -m pytest lab/tests/test_bad_sweeps.py
"""

from __future__ import annotations

import json
import os

import commands as app
import numpy as np
import pytest
from errors_table import check_table
from sweep_helpers import write_matrix, write_sweep

MARKS = "<!-- table made by lab/tests/test_bad_sweeps.py -->", "<!-- end of sweeping table -->"
GOOD = {"matrices": ["large.npz"], "methods": ["rerank(retriever=dense)"], "budgets": [5], "k": [1]}
BOTH = {"matrices": ["small.npz", "large.npz"]}
LABELS = {"matrices": ["labels.npz"]}
BLENDS = {"methods": ["axn(retriever=dense, blend={blend})"]}
SWEEPS = {
    "good": {"measures": []},
    "empty": {"budgets": []},
    "misspelled": {"budgts": [5]},
    "typed": {"budgets": "5"},
    "method": {"methods": ["axm(retriever=dense)"]},
    "option": {"methods": ["axn(round=5)"]},
    "values": BLENDS,
    "idle": {"grid": {"blend": [0.5]}},
    "baseline": {"baseline": "rerank(retriever=bm25)"},
    "absent": {"matrices": ["absent.npz"]},
    "damaged": {"matrices": ["damaged.npz"]},
    "bytes": {"matrices": ["bytes.npz"]},
    "columns": {"matrices": ["columns.npz"]},
    "dimensions": {"matrices": ["dimensions.npz"]},
    "floats": {"matrices": ["floats.npz"]},
    "twice": {"matrices": ["large.npz", "folder/large.npz"]},
    "sizes": BOTH | {"k": [1, 60]},
    "anchors": {"anchors": [30]},
    "choose": BLENDS | {"matrices": ["none.npz"], "choose": True, "grid": {"blend": [0.0, 0.5]}},
    "labels": LABELS,
    "measure": {"measures": ["nDCG@0"]},
    "unlabelled": {"matrices": ["large.npz"]},
    "queries": {"queries": 10, "measures": []},
    "more": BOTH | {"anchors": [5, 20], "measures": []},
    "exact": {"budgets": [5, 500], "measures": []},
    "lacks": {"methods": ["itemcur", "rerank(retriever=dense)"], "measures": []},
    "first": {"methods": ["rerank(retriever=bm52)"], "measures": []},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with matrices and sweeps good and bad, and a sweep that has ended."""
    where = tmp_path_factory.mktemp("sweeps")
    before = os.getcwd()
    os.chdir(where)
    for folder in ("folder", "no-matrices", "broken", "damaged", "foreign"):
        (where / folder).mkdir()
    write_matrix(where / "large.npz")
    write_matrix(where / "folder" / "large.npz")
    write_matrix(where / "small.npz", n=40, anchors=9)
    write_matrix(where / "none.npz", anchors=0)
    arrays = dict(np.load(where / "large.npz"))
    np.savez(where / "labels.npz", **arrays | {"labels": arrays["labels"] + 60})
    for name, key, values in (
        ("columns", "first_bm25", np.ones((len(arrays["scores"]), 60))),
        ("dimensions", "query_vectors", arrays["query_vectors"][:, 1:]),
        ("floats", "labels", arrays["labels"] + 0.5),
    ):
        np.savez(where / f"{name}.npz", **arrays | {key: values})
    np.savez_compressed(where / "bytes.npz", **arrays)
    whole = (where / "bytes.npz").read_bytes()
    (where / "bytes.npz").write_bytes(whole[:2000] + b"\xff" * 99 + whole[2099:])
    (where / "damaged.npz").write_bytes(b"not a zip")
    (where / "broken" / "large.npz").write_bytes(b"not a zip")
    (where / "damaged" / "sweep.json").write_text("{")
    (where / "foreign" / "sweep.json").write_text("[1, 2]")
    (where / "broken.toml").write_text("matrices = [")
    for name, keys in SWEEPS.items():
        write_sweep(where / f"{name}.toml", **GOOD | keys)
    (where / "nothing.toml").write_text("")
    assert app.run(["sweep", "good.toml", "--out", "swept", "--workers", "1"]) == 0
    yield where
    os.chdir(before)


def sweep(name: str, out: str = "out", workers: str = "1") -> list[str]:
    return ["sweep", f"{name}.toml", "--out", out, "--workers", workers]


def reproduce(data: str, *more: str) -> list[str]:
    return ["reproduce", "--data", data, "--out", "out", "--workers", "1", *more]


REFUSED = [
    ("a sweep's file that is not there", sweep("no")),
    ("a folder in the place of a sweep's file", ["sweep", "folder", "--out", "out"]),
    ("a sweep's file that is not TOML", sweep("broken")),
    ("a sweep's file with nothing in it", sweep("nothing")),
    ("an empty sweep", sweep("empty")),
    ("a misspelled key", sweep("misspelled")),
    ("a value of another type", sweep("typed")),
    ("an unknown method in a sweep", sweep("method")),
    ("an unknown option of a method in a sweep", sweep("option")),
    ("a setting without values", sweep("values")),
    ("values of a setting that no method has", sweep("idle")),
    ("a baseline that is not searched", sweep("baseline")),
    ("a matrix that is not there", sweep("absent")),
    ("a matrix that is none", sweep("damaged")),
    ("a matrix with damaged bytes", sweep("bytes")),
    ("a retriever that has not scored every item", sweep("columns")),
    ("query vectors of another dimension", sweep("dimensions")),
    ("labels that are no whole numbers", sweep("floats")),
    ("two matrices of one name", sweep("twice")),
    ("a k above the items of the smallest of several matrices", sweep("sizes")),
    ("more anchor queries than there are", sweep("anchors")),
    ("settings to choose without queries for it", sweep("choose")),
    ("labels of items that are not there", sweep("labels")),
    ("a measure with a cutoff of 0", sweep("measure")),
    ("no workers", sweep("good", workers="0")),
    ("a file in the place of a sweep's folder", sweep("good", out="large.npz")),
    ("a sweep into a folder that is not there", sweep("good", out="absent/out")),
    ("a report of what is not there", ["report", "absent", "--out", "out"]),
    ("a report of a folder without a sweep", ["report", "folder", "--out", "out"]),
    ("a report of a damaged sweep", ["report", "damaged", "--out", "out"]),
    ("a report of JSON that is no sweep", ["report", "foreign", "--out", "out"]),
    ("a report into a file", ["report", "swept", "--out", "large.npz"]),
    ("matrices that are not there", reproduce("absent")),
    ("a folder without matrices", reproduce("no-matrices")),
    ("a folder with a file that is no matrix", reproduce("broken")),
    ("an unknown preset", reproduce("folder", "--preset", "smal")),
    ("matrices too small for a preset", reproduce("folder")),
]
SAID = [
    ("test queries without a label", sweep("unlabelled"), 0),
    ("more test queries than there are", sweep("queries"), 0),
    ("more anchor queries than one of several matrices has", sweep("more"), 0),
    ("a budget above the number of items", sweep("exact"), 0),
    ("a method that a matrix lacks something for", sweep("lacks"), 1),
    ("an unknown retriever", sweep("first"), 1),
]


@pytest.fixture(scope="module")
def table():
    """Collects what happened; written or compared with the docs at the end."""
    rows: dict[str, str] = {}
    yield rows
    if len(rows) == len(REFUSED) + len(SAID):
        check_table(*MARKS, [rows[what] for what, *_ in (*REFUSED, *SAID)])


def row(what: str, code: int, sentence: str) -> str:
    return f"| {what} | {code} | `{sentence.removeprefix('crossknn: ')}` |"


@pytest.mark.parametrize(("what", "arguments"), REFUSED, ids=[what for what, _ in REFUSED])
def test_one_sentence_and_nothing_begun(place, capsys, table, what, arguments):
    before = sorted(path.name for path in place.rglob("*"))
    assert app.run(arguments) == 2
    said = capsys.readouterr()
    (sentence,) = said.err.splitlines()
    assert sentence.startswith("crossknn: ")
    assert said.out == ""
    assert sorted(path.name for path in place.rglob("*")) == before
    table[what] = row(what, 2, sentence)


@pytest.mark.parametrize(("what", "arguments", "code"), SAID, ids=[what for what, *_ in SAID])
def test_what_a_sweep_goes_on_with_is_said_and_kept(place, capsys, table, what, arguments, code):
    assert app.run(arguments) == code
    said = capsys.readouterr()
    (sentence,) = said.err.splitlines()
    assert "out/table.csv: " in said.out
    kept = "table.csv" if code else "sweep.json"
    assert sentence.removeprefix("failed: ").split(": ")[-1].split(" (")[0] in (
        place / "out" / kept
    ).read_text(encoding="utf-8")
    table[what] = row(what, code, sentence)


def test_json_counts_what_was_searched_and_what_was_there(place, capsys):
    for searched, kept in ((1, 0), (0, 1)):
        assert app.run([*sweep("good", out="counted"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        counts = found["searched"], found["kept"], found["failed"], found["rows"]
        assert counts == (searched, kept, 0, 1)
