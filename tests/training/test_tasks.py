"""Cross-encoder and dual-encoder tasks: losses from scores, passes, dev measures, overfitting."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import corpus, make_task, products

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.data.dataset import Labelled  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.training import loop  # noqa: E402
from crossknn.training.labelled import DualEncoderTask, vectors  # noqa: E402
from crossknn.training.losses import distance_to_teacher  # noqa: E402
from crossknn.training.settings import NegativesSettings, TrainingSettings  # noqa: E402
from crossknn.types import NO_ITEM, Pairs  # noqa: E402

pytestmark = pytest.mark.torch

HEADS = ["cls", "emb"]


def plain_scores(model, queries, items):
    """Scores of single pairs, one by one."""
    with torch.inference_mode():
        rows = [
            model.encoding.pairs(Pairs(np.array([0]), np.array([0])), [query], [item])
            for query, item in zip(queries, items, strict=True)
        ]
        return np.array([float(model.score_rows(row)) for row in rows])


def gradient(task, rows, parts, folder):
    task.begin_epoch(0, folder)
    task.model.train()
    task.model.zero_grad()
    losses = list(task.losses(rows, parts, 0, 0))
    for loss in losses:
        loss.backward()
    flat = [p.grad.flatten() for p in task.model.parameters() if p.grad is not None]
    return sum(float(loss.detach()) for loss in losses), torch.cat(flat)


# Losses


@pytest.mark.parametrize("head", HEADS)
def test_a_cross_encoders_loss_is_that_of_its_scores(bert, head):
    task = make_task("cross", bert, head=head, dropout=0.0)
    lists = np.array([[0, 3, 4, 5], [1, 2, NO_ITEM, NO_ITEM], [2, 9, 8, NO_ITEM]])
    expected = []
    for query, items in zip((0, 1, 2), lists, strict=True):
        texts = [task.train.items[item] for item in items if item != NO_ITEM]
        scores = plain_scores(task.model, [task.train.queries[query]] * len(texts), texts)
        expected.append(np.log(np.exp(scores).sum()) - scores[0])
    assert float(task.loss([0, 1, 2], lists).detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_a_dual_encoders_loss_is_that_of_its_inner_products(bert, tmp_path):
    """Twenty times the cosine; every item of the batch is a negative, but for right ones."""
    base = corpus(4, 8)
    positives = (np.array([0, 1]), np.array([1]), np.array([2]), np.array([3]))
    part = Labelled(name="x", items=base.items, queries=base.queries, positives=positives)
    task = make_task(
        "dual", bert, train=[part], negatives={"kind": "random", "count": 2, "depth": 3}
    )
    task.begin_epoch(0, tmp_path)
    (loss,) = (float(found.detach()) for found in task.losses([0, 1, 2], 1, 0, 0))
    lists = task.train.lists([0, 1, 2], np.load(tmp_path / "negatives-0.npy"), 2, 1)
    columns = sorted(set(lists.flatten().tolist()))
    chosen = [base.items.texts[c] for c in columns]
    scores = 20 * products(task.model, base.queries.texts[:3], chosen)
    expected = []
    for row, (found, right_ones) in enumerate(zip(lists, positives[:3], strict=True)):
        gold = columns.index(found[0])
        counted = [c for c, item in enumerate(columns) if item not in right_ones or c == gold]
        expected.append(np.log(np.exp(scores[row, counted]).sum()) - scores[row, gold])
    assert loss == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("parts", [2, 6])
def test_passes_add_up_to_the_whole_batch(bert, tmp_path, head, parts):
    task = make_task("cross", bert, head=head, dropout=0.0)
    rows = [3, 1, 4, 0, 5, 9]
    loss, whole = gradient(task, rows, 1, tmp_path)
    split_loss, split = gradient(task, rows, parts, tmp_path)
    assert split_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(split, whole, rtol=1e-3, atol=1e-5 * float(whole.abs().max()))
    assert float(whole.abs().max()) > 1e-4


# Dev measures


def test_a_cross_encoders_dev_measures(bert, tmp_path):
    """Two dev queries' candidates hold the right item; the best of each is found by hand."""
    task = make_task("cross", bert, head="emb")
    task.begin_epoch(0, tmp_path)
    dev = task.dev
    table = [[0, 1, 2], [1, 3, NO_ITEM], [5, 6, 7], [4, NO_ITEM, NO_ITEM]]
    np.save(tmp_path / "dev.npy", np.array(table))
    task = make_task("cross", bert, head="emb")
    task.begin_epoch(0, tmp_path)
    right = []
    for query, row in enumerate(table):
        items = [item for item in row if item != NO_ITEM]
        texts = [dev.items[item] for item in items]
        scores = plain_scores(task.model.eval(), [dev.queries[query]] * len(items), texts)
        right.append(items[int(np.argmax(scores))] in dev.positives[query])
    measures = loop.evaluate(task, loop.autocast_of(task.model, training()))
    assert measures["in_candidates"] == 0.5
    assert measures["accuracy"] == np.mean(right)
    assert measures["normalised"] == np.sum(right) / 2
    assert not any(right[2:])


def test_a_dual_encoders_dev_measures(bert):
    task = make_task("dual", bert)
    part = task.dev.parts[0]
    scores = products(task.model, part.queries.texts, part.items.texts)
    ranks = [
        int((row > row[found[0]]).sum()) + 1
        for row, found in zip(scores, part.positives, strict=True)
    ]
    measures = loop.evaluate(task, loop.autocast_of(task.model, training()))
    assert measures["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)))
    assert measures["accuracy"] == np.mean(np.array(ranks) == 1)
    assert measures["at_64"] == 1.0


# Learning


def training(**changes):
    settings = {"steps": 60, "batch": 10, "precision": "float32", "evaluations": 1, "threads": 1}
    return TrainingSettings(**(settings | changes))


class Taught:
    """A teacher that says the same of every text."""

    fingerprint = None
    dimensions = 32

    def encode_queries(self, texts):
        return np.tile(np.eye(32, dtype=np.float32)[0], (len(texts), 1))

    def encode_items(self, texts, progress=None):
        return self.encode_queries(texts)


def taught_task(bert, **settings):
    torch.manual_seed(0)
    model = DualEncoderModel.new(bert, DualEncoderConfig(query_length=32, item_length=32)).eval()
    negatives = NegativesSettings(kind="random", count=1, depth=4)
    return DualEncoderTask(model, [corpus()], [corpus(start=3)], negatives, **settings)


def test_the_loss_adds_the_weighted_distance_of_queries_and_items(bert, tmp_path):
    losses = []
    for settings in ({}, *({"teacher": Taught(), "teacher_weight": w} for w in (0.0, 1.0, 3.0))):
        task = taught_task(bert, **settings)
        task.begin_epoch(0, tmp_path)
        losses += [loss.item() for loss in task.losses([0, 1, 2], 1, 0, 0)]
    plain, none, once, thrice = losses
    assert none == pytest.approx(plain)
    assert thrice - plain == pytest.approx(3 * (once - plain), rel=1e-4)
    items = np.unique(task.train.lists([0, 1, 2], task._wrong, 1, 1))
    texts = [*task.train.queries[:3]], [task.train.items[item] for item in items]
    own = torch.cat(vectors(task.model, *texts))
    taught = torch.from_numpy(Taught().encode_queries(own))
    assert once - plain == pytest.approx(distance_to_teacher(own, taught).item(), rel=1e-4)


def test_a_teacher_of_another_width_is_refused(bert):
    wide = Taught()
    wide.dimensions = 384
    with pytest.raises(InputError, match="384 dimensions, the model's 32"):
        taught_task(bert, teacher=wide)
