"""[CLS] and [EMB] cross-encoders against a plain forward pass of the same encoder, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import CONTENT, tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel  # noqa: E402
from crossknn.scorers.torch import TorchCrossEncoder, weights_hash  # noqa: E402
from crossknn.types import Pairs  # noqa: E402

pytestmark = pytest.mark.torch

QUERY, ITEM = "the red oak", "seals swam in a lake"
MARKED_QUERY, MARKED_ITEM = "the [Ms] red oak [Me] ran", "oak tree [ENT] seals swam in a lake"
UNUSED = {"[Ms]": "[unused0]", "[Me]": "[unused1]", "[ENT]": "[unused2]"}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
ONE = Pairs(np.array([0]), np.array([0]))


def ids_of(text):
    """Token ids by the vocabulary alone; a mark is the `[unused]` token it stands for."""
    made = tokenizer()
    found = []
    for word in text.split():
        found += (
            [made.token_to_id(UNUSED[word])]
            if word in UNUSED
            else made.encode(word, add_special_tokens=False).ids
        )
    return found


def plain_states(folder, ids, kinds, mask=None):
    """Last states (t, d) of one input by `transformers` alone, with default positions."""
    encoder = transformers.BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    mask = [1] * len(ids) if mask is None else mask
    with torch.inference_mode():
        return encoder(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.tensor([mask]),
            token_type_ids=torch.tensor([kinds]),
        ).last_hidden_state[0]


def pair_states(folder, query, item):
    """States, and the token names' places: `[CLS] query [SEP] item [SEP]`."""
    a, b = ids_of(query), ids_of(item)
    ids = [2, *a, 3, *b, 3]
    return plain_states(folder, ids, [0] * (len(a) + 2) + [1] * (len(b) + 1)), ids


def new(folder, seed=0, **config):
    torch.manual_seed(seed)
    model = CrossEncoderModel.new(folder, CrossEncoderConfig(**config)).eval()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def score(model, pairs, queries, items):
    rows = model.encoding.pairs(pairs, queries, items)
    with torch.inference_mode():
        return model.score_rows(rows).numpy()


def texts(n, marked, seed=0):
    """n queries and n items of different lengths."""
    draw = np.random.default_rng(seed)
    words = [
        [" ".join(draw.choice(CONTENT, 1 + draw.integers(9))) for _ in range(4)] for _ in range(n)
    ]
    if marked:
        return [f"{a} [Ms] {b} [Me] {c}" for a, b, c, _ in words], [
            f"{c} [ENT] {a} {d}" for a, _, c, d in words
        ]
    return [a for a, *_ in words], [f"{b} {c}" for _, b, c, _ in words]


# Scores by hand


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_emb_of_plain_texts_is_first_token_times_first_separator(bert, scale):
    states, ids = pair_states(bert, QUERY, ITEM)
    expected = scale * float(states[0] @ states[ids.index(3)])
    found = score(new(bert, head="emb", scale=scale), ONE, [QUERY], [ITEM])
    np.testing.assert_allclose(found, [expected], **CLOSE)
    assert abs(expected) > 0.1


def test_emb_of_marked_texts_is_the_mean_of_the_mention_marks_times_the_entity_mark(bert):
    states, ids = pair_states(bert, MARKED_QUERY, MARKED_ITEM)
    start, end, entity = (states[ids.index(mark)] for mark in (5, 6, 7))
    expected = float((start + end) / 2 @ entity)
    found = score(new(bert, head="emb", marked=True), ONE, [MARKED_QUERY], [MARKED_ITEM])
    np.testing.assert_allclose(found, [expected], **CLOSE)
    assert abs(expected) > 0.1


def test_cls_is_a_linear_layer_on_a_dense_tanh_layer(bert):
    model = new(bert, head="cls")
    states, _ = pair_states(bert, QUERY, ITEM)
    dense, out = model.head.dense, model.head.out
    with torch.inference_mode():
        pooled = torch.tanh(dense.weight @ states[0] + dense.bias)
        expected = out.weight[0] @ pooled + out.bias[0]
    np.testing.assert_allclose(score(model, ONE, [QUERY], [ITEM]), [float(expected)], **CLOSE)


def test_cls_without_a_pooler_is_a_linear_layer_on_the_first_state(bert):
    model = new(bert, head="cls", pooler=False, marked=True)
    states, _ = pair_states(bert, MARKED_QUERY, MARKED_ITEM)
    with torch.inference_mode():
        expected = model.head.out.weight[0] @ states[0] + model.head.out.bias[0]
    found = score(model, ONE, [MARKED_QUERY], [MARKED_ITEM])
    np.testing.assert_allclose(found, [float(expected)], **CLOSE)
    assert set(model.head.state_dict()) == {"out.weight", "out.bias"}


