"""Every late-interaction model against a forward pass written from its paper (references/late.py).

The product reads padded batches of texts, lists in any order and with places that hold nothing; the
reference reads one query and its candidates, each text alone, in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from references import late
from tiny_models import save_bert

from crossknn.types import NO_ITEM
from crossknn_train.models.late import (
    LateInteractionConfig,
    LateInteractionModel,
)

LAYERS, HEADS = 4, 2
QUERIES = ["a red oak", "seals of the lake swam in the dark cave and the old storm ran on", "elm"]
ITEMS = [
    "the whale sat on a hill",
    "oak",
    "squids swam in the river of stone, the snow and the sand of a small dark lake",
    "red red red",
    "an unknown tall heron flew",
    "yew ash",
]
LISTS = np.array(
    [[0, 1, 2, 3, 4, 5, NO_ITEM], [5, NO_ITEM, 3, 0, 4, 1, 2], [NO_ITEM, 2, 4, 1, 0, 3, 5]]
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder of a BERT of four layers."""
    folder = save_bert(tmp_path_factory.mktemp("bert"))
    config = transformers.AutoConfig.from_pretrained(folder, num_hidden_layers=LAYERS)
    torch.manual_seed(1)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def new(encoder, kind, shared=False, **options):
    """A model in which no two weights are alike, and none is where it began."""
    torch.manual_seed(0)
    config = LateInteractionConfig(
        head=kind, shared=shared, options=options, query_length=32, item_length=32
    )
    model = LateInteractionModel.new(encoder, config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def weights(module):
    return {name: value.detach().double() for name, value in module.state_dict().items()}


def bert_of(encoder, **more):
    """A tower for the reference, with the weights of further layers."""
    config = encoder.config
    return late.Bert(
        weights=weights(encoder) | more,
        heads=config.num_attention_heads,
        layers=LAYERS,
        eps=config.layer_norm_eps,
    )


def scores(model):
    """The product's scores of LISTS, padded with tokens and candidates that are all 7."""
    with torch.inference_mode():
        query, query_mask = model.outputs(model.encoding.texts(QUERIES, queries=True), queries=True)
        items, item_mask = model.outputs(model.encoding.texts(ITEMS, queries=False), queries=False)
        places = torch.from_numpy(LISTS)
        there = (places != NO_ITEM)[..., None]
        values, mask = items[places], item_mask[places] & there
        values = torch.where(mask[..., None], values, torch.tensor(7.0))
        if model.head.query_reads == "tokens" and model.config.head != "poly":
            query = torch.where(query_mask[..., None], query, torch.tensor(7.0))
        return model.head(query, query_mask, values, mask).numpy()


# References by kind: a function of a query and its candidates, from the weights of a model


def deformer_of(model):
    lower = LAYERS - model.config.options["layers"]
    upper = {
        f"encoder.layer.{lower + int(name.split('.')[1])}.{name.split('.', 2)[2]}": value
        for name, value in weights(model.head).items()
        if name.startswith("layers.")
    }
    w = weights(model.head.out)
    pooler = {f"pooler.{name}": w[name] for name in ("dense.weight", "dense.bias")}
    bert, other = (bert_of(tower.encoder, **upper, **pooler) for tower in (model.query, model.item))
    head = {"weight": w["out.weight"], "bias": w["out.bias"]}
    return lambda query, items: late.deformer((bert, other), head, query, items, lower=lower)


MIX_NAMES = {
    "item_query.": "candidate_query.",
    "item_key.": "candidate_key.",
    "item_value.": "candidate_value.",
    "query.": "compress_query.",
    "output.": "attention.output.",
    "wide.": "intermediate.",
    "narrow.": "output.",
}


def renamed(given, names):
    return {
        new + name.removeprefix(old): value
        for old, new in names.items()
        for name, value in given.items()
        if name.startswith(old)
    }


def mixencoder_of(model):
    head = weights(model.head)
    own = renamed(head, MIX_NAMES)
    last = f"encoder.layer.{LAYERS - 1}.attention.self."
    of_query = renamed(head, {f"{name}.": f"{last}{name}." for name in ("key", "value")})
    gate = renamed(head, {"gate.": "gate."})
    towers = bert_of(model.query.encoder, **of_query), bert_of(model.item.encoder)
    return lambda query, items: late.mixencoder(towers, own, gate, query, items)


CMC_NAMES = {"in_proj.": "self_attn.in_proj_", "out_proj.": "self_attn.out_proj."}
CMC_NAMES |= {f"{name}.": f"{name}." for name in ("norm1", "linear1", "linear2", "norm2")}


def of_states(model):
    """The references that read what the two towers give."""
    head, options = weights(model.head), model.config.options
    towers = bert_of(model.query.encoder), bert_of(model.item.encoder)
    if model.config.head == "poly":
        return lambda *texts: late.poly(towers, head["codes"], *texts)
    if model.config.head == "som":
        matrix = head.get("project.weight", torch.eye(16).double())
        return lambda *texts: late.sum_of_max(towers, matrix, *texts)
    layers = [renamed(weights(layer), CMC_NAMES) for layer in model.head.layers]
    given = {name: options[name] for name in ("heads", "variant")}
    return lambda *texts: options["scale"] * late.cmc(towers, layers, *texts, **given)


# The reference itself


def test_the_bert_of_the_reference_is_bert(encoder):
    model = transformers.BertModel.from_pretrained(encoder, add_pooling_layer=False).eval().double()
    for n, kind in ((1, 0), (7, 1), (30, 0)):
        words = np.random.default_rng(n).integers(2, 50, n).tolist()
        given = torch.tensor([words]), torch.full((1, n), kind)
        with torch.inference_mode():
            expected = model(input_ids=given[0], token_type_ids=given[1]).last_hidden_state[0]
        found = late.encode(bert_of(model), words, kind)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


# The product


@pytest.mark.parametrize(
    ("kind", "shared", "options"),
    [
        ("deformer", True, {"layers": 3}),
        ("deformer", False, {"layers": 1}),
        ("mixencoder", False, {}),
        ("poly", False, {"codes": 5}),
        ("som", False, {}),
        ("som", True, {"projected": True, "dimensions": 6}),
        ("cmc", True, {"variant": "paper", "feed_forward": 24}),
        ("cmc", False, {"variant": "paper", "layers": 1, "feed_forward": 24}),
        ("cmc", False, {"variant": "reference", "feed_forward": 24, "scale": 0.2}),
    ],
)
def test_scores_are_the_papers(encoder, kind, shared, options):
    """All lists at once against the reference, which gets one query and the items in order."""
    model = new(encoder, kind, shared=shared, **options)
    reference = {"deformer": deformer_of, "mixencoder": mixencoder_of}.get(kind, of_states)(model)
    items, queries = (
        [row.ids.tolist() for row in model.encoding.texts(texts, queries=side)]
        for texts, side in ((ITEMS, False), (QUERIES, True))
    )
    assert model.dimensions == options.get("dimensions", 16)
    for row, query, places in zip(scores(model), queries, LISTS, strict=True):
        expected, there = reference(query, items).numpy(), places != NO_ITEM
        assert np.ptp(expected) > 1e-2
        assert np.isneginf(row[~there]).all()
        np.testing.assert_allclose(row[there], expected[places[there]], rtol=1e-4, atol=1e-4)
