"""Settings files: every name is known, every value is of its type, folders lie beside the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import crossknn.training
from crossknn.errors import InputError
from crossknn.training.settings import (
    CrossEncoderSettings,
    DataSettings,
    DualEncoderSettings,
    LateInteractionSettings,
    NegativesSettings,
    TrainingSettings,
    read_settings,
)

WHOLE = """
encoder = "bert-base-uncased"
[data]
folder = "zeshel"
train_domains = ["forest", "sea"]
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


def test_a_whole_file(tmp_path):
    found = read_settings(written(tmp_path, WHOLE), CrossEncoderSettings)
    assert found == CrossEncoderSettings(
        encoder="bert-base-uncased",
        data=DataSettings(
            folder=tmp_path / "zeshel", train_domains=("forest", "sea"), dev_queries=100
        ),
        model={"head": "cls", "max_length": 256},
        negatives=NegativesSettings(kind="tfidf", count=7),
        training=TrainingSettings(steps=100, learning_rate=1.0, precision="bfloat16"),
    )
    assert isinstance(found.training.learning_rate, float)


@pytest.mark.parametrize("kind", [CrossEncoderSettings, DualEncoderSettings])
def test_the_shortest_file_has_the_defaults(tmp_path, kind):
    found = read_settings(written(tmp_path, 'encoder = "e"\n[data]\nfolder = "d"\n'), kind)
    assert found == kind(encoder="e", data=DataSettings(folder=tmp_path / "d"))


@pytest.mark.parametrize("kind", [DualEncoderSettings, LateInteractionSettings])
def test_what_a_section_leaves_out_is_the_same_as_without_it(tmp_path, kind):
    text = 'encoder = "e"\n[data]\nfolder = "d"\n'
    given = {}
    if kind is LateInteractionSettings:
        text, given = text + '[candidates]\nretriever = "bm25"\n', {"kind": "cmc"}
    plain = read_settings(written(tmp_path, text), kind, given=given)
    found = read_settings(written(tmp_path, text + "[training]\nseed = 3\n"), kind, given=given)
    assert found.training == replace(plain.training, seed=3)
    if kind is DualEncoderSettings:
        found = read_settings(written(tmp_path, text + '[negatives]\nkind = "random"\n'), kind)
        assert found.negatives == replace(plain.negatives, kind="random")