def test_item_position_is_a_query_half_padded_to_it(bert):
    """As in the published checkpoints: the query padded to 128, then the item, types 0 and 1."""
    halves = {"query_length": 128, "item_length": 128, "max_length": 256}
    for n_words in (1, 9, 300):  # the longest query is cut to 128 tokens, padding none
        query = " ".join(["red [Ms] oak [Me]", *["ash"] * n_words])
        a, b = ids_of(query)[:126], ids_of(MARKED_ITEM)
        first = [2, *a, 3]
        padding = 128 - len(first)
        ids = [*first, *[0] * padding, *b, 3]
        mask = [1] * len(first) + [0] * padding + [1] * (len(b) + 1)
        states = plain_states(bert, ids, [0] * 128 + [1] * (len(b) + 1), mask)
        start, end, entity = (states[ids.index(mark)] for mark in (5, 6, 7))
        expected = float((start + end) / 2 @ entity)
        model = new(bert, head="emb", marked=True, item_position=128, **halves)
        found = score(model, ONE, [query], [MARKED_ITEM])
        np.testing.assert_allclose(found, [expected], **CLOSE)
        if n_words < 100:  # and without it the score is another
            ordinary = score(new(bert, marked=True, **halves), ONE, [query], [MARKED_ITEM])
            assert abs(ordinary[0] - expected) > 1e-3


# Invariance


CONFIGS = {
    "emb": {"head": "emb"},
    "cls": {"head": "cls"},
    "marked": {"head": "emb", "marked": True},
    "halves": {
        "marked": True,
        "query_length": 12,
        "item_length": 20,
        "max_length": 32,
        "item_position": 128,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_score_does_not_depend_on_its_batch(bert, name):
    config = CONFIGS[name]
    model = new(bert, **config)
    queries, items = texts(12, config.get("marked", False))
    pairs = Pairs(np.arange(12), np.arange(12)[::-1].copy())
    together = score(model, pairs, queries, items)
    alone = [score(model, pairs.take([p]), queries, items)[0] for p in range(12)]
    np.testing.assert_allclose(together, alone, **CLOSE)
    order = np.random.default_rng(0).permutation(12)
    np.testing.assert_allclose(
        score(model, pairs.take(order), queries, items), together[order], **CLOSE
    )
    assert together.std() > 0.01


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_nothing(bert, name):
    config = CONFIGS[name]
    model = new(bert, **config)
    queries, items = texts(4, config.get("marked", False))
    rows = model.encoding.pairs(Pairs(np.arange(4), np.arange(4)), queries, items)
    for row in rows:
        ids, kinds = torch.tensor(row.ids)[None], torch.tensor(row.kinds)[None]
        extra = torch.zeros(1, 17, dtype=torch.long)
        mask = torch.ones_like(ids)
        with torch.inference_mode():
            bare = model(ids, mask, kinds)
            wide = model(
                torch.cat([ids, extra], 1),
                torch.cat([mask, extra], 1),
                torch.cat([kinds, extra], 1),
            )
        torch.testing.assert_close(wide, bare, rtol=1e-5, atol=1e-5)


# Marks


def test_marks_take_the_vectors_of_unused_tokens(bert):
    model = new(bert, marked=True)
    before = transformers.BertModel.from_pretrained(bert).get_input_embeddings().weight
    assert model.tokenizer.marks == (5, 6, 7)
    assert torch.equal(model.encoder.get_input_embeddings().weight, before)
    assert model.tokenizer.ids(["oak[Ms]"])[0].tolist() == [tokenizer().token_to_id("oak"), 5]


def test_marks_get_new_vectors_where_there_are_no_unused_tokens(bert_without_unused):
    model = new(bert_without_unused, marked=True)
    before = (
        transformers.BertModel.from_pretrained(bert_without_unused).get_input_embeddings().weight
    )
    size = len(before)
    assert model.tokenizer.marks == (size, size + 1, size + 2)
    after = model.encoder.get_input_embeddings().weight
    assert len(after) == size + 3
    assert torch.equal(after[:size], before)


# Folders


@pytest.mark.parametrize("source", ["bert", "bert_without_unused"])
@pytest.mark.parametrize("name", ["emb", "cls", "marked"])
def test_a_saved_model_is_the_same_model(request, tmp_path, source, name):
    config = CONFIGS[name]
    model = new(request.getfixturevalue(source), **config)
    queries, items = texts(6, config.get("marked", False))
    pairs = Pairs(np.repeat(np.arange(6), 6), np.tile(np.arange(6), 6))
    folder = model.save_pretrained(tmp_path / "model", card="# A card\n")
    again = CrossEncoderModel.from_pretrained(folder)
    assert again.config == model.config
    assert not again.training
    np.testing.assert_array_equal(
        score(again, pairs, queries, items), score(model, pairs, queries, items)
    )
    assert weights_hash(again) == weights_hash(model)
    assert TorchCrossEncoder(folder).fingerprint == TorchCrossEncoder(model).fingerprint
    assert (folder / "README.md").read_text() == "# A card\n"
    twice = again.save_pretrained(tmp_path / "again")
    assert weights_hash(CrossEncoderModel.from_pretrained(twice)) == weights_hash(model)


def test_a_folder_can_be_written_over(bert, tmp_path):
    new(bert, head="cls").save_pretrained(tmp_path)
    model = new(bert, head="emb", seed=1)
    model.save_pretrained(tmp_path)
    assert weights_hash(CrossEncoderModel.from_pretrained(tmp_path)) == weights_hash(model)


def edited(folder, **changes):
    path = folder / "cross_encoder.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))
    return folder


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "dual encoder"}, "does not describe a crossknn cross-encoder"),
        ({"kind": ...}, r"cross_encoder\.json"),
        ({"format": 2}, "has another format than 1: upgrade crossknn"),
        ({"scales": 2.0}, r"unknown setting 'scales' \(did you mean scale"),
        ({"head": "sep"}, "head is 'sep'; it must be 'cls'"),
        ({"head": "cls"}, r"no trained head: head\.safetensors is missing"),
        ({"max_length": 999}, "max_length is 999; the encoder has 256 positions"),
        ({"marked": True, "item_length": 9}, "query_length and item_length come together"),
    ],
)
def test_settings_that_do_not_fit_are_refused(bert, tmp_path, changes, sentence):
    folder = edited(new(bert, head="emb").save_pretrained(tmp_path), **changes)
    with pytest.raises(InputError, match=sentence):
        CrossEncoderModel.from_pretrained(folder)


