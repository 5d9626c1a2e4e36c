"""Cross-encoders: the interaction head by hand, batches, scoring, marks, folders, refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import transformers
from tiny_models import MARKED, TEXTS, grid, save_bert, scores_of, tokenizer

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.token_models import TokenScorer
from crossknn_train.models.cross_encoder import WINDOW, CrossEncoderConfig, CrossEncoderModel
from crossknn_train.models.gated import FASTER

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
HALVES = {"query_length": 60, "item_length": 60}
CONFIGS = {
    "emb": {"head": "emb"},
    "cls": {"head": "cls"},
    "interaction": {"head": "interaction"},
    "marked": {"head": "emb", "marked": True},
    "halves": {"marked": True, "query_length": 12, "item_length": 20, "item_position": 128},
}


def new(folder, seed=0, **config):
    torch.manual_seed(seed)
    model = CrossEncoderModel.new(folder, CrossEncoderConfig(**config)).eval()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def score(model, queries, items, pairs=None):
    pairs = grid(len(queries), len(items)) if pairs is None else pairs
    with torch.inference_mode():
        return model.encode(model.encoding.pairs(pairs, queries, items)).numpy()


# The interaction head by hand (the others: golden/test_model_values.py, lab/tests/test_checkpoints.py)


def states_by_hand(model, ids, kinds):
    """The gated encoder's states of one pair, head by head: attention within the text, plus the
    gate times attention to the other text."""
    encoder, kinds = model.encoder, np.array(kinds)
    starts = np.array([0, int((kinds == 0).sum())])
    places = torch.from_numpy(np.arange(len(ids)) - starts[kinds])[None]
    x = encoder.embeddings(input_ids=torch.tensor([ids]), position_ids=places)[0].numpy()
    same = kinds[:, None] == kinds[None, :]

    def over(logits, allowed):
        weights = np.where(allowed, np.exp(logits), 0)
        return weights / weights.sum(1, keepdims=True)

    for layer, gates in zip(encoder.encoder.layer, model.head.reading.gates, strict=True):
        own, mixed = layer.attention.self, []
        q, k, v = (
            linear(torch.from_numpy(x)).numpy() for linear in (own.query, own.key, own.value)
        )
        width = x.shape[1] // own.num_attention_heads
        for head, gate in enumerate(gates.tolist()):
            at = slice(head * width, (head + 1) * width)
            logits = q[:, at] @ k[:, at].T / math.sqrt(width)
            weights = over(logits, same) + FASTER * gate * over(logits, ~same)
            mixed.append(weights @ v[:, at])
        joined = layer.attention.output(torch.from_numpy(np.hstack(mixed)), torch.from_numpy(x))
        x = layer.output(layer.intermediate(joined), joined).numpy()
    return x


def interaction_by_hand(model, query, item):
    """The interaction head's score of one pair, in loops over words."""
    left, right = (tokenizer().encode(text).ids[1:-1] for text in (query, item))
    ids = [2, *left, 3, 2, *right, 3]
    kinds = [0] * (len(left) + 2) + [1] * (len(right) + 2)
    with torch.inference_mode():
        found = states_by_hand(model, ids, kinds)
    head = {name: value.detach().numpy() for name, value in model.head.named_parameters()}
    of_query, of_item = found[: len(left) + 2], found[len(left) + 2 :]
    q, i = of_query[1:-1], of_item[1:-1]

    def unit(a):
        return a / np.linalg.norm(a)

    b = 1 / (1 + math.exp(-head["b"]))
    saturation = abs(head["k1"]) * (1 - b + b * len(right) / 80)
    total = matched = late = 0.0
    for place, token in enumerate(left):
        weight, count = max(0.0, float(head["token_weight.weight"][token, 0])), right.count(token)
        total += weight
        matched += weight * count / (count + saturation)
        late += weight * max(unit(q[place]) @ unit(state) for state in i)
    read = np.vstack([0 * of_query, of_item])
    sums = [read[start : start + WINDOW].sum(0) for start in range(0, len(read), WINDOW // 2)]
    window = max(unit(of_query.mean(0)) @ unit(each) for each in sums if each.any())
    channels = [window, late / total, matched / total, matched]
    means = unit(of_query.mean(0)) * unit(of_item.mean(0))
    scaled = means @ head["cosine"] + np.dot(channels, head["mix"]) + head["bias"]
    firsts = np.hstack([of_query[0], of_item[0]])
    return float(FASTER * scaled + firsts @ head["first.weight"][0])


def test_the_interaction_score_is_the_formula_word_by_word(bert):
    queries = ["the red oak", "seal swam in the lake lake", "owl"]
    items = [
        "the old oak of the hill",
        "a seal",
        "red sand red stone the oak ran swam far off " * 3,
    ]
    model = new(bert, head="interaction")
    with torch.no_grad():
        model.head.token_weight.weight.abs_()  # as after training: most weigh something
        for small in (model.head.cosine, model.head.mix, model.head.bias, model.head.reading.gates):
            small.div_(FASTER)
    expected = [interaction_by_hand(model, q, i) for q in queries for i in items]
    np.testing.assert_allclose(score(model, queries, items), expected, atol=1e-4)


def test_an_untrained_interaction_model_ranks_as_its_dual_encoder(bert):
    model = CrossEncoderModel.new(bert, CrossEncoderConfig(head="interaction")).eval()
    model.head.mix.data.zero_()
    encoder = transformers.BertModel.from_pretrained(bert, add_pooling_layer=False).eval()

    def vector(text):
        ids = torch.tensor([tokenizer().encode(text).ids])
        with torch.inference_mode():
            return torch.nn.functional.normalize(encoder(ids).last_hidden_state[0].mean(0), dim=0)

    vectors = torch.stack([vector(text) for text in TEXTS])
    expected = 12 * (vectors @ vectors.T).flatten() - 10
    np.testing.assert_allclose(score(model, TEXTS, TEXTS), expected, atol=1e-4)


# Invariance, gradients


@pytest.mark.parametrize("name", CONFIGS)
def test_a_score_depends_on_neither_batch_nor_padding(bert, name):
    model = new(bert, **CONFIGS[name])
    texts, pairs = MARKED if model.config.marked else (TEXTS, TEXTS), grid(4, 4)
    together = score(model, *texts)
    alone = [score(model, *texts, pairs.take([p]))[0] for p in range(16)]
    np.testing.assert_allclose(together, alone, **CLOSE)
    assert together.std() > 0.01
    with torch.inference_mode():
        given = model.tensors(model.encoding.pairs(pairs, *texts))
        wide = model(*(torch.nn.functional.pad(part, (0, 17)) for part in given))
    np.testing.assert_allclose(wide, together, **CLOSE)


# As a scorer


def test_scoring_has_no_dropout_and_no_gradients_and_leaves_the_mode(bert):
    model = new(bert, head="cls", dropout=0.5).train()
    rows = model.encoding.pairs(grid(4, 4), TEXTS, TEXTS)
    assert not torch.equal(model.encode(rows), model.encode(rows))  # it drops out itself
    scorer = TokenScorer(model)
    first, second = (scores_of(scorer, TEXTS, TEXTS) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ScorerError):
        scores_of(scorer, TEXTS, TEXTS)
    assert model.training
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_fingerprint_names_everything_a_score_depends_on(bert):
    model = new(bert)
    before = TokenScorer(model).fingerprint
    changes = ({}, {"max_length": 31}, {"scale": 2.0}, {"marked": True}, {"head": "cls"})
    prints = [TokenScorer(new(bert, **change)).fingerprint for change in changes]
    assert prints[0] == before
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight[7, 3] += 1e-3
    assert len({*prints, TokenScorer(model).fingerprint}) == len(prints) + 1


# Marks, folders


@pytest.mark.parametrize("source", ["bert", "bert_without_unused"])
def test_marks_take_the_vectors_of_unused_tokens_or_get_new_ones(request, source):
    folder = request.getfixturevalue(source)
    model = new(folder, marked=True)
    before = transformers.BertModel.from_pretrained(folder).get_input_embeddings().weight
    after, n_new = model.encoder.get_input_embeddings().weight, 0 if source == "bert" else 3
    size = len(before)
    assert model.tokenizer.marks == ((size, size + 1, size + 2) if n_new else (5, 6, 7))
    assert len(after) == size + n_new
    assert torch.equal(after[:size], before)
    assert model.tokenizer.ids(["oak[Ms]"])[0].tolist()[1] == model.tokenizer.marks[0]


@pytest.mark.parametrize("source", ["bert", "bert_without_unused"])
@pytest.mark.parametrize("name", ["emb", "cls", "marked"])
def test_a_saved_model_is_the_same_model(request, tmp_path, source, name):
    model = new(request.getfixturevalue(source), **CONFIGS[name])
    texts = MARKED if model.config.marked else (TEXTS, TEXTS)
    new(save_bert(tmp_path / "other"), max_length=9, head="cls").save_pretrained(tmp_path / "model")
    folder = model.save_pretrained(tmp_path / "model", card="# A card\n")  # over another
    again = CrossEncoderModel.from_pretrained(folder)
    assert again.config == model.config
    assert not again.training
    scores = score(model, *texts)
    np.testing.assert_array_equal(score(again, *texts), scores)
    assert again.fingerprint == model.fingerprint
    assert (folder / "README.md").read_text() == "# A card\n"
    more = CrossEncoderModel.new(folder, CrossEncoderConfig(**CONFIGS[name])).eval()
    np.testing.assert_array_equal(score(more, *texts), scores)  # its head too
    more.encoder.half().save_pretrained(folder)
    kept = CrossEncoderModel.from_pretrained(folder).parameters()
    assert {parameter.dtype for parameter in kept} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": 2}, "does not describe a cross-encoder of format 1: upgrade"),
        ({"scales": 2.0}, r"cross_encoder\.json: .* unexpected keyword argument 'scales'"),
        ({"head": "sep"}, r"cross_encoder\.json: head is 'sep'; it must be 'cls'"),
        ({"head": "cls"}, r"no trained head: head\.safetensors is missing"),
        ({"max_length": 999}, "max_length is 999; the encoder has 256 positions"),
        ({"item_length": 9}, "query_length is None and item_length 9: give both"),
        (HALVES | {"item_position": 59}, "item_position is 59, before"),
        # Positions beyond the encoder's would be one and the same.
        (
            HALVES | {"item_position": 197},
            "items end at position 257, but the encoder has only 256 positions",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(bert, tmp_path, changes, sentence):
    path = new(bert, head="emb").save_pretrained(tmp_path) / "cross_encoder.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=sentence):
        CrossEncoderModel.from_pretrained(tmp_path)


def test_what_is_no_cross_encoder_is_refused(bert, tmp_path):
    with pytest.raises(InputError, match="not a crossknn cross-encoder: it has no cross_encoder"):
        CrossEncoderModel.from_pretrained(bert)
    folder = new(bert, head="cls", pooler=False).save_pretrained(tmp_path)
    path = folder / "cross_encoder.json"
    path.write_text(path.read_text().replace('"pooler": false', '"pooler": true'))
    with pytest.raises(InputError, match=r"does not match .*Missing key.*dense\.weight"):
        CrossEncoderModel.from_pretrained(folder)
