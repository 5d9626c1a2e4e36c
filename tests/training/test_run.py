"""From a settings file and a folder of data to a folder with a model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import write_beir, write_zeshel

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.data.reading import read_labelled  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderModel  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderModel  # noqa: E402
from crossknn.scorers import CrossEncoder, DualEncoder  # noqa: E402
from crossknn.training import checkpoint, loop, run  # noqa: E402
from crossknn.training.settings import (  # noqa: E402
    CrossEncoderSettings,
    DataSettings,
    DualEncoderSettings,
    NegativesSettings,
    TrainingSettings,
    read_settings,
)
from crossknn.types import Pairs  # noqa: E402

pytestmark = pytest.mark.torch

TRAINING = {
    "epochs": 2,
    "batch": 4,
    "learning_rate": 1e-3,
    "evaluations": 1,
    "precision": "float32",
    "threads": 1,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "zeshel": DataSettings(folder=write_zeshel(folder / "zeshel")),
        "beir": DataSettings(folder=write_beir(folder / "beir"), dev="dev"),
    }


def cross_settings(bert, data, kind="zeshel", head="emb", **changes):
    model = {"head": head, "marked": kind == "zeshel", "max_length": 48}
    negatives = NegativesSettings(kind="tfidf", count=3, depth=4, dev_candidates=5)
    settings = CrossEncoderSettings(
        encoder=str(bert),
        data=data[kind],
        model=model,
        negatives=negatives,
        training=TrainingSettings(**TRAINING),
    )
    return replace(settings, **changes)


def dual_settings(bert, data, kind="zeshel", **changes):
    settings = DualEncoderSettings(
        encoder=str(bert),
        data=data[kind],
        model={"marked": kind == "zeshel", "query_length": 24, "item_length": 24},
        negatives=NegativesSettings(count=1, depth=3),
        training=TrainingSettings(**TRAINING),
    )
    return replace(settings, **changes)


def check_run(folder, fitted):
    lines = [json.loads(line) for line in (folder / "run" / loop.LOG).read_text().splitlines()]
    dev = {line["step"]: line["dev"] for line in lines if "dev" in line}
    assert dev[fitted.best_step] == fitted.best
    assert fitted.steps in dev
    assert any("loss" in line for line in lines)
    card = (folder / "README.md").read_text()
    assert (
        f"the checkpoint\nof step {fitted.best_step} " in card
        or f"step\n{fitted.best_step} " in card
    )
    for name, value in fitted.best.items():
        assert f"| {name} | {value:.4f} |" in card
    return card


@pytest.mark.parametrize(("kind", "head"), [("zeshel", "emb"), ("beir", "cls")])
def test_a_cross_encoder_end_to_end(bert, data, tmp_path, kind, head):
    seen = []
    settings = cross_settings(bert, data, kind, head)
    fitted = run.train(settings, tmp_path, progress=lambda *at: seen.append(at))
    assert fitted.steps == 4
    assert seen == [(step, 4) for step in range(1, 5)]
    card = check_run(tmp_path, fitted)
    assert kind in card
    assert str(tmp_path) not in card
    model = CrossEncoderModel.from_pretrained(tmp_path)
    best = CrossEncoderModel.from_pretrained(tmp_path)
    checkpoint.load_best(tmp_path / "run", best)
    for name, value in checkpoint.weights(best).items():
        assert torch.equal(checkpoint.weights(model)[name], value)
    (part,) = read_labelled(data[kind].folder, data[kind].dev)
    pairs = Pairs(np.arange(4), part.gold[:4])
    found = list(CrossEncoder(tmp_path).score(pairs, part.queries.texts, part.items.texts))
    assert np.isfinite(np.concatenate([scores for _, scores in found])).all()
    kept = json.loads((tmp_path / "run" / run.SETTINGS).read_text())
    assert kept["training"]["batch"] == 4
    assert kept["data"]["folder"] == str(data[kind].folder)


@pytest.mark.parametrize("kind", ["zeshel", "beir"])
def test_a_dual_encoder_end_to_end(bert, data, tmp_path, kind):
    fitted = run.train(dual_settings(bert, data, kind), tmp_path / "dense")
    check_run(tmp_path / "dense", fitted)
    assert DualEncoderModel.from_pretrained(tmp_path / "dense").config.marked == (kind == "zeshel")
    (part,) = read_labelled(data[kind].folder, data[kind].dev)
    encoder = DualEncoder(tmp_path / "dense")
    assert encoder.encode_items(part.items.texts).shape == (len(part.items), 32)
    # and a cross-encoder that takes its wrong items from it
    negatives = NegativesSettings(
        count=2, depth=3, dev_candidates=5, encoder=str(tmp_path / "dense")
    )
    settings = cross_settings(bert, data, kind, negatives=negatives)
    fitted = run.train(settings, tmp_path / "ce")
    check_run(tmp_path / "ce", fitted)
    scores = encoder.encode_queries(part.queries.texts) @ encoder.encode_items(part.items.texts).T
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(np.load(tmp_path / "ce" / "run" / "dev.npy"), nearest)


@pytest.mark.parametrize("make", [cross_settings, dual_settings])
def test_an_estimate_says_what_a_run_takes_and_leaves_nothing(
    bert, data, tmp_path, monkeypatch, make
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    settings = make(bert, data)
    before = sorted(path for path in data["zeshel"].folder.rglob("*"))
    found = run.estimate(settings, steps=2)
    assert (found.steps, found.train_queries, found.dev_queries) == (4, 8, 8)
    assert found.precision == "float32"
    assert 0 < found.seconds_per_step < 10
    assert found.hours == round(found.seconds_per_step * 4 / 3600, 2)
    assert 0.05 < found.gigabytes < 100
    assert found.longer_than_the_window == 0
    assert list(tmp_path.iterdir()) == []
    assert sorted(path for path in data["zeshel"].folder.rglob("*")) == before
    short = make(
        bert,
        data,
        model=settings.model
        | dict.fromkeys(
            ["max_length"] if make is cross_settings else ["query_length", "item_length"], 8
        ),
    )
    assert run.estimate(short, steps=1).longer_than_the_window >= 8


# Data


def test_train_and_dev_may_not_share_a_query(bert, data, tmp_path):
    other = write_beir(tmp_path / "beir")
    with pytest.raises(InputError, match=r"the query 'q\d' of beir is in train and in dev"):
        run.read_corpora(replace(data["beir"], dev_folder=other, dev="train"), seed=0)
    shared = replace(data["zeshel"], train_domains=("forest", "sea"), dev_domains=("sea",))
    with pytest.raises(InputError, match=r"the query 'sea-\d' of sea is in train and in dev"):
        run.estimate(replace(cross_settings(bert, data), data=shared))


def test_dev_queries_are_held_out_of_the_same_split(data):
    train, dev = run.read_corpora(replace(data["beir"], dev="train", dev_queries=3), seed=0)
    held, kept = set(dev[0].queries.ids), set(train[0].queries.ids)
    assert (len(held), len(kept)) == (3, 5)
    assert not held & kept
    with pytest.raises(InputError, match="how many train queries to hold out"):
        replace(data["beir"], dev="train", dev_queries=None)


def test_samples_of_queries_are_drawn_by_the_seed(data):
    some = replace(data["zeshel"], train_queries=3, dev_queries=2)
    ids = [
        [part.queries.ids for parts in run.read_corpora(some, seed) for part in parts]
        for seed in (0, 0, 1)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert [len(part) for part in ids[0]] == [3, 2]
    both = replace(some, train_domains=("forest", "sea"), train_queries=4, dev_domains=None)
    both = replace(both, dev_folder=data["beir"].folder, dev="dev")
    train, dev = run.read_corpora(both, 0)
    assert {part.name: len(part) for part in train} == {"forest": 2, "sea": 2}
    assert {part.name: len(part) for part in dev} == {"beir": 2}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"heads": "emb"}}, r"model: there is no setting 'heads' \(did you mean head"),
        ({"model": {"head": "max"}}, "head is 'max'"),
        ({"model": {"max_length": 999}}, "max_length is 999; the encoder has 64 positions"),
        ({"encoder": "/no/such/encoder"}, "cannot load an encoder from /no/such/encoder"),
        ({"training": TrainingSettings(device="gpu9")}, "the device 'gpu9' cannot be used"),
        ({"training": TrainingSettings(batch=9)}, "8 train queries, fewer than one batch of 9"),
        ({"negatives": NegativesSettings(kind="dual-encoder")}, r"set negatives\.encoder"),
    ],
)
def test_what_cannot_be_trained_is_said(bert, data, tmp_path, changes, sentence):
    settings = cross_settings(
        bert, data, **({"model": {"max_length": 48, "marked": True}} | changes)
    )
    with pytest.raises(InputError, match=sentence):
        run.train(settings, tmp_path)


def test_a_settings_file_trains(bert, data, tmp_path):
    folder = data["zeshel"].folder
    (tmp_path / "zeshel").symlink_to(folder)
    (tmp_path / "settings.toml").write_text(
        f"""encoder = "{bert}"
[data]
folder = "zeshel"
[model]
marked = true
max_length = 48
[negatives]
kind = "random"
count = 2
depth = 2
dev_candidates = 4
[training]
steps = 2
precision = "float32"
threads = 1
"""
    )
    settings = read_settings(tmp_path / "settings.toml", CrossEncoderSettings)
    check_run(tmp_path / "model", run.train(settings, tmp_path / "model"))