def test_what_is_no_cross_encoder_is_refused(bert, tmp_path):
    with pytest.raises(
        InputError, match=r"is not a crossknn cross-encoder: it has no cross_encoder"
    ):
        CrossEncoderModel.from_pretrained(bert)
    folder = new(bert).save_pretrained(tmp_path)
    (folder / "cross_encoder.json").write_text("{")
    with pytest.raises(InputError, match=r"cross_encoder\.json cannot be read"):
        CrossEncoderModel.from_pretrained(folder)


def test_a_head_of_another_shape_is_refused(bert, tmp_path):
    folder = edited(new(bert, head="cls", pooler=False).save_pretrained(tmp_path), pooler=True)
    with pytest.raises(
        InputError, match=r"does not fit: it lacks \['dense.bias', 'dense.weight'\]"
    ):
        CrossEncoderModel.from_pretrained(folder)


def test_a_folder_without_an_encoder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot load an encoder from"):
        CrossEncoderModel.new(tmp_path, CrossEncoderConfig())


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"head": "linear"}, "head is 'linear'"),
        ({"query_length": 9}, "come together"),
        (
            {"max_length": 20, "query_length": 12, "item_length": 9},
            "12 and 9, together more than 20",
        ),
        ({"item_position": 128}, "item_position needs query_length"),
        ({"query_length": 100, "item_length": 9, "item_position": 99}, "item_position is 99"),
    ],
)
def test_configurations_that_cannot_be_are_refused(config, sentence):
    with pytest.raises(InputError, match=sentence):
        CrossEncoderConfig(**config)


def test_items_beyond_the_last_position_are_refused(bert):
    """Positions beyond the encoder's would be one and the same."""
    halves = {"query_length": 60, "item_length": 60, "max_length": 120}
    new(bert, item_position=196, **halves)
    with pytest.raises(InputError, match=r"item_position is 197 .* 256 positions"):
        new(bert, item_position=197, **halves)


def test_weights_kept_in_half_precision_are_read_as_float32(bert, tmp_path):
    model = new(bert, head="emb")
    folder = model.save_pretrained(tmp_path / "model")
    model.encoder.half().save_pretrained(folder)
    again = CrossEncoderModel.from_pretrained(folder)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
