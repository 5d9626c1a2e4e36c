"""Late-interaction models as a whole: what they begin with, saving and loading, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_models import save_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.models.late.model import (  # noqa: E402
    HEADS,
    LateInteractionConfig,
    LateInteractionModel,
)

pytestmark = pytest.mark.torch

OPTIONS = {
    "deformer": {"layers": 1},
    "poly": {"codes": 5},
    "som": {"projected": True, "dimensions": 12},
}
ALWAYS_TWO = ("mixencoder", True)  # its towers cannot be shared
TEXTS = ["the red oak", "seals swam in a lake near the old hill", "elm", "a tall white gull flew"]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def new(source, kind="cmc", **config):
    torch.manual_seed(0)
    given = {"options": OPTIONS.get(kind, {}), "query_length": 32, "item_length": 32}
    return LateInteractionModel.new(source, LateInteractionConfig(head=kind, **(given | config)))


def dual(bert, folder, **config):
    """A dual encoder whose towers, if they are two, differ."""
    torch.manual_seed(0)
    model = DualEncoderModel.new(bert, DualEncoderConfig(**config))
    if not model.config.shared:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.5)
    return model.eval(), model.save_pretrained(folder)


def scores(model, texts=TEXTS):
    """Of each text as a query against all as items."""
    model.eval()
    with torch.inference_mode():
        query, mask = model.states(model.encoding.texts(texts, queries=True), queries=True)
        items, item_mask = model.states(model.encoding.texts(texts, queries=False), queries=False)
        lists = (t.expand(len(texts), *t.shape) for t in (items, item_mask))
        return model.head(query, mask, *lists).numpy()


@pytest.mark.parametrize(
    ("kind", "shared"),
    [(kind, shared) for kind in HEADS for shared in (True, False) if (kind, shared) != ALWAYS_TWO],
)
def test_a_saved_model_is_the_same_model(bert, tmp_path, kind, shared):
    model = new(bert, kind, shared=shared, pooling="mean", item_length=8)
    if not shared:
        with torch.no_grad():
            for parameter in model.item.parameters():
                parameter.mul_(1.5)
    folder = model.save_pretrained(tmp_path / "model", card="card")
    again = LateInteractionModel.from_pretrained(folder)
    assert again.config == model.config
    assert not again.training
    np.testing.assert_array_equal(scores(again), scores(model))
    assert (again.item.encoder is again.query.encoder) == shared == (not (folder / "item").exists())
    assert (folder / "README.md").read_text() == "card"


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_towers_and_pooling_of_a_dual_encoder_are_taken_over(bert, tmp_path, pooling, shared):
    source, folder = dual(bert, tmp_path, pooling=pooling, shared=shared, normalize=False)
    model = new(folder).eval()
    assert model.config.pooling == pooling
    assert new(folder, pooling="mean").config.pooling == "mean"
    for queries in (True, False):
        rows = model.encoding.texts(TEXTS, queries=queries)
        with torch.inference_mode():
            expected = source(rows, queries=queries)
            np.testing.assert_array_equal(
                model.tower_states(rows, queries=queries)[0][:, 0], expected
            )
    with torch.no_grad():
        for parameter in model.item.parameters():
            parameter.zero_()
    assert all(p.abs().max() > 0 for p in model.query.parameters() if p.ndim > 1)


def test_a_sentence_transformers_model_is_taken_over(bert, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    # A folder without modules of its own is pooled by the mean.
    library.SentenceTransformer(str(bert), device="cpu").save(str(tmp_path))
    model = new(tmp_path).eval()
    assert model.config.pooling == "mean"
    rows, own = model.encoding.texts(TEXTS, queries=True), new(bert, pooling="mean").eval()
    for queries in (True, False):
        with torch.inference_mode():
            expected = own.tower_states(rows, queries=queries)[0]
            found = model.tower_states(rows, queries=queries)[0]
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_marks_become_tokens_in_both_towers(bert_without_unused, tmp_path):
    _, folder = dual(bert_without_unused, tmp_path / "dual", shared=False)
    for source in (bert_without_unused, folder):
        model = new(source, marked=True).eval()
        query = model.encoding.texts(["an old [Ms] oak [Me] in the wind"], queries=True)
        item = model.encoding.texts(["oak [ENT] a tall tree"], queries=False)
        for rows, queries in ((query, True), (item, False)):
            assert set(model.tokenizer.marks) & set(rows[0].ids.tolist())
            assert torch.isfinite(model.tower_states(rows, queries=queries)[0]).all()
        saved = model.save_pretrained(tmp_path / "late")
        again = LateInteractionModel.from_pretrained(saved)
        assert again.tokenizer.marks == model.tokenizer.marks
        (refused,) = again.encoding.texts(["no mention"], queries=True)
        assert isinstance(refused, InputError)


@pytest.mark.parametrize("kind", HEADS)
def test_a_trained_model_is_continued(bert, tmp_path, kind):
    model = new(bert, kind)
    folder = model.save_pretrained(tmp_path)
    more = new(folder, kind, query_length=48)
    assert more.training
    assert more.config.query_length == 48
    np.testing.assert_array_equal(scores(more), scores(model))
    with pytest.raises(InputError, match="other settings: its pooling is 'cls', not 'mean'"):
        new(folder, kind, pooling="mean")


def test_what_cannot_be_frozen_is_refused(bert):
    model = new(bert, shared=True)
    with pytest.raises(InputError, match="one tower is shared"):
        model.freeze("items")
    with pytest.raises(InputError, match="what is frozen is 'query'"):
        model.freeze("query")
    plain = new(bert, "som", options={})
    with pytest.raises(InputError, match=r"nothing would learn.* or set projected = true"):
        plain.freeze("both")
    plain.freeze("items")
    assert any(parameter.requires_grad for parameter in plain.parameters())
    new(bert, "som").freeze("both")


def test_a_mixencoder_begins_as_the_last_layer_of_the_query_tower(bert):
    model = new(bert, "mixencoder")
    assert [len(tower.encoder.encoder.layer) for tower in (model.query, model.item)] == [1, 2]
    last = model.item.encoder.encoder.layer[-1]
    own, head = last.attention.self, model.head
    for mine, copied in (
        *((own.query, part) for part in (head.query, head.item_query)),
        *((own.key, part) for part in (head.key, head.item_key)),
        *((own.value, part) for part in (head.value, head.item_value)),
        (last.attention.output.dense, head.output.dense),
        (last.intermediate.dense, head.wide.dense),
        (last.output.LayerNorm, head.narrow.LayerNorm),
    ):
        assert mine.weight is not copied.weight
        assert torch.equal(mine.weight, copied.weight)
    weights = [p.data_ptr() for p in head.parameters()]
    assert len(set(weights)) == len(weights)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kind": "cmd"}, "late-interaction model 'cmd' is unknown .did you mean cmc"),
        ({"pooling": "max"}, "pooling is 'max'"),
        ({"pooling": "marks"}, "pooling 'marks' needs marked = true"),
        ({"options": {"variants": "paper"}}, "no option 'variants' .did you mean variant"),
        ({"options": {"variant": "papers"}}, "variant is 'papers' .did you mean paper"),
        ({"options": {"layers": 0}}, "layers is 0; it must be 1 or more"),
        ({"options": {"heads": "4"}}, "heads is '4', which a head cannot have: it is 4 by default"),
        ({"options": {"dropout": -0.1}}, "dropout is -0.1; it must be from 0 to below 1"),
        ({"kind": "deformer", "options": {"dropout": 1}}, "dropout is 1; it must be from 0 to"),
        ({"options": {"heads": 3}}, "heads is 3, which does not divide the 16 dimensions"),
        ({"query_length": 999}, "query_length or item_length is 999; the encoder has 256"),
        ({"kind": "poly", "options": {"codes": 0}}, "codes is 0; it must be 1 or more"),
        ({"kind": "som", "options": {"dimensions": 0}}, "dimensions is 0; it must be 1 or more"),
        ({"kind": "deformer", "options": {"layers": 2}}, "has 2 layers, of which the head would"),
        ({"kind": "deformer", "options": {"layers": 0}}, "layers is 0; it must be 1 or more"),
        ({"kind": "mixencoder", "options": {"layers": 1}}, "no option 'layers'"),
        ({"kind": "mixencoder", "shared": True}, "set shared = false"),
        ({"kind": "som", "options": {"dimensions": 64}}, r"dimensions is 64.*set projected = true"),
    ],
)
def test_configs_that_do_not_fit_are_refused(bert, given, sentence):
    with pytest.raises(InputError, match=sentence):
        new(bert, **given)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "dual encoder"}, "does not describe a crossknn late-interaction model"),
        ({"head": "cmd"}, "late_interaction.json: the late-interaction model 'cmd' is unknown"),
        ({"options": {"layer": 2}}, "late_interaction.json: the head has no option 'layer'"),
        ({"towers": 2}, "unknown setting 'towers'"),
        ({"options": {"layers": 1}}, "head.safetensors does not fit: it lacks nothing and has"),
        ({"options": {"feed_forward": 8}}, r"layers.0.linear.*expected \(8"),
    ],
)
def test_settings_that_do_not_fit_are_refused(bert, tmp_path, changes, sentence):
    path = new(bert).save_pretrained(tmp_path) / "late_interaction.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=sentence):
        LateInteractionModel.from_pretrained(tmp_path)


def test_a_head_on_another_encoder_is_refused(bert, tmp_path):
    folder = new(bert).save_pretrained(tmp_path / "late")
    wider = save_bert(tmp_path / "wider", hidden=32, positions=256)
    for name in ("config.json", "model.safetensors"):
        (folder / "item" / name).write_bytes((wider / name).read_bytes())
    with pytest.raises(InputError, match="the towers are of two encoders"):
        LateInteractionModel.from_pretrained(folder)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((wider / name).read_bytes())
    with pytest.raises(InputError, match="does not fit the encoder beside it: layers"):
        LateInteractionModel.from_pretrained(folder)


def test_sources_that_cannot_be_trained_are_refused(bert, tmp_path):
    _, two = dual(bert, tmp_path / "two", shared=False)
    with pytest.raises(InputError, match="has two towers: set shared = false"):
        new(two, shared=True)
    with pytest.raises(InputError, match="bundled is an ONNX model"):
        new("bundled")
    with pytest.raises(InputError, match="there is no model folder"):
        new(tmp_path / "absent")
    with pytest.raises(InputError, match="is not a crossknn late-interaction model"):
        LateInteractionModel.from_pretrained(bert)


def test_encoders_of_another_build_are_not_taken_apart(tmp_path):
    config = transformers.DistilBertConfig(
        vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=64
    )
    transformers.DistilBertModel(config).save_pretrained(tmp_path)
    bert = save_bert(tmp_path / "bert")
    for path in bert.glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert np.isfinite(scores(new(tmp_path, "poly"))).all()
    for kind in ("deformer", "mixencoder"):
        with pytest.raises(InputError, match="layers of a distilbert encoder are not built as"):
            new(tmp_path, kind)
