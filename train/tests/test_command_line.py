"""Training and exporting through the real command line, right and wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tiny_models import save_bert, write_beir, write_zeshel

import crossknn.cli.app as searching
from crossknn_train import cli

RUN = """
[training]
steps = 4
batch = 4
learning_rate = 1e-3
precision = "float32"
"""
CROSS = f"""
encoder = "bert"
[data]
folder = "zeshel"
[model]
head = "emb"
marked = true
max_length = 48
[negatives]
kind = "tfidf"
count = 3
depth = 4
dev_candidates = 5
{RUN}"""
LATE = f"""
encoder = "bert"
freeze = "both"
[data]
folder = "beir"
dev = "dev"
[model]
query_length = 24
item_length = 24
[candidates]
retriever = "bm25"
count = 3
depth = 4
dev_candidates = 5
{RUN}"""


def run(*arguments):
    """The exit code of `crossknn-train`, or of `crossknn` for `index` and `search`."""
    commands = searching.app if arguments[0] in ("index", "search") else cli.app
    return searching.run(list(arguments), commands)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with data, a tiny encoder, and a trained model."""
    where = tmp_path_factory.mktemp("train")
    before = Path.cwd()
    os.chdir(where)
    save_bert(where / "bert", positions=128)
    write_zeshel(where / "zeshel")
    write_beir(where / "beir")
    Path("good.toml").write_text(CROSS)
    assert run(*TRAIN, "good.toml", "--out", "model") == 0
    yield where
    os.chdir(before)


TRAIN = ("run", "cross-encoder", "--config")
CMC = ("run", "cmc", "--config")
EXPORT = ("export",)
OUT = ("bad.toml", "--out", "x")


@pytest.mark.parametrize(
    ("arguments", "settings", "word"),
    [
        ([*TRAIN, "no.toml", "--out", "x"], "", "no.toml"),
        ([*TRAIN, *OUT], CROSS.replace("[data]", "[data]\ntrian = 'train'"), "data.trian"),
        ([*TRAIN, *OUT[:2], "model"], CROSS.replace("1e-3", "2e-3"), "other settings"),
        ([*CMC, *OUT], 'kind = "poly"\n' + LATE, "'poly'"),
        ([*CMC, *OUT], LATE.replace('"bm25"', '"./bm52"'), "'./bm52'"),
        (["run", "cnc", "--config", *OUT], LATE, "did you mean cmc"),
        ([*EXPORT, "a\0b", "x"], "", "cannot be a path"),
        ([*EXPORT, "good.toml", "x"], "", "is a file, but a model folder is needed"),
        ([*EXPORT, "model", "x", "--kind", "dual-encoder"], "", "is a cross-encoder"),
    ],
)
def test_one_sentence_and_nothing_begun(place, capsys, arguments, settings, word):
    weights = (place / "model" / "model.safetensors").read_bytes()
    (place / "bad.toml").write_text(settings)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    (sentence,) = [line for line in captured.err.splitlines() if line.startswith("crossknn: ")]
    assert word in sentence
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (place / "x").exists()
    assert (place / "model" / "model.safetensors").read_bytes() == weights


def test_a_trained_model_is_indexed_searched_and_exported(place, capsys):
    assert not Path("model/head.safetensors").exists()  # [EMB] has no weights of its own
    assert {"README.md", "cross_encoder.json", "run"} <= set(os.listdir("model"))
    template = ["--template", "{title} [ENT] {text}"]
    items = "zeshel/documents/sea.json"
    assert run("index", "build", items, "sea.index", *template, "--encoder", "none") == 0
    capsys.readouterr()
    query = "the old [Ms] red [Me] in the rain"
    asked = ["search", "sea.index", query, "--scorer", "model"]
    found = [*asked, "--budget", "8", "-k", "3", "--json"]
    assert run(*found) == 0
    answer = json.loads(capsys.readouterr().out)
    assert run("export", "model", "onnx") == 0
    capsys.readouterr()
    assert run(*("onnx" if a == "model" else a for a in found)) == 0
    again = json.loads(capsys.readouterr().out)
    first, second = ([hit["id"] for hit in x["results"][0]["hits"]] for x in (answer, again))
    assert first == second


def test_settings_of_the_package_are_printed_and_their_data_are_where_the_user_is(place, capsys):
    from crossknn_train.cli import SHIPPED

    assert run("configs") == 0
    shown = capsys.readouterr().out
    for path in SHIPPED.glob("*.toml"):
        assert path.stem in shown
        assert run("configs", path.stem) == 0
        assert capsys.readouterr().out == path.read_text()
    assert run(*TRAIN, "text-emb-ce", "--out", "x") == 2
    assert f"there is no file or folder {place / 'scifact'}" in capsys.readouterr().err


def test_a_dual_encoder_is_distilled_and_its_vectors_are_in_the_index(place, capsys):
    assert run("index", "build", "beir/corpus.jsonl", "beir.index", "--encoder", "none") == 0
    distill = ["distill", "beir.index", "--queries", "beir/queries.jsonl", "--out", "distilled"]
    given = ["--per", "4", "--json"]
    assert run(*distill, *given) == 2
    assert "--start" in capsys.readouterr().err
    assert run(*distill, *given, "--start", "bert") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["name"], made["calls"]) == ("distill", 48)
    assert {"recall", "first"} == set(made["held_out"])
    assert run("search", "beir.index", "oak", "--method", "rerank(retriever=distill)") == 0
