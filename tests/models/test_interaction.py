"""The interaction head: its formula word by word, its round trip, and its graph."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tiny_models import save_bert, tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402
from crossknn.models.interaction import InteractionHead  # noqa: E402
from crossknn.scorers.torch import TorchCrossEncoder  # noqa: E402
from crossknn.types import Pairs  # noqa: E402

pytestmark = pytest.mark.torch
QUERIES = ["the red oak", "seal swam in the lake lake", "owl"]
ITEMS = ["the old oak of the hill", "a seal", "red sand red stone the oak ran swam far off"]
EVERY = Pairs(np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3))


def new(folder, seed=0, **settings):
    """A model whose head has no weight left at its first value."""
    model = CrossEncoderModel.new(folder, CrossEncoderConfig(head="interaction", **settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def scores(model, pairs=EVERY):
    with torch.no_grad():
        return model.score_rows(model.encoding.pairs(pairs, QUERIES, ITEMS)).numpy()


def by_hand(model, query, item):
    """The score of one pair, in loops over words."""
    ids = lambda text: model.tokenizer.fast.encode(text, add_special_tokens=False).ids  # noqa: E731
    left, right = ids(query), ids(item)
    row = [2, *left, 3, *right, 3]
    kinds = [0] * (len(left) + 2) + [1] * (len(right) + 1)
    with torch.no_grad():
        tensors = [torch.tensor([values]) for values in (row, [1] * len(row), kinds)]
        found = model.encoder(
            input_ids=tensors[0], attention_mask=tensors[1], token_type_ids=tensors[2]
        )
    states = found.last_hidden_state[0].numpy()
    head = {name: value.detach().numpy() for name, value in model.head.named_parameters()}
    q, i = states[1 : 1 + len(left)], states[2 + len(left) : -1]
    cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)  # noqa: E731
    b = 1 / (1 + math.exp(-head["b"]))
    saturation = abs(head["k1"]) * (1 - b + b * len(right) / 80)
    total = matched = late = 0.0
    for place, token in enumerate(left):
        weight = max(0.0, float(head["token_weight.weight"][token, 0]))
        count = right.count(token)
        total += weight
        matched += weight * count / (count + saturation)
        late += weight * max(cosine(q[place], state) for state in i)
    channels = [cosine(q.mean(0), i.mean(0)), matched / total, matched, late / total]
    first = states[0] @ head["cls.weight"][0] + head["cls.bias"][0]
    return float(np.dot(channels, head["mix"]) + first)


def test_the_score_is_the_formula_word_by_word(bert):
    model = new(bert)
    expected = [by_hand(model, q, i) for q in QUERIES for i in ITEMS]
    np.testing.assert_allclose(scores(model), expected, atol=1e-4)


def test_a_score_does_not_depend_on_its_batch(bert):
    model = new(bert)
    together = scores(model)
    alone = [scores(model, Pairs(EVERY.query[p : p + 1], EVERY.item[p : p + 1])) for p in range(9)]
    np.testing.assert_allclose(np.concatenate(alone), together, atol=1e-5)


def test_an_untrained_head_weighs_every_token_alike_until_it_is_told(bert):
    head = CrossEncoderModel.new(bert, CrossEncoderConfig(head="interaction")).head
    assert head.token_weight.weight.detach().unique().tolist() == [1.0]
    wanted = torch.linspace(0, 3, head.token_weight.num_embeddings)
    head.weigh_tokens(wanted)
    assert torch.equal(head.token_weight.weight.squeeze(-1), wanted)
    with pytest.raises(InputError, match=r"weights of shape \(3,\) for"):
        head.weigh_tokens(torch.ones(3))


def test_everything_learns(bert):
    model = new(bert)
    model.score_rows(model.encoding.pairs(EVERY, QUERIES, ITEMS)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.head.parameters())
    seen = {i for text in QUERIES for i in model.tokenizer.fast.encode(text).ids[1:-1]}
    moved = model.head.token_weight.weight.grad.squeeze(-1).nonzero().squeeze(-1).tolist()
    assert set(moved) <= seen


def test_a_saved_model_is_the_same_model(bert, tmp_path):
    model = new(bert, max_length=40)
    folder = model.save_pretrained(tmp_path)
    again = CrossEncoderModel.from_pretrained(folder)
    assert again.config == model.config
    np.testing.assert_array_equal(scores(again), scores(model))


def test_training_goes_on_from_a_saved_head_of_the_same_kind(bert, tmp_path):
    model = new(bert)
    folder = model.save_pretrained(tmp_path)
    again = CrossEncoderModel.new(folder, CrossEncoderConfig(head="interaction", max_length=40))
    np.testing.assert_array_equal(scores(again.eval()), scores(model))
    other = CrossEncoderModel.new(folder, CrossEncoderConfig(head="cls"))
    assert not other.head.out.bias.any()


def test_the_exported_graph_scores_as_in_torch(bert, tmp_path):
    pytest.importorskip("onnx")
    from crossknn.models.export import export_model
    from crossknn.scorers.onnx import OnnxCrossEncoder

    folder = new(bert).save_pretrained(tmp_path / "torch")
    graph = export_model(folder, tmp_path / "onnx")
    found = []
    for scorer in (TorchCrossEncoder(folder), OnnxCrossEncoder(graph, threads=1)):
        out = np.full(9, np.nan, dtype=np.float32)
        for positions, values in scorer.score(EVERY, QUERIES, ITEMS):
            out[positions] = values
        found.append(out)
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_every_layer_in_int8_is_smaller_and_the_licence_is_recorded(tmp_path):
    pytest.importorskip("onnx")
    from crossknn.cli.export import command

    wide = save_bert(tmp_path / "bert", hidden=64)
    folder = new(wide, max_length=40).save_pretrained(tmp_path / "torch")
    sizes = []
    for every_layer in (False, True):
        graph = tmp_path / f"int8-{every_layer}"
        command(str(folder), graph, precision="int8", every_layer=every_layer, license="Apache-2.0")
        assert json.loads((graph / "crossknn.json").read_text())["license"] == "Apache-2.0"
        sizes.append((graph / "model.onnx").stat().st_size)
    assert sizes[1] < sizes[0]


def test_a_tokenizer_without_token_types_is_refused(bert):
    from tokenizers import processors

    model = new(bert)
    made = tokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    with pytest.raises(InputError, match="token type 0 and items 1"):
        CrossEncoderModel(model.encoder, made, model.config)


def test_an_empty_text_has_a_finite_score():
    head = InteractionHead(4, 9, special=(2, 3, 0))
    ids = torch.tensor([[2, 3, 5, 3], [2, 5, 3, 3], [2, 3, 3, 0]])
    kinds = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 0]])
    states = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(head(states, ids, (ids != 0).long(), kinds)).all()
