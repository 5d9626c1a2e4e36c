"""Sparse vectors of a SPLADE model against sentence-transformers' own similarity."""

import shutil

import numpy as np
import pytest
from tiny_models import WORDS, corpus, save_bi_encoder, save_hf, save_sparse
from typer.testing import CliRunner

import crossknn as ck
from crossknn.cli.app import app
from crossknn.errors import IndexFormatError, InputError
from crossknn.index import vectors as work
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.lexical import SparseVectors
from crossknn.retrievers.specs import first_stage, open_retriever, stage_names
from crossknn.scorers.library import SentenceTransformerEncoder
from crossknn.scorers.opening import as_sparse_encoder
from crossknn.spec import parse
from crossknn.types import NO_ITEM, Queries, States

pytestmark = pytest.mark.torch

QUERIES = ["red oak", "a tall white gull", "seals"]
RECORDS = [{"id": f"i{p}", "text": text} for p, text in enumerate(corpus(30, 30).items.texts)]
TEXTS = [record["text"] for record in RECORDS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_sparse(tmp_path_factory.mktemp("splade"))


@pytest.fixture(scope="module")
def library(folder):
    from sentence_transformers import SparseEncoder

    return SparseEncoder(str(folder), device="cpu")


@pytest.fixture
def saved(folder, tmp_path):
    return ItemIndex.build(RECORDS, sparse=folder, lsa=4, folder=tmp_path / "index")


def similarity(model, queries, items):
    return model.similarity(model.encode_query(queries), model.encode_document(items)).numpy()


def sparse_scores(index, queries=QUERIES):
    return index.retrievers["sparse"].scores(Queries(queries))


def test_scores_are_the_librarys_and_survive_the_disk(saved, library):
    stage, queries = saved.retrievers["sparse"], Queries(QUERIES)
    assert isinstance(stage, Retriever)
    expected = similarity(library, QUERIES, TEXTS)
    scores = stage.scores(queries)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    some = np.array([[3, 1], [29, 0], [5, 5]])
    np.testing.assert_array_equal(stage.scores(queries, some), np.take_along_axis(scores, some, 1))
    best = np.argsort(-scores, axis=1, kind="stable")
    assert stage.top(queries, 7).items.tolist() == best[:, :7].tolist()
    allowed = np.isin(np.arange(30), best[0, 5:])
    assert stage.top(queries, 3, allowed).items[0].tolist() == best[0, 5:8].tolist()
    loaded = ItemIndex.load(saved.folder)
    np.testing.assert_array_equal(sparse_scores(loaded), scores)
    assert loaded.verify() == []
    given = ItemIndex.build(RECORDS, sparse=library, bm25=False)
    np.testing.assert_array_equal(sparse_scores(given), scores)
    assert (given.tokenizer, saved.tokenizer) == ("unicode", "unicode")  # of LSA


def test_a_query_is_encoded_once_and_what_shares_nothing_is_not_returned():
    class Encoder:
        asked, fingerprint, dimensions = 0, "x", 4

        def encode_queries(self, texts):
            self.asked += 1
            return States(np.array([[0, 2.0], [3, 1.0]], np.float32), np.array([0, 2]))

    model = Encoder()
    rows = np.array([[0, 1], [3, 4], [1, 9], [0, 1]], np.float32)
    states = States(rows, np.array([0, 2, 3, 3, 4]))
    remembered = work.RememberedModel("sparse encoder", "sparse", None, "x", 4, model)
    stage, queries = SparseVectors(states, remembered), Queries(["q"])
    assert stage.scores(queries).tolist() == [[6, 0, 0, 2]]
    found = stage.top(queries, 3).items
    assert found[found != NO_ITEM].tolist() == [0, 3]
    assert model.asked == 1


def test_cosine_and_limited_vectors_are_those_of_the_library(folder):
    from sentence_transformers import SparseEncoder

    cosine = SparseEncoder(str(folder), device="cpu", similarity_fn_name="cosine")
    expected = similarity(cosine, QUERIES, TEXTS)
    np.testing.assert_allclose(
        sparse_scores(ItemIndex.build(TEXTS, sparse=cosine)), expected, rtol=1e-4
    )
    few = SparseEncoder(str(folder), device="cpu", max_active_dims=5)
    made = as_sparse_encoder(few).encode_items(TEXTS)
    assert (made.counts <= 5).all()
    prints = {as_sparse_encoder(model).fingerprint for model in (folder, cosine, few)}
    assert len(prints) == 3
    euclidean = SparseEncoder(str(folder), device="cpu", similarity_fn_name="euclidean")
    with pytest.raises(InputError, match="compares vectors by euclidean"):
        ItemIndex.build(TEXTS, sparse=euclidean)


def test_it_is_a_first_stage_a_part_of_hybrids_and_a_trend(saved, library):
    texts = saved.items.texts

    def score(pairs):
        return [float(len(set(q.split()) & set(i.split()))) + len(i) / 99 for q, i in pairs]

    assert first_stage(saved) == "sparse"
    assert stage_names(saved, parse("hybrid")) == ("bm25", "sparse")
    assert (open_retriever(saved, "hybrid(bm25, sparse)").top(Queries(QUERIES), 5).items >= 0).all()
    hits = ck.Searcher(saved, ck.CallableScorer(score), "rerank(retriever=sparse)")
    first = hits.search(QUERIES, k=5, budget=5)
    for row, scores in zip(first, similarity(library, QUERIES, texts), strict=True):
        assert {hit.id for hit in row} == {f"i{p}" for p in np.argsort(-scores)[:5]}
    scorer = ck.CallableScorer(score, "words")
    ck.collect_anchors(saved, scorer, TEXTS[:12])  # fits the prior
    prior = saved.for_scorer(scorer.fingerprint).artifacts["kriging"]
    assert prior.meta["retriever"] == "hybrid"
    assert prior.arrays["trend_columns"].shape[1] == 1 + 2 + 1 + 1
    loaded = ItemIndex.load(saved.folder)
    for method in ("auto", "kriging(use_anchors=false)", "axn(retriever=hybrid, rounds=3)"):
        found = ck.Searcher(loaded, scorer, method).search(QUERIES, k=3, budget=15)
        assert [len(row) for row in found] == [3, 3, 3]
        again = ck.Searcher(saved, scorer, method).search(QUERIES, k=3, budget=15)
        assert [[h.id for h in row] for row in found] == [[h.id for h in row] for row in again]


def test_items_come_and_go(saved, library):
    more = [{"id": f"new{p}", "text": f"the {word} sat"} for p, word in enumerate(WORDS[:3])]
    saved.add(more)
    saved.delete(["i0", "new1"])
    loaded = ItemIndex.load(saved.folder)
    texts = [*TEXTS, *(record["text"] for record in more)]
    expected = similarity(library, QUERIES, texts)
    for index in (saved, loaded):
        np.testing.assert_allclose(sparse_scores(index), expected, rtol=1e-4)
    loaded.compact()
    left = [p for p in range(33) if p not in (0, 31)]
    for index in (loaded, ItemIndex.load(saved.folder)):
        assert list(index.items.texts) == [texts[p] for p in left]
        np.testing.assert_allclose(sparse_scores(index), expected[:, left], rtol=1e-4)


def test_another_model_is_refused_and_the_same_elsewhere_is_given(saved, folder, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "moved")
    other = save_sparse(tmp_path / "other", seed=1)
    with pytest.raises(IndexFormatError, match="'sparse' was made by another sparse encoder"):
        ItemIndex.load(saved.folder, encoder={"sparse": other})
    place = saved.model_of("sparse").source
    assert place == str(folder.resolve())
    found = ItemIndex.load(saved.folder, encoder={"sparse": moved})
    found.save(saved.folder)
    assert ItemIndex.load(saved.folder).model_of("sparse").source == str(moved.resolve())
    shutil.rmtree(moved)
    shutil.copytree(other, moved)
    with pytest.raises(IndexFormatError, match="'sparse' was made by another sparse encoder"):
        sparse_scores(ItemIndex.load(saved.folder))


def test_a_stopped_build_goes_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "AT_ONCE", 8)

    def stop(done, _):
        if done > 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ItemIndex.build(RECORDS, sparse=folder, folder=tmp_path / "index", progress=stop)
    seen = []
    report = lambda *n: seen.append(n)  # noqa: E731
    index = ItemIndex.build(RECORDS, sparse=folder, folder=tmp_path / "index", progress=report)
    assert seen[0][0] > 16
    assert not list(index.folder.glob("work-*"))
    whole = ItemIndex.build(RECORDS, sparse=folder)
    np.testing.assert_allclose(sparse_scores(index), sparse_scores(whole), rtol=1e-5)


