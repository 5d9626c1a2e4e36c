"""Training, exporting and converting through the real command line, right and wrong.

The second table of `docs/errors.md` is made of what happens here:

    CROSSKNN_WRITE_DOCS=1 python -m pytest tests/cli/test_model.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tiny_models import jsonl, save_bert, write_beir, write_zeshel

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
threads = 1
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
threads = 1
"""


def settings(name, folder="zeshel", head="emb", marked="true", kind="tfidf", rate="1e-3", more=""):
    text = SETTINGS.format(folder=folder, head=head, marked=marked, kind=kind, rate=rate)
    Path(name).write_text(text.replace("[data]", "[data]\n" + more))


def mentions(**changes):
    good = {"mention": "red", "context_left": "a", "context_right": "fox", "label_id": 0}
    return [{"mention_id": "m0", **good}, {"mention_id": "m1", **good, **changes}]


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
    (where / "depth.toml").write_text(LATE.replace("depth = 4", "depth = 2"))
    (where / "retriever.toml").write_text(LATE.replace('"bm25"', '"./bm52"'))
    (where / "zeshel" / "mentions.jsonl").write_text(
        next((where / "zeshel" / "processed" / "valid_worlds").glob("*")).read_text()
    )
    settings("good.toml")
    settings("hot.toml", rate="1e30")
    settings("other.toml", rate="2e-3")
    settings("misspelled.toml", more="trian = 'train'")
    settings("typed.toml", more="dev_queries = 'many'")
    settings("absent.toml", folder="nowhere")
    settings("unmined.toml", kind="dual-encoder")
    settings("head.toml", head="mean")
    for name, records in {
        "unlabelled": mentions(label_id=None),
        "outside": mentions(label_id=99),
        "twice": mentions(mention_id="m0"),
    }.items():
        write_zeshel(where / name)
        jsonl(where / name / "processed" / "train_worlds" / "forest_mentions.jsonl", records)
        settings(f"{name}.toml", folder=name)
    published = where / "astray"
    jsonl(
        published / "documents" / "forest.json",
        [{"document_id": "d", "title": "fox", "text": "a red fox"}],
    )
    mention = {"mention_id": "m0", "corpus": "forest", "context_document_id": "d", "text": "blue"}
    indexes = {"start_index": 1, "end_index": 1, "label_document_id": "d"}
    jsonl(published / "mentions" / "train.json", [{**mention, **indexes}])
    settings("astray.toml", folder="astray")
    assert (
        app.run(["model", "train", "cross-encoder", "--config", "good.toml", "--out", "model"]) == 0
    )
    yield where
    os.chdir(before)


TRAIN = ("model", "train", "cross-encoder", "--config")
CALLS = [
    ("settings that are not there", [*TRAIN, "no.toml"], 2),
    ("a misspelled setting", [*TRAIN, "misspelled.toml"], 2),
    ("a setting of another type", [*TRAIN, "typed.toml"], 2),
    ("a head that does not exist", [*TRAIN, "head.toml", "--out", "x"], 2),
    ("no folder for the model", [*TRAIN, "good.toml"], 2),
    ("data that are not there", [*TRAIN, "absent.toml", "--out", "x"], 2),
    ("a mention without a label", [*TRAIN, "unlabelled.toml", "--out", "x"], 2),
    ("a label outside the corpus", [*TRAIN, "outside.toml", "--out", "x"], 2),
    ("a mention that comes twice", [*TRAIN, "twice.toml", "--out", "x"], 2),
    ("a mention that is not in its sentence", [*TRAIN, "astray.toml", "--out", "x"], 2),
    ("other settings for a run that was begun", [*TRAIN, "other.toml", "--out", "model"], 2),
    (
        "another kind than asked for",
        ["model", "train", "cmc", "--config", "kind.toml", "--out", "x"],
        2,
    ),
    ("a weight above one", ["model", "train", "cmc", "--config", "weight.toml", "--out", "x"], 2),
    (
        "fewer candidates than asked for",
        ["model", "train", "cmc", "--config", "depth.toml", "--out", "x"],
        2,
    ),
    (
        "what is no retriever",
        ["model", "train", "cmc", "--config", "retriever.toml", "--out", "x"],
        2,
    ),
    ("to export what is no cross-encoder", ["model", "export", "bert", "x"], 2),
    ("to export as another kind", ["model", "export", "model", "x", "--kind", "dual-encoder"], 2),
    (
        "to compare without queries",
        ["model", "export", "model", "x", "--items", "beir/corpus.jsonl"],
        2,
    ),
    ("to convert what is no checkpoint", ["convert", "good.toml", "x"], 2),
    (
        "a dual encoder given as a cross-encoder",
        ["model", "train", "dual-encoder", "--config", "head.toml", "--out", "x"],
        2,
    ),
]


@pytest.fixture(scope="module")
def table():
    """Collects what happened; written or compared with the docs at the end."""
    rows: dict[str, str] = {}
    yield rows
    if len(rows) < len(CALLS):
        return
    head = ["| input | exit code | sentence |", "|---|---|---|"]
    made = "\n".join([*head, *(rows[what] for what, _, _ in CALLS)])
    text = DOC.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    new = f"{before}{START}\n{made}\n{END}{after}"
    if os.environ.get("CROSSKNN_WRITE_DOCS"):
        DOC.write_text(new)
        return
    assert text == new, "docs/errors.md is out of date: see the top of this file"


