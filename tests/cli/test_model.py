"""Training, exporting and converting through the real command line, right and wrong.

The second table of `docs/errors.md` is made of what happens here:

    CROSSKNN_WRITE_DOCS=1 python -m pytest tests/cli/test_model.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tiny_models import save_bert, write_beir, write_zeshel

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import commands as app  # noqa: E402

pytestmark = pytest.mark.torch

DOC = Path(__file__).parents[2] / "docs" / "errors.md"
START, END = "<!-- table made by tests/cli/test_model.py -->", "<!-- end of training table -->"

SETTINGS = """
encoder = "bert"
[data]
folder = "{folder}"
[model]
head = "{head}"
marked = {marked}
max_length = 48
[negatives]
kind = "{kind}"
count = 3
depth = 4
dev_candidates = 5
[training]
steps = 4
batch = 4
learning_rate = {rate}
precision = "float32"
"""

LATE = """
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
[training]
steps = 4
batch = 4
learning_rate = 1e-3
precision = "float32"
"""


def settings(name, folder="zeshel", head="emb", marked="true", kind="tfidf", rate="1e-3", more=""):
    text = SETTINGS.format(folder=folder, head=head, marked=marked, kind=kind, rate=rate)
    Path(name).write_text(text.replace("[data]", "[data]\n" + more))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with data, a tiny encoder, settings good and bad, and a trained model."""
    where = tmp_path_factory.mktemp("train")
    before = Path.cwd()
    os.chdir(where)
    save_bert(where / "bert")
    write_zeshel(where / "zeshel")
    write_beir(where / "beir")
    (where / "late.toml").write_text(LATE)
    (where / "kind.toml").write_text('kind = "poly"\n' + LATE)
    (where / "weight.toml").write_text(LATE + "[loss]\nweight = 2.0\n")
    (where / "retriever.toml").write_text(LATE.replace('"bm25"', '"./bm52"'))
    (where / "zeshel" / "mentions.jsonl").write_text(
        next((where / "zeshel" / "processed" / "valid_worlds").glob("*")).read_text()
    )
    settings("good.toml")
    settings("other.toml", rate="2e-3")
    settings("misspelled.toml", more="trian = 'train'")
    settings("absent.toml", folder="nowhere")
    settings("unmined.toml", kind="dual-encoder")
    settings("head.toml", head="mean")
    assert (
        app.run(["model", "train", "cross-encoder", "--config", "good.toml", "--out", "model"]) == 0
    )
    yield where
    os.chdir(before)


TRAIN = ("model", "train", "cross-encoder", "--config")
CMC = ("model", "train", "cmc", "--config")
ITEMS = ("--items", "beir/corpus.jsonl")
CALLS = [
    ("settings that are not there", [*TRAIN, "no.toml"]),
    ("a misspelled setting", [*TRAIN, "misspelled.toml"]),
    ("a head that does not exist", [*TRAIN, "head.toml", "--out", "x"]),
    ("no folder for the model", [*TRAIN, "good.toml"]),
    ("data that are not there", [*TRAIN, "absent.toml", "--out", "x"]),
    ("no encoder for the negatives", [*TRAIN, "unmined.toml", "--out", "x"]),
    ("other settings for a run that was begun", [*TRAIN, "other.toml", "--out", "model"]),
    ("another kind than asked for", [*CMC, "kind.toml", "--out", "x"]),
    ("a weight above one", [*CMC, "weight.toml", "--out", "x"]),
    ("what is no retriever", [*CMC, "retriever.toml", "--out", "x"]),
    ("an unknown kind", ["model", "train", "cnc", "--config", "late.toml", "--out", "x"]),
    ("to export what is no cross-encoder", ["model", "export", "bert", "x"]),
    ("to export as another kind", ["model", "export", "model", "x", "--kind", "dual-encoder"]),
    ("to compare without queries", ["model", "export", "model", "x", *ITEMS]),
]


