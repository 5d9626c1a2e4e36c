"""Distillation: losses from scores, mining, validation, resumption, and the folder it leaves."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import corpus, products

from crossknn import DualEncoder
from crossknn.errors import InputError
from crossknn.linalg import top_k
from crossknn.scores.sparse import SparseScores
from crossknn.types import NO_ITEM, Pairs
from crossknn_train import loop
from crossknn_train.distillation import DistillationTask, distill, scored_lists, student
from crossknn_train.export import export_model
from crossknn_train.models.dual_encoder import DualEncoderConfig, DualEncoderModel
from crossknn_train.settings import TrainingSettings

CONFIG = DualEncoderConfig(query_length=16, item_length=16)
WOODS = corpus(12, 16)
TEXTS = WOODS.queries.texts, WOODS.items.texts
SCORES = np.random.default_rng(0).normal(0, 2, (12, 16)).astype(np.float32)
"""As a cross-encoder gives them."""


def training(**changes):
    settings = {"epochs": 3, "batch": 5, "learning_rate": 3e-3, "evaluations": 1}
    return TrainingSettings(**(settings | {"precision": "float32"} | changes))


def make(bert, lists=None, **options):
    torch.manual_seed(0)
    lists = lists or top_k(SCORES, 5)
    return DistillationTask(DualEncoderModel.new(bert, CONFIG), *TEXTS, lists, k=3, **options)


def log_softmax(values):
    return values - np.log(np.exp(values).sum())


def test_the_loss_is_that_of_the_scores_over_each_list(bert):
    """Twenty times the cosines: their softmax against that of the teacher's scores."""
    lists = top_k(SCORES, 5)
    for row, scores in enumerate(lists.scores):  # the best 5, 4, 3 or 2 items of each query
        lists.items[row, 5 - row % 4 :], scores[5 - row % 4 :] = NO_ITEM, -np.inf
    task = make(bert, lists)
    scores, expected = 20 * products(task.model, *TEXTS), []
    for query in task.train[[0, 4, 7]]:
        right = lists.items[query][lists.items[query] != NO_ITEM]
        wanted = np.exp(log_softmax(SCORES[query, right]))
        expected.append(-(wanted * log_softmax(scores[query, right])).sum())
    value = task.loss([0, 4, 7], *task.draw([0, 4, 7], 0))
    assert float(value.detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_the_measures_are_of_held_out_queries_against_all_items(bert, monkeypatch):
    monkeypatch.setattr("crossknn_train.distillation.HELD_OUT", 0.25)
    task = make(bert)
    assert len(task.held) == 3
    assert sorted([*task.held, *task.train]) == list(range(12))
    near = np.argsort(-products(task.model, *TEXTS), axis=1)[:, :3]
    best = top_k(SCORES, 3).items
    recall = [len({*near[row]} & {*best[row]}) / 3 for row in task.held]
    first = [best[row, 0] in near[row] for row in task.held]
    measures = loop.evaluate(task, nullcontext)
    assert measures == {"recall": pytest.approx(np.mean(recall)), "first": np.mean(first)}
    assert {tuple(make(bert, seed=s).held) for s in (0, 0, 1)} != {tuple(task.held)}
    # A run of other scores is another run.
    assert make(bert, top_k(SCORES + 1, 5)).signature != task.signature == make(bert).signature


def sparse(width=5):
    """Random scores of the teacher, so many of each query."""
    generator = np.random.default_rng(0)
    chosen = [generator.permutation(16)[:width] for _ in range(12)]
    pairs = Pairs(np.repeat(np.arange(12), width), np.concatenate(chosen))
    return SparseScores.of(WOODS.queries.texts, 16, pairs, SCORES[pairs.query, pairs.item])


@pytest.fixture(scope="module")
def base(bert, tmp_path_factory):
    """A dual encoder trained here, with two towers."""
    torch.manual_seed(5)
    model = DualEncoderModel.new(bert, replace(CONFIG, shared=False))
    return model.save_pretrained(tmp_path_factory.mktemp("base"))


def test_sparse_scores_become_a_dual_encoder(base, tmp_path):
    given, items = (sparse(), WOODS.items.texts, base, tmp_path), WOODS.items.texts
    found = distill(*given, settings=training())
    card = (tmp_path / "README.md").read_text()
    assert "12 train queries with lists of up to 5 items" in card
    moved = DualEncoder(tmp_path).encode_items(items) - DualEncoder(base).encode_items(items)
    assert np.abs(moved).max() > 0.01
    # Again: nothing is left to train, and the folder is the same.
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert distill(*given, settings=training()) == found
    assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_a_list_is_the_best_of_what_is_scored(base, tmp_path, caplog):
    """Queries with one entry or none are left out, which is said; ties go to the first item."""
    query = np.array([0, 0, 0, 2, 3, 3, 5, 5, 5, 5])
    item = np.array([1, 4, 9, 3, 2, 8, 0, 1, 2, 3])
    score = np.array([1, 3, 2, 9, 5, 5, 0, 1, 2, 3], dtype=np.float32)
    scores = SparseScores.of(WOODS.queries.texts, 16, Pairs(query, item), score)
    rows, lists = scored_lists(scores)
    assert rows.tolist() == [0, 3, 5]
    none = -np.inf
    assert lists.items.tolist() == [[4, 9, 1, NO_ITEM], [2, 8, NO_ITEM, NO_ITEM], [3, 2, 1, 0]]
    assert lists.scores.tolist() == [[3, 2, 1, none], [5, 5, none, none], [3, 2, 1, 0]]
    distill(scores, WOODS.items.texts, base, tmp_path, settings=training(epochs=1, batch=2))
    assert "3 train queries" in (tmp_path / "README.md").read_text()
    assert "9 train queries have fewer than two scored items: left out" in caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of where the layers live
def test_a_sentence_transformers_folder_keeps_its_vectors(bert, tmp_path):
    import sentence_transformers as library
    from sentence_transformers.models import Normalize, Pooling, Transformer

    inner = Transformer(str(bert), max_seq_length=24)
    mean, first, most = (Pooling(32, pooling_mode=mode) for mode in ("mean", "cls", "max"))
    for name, layers in (("mean", [mean]), ("cls", [first, Normalize()]), ("max", [most])):
        made = library.SentenceTransformer(modules=[inner, *layers], device="cpu")
        made.save(str(tmp_path / name))
        if name == "max":
            break
        model = student(tmp_path / name)
        expected = {"pooling": name, "normalize": name == "cls"}
        assert model.config == DualEncoderConfig(query_length=24, item_length=24, **expected)
        texts = [*WOODS.items.texts, "oak " * 40]
        rows = model.encoding.texts(texts, queries=False)
        with torch.inference_mode():
            found = model.eval().encode(rows, queries=False).numpy()
        np.testing.assert_allclose(found, made.encode(texts), atol=1e-4)
    with pytest.raises(InputError, match=r"Transformer, Pooling \(max\): only"):
        student(tmp_path / "max")


def test_models_that_cannot_be_trained_are_refused(base, bert, tmp_path):
    export_model(base, tmp_path / "onnx", "dual-encoder")
    for source in ("bundled", tmp_path / "onnx"):
        with pytest.raises(InputError, match="an ONNX model, whose weights cannot be trained"):
            student(source)
    with pytest.raises(InputError, match="the encoder has 64 positions"):
        student(bert)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scores": sparse(width=1)}, "only 0 queries have two or more scored items"),
        ({"settings": training(batch=20)}, "11 train queries, fewer than one batch of 20"),
    ],
)
def test_bad_input(base, tmp_path, changes, sentence):
    given = {"scores": sparse(), "items": WOODS.items.texts, "source": base}
    with pytest.raises(InputError, match=sentence):
        distill(folder=tmp_path, **({"settings": training()} | given | changes))