@pytest.mark.parametrize(("what", "arguments", "code"), CALLS, ids=[c[0] for c in CALLS])
def test_one_sentence_and_nothing_begun(place, capsys, table, what, arguments, code):
    weights = (place / "model" / "model.safetensors").read_bytes()
    assert app.run(list(arguments)) == code
    captured = capsys.readouterr()
    (sentence,) = [line for line in captured.err.splitlines() if line.startswith("crossknn: ")]
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (place / "x").exists()
    assert (place / "model" / "model.safetensors").read_bytes() == weights
    shown = sentence.removeprefix("crossknn: ").replace(f"{place}/", "").replace("|", "/")
    table[what] = f"| {what} | {code} | `{shown}` |"


def test_a_loss_that_is_no_number_stops_before_any_weight_moves(place, capsys):
    assert app.run([*TRAIN, "hot.toml", "--out", "hot"]) == 1
    sentence = capsys.readouterr().err
    assert "is not a number, in the batch of the queries forest/" in sentence
    assert not (place / "hot" / "cross_encoder.json").exists()


def test_a_trained_model_is_indexed_searched_and_exported(place, capsys):
    assert {"head.safetensors"}.isdisjoint(os.listdir("model"))  # [EMB] has no weights of its own
    assert {"README.md", "cross_encoder.json", "run"} <= set(os.listdir("model"))
    assert (place / "model" / "run" / "loss.png").stat().st_size > 1000
    template = ["--template", "{title} [ENT] {text}"]
    items = "zeshel/documents/sea.json"
    assert app.run(["index", "build", items, "sea.index", *template, "--encoder", "none"]) == 0
    capsys.readouterr()
    query = "the old [Ms] red [Me] in the rain"
    found = [
        "search",
        "sea.index",
        query,
        "--scorer",
        "model",
        "--budget",
        "8",
        "-k",
        "3",
        "--json",
    ]
    assert app.run(found) == 0
    answer = json.loads(capsys.readouterr().out)
    export = ["model", "export", "model", "onnx", "--items", items, *template, "--json"]
    assert app.run([*export, "--queries", "zeshel/mentions.jsonl", "--check-items", "8"]) == 0
    agreement = json.loads(capsys.readouterr().out)["agreement"]
    assert agreement["spearman_lowest"] > 0.999
    assert agreement["largest_difference"] < 1e-4
    assert app.run([*(a if a != "model" else "onnx" for a in found)]) == 0
    again = json.loads(capsys.readouterr().out)
    ids = [[hit["id"] for hit in found["results"][0]["hits"]] for found in (answer, again)]
    assert ids[0] == ids[1]


def test_an_unmarked_query_is_named(place, capsys):
    template = ["--template", "{title} [ENT] {text}"]
    items = "zeshel/documents/sea.json"
    assert app.run(["index", "build", items, "u.index", *template, "--encoder", "none"]) == 0
    capsys.readouterr()
    assert (
        app.run(["search", "u.index", "red fox", "--scorer", "model", "--budget", "4", "-k", "2"])
        == 4
    )
    assert "the query has no mention between [Ms] and [Me]" in capsys.readouterr().err


def test_a_dry_run_trains_nothing(place, capsys):
    assert app.run([*TRAIN, "good.toml", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 4
    assert found["precision"] == "float32"
    assert found["gigabytes"] > 0
    assert not (place / "x").exists()


@pytest.mark.parametrize("kind", ["cmc", "poly", "som", "mixencoder", "deformer"])
def test_late_interaction_models_are_trained(place, capsys, kind):
    options = {"deformer": "layers = 1", "som": "projected = true"}.get(kind, "")
    text = LATE.replace("[candidates]", f"options = {{ {options} }}\n[candidates]")
    (place / f"{kind}.toml").write_text(text)
    train = ["model", "train", kind, "--config", f"{kind}.toml"]
    assert app.run([*train, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4
    assert not (place / kind).exists()
    assert app.run([*train, "--out", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 4
    assert {"mrr", "accuracy", "normalized_accuracy", "recall_4"} <= set(found["dev"])
    assert {"late_interaction.json", "README.md", "run"} <= set(os.listdir(kind))
    weights = (place / kind / "model.safetensors").read_bytes()
    assert app.run([*train, "--out", kind]) == 0
    assert f"{kind}: 4 steps; best on dev after step" in capsys.readouterr().out
    assert (place / kind / "model.safetensors").read_bytes() == weights


def test_the_settings_of_the_package_are_listed_and_read(place, capsys):
    from crossknn.cli.model import _shipped
    from crossknn.training.settings import (
        CrossEncoderSettings,
        DualEncoderSettings,
        LateInteractionSettings,
        read_settings,
    )

    assert app.run(["model", "configs"]) == 0
    shown = capsys.readouterr().out
    for path in _shipped():
        assert path.stem in shown
        kind = DualEncoderSettings if "dual-encoder" in path.stem else CrossEncoderSettings
        late = "late-interaction" in path.stem
        of = "cmc" if path.stem.endswith("-reference") else "som"
        kind, given = (LateInteractionSettings, {"kind": of}) if late else (kind, None)
        assert read_settings(path, kind, given=given).encoder
        data = read_settings(path, kind, relative_to=place, given=given).data
        assert data.train_folders[0].parent == place
        assert app.run(["model", "configs", path.stem]) == 0
        assert capsys.readouterr().out == path.read_text()


def test_data_of_the_packages_settings_are_looked_for_where_the_user_is(place, capsys):
    assert (
        app.run(["model", "train", "cross-encoder", "--config", "text-emb-ce", "--out", "x"]) == 2
    )
    sentence = capsys.readouterr().err
    assert f"there is no file or folder {place / 'scifact'}" in sentence
