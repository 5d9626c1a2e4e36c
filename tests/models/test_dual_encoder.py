"""Dual encoders against a plain forward pass of the same encoder, pooled by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import save_bert, tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.scorers.torch import TorchDualEncoder, weights_hash  # noqa: E402

pytestmark = pytest.mark.torch

TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def by_hand(folder, text, pooling, normalize):
    """One text, unpadded: [CLS] text [SEP] -> (d,)."""
    encoder = transformers.BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    ids = torch.tensor([[2, *tokenizer().encode(text, add_special_tokens=False).ids, 3]])
    with torch.inference_mode():
        states = encoder(input_ids=ids).last_hidden_state[0].numpy()
    vector = states[0] if pooling == "cls" else states.mean(0)
    return vector / np.sqrt((vector**2).sum()) if normalize else vector


def new(folder, **config):
    torch.manual_seed(0)
    lengths = {"query_length": 64, "item_length": 64}
    return DualEncoderModel.new(folder, DualEncoderConfig(**(lengths | config))).eval()


def vectors(model, texts, *, queries):
    with torch.inference_mode():
        return model(model.encoding.texts(texts, queries=queries), queries=queries).numpy()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_by_hand(bert, pooling, normalize):
    model = new(bert, pooling=pooling, normalize=normalize)
    expected = np.stack([by_hand(bert, text, pooling, normalize) for text in TEXTS])
    for queries in (True, False):
        np.testing.assert_allclose(vectors(model, TEXTS, queries=queries), expected, **CLOSE)
    assert model.dimensions == 16


def test_marks_are_pooled_by_hand(bert):
    model = new(bert, pooling="marks", marked=True, normalize=False)
    queries = [f"red [Ms] {text} [Me] elm" for text in TEXTS]
    items = [f"{text} [ENT] elm" for text in TEXTS]
    encoder = model.query.encoder
    for texts, is_query, marks in ((queries, True, (0, 1)), (items, False, (2,))):
        found = vectors(model, texts, queries=is_query)
        for row, vector in zip(model.encoding.texts(texts, queries=is_query), found, strict=True):
            with torch.inference_mode():
                states = encoder(input_ids=torch.from_numpy(row.ids)[None]).last_hidden_state[0]
            places = [row.ids.tolist().index(model.tokenizer.marks[mark]) for mark in marks]
            np.testing.assert_allclose(vector, states[places].mean(0).numpy(), **CLOSE)


def test_padding_is_not_pooled(bert):
    model = new(bert, normalize=False)
    together = vectors(model, TEXTS, queries=True)
    alone = np.concatenate([vectors(model, [text], queries=True) for text in TEXTS])
    np.testing.assert_allclose(together, alone, **CLOSE)


def test_shared_towers_are_one(bert):
    model = new(bert)
    assert model.item is model.query
    names = [name for name, _ in model.named_parameters()]
    assert not any(name.startswith("item") for name in names)


def test_separate_towers_are_two(bert):
    model = new(bert, shared=False)
    before = vectors(model, TEXTS, queries=True)
    np.testing.assert_array_equal(vectors(model, TEXTS, queries=False), before)
    with torch.no_grad():
        for parameter in model.item.parameters():
            parameter.mul_(1.5)
    np.testing.assert_array_equal(vectors(model, TEXTS, queries=True), before)
    assert np.abs(vectors(model, TEXTS, queries=False) - before).max() > 0.01


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("source", ["bert", "bert_without_unused"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_saved_model_is_the_same_model(request, tmp_path, shared, source, marked):
    bert = request.getfixturevalue(source)
    length = 12
    model = new(bert, shared=shared, marked=marked, query_length=length, pooling="cls")
    if not shared:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.5)
    queries, items = TEXTS, TEXTS
    if marked:
        queries = [f"red [Ms] {text} [Me] elm" for text in TEXTS]
        items = [f"{text} [ENT] elm" for text in TEXTS]
    folder = model.save_pretrained(tmp_path / "model", card="card")
    again = DualEncoderModel.from_pretrained(folder)
    assert again.config == model.config
    assert (again.item is again.query) == shared
    for texts, is_query in ((queries, True), (items, False)):
        found = vectors(again, texts, queries=is_query)
        np.testing.assert_array_equal(found, vectors(model, texts, queries=is_query))
    assert weights_hash(again) == weights_hash(model)
    assert TorchDualEncoder(folder).fingerprint == TorchDualEncoder(model).fingerprint
    assert (folder / "README.md").read_text() == "card"
    assert (folder / "item").is_dir() == (not shared)


def test_a_folder_can_be_written_over(bert, tmp_path):
    new(bert, shared=False).save_pretrained(tmp_path)
    other = save_bert(tmp_path / "other", seed=5, positions=64)
    model = new(other)
    model.save_pretrained(tmp_path)
    assert weights_hash(DualEncoderModel.from_pretrained(tmp_path)) == weights_hash(model)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "cross-encoder"}, "does not describe a crossknn dual encoder"),
        ({"pool": "cls"}, r"unknown setting 'pool' \(did you mean pooling"),
        ({"pooling": "marks"}, "pooling 'marks' needs marked = true"),
        ({"pooling": "max"}, "pooling is 'max'; it must be 'mean', 'cls' or 'marks'"),
        ({"item_length": 999}, "query_length or item_length is 999; the encoder has 256 positions"),
        ({"shared": False}, "cannot load an encoder from .*item"),
    ],
)
def test_settings_that_do_not_fit_are_refused(bert, tmp_path, changes, sentence):
    path = new(bert).save_pretrained(tmp_path) / "dual_encoder.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=sentence):
        DualEncoderModel.from_pretrained(tmp_path)


def test_what_is_no_dual_encoder_is_refused(bert):
    with pytest.raises(InputError, match=r"is not a crossknn dual encoder: it has no dual_encoder"):
        DualEncoderModel.from_pretrained(bert)


def test_marked_texts_need_their_marks(bert):
    model = new(bert, marked=True)
    (row,) = model.encoding.texts(["no mention"], queries=True)
    assert isinstance(row, InputError)
    assert model.tokenizer.marks == (5, 6, 7)
