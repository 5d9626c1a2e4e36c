"""The file of a sweep: what it stands for, and what is wrong with it in a sentence."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from sweep_helpers import write_sweep

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


def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path):
    text = b'methods = ["exact"]\r\nmatrices = ["m.npz"]\r\n'
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf" + text)
    assert read_sweep(tmp_path / "s.toml").methods == ("exact",)
