"""The settings files of the package: every name and option is known, and the paper's and the
authors' own CMC, DSTC7 and AIDA train on small data of their formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONTENT, save_bert

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import crossknn.training  # noqa: E402
from crossknn.errors import InputError  # noqa: E402
from crossknn.models.cross_encoder import CrossEncoderConfig  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig  # noqa: E402
from crossknn.models.late.model import (  # noqa: E402
    LateInteractionConfig,
    LateInteractionModel,
)
from crossknn.training import run  # noqa: E402
from crossknn.training.settings import (  # noqa: E402
    CrossEncoderSettings,
    DualEncoderSettings,
    LateInteractionSettings,
    read_settings,
)

pytestmark = pytest.mark.torch

FILES = sorted((Path(crossknn.training.__file__).parent / "configs").glob("*.toml"))


def late(name):
    [path] = (path for path in FILES if path.stem == name)
    return read_settings(path, LateInteractionSettings, given={"kind": "cmc"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_read_and_makes_a_model(path):
    if "late-interaction" in path.stem:
        settings = late(path.stem)
        LateInteractionConfig(head=settings.kind, **settings.model)
    elif "dual" in path.stem:
        DualEncoderConfig(**read_settings(path, DualEncoderSettings).model)
    else:
        CrossEncoderConfig(**read_settings(path, CrossEncoderSettings).model)


def test_the_paper_and_its_code_differ_in_these():
    paper, code = late("zeshel-late-interaction"), late("zeshel-late-interaction-reference")
    assert (paper.loss.kl, code.loss.kl) == ("model-retriever", "retriever-model")
    assert (paper.candidates.sampling, code.candidates.sampling) == ("score", "uniform")
    assert LateInteractionConfig(head="cmc", **paper.model).options["variant"] == "paper"
    assert code.model["options"]["variant"] == "reference"
    assert round(code.candidates.fixed * code.candidates.count) == 31
    assert {**code.model, "options": None} == {**paper.model, "options": None}
    assert paper.loss.weight == code.loss.weight
    [path] = (path for path in FILES if path.stem.endswith("-reference"))
    with pytest.raises(InputError, match="kind is 'cmc', where 'poly' is asked for"):
        read_settings(path, LateInteractionSettings, given={"kind": "poly"})


def small(settings, encoder, folder, **candidates):
    """The settings on small data, with short texts and few steps."""
    given = {"query_length": 24, "item_length": 24, "options": {"feed_forward": 32}}
    options = settings.model.get("options", {}) | given["options"]
    return replace(
        settings,
        encoder=str(encoder),
        data=replace(settings.data, folder=folder),
        model={**settings.model, **given, "options": options},
        candidates=replace(settings.candidates, **candidates),
        training=replace(settings.training, steps=2, precision="float32", threads=1, device="cpu"),
    )


def dialogs(start, count, answers):
    rng = np.random.default_rng(start)
    for number in range(start, start + count):
        chosen = [answers[i] for i in rng.choice(len(answers), 6, replace=False)]
        yield {
            "example-id": number,
            "messages-so-far": [{"speaker": "participant_1", "utterance": chosen[2]["utterance"]}],
            "options-for-next": chosen,
            "options-for-correct-answers": [chosen[2]],
        }


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def dstc7(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dstc7")
    answers = [
        {"candidate-id": f"A{n}", "utterance": f"the {word}"} for n, word in enumerate(CONTENT)
    ]
    for part, start in (("train", 0), ("dev", 50)):
        path = folder / f"ubuntu_{part}_subtask_1.json"
        path.write_text(json.dumps(list(dialogs(start, 8, answers))))
    (folder / "advising_train_subtask_1.json").write_text("[]")  # another domain, which is not read
    return folder


@pytest.fixture(scope="module")
def aida(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("aida"), []
    for document, part in enumerate(("", "testa")):
        lines.append(f"-DOCSTART- ({document + 1}{part} TREES)")
        lines += [f"{w}\tB\t{w}\t{w}\tx/{w}\t{n}" for n, w in enumerate(CONTENT[:9])]
    (folder / "AIDA-YAGO2-dataset.tsv").write_text("\n".join(lines) + "\n")
    pages = [{"id": n, "title": w, "text": f"the {w}"} for n, w in enumerate(CONTENT[:8])]
    (folder / "entity.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    return folder


def test_dialogs_are_trained_on_their_own_answers(bert, dstc7, tmp_path):
    settings = small(late("dstc7-late-interaction"), bert, dstc7, count=3)
    fitted = run.train(settings, tmp_path)
    assert fitted.best["in_candidates"] == 1
    assert LateInteractionModel.from_pretrained(tmp_path).config.head == "cmc"
    found = np.load(tmp_path / "run" / "candidates.npy")
    train, _ = run.read_corpora(settings.data, 0, lists=True)
    [part] = train
    for row, positives in enumerate(part.positives):
        wrong = found["item"][row, 1:6].tolist()
        assert sorted([*wrong, *positives.tolist()]) == sorted(part.lists.items[row].tolist())
    assert run.estimate(settings).train_queries == 8
