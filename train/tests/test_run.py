"""From a settings file and a folder of data to a folder with a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import write_beir, write_zeshel

import crossknn as ck
from crossknn.errors import InputError
from crossknn.scorers.opening import LateInteraction
from crossknn_train import loop, run
from crossknn_train.reading import read_labelled
from crossknn_train.settings import (
    CrossEncoderSettings,
    DualEncoderSettings,
    LateInteractionSettings,
)

TRAINING = {"epochs": 2, "learning_rate": 1e-3, "evaluations": 1, "precision": "float32"}
CANDIDATES = {"retriever": "bm25", "count": 3, "depth": 4, "dev_candidates": 5}
LENGTHS = {"query_length": 24, "item_length": 24}
OPENERS = {"cross": ck.CrossEncoder, "dual": ck.DualEncoder, "cmc": LateInteraction}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    zeshel, beir = write_zeshel(folder / "zeshel"), write_beir(folder / "beir")
    return {"zeshel": {"folder": zeshel}, "beir": {"folder": beir, "dev": "dev"}}


def settings_of(kind, bert, data, layout="zeshel", **changes):
    """Settings of a cross-encoder, a dual encoder, or CMC."""
    marked = {"marked": layout == "zeshel"}
    given = {"encoder": str(bert), "data": data[layout], "training": TRAINING}
    if kind == "cross":
        given["negatives"] = {"kind": "tfidf", "count": 3, "depth": 4, "dev_candidates": 5}
        given["model"] = {"head": "emb", "max_length": 48} | marked
        return CrossEncoderSettings(**given | changes)
    given["model"] = LENGTHS | marked
    if kind == "dual":
        given["negatives"] = {"count": 1, "depth": 3}
        return DualEncoderSettings(**given | changes)
    given["model"] |= {"options": {"feed_forward": 32}}
    return LateInteractionSettings(kind="cmc", **{"candidates": CANDIDATES} | given | changes)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [("cross", "zeshel"), ("cross", "beir"), ("dual", "beir"), ("cmc", "zeshel")],
)
def test_from_settings_to_a_folder_that_opens(bert, data, tmp_path, kind, layout):
    seen, other = [], {"model": {"head": "interaction", "max_length": 48}}
    changes = other if (kind, layout) == ("cross", "beir") else {}
    settings = settings_of(kind, bert, data, layout, **changes)
    fitted = run.train(settings, tmp_path, progress=lambda *at: seen.append(at))
    assert seen == [(step, 4) for step in range(1, 5)]
    card = (tmp_path / "README.md").read_text()
    assert f"of step {fitted.best_step} " in card
    for name, value in fitted.best.items():
        assert f"| {name} | {value:.4f} |" in card
    assert str(bert.parent) not in card
    assert f"from crossknn import {OPENERS[kind].__name__}" in card
    model = OPENERS[kind](tmp_path, device="cpu").runtime
    best = load_file(tmp_path / "run" / loop.CHECKPOINT)
    for name, value in model.state_dict().items():
        assert torch.equal(value, best[f"best.{name}"])
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    assert run.train(settings, tmp_path).best == fitted.best  # nothing is left to train
    assert files == {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}


def test_a_dual_encoder_mines_retrieves_and_is_where_others_start(bert, data, tmp_path):
    dual = settings_of("dual", bert, data, model=LENGTHS | {"marked": True, "shared": False})
    run.train(dual, tmp_path / "dense")
    source, encoder = str(tmp_path / "dense"), ck.DualEncoder(tmp_path / "dense")
    negatives = {"count": 2, "depth": 3, "dev_candidates": 5, "encoder": source}
    run.train(settings_of("cross", bert, data, negatives=negatives), tmp_path / "ce")
    (part,) = read_labelled(data["zeshel"]["folder"], "valid")
    scores = encoder.encode_queries(part.queries.texts) @ encoder.encode_items(part.items.texts).T
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    [mined] = (tmp_path / "ce" / "run").glob("negatives-*.npz")
    np.testing.assert_array_equal(np.load(mined)["arr_1"], nearest)
    candidates = CANDIDATES | {"retriever": source}
    cmc = settings_of("cmc", bert, data, candidates=candidates, encoder=source, freeze="both")
    run.train(cmc, tmp_path / "cmc")
    assert '"freeze":"both"' in (tmp_path / "cmc" / "README.md").read_text()
    model = LateInteraction(tmp_path / "cmc", device="cpu").runtime
    start = encoder.runtime
    for mine, theirs in ((model.query, start.query), (model.item, start.item)):
        both = zip(mine.encoder.parameters(), theirs.encoder.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in both)


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("cross", {"model": {"heads": "emb"}}, r"there is no setting 'heads' \(did you mean head"),
        ("cross", {"model": {"max_length": 999}}, "is 999; the encoder has 64 positions"),
        ("cross", {"encoder": "/no/encoder"}, "cannot load an encoder from /no/encoder"),
        ("dual", {"teacher": "bundled"}, "384 dimensions, but the model's have 32"),
        ("cross", {"negatives": {}}, r"set negatives\.encoder to its folder"),
        ("dual", {"teacher": "./no"}, r"teacher: there is no model folder '\./no'"),
        ("cmc", {"model": LENGTHS | {"shared": True}, "freeze": "items"}, "one tower is shared"),
        (
            "cmc",
            {"candidates": {"retriever": "bm52"}},
            r"which must be 'bm25', .* or a dual encoder: ",
        ),
    ],
)
def test_what_cannot_be_trained_is_said(bert, data, tmp_path, kind, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        run.train(settings_of(kind, bert, data, "beir", **changes), tmp_path / "x")
    assert not (tmp_path / "x").exists()
