"""Cross-encoder and dual-encoder tasks: losses from scores, passes, dev measures, a teacher."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tiny_models import corpus, labelled, make_task, products

from crossknn.types import NO_ITEM, Pairs
from crossknn_train import loop
from crossknn_train.labelled import distance_to_teacher, vectors


def plain_scores(model, query, items):
    """Scores of a query with items, one by one."""
    first = Pairs(np.array([0]), np.array([0]))
    with torch.inference_mode():
        rows = [model.encoding.pairs(first, [query], [item]) for item in items]
        return np.array([float(model.encode(row)) for row in rows])


@pytest.mark.parametrize("head", ["cls", "emb"])
def test_a_cross_encoders_loss_is_that_of_its_scores(bert, head):
    task = make_task("cross", bert, head=head, dropout=0.0)
    lists = np.array([[0, 3, 4, 5], [1, 2, NO_ITEM, NO_ITEM], [2, 9, 8, NO_ITEM]])
    expected = []
    for query, items in enumerate(lists):
        texts = [task.train.items[item] for item in items if item != NO_ITEM]
        scores = plain_scores(task.model, task.train.queries[query], texts)
        expected.append(np.log(np.exp(scores).sum()) - scores[0])
    assert float(task.loss([0, 1, 2], lists).detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_zero_is_a_candidate_that_only_right_items_exceed(bert):
    lists = np.array([[0, 3, 4], [1, 2, NO_ITEM]])
    task = make_task("cross", bert, head="emb", dropout=0.0, learned={"zero": True})
    expected = []
    for query, items in enumerate(lists):
        texts = [task.train.items[item] for item in items if item != NO_ITEM]
        scores = plain_scores(task.model, task.train.queries[query], texts)
        with_zero = np.log(1 + np.exp(scores).sum()) - scores[0]
        expected.append(with_zero + np.log(1 + np.exp(scores[1:]).sum()) / 2)
    assert float(task.loss([0, 1], lists).detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_a_cross_encoders_loss_adds_its_distance_to_the_teachers_cosines(bert, tmp_path):
    """The teacher's cosines are equal, so that its distribution over a list is uniform."""
    lists = np.array([[0, 3, 4, 5], [1, 2, NO_ITEM, NO_ITEM]])
    losses = []
    for weight in (0.0, 1.0, 3.0):
        learned = {"teacher_weight": weight, "freeze_words": True}
        task = make_task("cross", bert, head="emb", dropout=0.0, teacher=Taught(), learned=learned)
        task.begin_epoch(0, tmp_path)
        losses.append(task.loss([0, 1], lists).item())
    plain, once, thrice = losses
    assert thrice - plain == pytest.approx(3 * (once - plain), rel=1e-4)
    expected = []
    for query, items in enumerate(lists):
        texts = [task.train.items[item] for item in items if item != NO_ITEM]
        scores = plain_scores(task.model, task.train.queries[query], texts)
        logs = scores - np.log(np.exp(scores).sum())
        expected.append(-np.log(len(texts)) - logs.mean())
    assert once - plain == pytest.approx(np.mean(expected), rel=1e-3)
    assert not task.model.encoder.get_input_embeddings().weight.requires_grad


def test_a_cross_encoder_learns_the_scores_of_a_larger_one(bert):
    lists = np.array([[0, 3, 4, 5], [1, 2, NO_ITEM, NO_ITEM]])
    task = make_task("cross", bert, head="emb", dropout=0.0)
    assert task.loss([0, 1], lists) > 0
    task.teacher = make_task("cross", bert, head="emb", dropout=0.0).model
    assert task.loss([0, 1], lists).item() == pytest.approx(0.0, abs=1e-9)
    task.teacher.head.scale = 3.0
    expected = []
    for query, items in enumerate(lists):
        texts = [task.train.items[item] for item in items if item != NO_ITEM]
        expected += [*(2 * plain_scores(task.model, task.train.queries[query], texts)) ** 2]
    loss = task.loss([0, 1], lists)
    assert float(loss.detach()) == pytest.approx(np.mean(expected), rel=1e-4)
    loss.backward()
    assert all(p.grad is None for p in task.teacher.parameters())