@pytest.fixture(scope="module")
def table():
    """Collects what happened; written or compared with the docs at the end."""
    rows: dict[str, str] = {}
    yield rows
    if len(rows) < len(CALLS):
        return
    head = ["| input | exit code | sentence |", "|---|---|---|"]
    made = "\n".join([*head, *(rows[what] for what, _ in CALLS)])
    text = DOC.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    new = f"{before}{START}\n{made}\n{END}{after}"
    if os.environ.get("CROSSKNN_WRITE_DOCS"):
        DOC.write_text(new)
        return
    assert text == new, "docs/errors.md is out of date: see the top of this file"


@pytest.mark.parametrize(("what", "arguments"), CALLS, ids=[c[0] for c in CALLS])
def test_one_sentence_and_nothing_begun(place, capsys, table, what, arguments):
    weights = (place / "model" / "model.safetensors").read_bytes()
    assert app.run(arguments) == 2
    captured = capsys.readouterr()
    (sentence,) = [line for line in captured.err.splitlines() if line.startswith("crossknn: ")]
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (place / "x").exists()
    assert (place / "model" / "model.safetensors").read_bytes() == weights
    shown = sentence.removeprefix("crossknn: ").replace(f"{place}/", "").replace("|", "/")
    table[what] = f"| {what} | 2 | `{shown}` |"


def test_a_trained_model_is_indexed_searched_and_exported(place, capsys):
    assert not Path("model/head.safetensors").exists()  # [EMB] has no weights of its own
    assert {"README.md", "cross_encoder.json", "run"} <= set(os.listdir("model"))
    assert (place / "model" / "run" / "loss.png").stat().st_size > 1000
    template = ["--template", "{title} [ENT] {text}"]
    items = "zeshel/documents/sea.json"
    assert app.run(["index", "build", items, "sea.index", *template, "--encoder", "none"]) == 0
    capsys.readouterr()
    query = "the old [Ms] red [Me] in the rain"
    asked = ["search", "sea.index", query, "--scorer", "model"]
    found = [*asked, "--budget", "8", "-k", "3", "--json"]
    assert app.run(found) == 0
    answer = json.loads(capsys.readouterr().out)
    export = ["model", "export", "model", "onnx", "--items", items, *template, "--json"]
    assert app.run([*export, "--queries", "zeshel/mentions.jsonl", "--check-items", "8"]) == 0
    agreement = json.loads(capsys.readouterr().out)["agreement"]
    assert agreement["spearman_lowest"] > 0.999
    assert agreement["largest_difference"] < 1e-4
    assert app.run(["onnx" if a == "model" else a for a in found]) == 0
    again = json.loads(capsys.readouterr().out)
    first, second = ([hit["id"] for hit in x["results"][0]["hits"]] for x in (answer, again))
    assert first == second


@pytest.mark.parametrize("kind", ["cmc", "poly", "som", "mixencoder", "deformer"])
def test_late_interaction_models_are_trained(place, capsys, kind):
    options = {"deformer": "layers = 1", "som": "projected = true"}.get(kind, "")
    text = LATE.replace("[candidates]", f"options = {{ {options} }}\n[candidates]")
    (place / f"{kind}.toml").write_text(text)
    train = ["model", "train", kind, "--config", f"{kind}.toml"]
    assert app.run([*train, "--dry-run", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert (estimate["steps"], estimate["precision"]) == (4, "float32")
    assert not (place / kind).exists()
    assert app.run([*train, "--out", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 4
    assert {"mrr", "accuracy", "normalized_accuracy", "recall_4"} <= set(found["dev"])
    assert {"late_interaction.json", "README.md", "run"} <= set(os.listdir(kind))
    assert app.run([*train, "--out", kind]) == 0
    assert f"{kind}: 4 steps; best on dev after step" in capsys.readouterr().out


def test_settings_of_the_package_are_printed_and_their_data_are_where_the_user_is(place, capsys):
    from crossknn.cli.model import SHIPPED

    assert app.run(["model", "configs"]) == 0
    shown = capsys.readouterr().out
    for path in SHIPPED.glob("*.toml"):
        assert path.stem in shown
        assert app.run(["model", "configs", path.stem]) == 0
        assert capsys.readouterr().out == path.read_text()
    assert app.run([*TRAIN, "text-emb-ce", "--out", "x"]) == 2
    assert f"there is no file or folder {place / 'scifact'}" in capsys.readouterr().err
