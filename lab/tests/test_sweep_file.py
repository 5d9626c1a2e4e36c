"""The file of a sweep: what it stands for, and what is wrong with it in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_helpers import write_sweep

from crossknn.errors import InputError
from crossknn_lab.sweep_file import Sweep, read_sweep

GOOD = {"matrices": ["m.npz"], "methods": ["rerank(retriever=dense)"]}


def sweep(**options) -> Sweep:
    return Sweep(
        **({"matrices": (Path("m.npz"),), "methods": ("rerank(retriever=dense)",)} | options)
    )


def test_placeholders_take_every_combination_of_the_values_they_name():
    found = sweep(
        methods=(
            "axn(rounds={rounds}, retriever={retriever})",
            "rerank(retriever={retriever})",
            "exact",
        ),
        grid={"rounds": (2, 5), "retriever": ("dense", "hybrid(bm25, dense)")},
    ).settings()
    assert [setting.spec for setting in found] == [
        "axn(rounds=2, retriever=dense)",
        "axn(rounds=2, retriever=hybrid(bm25, dense))",
        "axn(rounds=5, retriever=dense)",
        "axn(rounds=5, retriever=hybrid(bm25, dense))",
        "rerank(retriever=dense)",
        "rerank(retriever=hybrid(bm25, dense))",
        "exact",
    ]
    assert found[1].values == {"rounds": 2, "retriever": "hybrid(bm25, dense)"}
    assert found[1].template == "axn(rounds={rounds}, retriever={retriever})"
    assert found[1].method.rounds == 2
    assert found[-1].values == {}


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
)
def test_numbers_reach_the_methods_unchanged(blends, rounds):
    made = sweep(
        methods=("axn(blend={blend}, rounds={rounds})",),
        grid={"blend": tuple(blends), "rounds": tuple(rounds)},
    )
    found = {(s.method.blend, s.method.rounds) for s in made.settings()}
    assert found == {(blend, count) for blend in blends for count in rounds}


def test_a_file_has_defaults_and_its_matrices_lie_beside_it(tmp_path):
    (tmp_path / "folder").mkdir()
    found = read_sweep(write_sweep(tmp_path / "folder" / "s.toml", **GOOD))
    assert found.matrices == (tmp_path / "folder" / "m.npz",)
    assert (found.budgets, found.k, found.seeds) == ((50, 100, 200, 500), (1, 10, 100), (0,))
    assert (found.anchors, found.queries, found.redraw, found.choose) == ((), None, False, False)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"methods": []}, "an empty sweep: methods names nothing"),
        ({"matrices": []}, "an empty sweep: matrices names nothing"),
        ({"budgets": []}, "an empty sweep: budgets names nothing"),
        ({"budgets": [50, 0]}, "budgets has 0; it must be a whole number from 1"),
        ({"budgets": [50, True]}, "budgets has True"),
        ({"budgets": [1.5]}, r"budgets has 1\.5"),
        ({"budgets": 50}, r"budgets is 50; it must be a list"),
        ({"budgets": [50, 50]}, "budgets has '50' twice"),
        ({"seeds": [-1]}, "seeds has -1; it must be a whole number from 0"),
        ({"k": ["ten"]}, "k has 'ten'"),
        ({"queries": 0}, "queries has 0"),
        ({"queries": "all"}, "queries has 'all'"),
        ({"redraw": "yes"}, "redraw is 'yes'; it must be true or false"),
        ({"methods": [1]}, "methods is 1; it must be text"),
        ({"buget": [50]}, r"unknown key 'buget': did you mean budgets\?"),
        ({"methods": ["axn(round=2)"]}, r"no option 'round': did you mean rounds"),
        ({"methods": ["rerank(retriever=dense"]}, "cannot read"),
        ({"methods": ["rerank", "rerank"]}, "methods has 'rerank' twice"),
        ({"methods": ["axn(rounds={round})"], "grid": {"rounds": [1]}}, "did you mean rounds"),
        ({"methods": ["axn(rounds={rounds})"]}, r"add rounds = \[\.\.\.\] to \[grid\]"),
        ({"grid": {"rounds": [1]}}, r"grid\.rounds is used by no method"),
        ({"methods": ["axn(rounds={rounds})"], "grid": {"rounds": []}}, "has no values"),
        ({"methods": ["anncur(anchors={anchors})"], "grid": {"anchors": [0.5]}}, "a column"),
        ({"matrices": ["a/m.npz", "b/m.npz"]}, "two matrices are called 'm'"),
        (
            {"baseline": "rerank(retriever=d)"},
            r"is none of the methods that are tested: did you mean rerank\(retriever=dense\)",
        ),
        (
            {
                "methods": ["axn(rounds={rounds})"],
                "grid": {"rounds": [1, 2]},
                "baseline": "axn(rounds=2)",
                "choose": True,
            },
            r"is none of the methods that are tested: did you mean axn\(rounds=\{rounds\}\)",
        ),
        (
            {
                "methods": ["axn(rounds={rounds})"],
                "grid": {"rounds": [1, 2]},
                "baseline": "axn(rounds={rounds})",
            },
            "is any of",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_files_name(tmp_path, keys, words):
    path = write_sweep(tmp_path / "s.toml", **(GOOD | keys))
    with pytest.raises(InputError, match=words) as caught:
        read_sweep(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_what_is_no_toml_and_what_is_not_there(tmp_path):
    (tmp_path / "s.toml").write_text("k = [1]\nbudgets = 50,\n")
    with pytest.raises(InputError, match=r"is not TOML: .*line 2"):
        read_sweep(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="is not TOML"):
        read_sweep(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text('methods = ["exact"]\nmatrices = ["m.npz"]\ngrid = [1]')
    with pytest.raises(InputError, match=r"grid is \[1\]; it must be a table, \[grid\]"):
        read_sweep(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text('methods = ["exact"]')
    with pytest.raises(InputError, match="matrices is missing"):
        read_sweep(tmp_path / "s.toml")
    with pytest.raises(InputError, match="there is no file"):
        read_sweep(tmp_path / "absent.toml")


def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path):
    text = b'methods = ["exact"]\r\nmatrices = ["m.npz"]\r\n'
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf" + text)
    assert read_sweep(tmp_path / "s.toml").methods == ("exact",)
