"""Aligned vectors: an index keeps them, makes their query vectors, and never loses what it had."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from index_helpers import FormulaScorer, LengthEncoder, corpus

import crossknn as ck
from crossknn.errors import IndexFormatError, InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.base import Index, Scale
from crossknn.index.encoders import RememberedModel
from crossknn.index.fitted import FittedVectors, GatedSkip, IndexingCost, Linear
from crossknn.index.item_index import ItemIndex
from crossknn.index.rebuild import keep_parts
from crossknn.retrievers.specs import default_vectors, open_retriever
from crossknn.scorers.opening import bundled_folder
from crossknn.spec import parse
from crossknn.types import Queries

N = 20
TEXTS = ["one fish", "two", "red fish and more"]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def als(seed=0, **changes):
    cost = IndexingCost(queries=3, calls=60, scoring_seconds=1.5, fitting_seconds=0.25)
    made = FittedVectors(
        values=draw(N, 3, seed=seed),
        method="als",
        base="dense",
        scale=Scale(1.5, 0.25),
        fingerprint="formula",
        cost=cost,
        details={"rounds": 7, "error": 0.125},
    )
    return replace(made, **changes)


def skip():
    parts = (draw(6, 3), draw(6), draw(3, 6), draw(3), np.array(-5.0, np.float32))
    return als(method="mf-ind", map=GatedSkip(*parts))


def every_kind():
    """One of each way to have query vectors, or none."""
    distilled = RememberedModel.of("dual encoder", LengthEncoder())
    return {
        "moved": als(),
        "gated": skip(),
        "narrow": als(method="x", values=draw(N, 2), map=Linear(draw(3, 2), draw(2))),
        "distilled": als(method="distill", base=None, encoder=distilled),
        "cur": als(method="cur", base=None, values=draw(N, 40).astype(np.float16)),
    }


@pytest.fixture
def saved(tmp_path):
    index = ItemIndex.build(corpus(N), encoder=LengthEncoder(), lsa=4)
    index.save(tmp_path / "index")
    return index


def load(index):
    return ItemIndex.load(index.folder, encoder=LengthEncoder())


def check(index, expected):
    assert isinstance(index, Index)
    assert tuple(index.fitted) == tuple(expected)
    assert set(index.vectors) == {"dense", "lsa", *expected}
    encoded = LengthEncoder().encode_queries(TEXTS)
    for name, fitted in expected.items():
        found = index.fitted[name]
        assert index.vectors[name].dtype == fitted.values.dtype
        assert np.array_equal(index.vectors[name], fitted.values)
        assert index.scale(name) == fitted.scale
        assert index.scorer_of(name) == "formula"
        for field in ("method", "base", "fingerprint", "cost", "details"):
            assert getattr(found, field) == getattr(fitted, field)
        if index.has_query_vectors(name):
            made = index.query_vectors(Queries(TEXTS), name)
            assert np.array_equal(made, fitted.map(encoded).astype(np.float32))


def test_they_come_back_from_the_disk_in_the_order_of_their_making(saved, tmp_path):
    everything = every_kind()
    memory = ItemIndex.build(corpus(N), encoder=LengthEncoder(), lsa=4)
    for index in (memory, saved):
        for name, fitted in everything.items():
            index.add_fitted(name, fitted)
        check(index, everything)
        assert {n for n in index.vectors if index.has_query_vectors(n)} == {
            "dense",
            "lsa",
            *everything,
        } - {"cur"}
    memory.save(tmp_path / "other")
    for folder in (saved.folder, tmp_path / "other"):
        loaded = ItemIndex.load(folder, encoder=LengthEncoder())
        loaded.fitted["distilled"].encoder.attach(LengthEncoder())
        check(loaded, everything)
        loaded.save(tmp_path / "third")
        loaded.save(folder)
        third = ItemIndex.load(tmp_path / "third", encoder=LengthEncoder())
        assert tuple(third.fitted) == tuple(everything)


def test_a_replacement_leaves_nothing_of_what_it_replaces_and_is_the_latest(saved):
    saved.add_fitted("one", skip())
    saved.add_fitted("two", als(seed=1))
    with pytest.raises(InputError, match="has fitted vectors 'one'; use another name, or replace"):
        saved.add_fitted("one", als(seed=2))
    saved.add_fitted("one", als(seed=2), replace=True)
    expected = {"two": als(seed=1), "one": als(seed=2)}
    for index in (saved, load(saved)):
        check(index, expected)
    assert not [p for p in saved.folder.glob("data-*/*") if p.name.startswith("fitted.one.map")]


def test_what_two_open_indexes_of_one_folder_add_is_kept(saved):
    other = load(saved)
    saved.add_fitted("mf", als())
    collect_anchors(other, FormulaScorer(), TEXTS)
    other.add_fitted("gated", skip())
    with pytest.raises(InputError, match="has fitted vectors 'mf'"):
        other.add_fitted("mf", als(seed=3))
    loaded = load(saved)
    check(loaded, {"mf": als(), "gated": skip()})
    assert len(loaded.anchors.scores) == 3


def test_a_replaced_index_takes_nothing(saved):
    ItemIndex.build(corpus(N)).save(saved.folder)
    with pytest.raises(IndexFormatError, match="was replaced; load it again"):
        saved.add_fitted("mf", als())


bad = np.array(draw(N, 3))
bad[4, 1] = np.nan


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("dense", {}, "fitted vectors cannot be named 'dense'"),
        ("auto", {}, "cannot be named 'auto'"),
        ("anchors", {}, "cannot be named 'anchors'"),
        ("a b", {}, "cannot be named 'a b'"),
        ("mine", {}, "has something else named 'mine'"),
        ("own", {}, "has something else named 'own'"),
        ("x", {"values": draw(N - 1, 3)}, r"'x' have the shape \(19, 3\); it must be \(20, d\)"),
        ("x", {"values": draw(N, 3).astype(float)}, "an array of float64; it must be float32 or"),
        ("x", {"values": bad}, "'x': row 4 holds a NaN"),
        ("x", {"values": bad.astype(np.float16)}, "'x': row 4 holds a NaN"),
        ("x", {"base": "dee"}, "start from the vectors 'dee', which the index was not built with"),
        (
            "x",
            {"values": draw(N, 4)},
            "queries' vectors for .* 'x' have 3 dimensions, the items' 4",
        ),
        (
            "x",
            {"encoder": RememberedModel.of("dual encoder", LengthEncoder())},
            "both a base and an encoder",
        ),
        ("x", {"details": {"losses": np.zeros(2)}}, "details of .* cannot be stored as JSON"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(tmp_path, name, changes, sentence):
    index = ItemIndex.build(corpus(N), encoder=LengthEncoder(), vectors={"own": draw(N, 2)})
    index.add_retriever("mine", index.retrievers["bm25"])
    index.save(tmp_path / "index")
    before = {p: p.read_bytes() for p in (tmp_path / "index").rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=sentence):
        index.add_fitted(name, als(**changes))
    assert tuple(index.fitted) == ()
    assert {p: p.read_bytes() for p in (tmp_path / "index").rglob("*") if p.is_file()} == before


def test_anchors_leave_the_scale_of_aligned_vectors_alone(saved):
    saved.add_fitted("mf", als())
    collect_anchors(saved, FormulaScorer(), TEXTS)
    for index in (saved, load(saved)):
        assert index.scale("mf") == Scale(1.5, 0.25)
        assert index.scale("dense") not in (None, Scale(1.5, 0.25))


class Other(LengthEncoder):
    fingerprint = "other"


@pytest.mark.parametrize(
    ("encoder", "items", "kept"),
    [
        (LengthEncoder(), N, {"moved", "from_lsa", "cur"}),
        (Other(), N, {"from_lsa", "cur"}),
        (None, N, {"from_lsa", "cur"}),
        (LengthEncoder(), N + 1, None),
    ],
)
def test_an_index_built_again_keeps_what_starts_from_the_same(saved, caplog, encoder, items, kept):
    saved.add_fitted("moved", als())
    saved.add_fitted("from_lsa", als(base="lsa", values=draw(N, 4)))
    saved.add_fitted("cur", als(base=None, values=draw(N, 5).astype(np.float16)))
    again = ItemIndex.build(corpus(items), encoder=encoder, lsa=4)
    keep_parts(again, load(saved))
    again.save(saved.folder)
    assert set(ItemIndex.load(saved.folder).fitted) == (kept or set())
    dropped = {"moved", "from_lsa", "cur"} - (kept or set())
    assert sorted(r.getMessage().split(":")[0] for r in caplog.records) == [
        f"dropped the fitted vectors {name}" for name in sorted(dropped)
    ]


def test_what_is_a_function_of_the_encoder_is_kept_for_new_items(saved):
    def gated(seed):
        shapes = (5, 3), (5,), (3, 5), (3,)
        return GatedSkip(*(draw(*shape, seed=seed) for shape in shapes), np.float32(0))

    values = gated(2)(np.asarray(saved.vectors["dense"]))
    saved.add_fitted("moved", als(values=values, map=gated(1), item_map=gated(2)))
    again = ItemIndex.build(corpus(N + 5), encoder=LengthEncoder(), lsa=4)
    keep_parts(again, load(saved))
    expected = gated(2)(np.asarray(again.vectors["dense"]))
    np.testing.assert_allclose(again.vectors["moved"], expected, rtol=1e-6)
    again.save(saved.folder)
    vectors = load(again).query_vectors(Queries(TEXTS), "moved")
    np.testing.assert_allclose(vectors, gated(1)(LengthEncoder().encode_queries(TEXTS)), rtol=1e-6)


def test_auto_is_the_latest_and_hybrid_starts_from_the_unaligned(saved):
    assert default_vectors(saved) == "dense"
    plain = open_retriever(saved, parse("hybrid"), 0).top(Queries(TEXTS), 5).items
    saved.add_fitted("one", als())
    saved.add_fitted("two", als(seed=1))
    assert default_vectors(saved) == "two"
    saved.add_fitted("one", als(seed=2), replace=True)
    assert default_vectors(saved) == "one"
    assert default_vectors(saved, "two") == "two"
    # Most methods need query vectors, so what has none must be asked for.
    saved.add_fitted("cur", als(base=None))
    assert default_vectors(saved) == "one"
    assert default_vectors(saved, "cur") == "cur"
    hybrid = open_retriever(saved, parse("hybrid"), 0).top(Queries(TEXTS), 5).items
    assert np.array_equal(hybrid, plain)
    other = open_retriever(saved, parse("hybrid(bm25, two)"), 0).top(Queries(TEXTS), 5).items
    assert not np.array_equal(other, plain)


def test_a_search_with_another_cross_encoder_is_refused_where_it_would_read_their_scale(saved):
    saved.add_fitted("mf", als())
    mine, other = FormulaScorer(), FormulaScorer("other")
    spec = "axn(retriever=bm25, rounds=2)"
    assert len(ck.Searcher(saved, mine, spec).search("one fish", k=3, budget=6)[0]) == 3
    with pytest.raises(InputError, match=r"cross-encoder formula, and this search uses other"):
        ck.Searcher(saved, other, spec).search("one fish", k=3, budget=6)
    with pytest.raises(InputError, match=r"cross-encoder formula, and this search uses other"):
        ck.Searcher(saved, other, "tour(retriever=bm25, normalize=auto)").search(
            "one fish", k=3, budget=6
        )
    for fine in (
        "axn(normalize=first)",
        "axn(vectors=dense)",
        "axn(ridge=0.3)",
        "rerank(retriever=mf)",
    ):
        assert ck.Searcher(saved, other, fine).search("one fish", k=3, budget=6).n_calls == 6


def test_an_encoder_that_has_moved_is_given_again_by_the_name_of_its_vectors(saved, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(bundled_folder("dual-encoder"), old)
    encoder = RememberedModel.of("dual encoder", old)
    values = encoder.get().encode_items(saved.items.texts)
    saved.add_fitted("distill", als(base=None, values=values, encoder=encoder))
    expected = saved.query_vectors(Queries(TEXTS), "distill")
    shutil.move(old, new)
    moved = load(saved)
    with pytest.raises(InputError, match=r"'distill' were made by the dual encoder .*old, which"):
        moved.query_vectors(Queries(TEXTS), "distill")
    with pytest.raises(InputError, match=r"it has moved, .*load as encoder=\{'distill': ENCODER\}"):
        moved.query_vectors(Queries(TEXTS), "distill")
    given = ItemIndex.load(saved.folder, encoder={"dense": LengthEncoder(), "distill": new})
    assert np.array_equal(given.query_vectors(Queries(TEXTS), "distill"), expected)
    of_own = LengthEncoder().encode_queries(TEXTS)
    assert np.array_equal(given.query_vectors(Queries(TEXTS), "dense"), of_own)
    given.save(saved.folder)
    kept = ItemIndex.load(saved.folder)
    assert kept.encoder_source("distill") == str(new)
    assert np.array_equal(kept.query_vectors(Queries(TEXTS), "distill"), expected)
    with pytest.raises(IndexFormatError, match="'distill' were made by another dual encoder"):
        ItemIndex.load(saved.folder, encoder={"distill": LengthEncoder()})
    with pytest.raises(InputError, match="has no vectors 'mine' of a dual encoder"):
        ItemIndex.load(saved.folder, encoder={"mine": new})
