"""Item vectors: an index keeps its own and fitted ones, makes query vectors, and loses nothing."""

import shutil
import tracemalloc
from dataclasses import replace
from math import erf, exp, sqrt

import numpy as np
import pytest
from index_helpers import FormulaScorer, LengthEncoder, contents, corpus

import crossknn as ck
from crossknn.errors import IndexFormatError, InputError
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.index.vectors import GatedSkip, ItemVectors, Linear, RememberedModel, check_vectors
from crossknn.retrievers.specs import default_vectors, stage_names
from crossknn.scorers.opening import bundled_folder
from crossknn.spec import parse
from crossknn.types import Queries, Scale

N = 20
TEXTS = ["one fish", "two", "red fish and more"]
REPLACED = "the index .* was replaced; load it again"


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def als(seed=0, **changes):
    made = ItemVectors(
        values=draw(N, 3, seed=seed),
        method="als",
        base="dense",
        scale=Scale(1.5, 0.25),
        fingerprint="formula",
        cost={"queries": 3, "calls": 60, "scoring_seconds": 1.5},
        details={"rounds": 7, "error": 0.125},
    )
    return replace(made, **changes)


def gated(gate=-5.0, seed=0, d=3, h=6):
    shapes = (h, d), (h,), (d, h), (d,)
    return GatedSkip(*(draw(*shape, seed=seed) for shape in shapes), np.array(gate, np.float32))


def every_kind():
    """One of each way to have query vectors, or none."""
    distilled = RememberedModel.of("dual encoder", LengthEncoder())
    return {
        "moved": als(),
        "gated": als(method="mf-ind", map=gated()),
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
        assert found.fingerprint == "formula"
        assert found.artifact().meta == fitted.artifact().meta
        if index.has_query_vectors(name):
            made = index.query_vectors(Queries(TEXTS), name)
            assert np.array_equal(made, fitted.map(encoded).astype(np.float32))


def test_they_come_back_from_the_disk_in_the_order_of_their_making(saved, tmp_path):
    everything = every_kind()
    for name, fitted in everything.items():
        saved.add_fitted(name, fitted)
    check(saved, everything)
    assert set(filter(saved.has_query_vectors, saved.vectors)) == {*saved.vectors} - {"cur"}
    models = {"dense": LengthEncoder(), "distilled": LengthEncoder()}
    loaded = ItemIndex.load(saved.folder, encoder=models)
    for folder in (tmp_path / "other", saved.folder):
        check(loaded, everything)
        loaded.save(folder)
        loaded = ItemIndex.load(folder, encoder=models)
    check(loaded, everything)


def test_what_two_open_indexes_of_one_folder_add_is_kept_and_replaced_only_if_asked(saved):
    other = load(saved)
    saved.add_fitted("mf", als())
    collect_anchors(other, FormulaScorer(), TEXTS)
    other.add_fitted("two", als(seed=1))
    with pytest.raises(InputError, match="has fitted vectors 'mf': use another name, or replace"):
        other.add_fitted("mf", als(seed=2))
    check(load(saved), {"mf": als(), "two": als(seed=1)})
    other.add_fitted("mf", als(seed=2), replace=True)
    check(loaded := load(saved), {"two": als(seed=1), "mf": als(seed=2)})
    assert len(loaded.anchors.scores) == 3
    # Anchors have a scale for the index's own vectors; that of fitted ones comes with them.
    assert loaded.scale("mf") == Scale(1.5, 0.25) != loaded.scale("dense")
    ItemIndex.build(corpus(N)).save(saved.folder)
    with pytest.raises(IndexFormatError, match=REPLACED):
        saved.add_fitted("late", als())
    with pytest.raises(IndexFormatError, match=REPLACED):
        saved.put_artifact("late", {}, {})


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("dense", {}, "fitted vectors cannot be named 'dense'"),
        ("auto", {}, "cannot be named 'auto'"),
        ("a b", {}, "cannot be named 'a b'"),
        ("mine", {}, "has something named 'mine'"),
        ("own", {}, "has something named 'own'"),
        ("x", {"values": draw(N - 1, 3)}, r"'x' have the shape \(19, 3\); it must be \(20, d\)"),
        ("x", {"values": np.full((N, 3), np.nan, np.float16)}, "'x': row 0 contains a NaN"),
        ("x", {"base": "dee"}, "fitted from the vectors 'dee', but the index has own, dense"),
        (
            "x",
            {"values": draw(N, 4)},
            "queries' vectors for .* 'x' have 3 dimensions, but the item vectors",
        ),
        ("x", {"details": {"losses": np.zeros(2)}}, "vectors/x cannot be stored as JSON"),
    ],
)
def test_vectors_that_do_not_fit_change_nothing(tmp_path, name, changes, sentence):
    index = ItemIndex.build(corpus(N), encoder=LengthEncoder(), vectors={"own": draw(N, 2)})
    index.add_retriever("mine", index.retrievers["bm25"])
    index.save(tmp_path / "index")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=sentence):
        index.add_fitted(name, als(**changes))
    assert not index.fitted
    assert contents(tmp_path) == before


