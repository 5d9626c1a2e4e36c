"""Settings files: every name is known, every value is of its type, folders lie beside the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossknn.errors import InputError
from crossknn_train import settings
from crossknn_train.settings import CrossEncoderSettings, LateInteractionSettings, read_settings

WHOLE = """
encoder = "bert-base-uncased"
[data]
folder = "zeshel"
dev_queries = 100
[model]
head = "cls"
max_length = 256
[negatives]
kind = "tfidf"
count = 7
[training]
steps = 100
learning_rate = 1
precision = "bfloat16"
"""


def written(folder, text):
    path = folder / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("given", ["../data", "./a/../../data", "{parent}/data"])
def test_folders_are_relative_to_the_file(tmp_path, monkeypatch, given):
    monkeypatch.chdir("/")
    (tmp_path / "configs").mkdir()
    text = f'encoder = "e"\n[data]\nfolder = ["{given.format(parent=tmp_path)}"]\n'
    path = written(tmp_path / "configs", text)
    assert read_settings(path, CrossEncoderSettings).data.folder == (tmp_path / "data",)
    found = read_settings(path, CrossEncoderSettings, relative_to=tmp_path / "b" / "c").data
    assert found.folder == (tmp_path / ("data" if "parent" in given else "b/data"),)


LATE = """
encoder = "bert"
freeze = "items"
[data]
folder = "data"
[model]
query_length = 32
options = { variant = "reference" }
[candidates]
retriever = "models/de"
depth = 100
[loss]
weight = 0.5
kl = "retriever-model"
[training]
seed = 1
"""


def test_settings_of_a_late_interaction_model(tmp_path):
    (tmp_path / "models" / "de").mkdir(parents=True)
    found = read_settings(written(tmp_path, LATE), LateInteractionSettings, given={"kind": "som"})
    assert (found.kind, found.freeze, found.loss.weight) == ("som", "items", 0.5)
    assert found.model == {"query_length": 32, "options": {"variant": "reference"}}
    assert found.candidates.retriever == str(tmp_path / "models" / "de")
    assert (found.candidates.count, found.candidates.sampling) == (63, "score")
    assert (found.training.epochs, found.training.warmup) == (5, 0.1)
    same = read_settings(written(tmp_path, 'kind = "som"' + LATE), LateInteractionSettings)
    assert same == found


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("encoder =", "encodr =", "encoder: Field required"),
        ("count =", "cuont =", "negatives.cuont: there is no such setting (did you mean count?)"),
        ('folder = "zeshel"', "", "data.folder: Field required"),
        ("[data]", "[model]", "is not a TOML file"),
        ('"bert-base-uncased"', "7", "encoder: Input should be a valid string"),
        ('"zeshel"', "[]", "data.folder: Tuple should have at least 1 item"),
        ("count = 7", "count = 65", "negatives: depth is 64, less than count, which is 65"),
        ("steps = 100", "accumulate = 3", "accumulate is 3, which does not divide the batch of 4"),
        ("weight = 0.5", "weight = -0.1", "loss.weight: Input should be greater than or equal to"),
        ('"bert"', '"bert"\nkind = "poly"', "kind is 'poly', but 'cmc' was asked for"),
    ],
)
def test_bad_settings_are_named_with_their_file(tmp_path, old, new, sentence):
    text, kind, given = WHOLE, CrossEncoderSettings, {}
    if old not in WHOLE:
        text, kind, given = LATE, LateInteractionSettings, {"kind": "cmc"}
    path = written(tmp_path, text.replace(old, new))
    with pytest.raises(InputError) as error:
        read_settings(path, kind, given=given)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


FILES = sorted((Path(settings.__file__).parent / "configs").glob("*.toml"))


@pytest.mark.torch
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_of_the_package_is_read_and_makes_a_model(path):
    from crossknn_train.models.cross_encoder import CrossEncoderConfig
    from crossknn_train.models.dual_encoder import DualEncoderConfig
    from crossknn_train.models.late import LateInteractionConfig

    if "late-interaction" in path.stem:
        read = read_settings(path, LateInteractionSettings, given={"kind": "cmc"})
        LateInteractionConfig(head=read.kind, **read.model)
    elif "dual" in path.stem:
        DualEncoderConfig(**read_settings(path, settings.DualEncoderSettings).model)
    else:
        CrossEncoderConfig(**read_settings(path, CrossEncoderSettings).model)
