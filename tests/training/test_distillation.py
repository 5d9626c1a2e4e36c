"""Distillation: losses from scores, mining, validation, resumption, and the folder it leaves."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import log

import numpy as np
import pytest
from tiny_models import corpus, products

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.fitting.distill import _lists, best_of_rows, distill, student  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.models.export import export_model  # noqa: E402
from crossknn.scorers import DualEncoder  # noqa: E402
from crossknn.scores.store import SparseScores  # noqa: E402
from crossknn.training import loop  # noqa: E402
from crossknn.training.distillation import DistillationTask, pair_cross_entropy  # noqa: E402
from crossknn.training.settings import TrainingSettings  # noqa: E402
from crossknn.types import NO_ITEM, Candidates, Pairs  # noqa: E402

pytestmark = pytest.mark.torch

CONFIG = DualEncoderConfig(query_length=16, item_length=16)
WOODS = corpus(12, 16)


def training(**changes):
    settings = {"epochs": 3, "batch": 5, "learning_rate": 3e-3, "evaluations": 1}
    return TrainingSettings(**(settings | {"precision": "float32"} | changes))


def teacher(q=12, n=16, seed=0):
    """Dense scores (q, n) as a cross-encoder gives them."""
    return np.random.default_rng(seed).normal(0, 2, (q, n)).astype(np.float32)


def lists_of(rows, width):
    best = np.argsort(-rows, axis=1, kind="stable")[:, :width]
    return Candidates(best, np.take_along_axis(rows, best, axis=1))


def make(bert, lists=None, config=CONFIG, **options):
    torch.manual_seed(0)
    model = DualEncoderModel.new(bert, config)
    lists = lists_of(teacher(), 5) if lists is None else lists
    queries = WOODS.queries.texts[: len(lists.items)]
    return DistillationTask(model, queries, WOODS.items.texts, lists, **({"k": 3} | options))


def plain_scores(model):
    """The dual encoder's cosines of all queries and items: (12, 16)."""
    return products(model, WOODS.queries.texts, WOODS.items.texts)


def log_softmax(values):
    return values - np.log(np.exp(values).sum())


# Losses


