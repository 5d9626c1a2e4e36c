"""Every late-interaction model against a forward pass written from its paper (references/late.py).

The product reads padded batches of texts, lists in any order and with places that hold nothing; the
reference reads one query and its candidates, each text alone, in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import save_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from references import late  # noqa: E402

from crossknn.models.late.model import (  # noqa: E402
    LateInteractionConfig,
    LateInteractionModel,
)
from crossknn.types import NO_ITEM  # noqa: E402

pytestmark = pytest.mark.torch

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
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


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


def ids(model, texts, *, queries):
    return [row.ids.tolist() for row in model.encoding.texts(texts, queries=queries)]


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
        query, query_mask = model.states(model.encoding.texts(QUERIES, queries=True), queries=True)
        items, item_mask = model.states(model.encoding.texts(ITEMS, queries=False), queries=False)
        places = torch.from_numpy(LISTS)
        there = (places != NO_ITEM)[..., None]
        values, mask = items[places], item_mask[places] & there
        values = torch.where(mask[..., None], values, torch.tensor(7.0))
        if model.head.query_reads == "tokens" and model.config.head != "poly":
            query = torch.where(query_mask[..., None], query, torch.tensor(7.0))
        return model.head(query, query_mask, values, mask).numpy()


def compare(model, reference, **close):
    """All lists at once against the reference, which gets one query and the items in order."""
    found = scores(model)
    items = ids(model, ITEMS, queries=False)
    assert len({len(row) for row in items}) > 3
    for row, query, places in zip(found, ids(model, QUERIES, queries=True), LISTS, strict=True):
        expected = reference(query, items).numpy()
        assert np.ptp(expected) > 1e-2
        assert np.isneginf(row[places == NO_ITEM]).all()
        there = places != NO_ITEM
        np.testing.assert_allclose(row[there], expected[places[there]], **(close or CLOSE))


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


def mixencoder_of(model, similarity="dot"):
    head, d = weights(model.head), model.dimensions
    own = renamed(head, MIX_NAMES)
    last = f"encoder.layer.{LAYERS - 1}.attention.self."
    of_query = renamed(head, {f"{name}.": f"{last}{name}." for name in ("key", "value")})
    # The gate's columns for H_0 = 0, which the product leaves out, may hold anything.
    gate = {
        "gate.weight": torch.cat([head["gate.weight"], torch.ones(d, d).double()], 1),
        "gate.bias": head["gate.bias"],
    }
    towers = bert_of(model.query.encoder, **of_query), bert_of(model.item.encoder)
    return lambda query, items: late.mixencoder(
        towers, own, gate, query, items, similarity=similarity
    )


CMC_NAMES = {"in_proj.": "self_attn.in_proj_", "out_proj.": "self_attn.out_proj."}
CMC_NAMES |= {f"{name}.": f"{name}." for name in ("norm1", "linear1", "linear2", "norm2")}


def towers_of(model):
    return bert_of(model.query.encoder), bert_of(model.item.encoder)


def cmc_of(model):
    layers = [renamed(weights(layer), CMC_NAMES) for layer in model.head.layers]
    given = {"heads": model.config.options["heads"], "variant": model.config.options["variant"]}
    return lambda query, items: late.cmc(towers_of(model), layers, query, items, **given)


def poly_of(model):
    codes = weights(model.head)["codes"]
    return lambda query, items: late.poly(towers_of(model), codes, query, items)


def som_of(model):
    matrix = weights(model.head).get("project.weight", torch.eye(16).double())
    return lambda query, items: late.sum_of_max(towers_of(model), matrix, query, items)


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


def test_a_deformer_that_reads_the_pair_in_every_layer_is_bert(encoder):
    model = transformers.BertModel.from_pretrained(encoder).eval().double()
    head = {"weight": torch.randn(16).double(), "bias": torch.randn(1).double()}
    query, item = [2, 9, 10, 3], [11, 12, 13, 14, 3]
    types = torch.tensor([[0] * len(query) + [1] * len(item)])
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([query + item]), token_type_ids=types)
    towers, behind = (bert_of(model),) * 2, (1, len(query))
    score = late.deformer(towers, head, query, [item], lower=0, behind=behind)
    expected = found.pooler_output[0] @ head["weight"] + head["bias"]
    np.testing.assert_allclose(score, expected, rtol=1e-9, atol=1e-9)


# The product

KINDS = {
    "deformer": (deformer_of, {}),
    "mixencoder": (mixencoder_of, {}),
    "poly": (poly_of, {}),
    "som": (som_of, {"rtol": 1e-4, "atol": 1e-4}),
    "cmc": (cmc_of, {"rtol": 1e-4, "atol": 1e-4}),
}


@pytest.mark.parametrize(
    ("kind", "shared", "options"),
    [
        *(("deformer", shared, {"layers": n}) for shared in (True, False) for n in (1, 3)),
        ("mixencoder", False, {}),
        ("poly", False, {"codes": 5}),
        ("poly", True, {"codes": 5}),
        ("som", False, {}),
        ("som", False, {"projected": True}),
        ("som", True, {"projected": True, "dimensions": 6}),
        ("cmc", True, {"variant": "paper", "feed_forward": 24}),
        ("cmc", False, {"variant": "paper", "layers": 1, "feed_forward": 24}),
        ("cmc", False, {"variant": "reference", "feed_forward": 24}),
    ],
)
def test_scores_are_the_papers(encoder, kind, shared, options):
    model = new(encoder, kind, shared=shared, **options)
    reference, close = KINDS[kind]
    compare(model, reference(model), **close)
    if kind == "som":
        wanted = options.get("dimensions", 128) if options else 16
        assert model.dimensions == wanted


def test_mixencoder_scores_by_the_inner_product_and_not_by_the_cosine_of_its_paper(encoder):
    """The paper's 3.2 says cosine, its authors' code and CMC's take the inner product."""
    model = new(encoder, "mixencoder")
    query, items = ids(model, QUERIES[:1], queries=True)[0], ids(model, ITEMS, queries=False)
    cosine = mixencoder_of(model, "cosine")(query, items).numpy()
    assert np.abs(cosine).max() <= 1
    assert np.abs(scores(model)[0, :6] - cosine).max() > 0.1