@pytest.mark.parametrize("given", ["../data", "./a/../../data", "{parent}/data"])
def test_folders_are_relative_to_the_file(tmp_path, monkeypatch, given):
    monkeypatch.chdir("/")
    (tmp_path / "configs").mkdir()
    text = f'encoder = "e"\n[data]\nfolder = "{given.format(parent=tmp_path)}"\n'
    path = written(tmp_path / "configs", text)
    assert read_settings(path, CrossEncoderSettings).data.folder == tmp_path / "data"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("encoder =", "encodr =", "there is no setting 'encodr' (did you mean encoder?)"),
        ("count =", "cuont =", "there is no setting 'cuont' (did you mean count?)"),
        ("[training]", "[traning]", "there is no setting 'traning' (did you mean training?)"),
        ('encoder = "bert-base-uncased"', "", "the setting 'encoder' is missing"),
        ('folder = "zeshel"', "", "the setting 'folder' is missing"),
        ("[data]", "[model]", "is not a TOML file"),
        ('"bert-base-uncased"', "7", "encoder is 7, which is not a text"),
        ('"zeshel"', "7", "folder is 7, which is not a folder"),
        ("steps = 100", "steps = 100.0", "steps is 100.0, which is not a whole number"),
        ("steps = 100", "steps = true", "steps is True, which is not a whole number"),
        ("learning_rate = 1", "learning_rate = true", "is True, which is not a number"),
        ('"zeshel"', "[]", "data: folder is an empty list; it must name a folder"),
        ('"zeshel"', '["a", 3]', "folder is 3, which is not a folder"),
        ('["forest", "sea"]', "{ a = 1 }", "train_domains is {'a': 1}, which is not a list"),
        ('["forest", "sea"]', "[1]", "train_domains is 1, which is not a text"),
        ('kind = "tfidf"', 'kind = "bm25"', "kind is 'bm25' (known: dual-encoder, random, tfidf)"),
        ('"bfloat16"', '"bfloat"', "precision is 'bfloat' (did you mean bfloat16 or float32?)"),
        ("count = 7", "count = 0", "count must be 1 or more"),
        ("count = 7", "count = 65", "depth at least count"),
        ("count = 7", "skip = -1", "negatives: skip is -1; it must be 0 or more"),
        ("count = 7", "dev_candidates = 0", "dev_candidates is 0; it must be 1 or more"),
        ("dev_queries = 100", "dev_queries = 0", "data: dev_queries is 0; it must be 1 or more"),
        ("steps = 100", "steps = 0", "training: steps is 0; it must be 1 or more"),
        ("steps = 100", "seed = -1", "training: seed is -1; it must be 0 or more"),
        ("steps = 100", "warmup = 1.0", "warmup must be from 0 to below 1"),
        ("learning_rate = 1", "learning_rate = 0", "learning_rate above 0"),
        ("steps = 100", "accumulate = 3", "accumulate is 3, which does not divide the batch of 4"),
    ],
)
def test_bad_settings_are_named_with_their_file(tmp_path, old, new, sentence):
    assert WHOLE.count(old) == 1
    path = written(tmp_path, WHOLE.replace(old, new))
    with pytest.raises(InputError) as error:
        read_settings(path, CrossEncoderSettings)
    assert sentence in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"there is no settings file .*settings\.toml"):
        read_settings(tmp_path / "settings.toml", CrossEncoderSettings)
    (tmp_path / "settings.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not a TOML file"):
        read_settings(tmp_path / "settings.toml", CrossEncoderSettings)


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
        ('"bert"', '"bert"\nkind = "poly"', "kind is 'poly', where 'cmc' is asked for"),
        ('freeze = "items"', 'freeze = "item"', "freeze is 'item' (did you mean items?)"),
        ('"retriever-model"', '"reverse"', "kl is 'reverse' (did you mean retriever-model?)"),
        ("weight = 0.5", "weight = -0.1", "loss: weight is -0.1; it must be from 0 to 1"),
        ("depth = 100", "depth = 62", "count is 63 and depth 62"),
        ("depth = 100", "fixed = 2", "candidates: fixed is 2.0; it must be from 0 to 1"),
        ("depth = 100", "scale = 0.0", "candidates: scale is 0.0; it must be above 0"),
        ("depth = 100", 'sampling = "scores"', "sampling is 'scores' (did you mean score"),
        ("depth = 100", "dev_candidates = 0", "candidates: dev_candidates is 0; it must be 1"),
        ('retriever = "models/de"', "", "the setting 'retriever' is missing"),
    ],
)
def test_bad_settings_of_a_late_interaction_model(tmp_path, old, new, sentence):
    assert LATE.count(old) == 1
    path = written(tmp_path, LATE.replace(old, new))
    with pytest.raises(InputError) as error:
        read_settings(path, LateInteractionSettings, given={"kind": "cmc"})
    assert sentence in str(error.value)
    assert str(error.value).startswith(str(path))


# The files of the package

FILES = sorted((Path(crossknn.training.__file__).parent / "configs").glob("*.toml"))


def late(name):
    [path] = (path for path in FILES if path.stem == name)
    return read_settings(path, LateInteractionSettings, given={"kind": "cmc"})


@pytest.mark.torch
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_read_and_makes_a_model(path):
    from crossknn.models.cross_encoder import CrossEncoderConfig
    from crossknn.models.dual_encoder import DualEncoderConfig
    from crossknn.models.late.model import LateInteractionConfig

    if "late-interaction" in path.stem:
        settings = late(path.stem)
        LateInteractionConfig(head=settings.kind, **settings.model)
    elif "dual" in path.stem:
        DualEncoderConfig(**read_settings(path, DualEncoderSettings).model)
    else:
        CrossEncoderConfig(**read_settings(path, CrossEncoderSettings).model)


@pytest.mark.torch
def test_the_paper_and_its_code_differ_in_these():
    from crossknn.models.late.model import LateInteractionConfig

    paper, code = late("zeshel-late-interaction"), late("zeshel-late-interaction-reference")
    assert (paper.loss.kl, code.loss.kl) == ("model-retriever", "retriever-model")
    assert (paper.candidates.sampling, code.candidates.sampling) == ("score", "uniform")
    assert LateInteractionConfig(head="cmc", **paper.model).options["variant"] == "paper"
    assert code.model["options"]["variant"] == "reference"
    assert round(code.candidates.fixed * code.candidates.count) == 31
    assert {**code.model, "options": None} == {**paper.model, "options": None}
    assert paper.loss.weight == code.loss.weight