def test_a_dual_encoders_loss_is_that_of_its_inner_products(bert, tmp_path):
    """Twenty times the cosine; every item of the batch is a negative, but for right ones."""
    base, positives = corpus(4, 8), [[0, 1], [1], [2], [3]]
    part = labelled(base.items.texts, base.queries.texts, positives)
    wrong = {"kind": "random", "count": 2, "depth": 3}
    task = make_task("dual", bert, train=[part], negatives=wrong)
    task.begin_epoch(0, tmp_path)
    (lists,) = task.draw([0, 1, 2], 0)
    scores = 20 * products(task.model, base.queries.texts[:3], base.items.texts)
    expected = []
    for row, (gold, *_) in enumerate(lists):
        counted = np.setdiff1d(lists, np.setdiff1d(positives[row], [gold]))
        expected.append(np.log(np.exp(scores[row, counted]).sum()) - scores[row, gold])
    loss = task.loss([0, 1, 2], lists)
    assert float(loss.detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_a_cross_encoders_dev_measures(bert, tmp_path):
    """Two dev queries' candidates hold the right item; the best of each is found by hand."""
    task = make_task("cross", bert, head="emb")
    task.begin_epoch(0, tmp_path)
    dev, table = task.dev, [[0, 1, 2], [1, 3], [5, 6, 7], [4]]
    task._candidates = np.array([items + [NO_ITEM] * (3 - len(items)) for items in table])
    right = []
    for query, items in enumerate(table):
        texts = [dev.items[item] for item in items]
        scores = plain_scores(task.model.eval(), dev.queries[query], texts)
        right.append(items[int(np.argmax(scores))] in dev.positives[query])
    expected = {"in_candidates": 0.5, "accuracy": np.mean(right), "normalised": np.sum(right) / 2}
    assert loop.evaluate(task, nullcontext) == expected
    assert not any(right[2:])


def test_a_dual_encoders_dev_measures(bert):
    task = make_task("dual", bert)
    part = task.dev.datasets[0]
    scores = products(task.model, part.queries.texts, part.items.texts)
    right = np.take_along_axis(scores, np.stack(part.positives), axis=1)
    ranks = 1 + (scores > right).sum(1)
    expected = {"mrr": (1 / ranks).mean(), "accuracy": (ranks == 1).mean(), "at_64": 1.0}
    assert loop.evaluate(task, nullcontext) == pytest.approx(expected)


class Taught:
    """A teacher that says the same of every text."""

    fingerprint = None
    dimensions = 32

    def encode_queries(self, texts):
        return np.tile(np.eye(32, dtype=np.float32)[0], (len(texts), 1))

    def encode_items(self, texts, progress=None):
        return self.encode_queries(texts)


def test_the_loss_adds_the_weighted_distance_of_queries_and_items(bert, tmp_path):
    losses = []
    for told in ({}, *({"teacher": Taught(), "weight": weight} for weight in (0.0, 1.0, 3.0))):
        task = make_task("dual", bert, negatives={"kind": "random"}, **told)
        task.begin_epoch(0, tmp_path)
        (lists,) = task.draw([0, 1, 2], 0)
        losses.append(task.loss([0, 1, 2], lists).item())
    plain, none, once, thrice = losses
    assert none == pytest.approx(plain)
    assert thrice - plain == pytest.approx(3 * (once - plain), rel=1e-4)
    texts = task.train.queries[:3], [task.train.items[item] for item in np.unique(lists)]
    own = torch.cat(vectors(task.model, *texts))
    taught = torch.from_numpy(Taught().encode_queries(own))
    assert once - plain == pytest.approx(distance_to_teacher(own, taught).item(), rel=1e-4)


def test_the_distance_to_a_teacher_by_hand():
    """Cosines 1 and 0; the batch's similarities are 0 for the model and 1 for the teacher, once
    on each side of the diagonal: (1 - 1 + 1 - 0) / 2 + 10 * 2 / 4."""
    own = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    taught = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert distance_to_teacher(own, taught).item() == pytest.approx(0.5 + 10 * 0.5)
