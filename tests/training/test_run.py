"""From a settings file and a folder of data to a folder with a model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import write_beir, write_zeshel

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import crossknn as ck  # noqa: E402
from crossknn.data.reading import read_labelled  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn.training import checkpoint, loop, run  # noqa: E402
from crossknn.training.corpora import read_corpora  # noqa: E402
from crossknn.training.settings import (  # noqa: E402
    CandidateSettings,
    CrossEncoderSettings,
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
LENGTHS = {"query_length": 24, "item_length": 24}
OPENERS = {"cross": ck.CrossEncoder, "dual": ck.DualEncoder, "cmc": ck.open_late}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "zeshel": DataSettings(folder=write_zeshel(folder / "zeshel")),
        "beir": DataSettings(folder=write_beir(folder / "beir"), dev="dev"),
    }


def settings_of(kind, bert, data, layout="zeshel", **changes):
    """Settings of a cross-encoder, a dual encoder, or CMC."""
    marked = {"marked": layout == "zeshel"}
    given = {"encoder": str(bert), "data": data[layout], "training": TRAINING}
    if kind == "cross":
        given["negatives"] = NegativesSettings(kind="tfidf", count=3, depth=4, dev_candidates=5)
        given["model"] = {"head": "emb", "max_length": 48} | marked
        return CrossEncoderSettings(**given | changes)
    given["model"] = LENGTHS | marked
    if kind == "dual":
        given["negatives"] = NegativesSettings(count=1, depth=3)
        return DualEncoderSettings(**given | changes)
    given["candidates"] = CandidateSettings(retriever="bm25", count=3, depth=4, dev_candidates=5)
    given["model"] |= {"options": {"feed_forward": 32}}
    return LateInteractionSettings(kind="cmc", **given | changes)


def check_run(folder, fitted, model):
    """The folder holds the best weights, its card the best measures; returns the card."""
    lines = [json.loads(line) for line in (folder / "run" / loop.LOG).read_text().splitlines()]
    dev = {line["step"]: line["dev"] for line in lines if "dev" in line}
    assert dev[fitted.best_step] == fitted.best
    assert any("loss" in line for line in lines)
    kept = {name: value.clone() for name, value in checkpoint.weights(model).items()}
    checkpoint.load_best(folder / "run", model)
    assert all(torch.equal(value, kept[n]) for n, value in checkpoint.weights(model).items())
    card = (folder / "README.md").read_text()
    assert f"of step {fitted.best_step} " in card
    for name, value in fitted.best.items():
        assert f"| {name} | {value:.4f} |" in card
    assert str(folder.parent) not in card
    return card


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("layout", ["zeshel", "beir"])
def test_from_settings_to_a_folder_that_opens(bert, data, tmp_path, kind, layout):
    seen = []
    settings = settings_of(kind, bert, data, layout)
    if (kind, layout) == ("cross", "beir"):
        settings = replace(settings, model=settings.model | {"head": "interaction"})
    fitted = run.train(settings, tmp_path, progress=lambda *at: seen.append(at))
    assert seen == [(step, 4) for step in range(1, 5)]
    card = check_run(tmp_path, fitted, OPENERS[kind](tmp_path, device="cpu").model)
    assert layout in card or "forest" in card
    assert f"from crossknn import {OPENERS[kind].__name__}" in card
    kept = json.loads((tmp_path / "run" / run.SETTINGS).read_text())
    assert kept["data"]["folder"] == str(data[layout].folder)
    again = run.train(settings, tmp_path)  # nothing is left to train
    assert again.best == fitted.best


def test_a_dual_encoder_mines_retrieves_and_is_where_others_start(bert, data, tmp_path):
    dual = settings_of("dual", bert, data, model=LENGTHS | {"marked": True, "shared": False})
    run.train(dual, tmp_path / "dense")
    source, encoder = str(tmp_path / "dense"), ck.DualEncoder(tmp_path / "dense")
    (part,) = read_labelled(data["zeshel"].folder, "valid")
    scores = encoder.encode_queries(part.queries.texts) @ encoder.encode_items(part.items.texts).T
    negatives = NegativesSettings(count=2, depth=3, dev_candidates=5, encoder=source)
    run.train(settings_of("cross", bert, data, negatives=negatives), tmp_path / "ce")
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(np.load(tmp_path / "ce" / "run" / "dev.npy"), nearest)
    candidates = CandidateSettings(retriever=source, count=3, depth=4, dev_candidates=5)
    cmc = settings_of("cmc", bert, data, candidates=candidates, encoder=source, freeze="both")
    run.train(cmc, tmp_path / "cmc")
    assert '"freeze": "both"' in (tmp_path / "cmc" / "README.md").read_text()
    model, start = ck.open_late(tmp_path / "cmc", device="cpu").model, encoder.model.cpu()
    for mine, theirs in ((model.query, start.query), (model.item, start.item)):
        for one, other in zip(mine.encoder.parameters(), theirs.encoder.parameters(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("kind", OPENERS)
def test_an_estimate_says_what_a_run_takes_and_leaves_nothing(
    bert, data, tmp_path, monkeypatch, kind
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = settings_of(kind, bert, data)
    if kind == "cmc":  # no retriever is needed
        absent = replace(settings.candidates, retriever="no/such/encoder")
        settings = replace(settings, candidates=absent, freeze="both")
    found = run.estimate(settings, steps=2)
    assert (found.steps, found.train_queries, found.dev_queries) == (4, 8, 8)
    assert (found.precision, found.longer_than_the_window) == ("float32", 0)
    assert found.hours == round(found.seconds_per_step * 4 / 3600, 2)
    assert 0.05 < found.gigabytes < 100
    assert list(tmp_path.iterdir()) == []
    names = ["max_length"] if kind == "cross" else ["query_length", "item_length"]
    short = replace(settings, model=settings.model | dict.fromkeys(names, 8))
    assert run.estimate(short, steps=1).longer_than_the_window >= 8


def test_train_and_dev_may_not_share_a_query(bert, data, tmp_path):
    other = write_beir(tmp_path / "beir")
    with pytest.raises(InputError, match=r"the query 'q\d' of beir is in train and in dev"):
        read_corpora(replace(data["beir"], dev_folder=other, dev="train"), seed=0)
    shared = replace(data["zeshel"], train_domains=("forest", "sea"), dev_domains=("sea",))
    with pytest.raises(InputError, match=r"the query 'sea-\d' of sea is in train and in dev"):
        run.estimate(settings_of("cross", bert, data | {"zeshel": shared}))


def test_dev_queries_are_held_out_of_the_same_split(data):
    train, dev = read_corpora(replace(data["beir"], dev="train", dev_queries=3), seed=0)
    held, kept = set(dev[0].queries.ids), set(train[0].queries.ids)
    assert (len(held), len(kept)) == (3, 5)
    assert not held & kept
    with pytest.raises(InputError, match="how many train queries to hold out"):
        replace(data["beir"], dev="train", dev_queries=None)


def test_samples_of_queries_are_drawn_by_the_seed(data):
    some = replace(data["zeshel"], train_queries=3, dev_queries=2)
    ids = [
        [part.queries.ids for parts in read_corpora(some, seed) for part in parts]
        for seed in (0, 0, 1)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert [len(part) for part in ids[0]] == [3, 2]
    both = replace(some, train_domains=("forest", "sea"), train_queries=4, dev_domains=None)
    train, dev = read_corpora(replace(both, dev_folder=data["beir"].folder, dev="dev"), 0)
    assert {part.name: len(part) for part in train} == {"forest": 2, "sea": 2}
    assert {part.name: len(part) for part in dev} == {"beir": 2}


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("cross", {"model": {"heads": "emb"}}, r"there is no setting 'heads' \(did you mean head"),
        ("cross", {"model": {"head": "max"}}, "head is 'max'"),
        ("cross", {"model": {"max_length": 999}}, "is 999; the encoder has 64 positions"),
        ("cross", {"encoder": "/no/encoder"}, "cannot load an encoder from /no/encoder"),
        ("cross", {"training": TrainingSettings(device="gpu9")}, "'gpu9' cannot be used"),
        ("cross", {"training": TrainingSettings(batch=9)}, "8 train queries, fewer than one batch"),
        ("cross", {"negatives": NegativesSettings(kind="dual-encoder")}, r"negatives\.encoder"),
        ("cmc", {"model": {"head": "emb"}}, "model: there is no setting 'head'"),
        ("cmc", {"model": {"options": {"codes": 3}}}, "the head has no option 'codes'"),
        ("cmc", {"model": {"kind": "poly"}}, "model: there is no setting 'kind'"),
        ("cmc", {"model": LENGTHS | {"shared": True}, "freeze": "items"}, "one tower is shared"),
        (
            "cmc",
            {"candidates": CandidateSettings(retriever="/no/encoder", count=1)},
            "'/no/encoder' is neither 'bm25', 'tfidf', 'random' or 'lists' nor a dual encoder",
        ),
        ("cmc", {"freeze": "item"}, "freeze is 'it"),
    ],
)
def test_what_cannot_be_trained_is_said(bert, data, tmp_path, kind, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        run.train(settings_of(kind, bert, data, "beir", **changes), tmp_path)


def test_a_mixture_holds_every_folder_and_domains_are_those_of_zeshel_folders(tmp_path):
    beir, zeshel = write_beir(tmp_path / "beir"), write_zeshel(tmp_path / "zeshel")
    data = DataSettings(
        folder=(beir, zeshel),
        dev_folder=beir,
        dev="dev",
        train_domains=("sea",),
    )
    train, dev = read_corpora(data, 0)
    assert [part.name for part in train] == ["beir", "sea"]
    assert [part.name for part in dev] == ["beir"]
    with pytest.raises(InputError, match="has no domains"):
        read_corpora(DataSettings(folder=beir, train_domains=("sea",)), 0)