def test_match_compares_the_softmaxes_over_each_list(bert):
    """Twenty times the cosines against the teacher's scores; lists of 4, 2 and 3 items."""
    rows = teacher()
    lists = lists_of(rows, 4)
    for row, length in enumerate([2, 3, 4]):
        lists.items[3 * row : 3 * row + 3, length:] = NO_ITEM
        lists.scores[3 * row : 3 * row + 3, length:] = -np.inf
    task = make(bert, lists)
    expected = []
    for query in task.train[[0, 4, 7]]:
        items = lists.items[query][lists.items[query] != NO_ITEM]
        wanted = np.exp(log_softmax(rows[query, items]))
        found = log_softmax(20 * plain_scores(task.model)[query, items])
        expected.append(-(wanted * found).sum())
    loss = task.loss([0, 4, 7], *task.draw([0, 4, 7], 0))
    assert float(loss.detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_pair_sets_the_jth_neighbour_against_the_jth_nearest_that_is_none(bert, tmp_path):
    task = make(bert, loss="pair")
    task.begin_epoch(0, tmp_path)
    scores = plain_scores(task.model)
    expected = []
    for query in task.train[[1, 6]]:
        right = lists_of(teacher(), 5).items[query]
        wrong = [item for item in np.argsort(-scores[query]) if item not in right][:5]
        difference = 20 * (scores[query, right] - scores[query, wrong])
        expected.append(np.log1p(np.exp(-difference)).mean())
    loss = task.loss([1, 6], *task.draw([1, 6], 0))
    assert float(loss.detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_pair_by_hand():
    """Row 1: 3 against 1 and 1 against 4; row 2: 1 against 1, then nothing; row 3: nothing.

    -log softmax: log(4/3) and log 5, so their mean; log 2; 0. A pair's gradient is the softmax of
    its wrong item, over the number of pairs and of queries.
    """
    right = torch.tensor([[log(3), 0], [0, 9], [5, 5]], dtype=torch.float64, requires_grad=True)
    wrong = torch.tensor([[log(1), log(4)], [log(1), 2], [1, 1]], dtype=torch.float64)
    present = torch.tensor([[True, True], [True, False], [False, False]])
    value = pair_cross_entropy(right, wrong, present)
    value.backward()
    assert value.item() == pytest.approx(((log(4 / 3) + log(5)) / 2 + log(2)) / 3)
    expected = np.array([[1 / 4 / 2, 4 / 5 / 2], [1 / 2, 0], [0, 0]]) / 3
    np.testing.assert_allclose(right.grad.numpy(), -expected, atol=1e-12)


# Validation


def test_the_measures_are_of_held_out_queries_against_all_items(bert, monkeypatch):
    monkeypatch.setattr("crossknn.training.distillation.HELD", 0.25)
    task = make(bert)
    assert len(task.held) == 3
    assert sorted([*task.held, *task.train]) == list(range(12))
    near = np.argsort(-plain_scores(task.model), axis=1)[:, :3]
    best = lists_of(teacher(), 3).items
    recall = [len({*near[row]} & {*best[row]}) / 3 for row in task.held]
    first = [best[row, 0] in near[row] for row in task.held]
    measures = loop.evaluate(task, nullcontext)
    assert measures == {"recall": pytest.approx(np.mean(recall)), "first": np.mean(first)}
    assert {tuple(make(bert, seed=s).held) for s in (0, 0, 1)} != {tuple(task.held)}


# Learning


def test_a_run_of_other_scores_is_not_resumed(bert, tmp_path):
    loop.fit(make(bert), training(), tmp_path)
    scores = lists_of(teacher(), 5)
    scores.scores[0, 0] += 1
    for changed in (make(bert, scores), make(bert, lists_of(teacher(seed=1), 5))):
        with pytest.raises(InputError, match="other settings, data or model"):
            loop.fit(changed, training(), tmp_path)


@pytest.mark.parametrize(
    ("q", "listed", "loss", "sentence"),
    [
        (12, 5, "kl", "the loss is 'kl'; it must be 'match' or 'pair'"),
        (12, 16, "pair", "a list holds all 16 items"),
        (1, 5, "match", "there are 1 with two scored items"),
    ],
)
def test_what_cannot_be_distilled_is_said(bert, q, listed, loss, sentence):
    with pytest.raises(InputError, match=sentence):
        make(bert, lists_of(teacher(q), listed), loss=loss)


# From scores to a folder


def sparse(rows=None, width=5, seed=0):
    """Random entries of dense rows, so many of each query."""
    rows = teacher() if rows is None else rows
    generator = np.random.default_rng(seed)
    chosen = [generator.permutation(rows.shape[1])[:width] for _ in rows]
    pairs = Pairs(np.repeat(np.arange(len(rows)), width), np.concatenate(chosen))
    score = rows[pairs.query, pairs.item]
    return SparseScores.of(WOODS.queries.texts[: len(rows)], rows.shape[1], pairs, score)


@pytest.fixture(scope="module")
def base(bert, tmp_path_factory):
    """A dual encoder trained here, with two towers."""
    torch.manual_seed(5)
    model = DualEncoderModel.new(bert, replace(CONFIG, shared=False))
    return model.save_pretrained(tmp_path_factory.mktemp("base"))


def test_sparse_scores_become_a_dual_encoder(base, tmp_path):
    scores, items = sparse(), WOODS.items.texts
    found = distill(scores, items, base, tmp_path, settings=training())
    assert (found.folder, found.loss, found.queries, found.calls) == (tmp_path, "match", 12, 60)
    card = (tmp_path / "README.md").read_text()
    assert "12 train queries with lists of up to 5 items (60 calls), by the loss match" in card
    moved = DualEncoder(tmp_path).encode_items(items) - DualEncoder(base).encode_items(items)
    assert np.abs(moved).max() > 0.01
    # Again: nothing is left to train, and the folder is the same.
    weights = (tmp_path / "model.safetensors").read_bytes()
    again = distill(scores, items, base, tmp_path, settings=training())
    assert again.measures == found.measures
    assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_the_better_of_two_losses_is_kept(bert, tmp_path):
    scores = best_of_rows(WOODS.queries.texts, teacher(), 4)
    options = {"calls": 192, "config": CONFIG, "settings": training(epochs=8, seed=2)}
    found = {
        losses: distill(
            scores, WOODS.items.texts, bert, tmp_path / str(losses), losses=losses, **options
        )
        for losses in (("match",), ("pair",), ("match", "pair"))
    }
    match, pair, both = (fitted.measures["recall"] for fitted in found.values())
    assert match != pair
    assert both == max(match, pair)


def test_a_list_is_the_best_of_what_is_scored(bert, tmp_path, caplog):
    """Queries with one entry or none are left out, which is said; ties go to the first item."""
    query = np.array([0, 0, 0, 2, 3, 3, 5, 5, 5, 5])
    item = np.array([1, 4, 9, 3, 2, 8, 0, 1, 2, 3])
    score = np.array([1, 3, 2, 9, 5, 5, 0, 1, 2, 3], dtype=np.float32)
    scores = SparseScores.of(WOODS.queries.texts, 16, Pairs(query, item), score)
    rows, lists = _lists(scores, 3)
    assert rows.tolist() == [0, 3, 5]
    assert lists.items.tolist() == [[4, 9, 1], [2, 8, NO_ITEM], [3, 2, 1]]
    assert lists.scores.tolist() == [[3, 2, 1], [5, 5, -np.inf], [3, 2, 1]]
    settings = training(epochs=1, batch=2)
    found = distill(scores, WOODS.items.texts, bert, tmp_path, config=CONFIG, settings=settings)
    assert (found.queries, found.calls) == (3, 10)
    assert "9 train queries have fewer than two scored items: left out" in caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of where the layers live
def test_a_sentence_transformers_folder_keeps_its_vectors(bert, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.models import Normalize, Pooling, Transformer

    inner = Transformer(str(bert), max_seq_length=24)
    mean, first = (Pooling(32, pooling_mode=mode) for mode in ("mean", "cls"))
    for place, layers in enumerate(([inner, mean], [inner, first, Normalize()])):
        made = library.SentenceTransformer(modules=layers, device="cpu")
        made.save(str(tmp_path / str(place)))
        model = student(tmp_path / str(place))
        assert model.config == DualEncoderConfig(
            pooling=("mean", "cls")[place],
            normalize=bool(place),
            query_length=24,
            item_length=24,
        )
        texts = [*WOODS.items.texts, "oak " * 40]
        rows = model.encoding.texts(texts, queries=False)
        with torch.inference_mode():
            found = model.eval()(rows, queries=False).numpy()
        np.testing.assert_allclose(found, made.encode(texts), atol=1e-4)
    odd = library.SentenceTransformer(modules=[inner, Pooling(32, pooling_mode="max")])
    odd.save(str(tmp_path / "odd"))
    with pytest.raises(InputError, match=r"Transformer, Pooling \(max\): only"):
        student(tmp_path / "odd")


def test_models_without_torch_weights_are_refused(base, tmp_path):
    export_model(base, tmp_path / "onnx", "dual-encoder")
    for source in ("bundled", tmp_path / "onnx"):
        with pytest.raises(InputError, match="an ONNX model, whose weights cannot be trained"):
            student(source)
    with pytest.raises(InputError, match="there is no model folder"):
        student(tmp_path / "nothing")
    with pytest.raises(InputError, match="settings of its own: give no config"):
        student(base, CONFIG)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"top": 1}, "a list has at least 2 items"),
        ({"scores": sparse(width=1)}, "there are 0 with two scored items"),
        ({"settings": training(batch=20)}, "11 train queries, fewer than one batch of 20"),
    ],
)
def test_bad_input(bert, tmp_path, changes, sentence):
    given = {"scores": sparse(), "items": WOODS.items.texts, "source": bert, "config": CONFIG}
    with pytest.raises(InputError, match=sentence):
        distill(folder=tmp_path, **({"settings": training()} | given | changes))