def test_models_of_other_kinds_are_told_where_to_go(folder, library, tmp_path):
    dense = save_bi_encoder(tmp_path, "BertModel", "mean")
    classifier = save_hf(tmp_path / "cross", "BertForSequenceClassification", num_labels=1)
    for call, sentence in (
        (lambda: ck.DualEncoder(folder), r"is a sparse encoder, .* sparse='.*model' \(--sparse\)"),
        (lambda: ItemIndex.build(TEXTS, encoder=folder), "is a sparse encoder"),
        (lambda: SentenceTransformerEncoder(library), "SparseEncoder is a sparse encoder: give it"),
        (lambda: ItemIndex.build(TEXTS, sparse=dense), "is not a sparse encoder.*SentenceTransf"),
        (lambda: ItemIndex.build(TEXTS, sparse=tmp_path / "bare"), "not a sparse encoder.*BertM"),
        (lambda: ItemIndex.build(TEXTS, sparse=classifier), "not a sparse enc.*Classification"),
        (lambda: ItemIndex.build(TEXTS, sparse=object()), "object is not a SparseEncoder"),
    ):
        with pytest.raises(InputError, match=sentence) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_masked_language_model_without_more_is_one(tmp_path):
    bare = save_hf(tmp_path / "bare", "BertForMaskedLM")
    expected = sparse_scores(ItemIndex.build(TEXTS, sparse=save_sparse(tmp_path / "whole")))
    found = sparse_scores(ItemIndex.build(TEXTS, sparse=bare))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_command_builds_one(folder, tmp_path):
    (tmp_path / "items.txt").write_text("\n".join(TEXTS))
    given = [str(tmp_path / "items.txt"), str(tmp_path / "index"), "--sparse", str(folder)]
    made = CliRunner().invoke(app, ["index", "build", *given, "--encoder", "none"])
    assert made.exit_code == 0, made.output
    index = ItemIndex.load(tmp_path / "index")
    assert [*index.retrievers] == ["bm25", "sparse"]
    assert sparse_scores(index).shape == (3, 30)


def test_damaged_rows_are_refused(saved):
    stage = ItemIndex.load(saved.folder).retrievers["sparse"]
    rows = np.array(stage.states.values)
    rows[3, 0] = 1e6
    with pytest.raises(IndexFormatError, match="its sparse vectors cannot be read"):
        SparseVectors(States(rows, stage.states.starts), stage.encoder).scores(Queries(["oak"]))