class Other(LengthEncoder):
    fingerprint = "other"


def test_auto_is_the_latest_that_queries_have_and_hybrid_starts_from_the_unfitted(saved):
    found = [default_vectors(saved)]
    for seed, name in enumerate(("one", "two", "one")):
        saved.add_fitted(name, als(seed=seed), replace=True)
        found.append(default_vectors(saved))
    saved.add_fitted("cur", als(base=None))  # it has no query vectors, which most methods need
    found += [default_vectors(saved), default_vectors(saved, "cur")]
    assert found == ["dense", "one", "two", "one", "one", "cur"]
    assert stage_names(saved, parse("hybrid")) == ("bm25", "dense")


def test_a_search_with_another_cross_encoder_does_not_read_their_scale(saved):
    saved.add_fitted("mf", als())
    for reading in ("axn(retriever=bm25, blend=0)", "tour(retriever=bm25, normalize=auto)"):
        search = ck.Searcher(saved, FormulaScorer(), reading)
        assert len(search.search("one fish", k=3, budget=6)[0]) == 3
        other = saved.for_scorer("other")
        assert default_vectors(other) == "dense" != default_vectors(saved)
        assert (other.scale("mf"), other.of_others) == (None, {"mf"})
        search = ck.Searcher(saved, FormulaScorer("other"), reading)
        assert len(search.search("one fish", k=3, budget=6)[0]) == 3
    named = ck.Searcher(
        saved, FormulaScorer("other"), "axn(vectors=mf, normalize=anchors, blend=0)"
    )
    with pytest.raises(InputError, match="needs a scale for the item vectors 'mf'"):
        named.search("one fish", k=3, budget=6)
    for fine in ("axn(blend=0, normalize=first)", "axn", "rerank(retriever=mf)"):
        search = ck.Searcher(saved, FormulaScorer("other"), fine)
        assert search.search("one fish", k=3, budget=6).n_calls == 6


def test_an_encoder_that_has_moved_is_given_again_by_the_name_of_its_vectors(saved, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(bundled_folder("dual-encoder"), old)
    encoder = RememberedModel.of("dual encoder", old)
    values = encoder.get().encode_items(saved.items.texts)
    saved.add_fitted("distill", als(base=None, values=values, encoder=encoder))
    expected = saved.query_vectors(Queries(TEXTS), "distill")
    shutil.move(old, new)
    with pytest.raises(InputError, match=r"'distill' .*cannot be opened: .*old.*'distill': MODEL"):
        load(saved).query_vectors(Queries(TEXTS), "distill")
    given = ItemIndex.load(saved.folder, encoder={"dense": LengthEncoder(), "distill": new})
    assert np.array_equal(given.query_vectors(Queries(TEXTS), "distill"), expected)
    of_own = LengthEncoder().encode_queries(TEXTS)
    assert np.array_equal(given.query_vectors(Queries(TEXTS), "dense"), of_own)
    given.save(saved.folder)
    kept = ItemIndex.load(saved.folder)
    assert kept.model_of("distill").source == str(new)
    assert np.array_equal(kept.query_vectors(Queries(TEXTS), "distill"), expected)
    with pytest.raises(InputError, match=r"of 'dense' .fingerprint length.* no folder or name"):
        kept.query_vectors(Queries(TEXTS), "dense")
    with pytest.raises(
        IndexFormatError, match=r"with fingerprint length .* but the one given has other"
    ):
        ItemIndex.load(saved.folder, encoder=Other())
    with pytest.raises(InputError, match="has no vectors or states 'mine' of a model"):
        ItemIndex.load(saved.folder, encoder={"mine": new})


@pytest.mark.parametrize("gate", [-5.0, 1.5, np.inf, -np.inf])
def test_a_gated_skip_is_its_formula(gate):
    x, found = draw(5, 3, seed=1), gated(gate)
    hidden = np.array([[0.5 * z * (1 + erf(z / sqrt(2))) for z in row]
                       for row in x @ found.inner.T + found.inner_offset])  # fmt: skip
    s = 1 / (1 + exp(-gate)) if gate > -np.inf else 0
    expected = s * (hidden @ found.outer.T + found.outer_offset) + (1 - s) * x
    assert found(x).dtype == np.float32
    np.testing.assert_allclose(found(x), expected, rtol=1e-5, atol=1e-5)


def test_many_vectors_are_checked_in_little_memory():
    values = np.ones((50_000, 64), np.float32)
    tracemalloc.start()
    check_vectors(values, len(values), None, "the vectors")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.size / 4
    values[40_001, 3] = np.inf
    with pytest.raises(InputError, match="row 40001 contains a NaN or an infinity"):
        check_vectors(values, len(values), None, "the vectors")
