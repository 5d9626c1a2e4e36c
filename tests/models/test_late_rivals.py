"""Forward passes of CMC's rivals, each by hand: in NumPy, or by the encoder it was taken from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny_models import save_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from crossknn.models.late.model import (  # noqa: E402
    LateInteractionConfig,
    LateInteractionModel,
)

pytestmark = pytest.mark.torch

D, HEADS = 16, 2
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def states():
    """States of one query's tokens (4, d) and of three items' (3, 5, d), and how many they have."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((4, D)).astype(np.float32)
    items = rng.standard_normal((3, 5, D)).astype(np.float32)
    return query, items, (5, 2, 3)


def new(bert, kind, **options):
    torch.manual_seed(0)
    config = LateInteractionConfig(head=kind, options=options, query_length=32, item_length=32)
    model = LateInteractionModel.new(bert, config).eval()
    with torch.no_grad():  # nothing is at a value it would not have after training
        for parameter in model.head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, {name: value.numpy() for name, value in model.head.state_dict().items()}


def run(model, query, items, item_mask):
    """Scores of one query, given with a token of padding: (c,)."""
    head = model.head
    query = torch.from_numpy(np.vstack([query, np.full((1, D), 3, np.float32)]))[None]
    mask = torch.arange(query.shape[1])[None] < query.shape[1] - 1
    given = torch.from_numpy(items), torch.from_numpy(item_mask)
    with torch.inference_mode():
        items, item_mask = head.of_items(*given)
        return head(*head.of_queries(query, mask), items[None], item_mask[None])[0].numpy()


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def linear(w, name, x):
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def norm(w, name, x):
    unit = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
    return unit * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x):
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])


def test_poly_by_hand(bert, states):
    query, items, _ = states
    model, w = new(bert, "poly", codes=3)
    views = np.stack([softmax(query @ code) @ query for code in w["codes"]])
    expected = [softmax(views @ y) @ views @ y for y in items[:, 0]]
    found = run(model, query, items[:, :1], np.ones((3, 1), bool))
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("projected", [True, False])
def test_sum_of_max_by_hand(bert, states, projected):
    query, items, lengths = states
    model, w = new(bert, "som", **({"dimensions": 6, "projected": True} if projected else {}))
    matrix = w["project.weight"] if projected else np.eye(D, dtype=np.float32)
    assert model.dimensions == len(matrix)
    expected = [
        sum(max((matrix @ h) @ (matrix @ g) for g in item[:length]) for h in query)
        for item, length in zip(items, lengths, strict=True)
    ]
    mask = np.arange(5) < np.array(lengths)[:, None]
    np.testing.assert_allclose(run(model, query, items, mask), expected, **CLOSE)


def test_mixencoder_by_hand(bert, states):
    query, items, _ = states
    model, w = new(bert, "mixencoder")
    found = run(model, query, items[:, :1], np.ones((3, 1), bool))
    np.testing.assert_allclose(found, [_mixed(w, query, e) for e in items[:, 0]], **CLOSE)


def _mixed(w, query, e):
    parts = np.split(np.arange(D), HEADS)
    keys, values = ([linear(w, name, x) for x in query] for name in ("key", "value"))
    own_key, own_value = linear(w, "item_key", e), linear(w, "item_value", e)

    def attend(asked, keys, values):
        logits = [np.array([asked[p] @ key[p] for key in keys]) / np.sqrt(D / HEADS) for p in parts]
        return np.concatenate(
            [softmax(x) @ np.stack(values)[:, p] for x, p in zip(logits, parts, strict=True)]
        )

    def rest(x):
        x = norm(w, "output.LayerNorm", x)
        wide = gelu(linear(w, "wide.dense", x))
        return norm(w, "narrow.LayerNorm", linear(w, "narrow.dense", wide) + x)

    seen = attend(linear(w, "item_query", e), [*keys, own_key], [*values, own_value])
    enriched = rest(linear(w, "output.dense", seen) + e)
    seen = linear(w, "output.dense", attend(linear(w, "query", e), keys, values))
    share = 1 / (1 + np.exp(-linear(w, "gate", np.concatenate([e, seen]))))
    return enriched @ rest(share * seen)


def test_a_mixencoder_begins_as_the_last_layer_of_the_query_tower(bert):
    torch.manual_seed(0)
    config = LateInteractionConfig(head="mixencoder", query_length=32, item_length=32)
    model = LateInteractionModel.new(bert, config)
    assert [len(tower.encoder.encoder.layer) for tower in (model.query, model.item)] == [1, 2]
    last = model.item.encoder.encoder.layer[-1]
    own, head = last.attention.self, model.head
    taken = [
        (own.query, head.query),
        (own.query, head.item_query),
        (own.key, head.key),
        (own.key, head.item_key),
        (own.value, head.value),
        (own.value, head.item_value),
        (last.attention.output.dense, head.output.dense),
        (last.intermediate.dense, head.wide.dense),
        (last.output.LayerNorm, head.narrow.LayerNorm),
    ]
    for mine, copied in taken:
        assert mine.weight is not copied.weight
        assert torch.equal(mine.weight, copied.weight)
    weights = [p.data_ptr() for p in head.parameters()]
    assert len(set(weights)) == len(weights)


@pytest.mark.parametrize("n_upper", [1, 2])
def test_a_deformer_is_the_encoder_whose_lower_layers_see_one_text(tmp_path, n_upper):
    """The encoder itself, with a mask that keeps the texts apart below and together above."""
    folder = save_bert(tmp_path, positions=64)
    config = transformers.AutoConfig.from_pretrained(folder, num_hidden_layers=3)
    torch.manual_seed(1)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    torch.manual_seed(0)
    config = LateInteractionConfig(
        head="deformer", options={"layers": n_upper}, query_length=32, item_length=32
    )
    model = LateInteractionModel.new(folder, config).eval()
    w = {name: value.numpy() for name, value in model.head.state_dict().items()}
    whole = transformers.BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="eager"
    ).eval()

    texts = ["a red oak", "seals of the lake swam", "elm"]
    with torch.inference_mode():
        query, mask = model.states(model.encoding.texts(texts[:1], queries=True), queries=True)
        rows = model.encoding.texts(texts, queries=False)
        items, item_mask = model.states(rows, queries=False)
        found = model.head(query, mask, items[None], item_mask[None])[0]
        own = model.encoding.texts(texts[:1], queries=True)[0]
        for row, score in zip(rows, found, strict=True):
            first = _state_of_cls(whole, own, row, n_upper)
            hidden = np.tanh(linear(w, "out.dense", first))
            expected = (w["out.out.weight"] @ hidden + w["out.out.bias"]).item()
            assert score.item() == pytest.approx(expected, abs=1e-5)
    assert len(set(found.tolist())) == 3


def _state_of_cls(whole, query, item, n_upper):
    """Layer by layer over [query; item], positions from 0 in each."""
    ids = torch.from_numpy(np.concatenate([query.ids, item.ids]))[None]
    places = torch.cat([torch.arange(len(row.ids)) for row in (query, item)])[None]
    x = whole.embeddings(input_ids=ids, position_ids=places)
    of = torch.tensor([0] * len(query.ids) + [1] * len(item.ids))
    apart = (of[:, None] != of[None, :]).float()[None, None] * -1e9
    layers = list(whole.encoder.layer)
    for depth, layer in enumerate(layers):
        found = layer(x, attention_mask=apart if depth < len(layers) - n_upper else None)
        x = found if isinstance(found, torch.Tensor) else found[0]
    return x[0, 0].numpy()
