"""Training late-interaction models: the loss, frozen towers, dev measures, learning, resuming."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tiny_models import corpus, labelled

from crossknn.types import NO_ITEM
from crossknn_train import late_interaction as late
from crossknn_train import loop, settings
from crossknn_train.models.late import LateInteractionConfig, LateInteractionModel

LENGTHS = {"query_length": 16, "item_length": 16}


def task_of(encoder, kind="cmc", *, train=None, dev=None, more=None, **changes):
    """A task of 12 train and 4 dev queries."""
    torch.manual_seed(0)
    options = {"cmc": {"feed_forward": 64}, "som": {"projected": True, "dimensions": 32}}[kind]
    config = LateInteractionConfig(head=kind, pooling="mean", options=options, **LENGTHS)
    chosen = {"retriever": "tfidf", "count": 3, "depth": 6, "dev_candidates": 6} | changes
    about = {"encoder": "", "data": {"folder": "."}, "kind": kind, "candidates": chosen}
    return late.LateInteractionTask(
        LateInteractionModel.new(encoder, config),
        train or [corpus(12, 12)],
        dev or [corpus(4, 8, name="dev", start=30)],
        settings.LateInteractionSettings(**about, **more or {}),
    )


def by_hand(scores, retriever, weight, kl):
    """CMC, eq. 5, of one query."""
    scores, retriever = scores.astype(np.float64), retriever.astype(np.float64)
    p, r = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (scores, retriever))
    right = -np.log(p[0])
    if kl == "none":
        return right
    a, b = (p, r) if kl == "model-retriever" else (r, p)
    return weight * right + (1 - weight) * (a * np.log(a / b)).sum()


@pytest.mark.parametrize("kl", ["model-retriever", "retriever-model", "none"])
@pytest.mark.parametrize("weight", [0.0, 0.2])
def test_the_loss_is_the_papers(kl, weight):
    scores, retriever = 3 * np.random.default_rng(3).normal(size=(2, 3, 5))
    present = np.arange(5) < np.array([[5], [3], [1]])
    rows = zip(scores, retriever, present, strict=True)
    expected = np.mean([by_hand(s[there], r[there], weight, kl) for s, r, there in rows])
    scores[~present], retriever[~present] = -np.inf, -np.inf
    given = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    others = torch.from_numpy(retriever), torch.from_numpy(present)
    found = late.softmax_near_retriever(given, *others, settings.LossSettings(weight=weight, kl=kl))
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)
    found.backward()
    assert torch.isfinite(given.grad).all()
    assert (given.grad[~others[1]] == 0).all()


@pytest.mark.parametrize(
    ("freeze", "still"), [("none", ()), ("items", ("item.",)), ("both", ("item.", "query."))]
)
def test_what_is_frozen_does_not_move_and_the_rest_does(dropping_bert, tmp_path, freeze, still):
    task = task_of(dropping_bert, more={"freeze": freeze})
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    loop.fit(task, settings.TrainingSettings(steps=6, learning_rate=1e-3), tmp_path)
    moved = {n for n, value in task.model.state_dict().items() if (value != before[n]).any()}
    assert not [name for name in moved if name.startswith(still)] or not still
    for part in {"item.", "query.", "head."} - set(still):
        assert [name for name in moved if name.startswith(part)]


@pytest.mark.parametrize("kind", ["cmc", "som"])
def test_states_are_kept_for_their_texts_and_their_tower(bert, tmp_path, monkeypatch, kind):
    """A kill before the last text leaves nothing that is taken for whole."""
    monkeypatch.setattr(late, "_TEXTS_AT_ONCE", 4)
    model, texts = task_of(bert, kind).model, corpus(2, 11).items.texts
    computed, seen = late.tower_states, []

    def count(model, texts, *, queries):
        seen.extend(texts)
        if len(seen) == 8:
            raise KeyboardInterrupt
        return computed(model, texts, queries=queries)

    monkeypatch.setattr(late, "tower_states", count)
    with pytest.raises(KeyboardInterrupt):
        late.kept_states(tmp_path, "item-states", model, texts, queries=False)
    for _ in range(2):
        states = late.kept_states(tmp_path, "item-states", model, texts, queries=False)
        assert len(seen) == 8 + 11
        values, mask = computed(model, texts, queries=False)
        np.testing.assert_array_equal(states.counts, mask.sum(1))
        np.testing.assert_allclose(states.values, values[mask].detach().numpy(), atol=2e-3)
    with torch.no_grad():
        next(model.item.parameters()).add_(1e-3)
    late.kept_states(tmp_path, "item-states", model, texts, queries=False)
    assert len(seen) == 8 + 2 * 11


def test_a_missed_right_item_counts_as_wrong_but_for_normalized_accuracy(bert, tmp_path):
    """Of four dev queries TF-IDF has the right item of two among its three; one has no word."""
    base = corpus(4, 8, name="dev", start=30)
    dev = labelled(base.items.texts, [*base.queries.texts[:3], "nothing"], [[0], [1], [7], [3]])
    task = task_of(bert, dev=[dev], dev_candidates=3)
    task.begin_epoch(0, tmp_path)
    lists = task._dev_lists
    assert (lists[3] == NO_ITEM).all()
    ranks, task.model = np.full(4, np.inf), task.model.eval()
    for row, (right,) in enumerate(dev.positives):
        items = lists[row][lists[row] != NO_ITEM]
        if right in items:
            with torch.no_grad():
                scores = task.scores(task.dev, [row], items[None]).numpy()[0]
            ranks[row] = 1 + (scores > scores[items == right]).sum()
    there = np.isfinite(ranks)
    assert 0 < there.sum() < 4
    found = loop.evaluate(task, nullcontext)
    assert found["mrr"] == pytest.approx((1 / ranks).mean())
    assert found["accuracy"] == (ranks == 1).mean()
    assert found["normalized_accuracy"] == pytest.approx((ranks == 1).sum() / there.sum())
    assert found["recall_4"] == found["recall_16"] == found["in_candidates"] == there.mean()
