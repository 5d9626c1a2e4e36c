"""What holds of every head: order, padding, batches, gradients, tracing."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.models.late.model import HEADS as KINDS  # noqa: E402
from crossknn.models.late.model import (  # noqa: E402
    LateInteractionConfig,
    LateInteractionModel,
)

pytestmark = pytest.mark.torch

OPTIONS = {
    "deformer": {"layers": 1},
    "poly": {"codes": 5},
    "som": {"projected": True, "dimensions": 12},
}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]


@pytest.fixture(params=KINDS)
def model(request, bert):
    return new(bert, request.param)


def new(bert, kind, **config):
    torch.manual_seed(0)
    given = {"options": OPTIONS.get(kind, {}), "query_length": 32, "item_length": 32}
    return LateInteractionModel.new(
        bert, LateInteractionConfig(head=kind, **(given | config))
    ).eval()


def compared(model, b=3, c=6, seed=0):
    """Random states as a head compares them, some items and tokens masked and zero."""
    rng = np.random.default_rng(seed)
    d = model.query.encoder.config.hidden_size
    t_q, t_i = (
        1 if reads == "vector" else 5 for reads in (model.head.query_reads, model.head.item_reads)
    )
    query = torch.from_numpy(rng.standard_normal((b, t_q, d)).astype(np.float32))
    query_mask = torch.from_numpy(np.arange(t_q) < rng.integers(1, t_q + 1, (b, 1)))
    query, query_mask = model.head.of_queries(query * query_mask[..., None], query_mask)
    items = rng.standard_normal((b, c, t_i, model.dimensions)).astype(np.float32)
    item_mask = np.arange(t_i) < rng.integers(1, t_i + 1, (b, c, 1))
    item_mask[0, 2] = False
    items = torch.from_numpy(items * item_mask[..., None])
    return query.detach(), query_mask, items, torch.from_numpy(item_mask)


def scores(model, *given):
    with torch.inference_mode():
        return model.head(*given).numpy()


def test_scores_are_float32_where_the_model_is_not(model):
    query, query_mask, items, item_mask = compared(model, c=200)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = model.head(query, query_mask, items, item_mask)
    there = found[torch.isfinite(found)]
    assert found.dtype == torch.float32
    # In bfloat16 hundreds of scores would fall on a few dozen values.
    assert len(there.unique()) > 0.99 * len(there)
    assert (there != there.bfloat16().float()).float().mean() > 0.9


def test_the_order_of_candidates_does_not_matter(model):
    query, query_mask, items, item_mask = compared(model)
    before = scores(model, query, query_mask, items, item_mask)
    order = np.random.default_rng(1).permutation(items.shape[1])
    after = scores(model, query, query_mask, items[:, order], item_mask[:, order])
    assert np.ptp(before[1]) > 1e-2
    np.testing.assert_allclose(after, before[:, order], **CLOSE)


def test_padding_changes_nothing(model):
    query, query_mask, items, item_mask = compared(model)
    before = scores(model, query, query_mask, items, item_mask)
    assert np.isneginf(before[0, 2])
    assert np.isfinite(np.delete(before.ravel(), 2)).all()
    more, none = torch.full_like(items[:, :3], 7.0), torch.zeros_like(item_mask[:, :3])
    after = scores(
        model, query, query_mask, torch.cat([more, items], 1), torch.cat([none, item_mask], 1)
    )
    np.testing.assert_allclose(after[:, 3:], before, **CLOSE)
    assert np.isneginf(after[:, :3]).all()


def test_padding_of_tokens_changes_nothing(model):
    query, query_mask, items, item_mask = compared(model)
    before = scores(model, query, query_mask, items, item_mask)
    wider = torch.nn.functional.pad
    if model.head.item_reads == "tokens":
        items, item_mask = wider(items, (0, 0, 0, 4), value=7.0), wider(item_mask, (0, 4))
    if model.head.query_reads == "tokens" and model.config.head != "poly":
        query, query_mask = wider(query, (0, 0, 0, 3), value=7.0), wider(query_mask, (0, 3))
    np.testing.assert_allclose(scores(model, query, query_mask, items, item_mask), before, **CLOSE)


def test_what_a_query_hands_over_does_not_depend_on_its_padding(model):
    rows = model.encoding.texts(TEXTS, queries=True)
    with torch.inference_mode():
        values, mask = model.states(rows, queries=True)
        for row, value, own in zip(rows, values, mask, strict=True):
            alone, one = model.states([row], queries=True)
            np.testing.assert_allclose(value[own], alone[0][one[0]], **CLOSE)


def test_queries_do_not_see_one_another(model):
    given = compared(model)
    together = scores(model, *given)
    alone = np.concatenate([scores(model, *(t[b : b + 1] for t in given)) for b in range(3)])
    np.testing.assert_allclose(together, alone, **CLOSE)


def test_only_a_joint_head_compares_candidates_with_one_another(model):
    query, query_mask, items, item_mask = compared(model)
    before = scores(model, query, query_mask, items[:, :4], item_mask[:, :4])
    after = scores(model, query, query_mask, items, item_mask)[:, :4]
    difference = np.abs(after[1:] - before[1:]).max()
    assert difference > 1e-2 if model.head.joint else difference < 1e-4
    assert model.head.joint == (model.config.head == "cmc")


def test_lists_of_nothing_and_of_one(model):
    query, query_mask, items, item_mask = compared(model)
    nothing = scores(model, query, query_mask, items, torch.zeros_like(item_mask))
    assert np.isneginf(nothing).all()
    one = scores(model, query, query_mask, items[:, :1], item_mask[:, :1])
    assert one.shape == (3, 1)
    assert np.isfinite(one).all()
    assert scores(model, query, query_mask, items[:, :0], item_mask[:, :0]).shape == (3, 0)


def test_a_traced_head_takes_any_number_of_candidates(model):
    with torch.inference_mode():
        traced = torch.jit.trace(model.head, compared(model, b=2, c=3), check_trace=False)
        for b, c in ((3, 6), (1, 300)):
            given = compared(model, b=b, c=c, seed=c)
            np.testing.assert_allclose(traced(*given).numpy(), scores(model, *given), **CLOSE)


def test_gradients_reach_everything(model):
    model.train()
    query, mask = model.states(model.encoding.texts(TEXTS[:2], queries=True), queries=True)
    items, item_mask = model.states(model.encoding.texts(TEXTS, queries=False), queries=False)
    lists = items.expand(2, *items.shape), item_mask.expand(2, *item_mask.shape)
    found = model.head(query, mask, *lists)
    torch.nn.functional.cross_entropy(found, torch.tensor([0, 1])).backward()
    still = {
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max()
    }
    # A softmax does not see what is added to all its logits, nor a cross-entropy to all scores.
    assert all(name.endswith(("key.bias", "out.out.bias")) for name in still), still


@pytest.mark.parametrize("what", ["none", "items", "both"])
def test_what_is_frozen_gets_no_gradient_and_no_dropout(model, what):
    model.freeze(what)
    model.train()
    moving = {
        part: {p.requires_grad for p in getattr(model, part).parameters()}
        for part in ("query", "item", "head")
    }
    assert moving["head"] == {True}
    assert moving["item"] == {what == "none"}
    assert moving["query"] == {what != "both"}
    assert model.head.training
    assert (model.query.training, model.item.training) == (what != "both", what == "none")
    model.freeze("none")
    assert all(p.requires_grad for p in model.parameters())
    assert model.item.training
