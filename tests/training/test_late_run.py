"""From a settings file and a folder of data to a folder with a late-interaction model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import write_beir, write_zeshel

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.late.model import LateInteractionModel  # noqa: E402
from crossknn.training import checkpoint, run  # noqa: E402
from crossknn.training.settings import (  # noqa: E402
    CandidateSettings,
    DataSettings,
    DualEncoderSettings,
    LateInteractionSettings,
    NegativesSettings,
    TrainingSettings,
)

pytestmark = pytest.mark.torch

TRAINING = TrainingSettings(
    epochs=2, batch=4, learning_rate=1e-3, evaluations=1, precision="float32", threads=1
)
OPTIONS = {
    "cmc": {"feed_forward": 32},
    "poly": {"codes": 3},
    "som": {"projected": True, "dimensions": 8},
    "deformer": {"layers": 1},
    "mixencoder": {},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "zeshel": DataSettings(folder=write_zeshel(folder / "zeshel")),
        "beir": DataSettings(folder=write_beir(folder / "beir"), dev="dev"),
    }


def settings_of(bert, data, kind="cmc", layout="zeshel", retriever="bm25", **changes):
    settings = LateInteractionSettings(
        kind=kind,
        encoder=str(bert),
        data=data[layout],
        model={
            "marked": layout == "zeshel",
            "query_length": 24,
            "item_length": 24,
            "options": OPTIONS[kind],
        },
        candidates=CandidateSettings(retriever=retriever, count=3, depth=4, dev_candidates=5),
        training=TRAINING,
    )
    return replace(settings, **changes)


@pytest.mark.parametrize("kind", list(OPTIONS))
def test_every_kind_end_to_end(bert, data, tmp_path, kind):
    seen = []
    layout, freeze = ("zeshel", "none") if kind in ("cmc", "som") else ("beir", "both")
    settings = settings_of(bert, data, kind, layout, freeze=freeze)
    fitted = run.train(settings, tmp_path, progress=lambda *at: seen.append(at))
    assert (fitted.steps, seen[-1]) == (4, (4, 4))
    assert set(fitted.best) == {
        "mrr",
        "accuracy",
        "normalized_accuracy",
        "recall_4",
        "recall_16",
        "in_candidates",
    }
    model = LateInteractionModel.from_pretrained(tmp_path)
    best = LateInteractionModel.from_pretrained(tmp_path)
    checkpoint.load_best(tmp_path / "run", best)
    for name, value in checkpoint.weights(best).items():
        assert torch.equal(checkpoint.weights(model)[name], value)
    card = (tmp_path / "README.md").read_text()
    assert f"`{kind}`" in card
    assert "0.2 cross-entropy + 0.8 KL (model-retriever)" in card
    assert ("both towers frozen" in card) == (freeze == "both")
    assert "from crossknn import open_late" in card
    assert str(tmp_path) not in card
    for name, value in fitted.best.items():
        assert f"| {name} | {value:.4f} |" in card
    kept = json.loads((tmp_path / "run" / run.SETTINGS).read_text())
    assert (kept["kind"], kept["candidates"]["count"]) == (kind, 3)


def test_a_dual_encoder_is_the_start_and_the_retriever(bert, data, tmp_path):
    dual = DualEncoderSettings(
        encoder=str(bert),
        data=data["zeshel"],
        model={"marked": True, "query_length": 24, "item_length": 24, "shared": False},
        negatives=NegativesSettings(count=1, depth=3),
        training=TRAINING,
    )
    run.train(dual, tmp_path / "dense")
    source = str(tmp_path / "dense")
    settings = settings_of(bert, data, retriever=source, encoder=source, freeze="both")
    run.train(settings, tmp_path / "cmc")
    dual_model = run.DualEncoderModel.from_pretrained(tmp_path / "dense")
    model = LateInteractionModel.from_pretrained(tmp_path / "cmc")
    for mine, theirs in ((model.query, dual_model.query), (model.item, dual_model.item)):
        for one, other in zip(mine.encoder.parameters(), theirs.encoder.parameters(), strict=True):
            assert torch.equal(one, other)
    found = np.load(tmp_path / "cmc" / "run" / "candidates.npy")
    assert (found["item"] >= 0).all()
    assert (np.diff(found["score"][:, 1:]) <= 0).all()


@pytest.mark.parametrize("freeze", ["none", "both"])
def test_an_estimate_leaves_nothing_and_needs_no_retriever(
    bert, data, tmp_path, monkeypatch, freeze
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = settings_of(bert, data, retriever="no/such/encoder", freeze=freeze)
    found = run.estimate(settings, steps=1)
    assert (found.steps, found.train_queries, found.dev_queries) == (4, 8, 8)
    assert 0 < found.seconds_per_step < 10
    assert found.longer_than_the_window == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"head": "emb"}}, "model: there is no setting 'head'"),
        ({"model": {"options": {"codes": 3}}}, "the head has no option 'codes'"),
        ({"model": {"query_length": 999}}, "is 999; the encoder has 64 positions"),
        ({"model": {"kind": "poly"}}, "model: there is no setting 'kind'"),
        ({"encoder": "/no/such/encoder"}, "/no/such/encoder"),
        ({"model": {"shared": True}, "freeze": "items"}, "one tower is shared"),
        (
            {"candidates": CandidateSettings(retriever="/no/encoder", count=1)},
            "the retriever '/no/encoder' is neither 'bm25', 'tfidf', 'random' or 'lists' nor a dual encoder",
        ),
        ({"training": replace(TRAINING, batch=9)}, "8 train queries, fewer than one batch of 9"),
    ],
)
def test_what_cannot_be_trained_is_said(bert, data, tmp_path, changes, sentence):
    short = {"query_length": 24, "item_length": 24}
    changes = changes | {"model": short | changes.get("model", {})}
    with pytest.raises(InputError, match=sentence):
        run.train(settings_of(bert, data, layout="beir", **changes), tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"kind": "cnc"}, r"kind is 'cnc' \(did you mean cmc"), ({"freeze": "item"}, "freeze is 'it")],
)
def test_settings_that_cannot_be(bert, data, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(settings_of(bert, data), **changes)
