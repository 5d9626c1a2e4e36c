"""What the recipe of the bundled models needs: several folders together, and a teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import corpus, save_bert, write_beir, write_zeshel

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from crossknn.errors import InputError  # noqa: E402
from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel  # noqa: E402
from crossknn.training.corpora import read_corpora  # noqa: E402
from crossknn.training.labelled import DualEncoderTask  # noqa: E402
from crossknn.training.losses import distance_to_teacher  # noqa: E402
from crossknn.training.settings import (  # noqa: E402
    CrossEncoderSettings,
    DataSettings,
    NegativesSettings,
    TrainingSettings,
    read_settings,
)

pytestmark = pytest.mark.torch
RECIPES = Path(__file__).parents[2] / "lab" / "recipes" / "bundled"
NEGATIVES = NegativesSettings(kind="random", count=2, depth=4, dev_candidates=4)
TRAINING = TrainingSettings(steps=2, batch=4, evaluations=1, precision="float32", device="cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = save_bert(tmp_path_factory.mktemp("teacher-bert"), seed=5)
    config = DualEncoderConfig(query_length=32, item_length=32)
    return DualEncoderModel.new(folder, config).save_pretrained(tmp_path_factory.mktemp("teacher"))


def settings_file(folder, text):
    path = folder / "settings.toml"
    path.write_text(text)
    return path


# Several folders


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("folder = []", "folder is an empty list"),
        ('folder = "a"\ndev_folder = []', "dev_folder is an empty list"),
        ("folder = 3", "folder is 3, which is not a folder or a list"),
        ('folder = ["a", 3]', "folder is 3, which is not a folder"),
        ('folder = "a"\ntrain_domains = [1]', "train_domains is 1, which is not a text"),
    ],
)
def test_folders_that_cannot_be_are_named(tmp_path, given, sentence):
    path = settings_file(tmp_path, f'encoder = "e"\n[data]\n{given}\n')
    with pytest.raises(InputError, match=f"settings.toml: .*{sentence}"):
        read_settings(path, CrossEncoderSettings)


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


# The teacher


def test_the_distance_to_a_teacher_by_hand():
    """Cosines 1 and 0; the batch's similarities are 0 for the model and 1 for the teacher, once
    on each side of the diagonal: (1 - 1 + 1 - 0) / 2 + 10 * 2 / 4."""
    own = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    taught = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert distance_to_teacher(own, taught).item() == pytest.approx(0.5 + 10 * 0.5)


class Taught:
    """A teacher that says the same of every text."""

    fingerprint = None
    dimensions = 16

    def encode_queries(self, texts):
        return np.tile(np.eye(16, dtype=np.float32)[0], (len(texts), 1))

    def encode_items(self, texts, progress=None):
        return self.encode_queries(texts)


def task(bert, **settings):
    config = DualEncoderConfig(query_length=32, item_length=32)
    torch.manual_seed(0)
    model = DualEncoderModel.new(bert, config).eval()
    negatives = replace(NEGATIVES, count=1)
    return DualEncoderTask(model, [corpus()], [corpus(start=3)], negatives, **settings)


def losses(bert, tmp_path, **settings):
    made = task(bert, **settings)
    made.begin_epoch(0, tmp_path)
    (loss,) = made.losses([0, 1, 2], 1, 0, 0)
    return loss.item(), made


def test_the_loss_adds_the_weighted_distance_of_queries_and_items(bert, tmp_path):
    plain, _ = losses(bert, tmp_path)
    none, _ = losses(bert, tmp_path, teacher=Taught(), teacher_weight=0.0)
    once, made = losses(bert, tmp_path, teacher=Taught(), teacher_weight=1.0)
    thrice, _ = losses(bert, tmp_path, teacher=Taught(), teacher_weight=3.0)
    assert none == pytest.approx(plain)
    assert thrice - plain == pytest.approx(3 * (once - plain), rel=1e-4)
    lists = made.train.lists([0, 1, 2], made._wrong, 1, 1)
    items = sorted(set(lists.ravel().tolist()))
    encoding = made.model.encoding
    with torch.no_grad():
        vectors = torch.cat(
            [
                made.model(encoding.texts(made.train.queries[:3], queries=True), queries=True),
                made.model(
                    encoding.texts([made.train.items[i] for i in items], queries=False),
                    queries=False,
                ),
            ]
        )
    single = (1 - vectors[:, 0]).mean().item()
    relations = (vectors @ vectors.T - 1).square().mean().item()
    assert once - plain == pytest.approx(single + 10 * relations, rel=1e-4)


def test_a_teacher_of_another_width_is_refused(bert):
    wide = Taught()
    wide.dimensions = 384
    with pytest.raises(InputError, match="384 dimensions, the model's 16"):
        task(bert, teacher=wide)
