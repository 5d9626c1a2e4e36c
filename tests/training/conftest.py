"""Tiny encoders and tasks on them."""

from __future__ import annotations

import pytest
from tiny_models import corpus, save_bert


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """An encoder without dropout."""
    pytest.importorskip("transformers")
    return save_bert(tmp_path_factory.mktemp("bert"), hidden=32, std=0.1)


@pytest.fixture(scope="session")
def dropping_bert(tmp_path_factory):
    """An encoder with dropout."""
    pytest.importorskip("transformers")
    return save_bert(tmp_path_factory.mktemp("bert"), dropout=0.2)


@pytest.fixture
def cross_task():
    """cross_task(encoder, ...): a task of 12 train and 4 dev queries."""
    return make_cross_task


@pytest.fixture
def dual_task():
    """dual_task(encoder, ...): a task of 12 train and 4 dev queries."""
    return make_dual_task


def make_cross_task(encoder, *, seed=0, train=None, negatives=None, **config):
    import torch

    from crossknn.models.cross_encoder import CrossEncoderConfig, CrossEncoderModel
    from crossknn.training.labelled import CrossEncoderTask
    from crossknn.training.settings import NegativesSettings

    torch.manual_seed(seed)
    model = CrossEncoderModel.new(encoder, CrossEncoderConfig(**({"max_length": 32} | config)))
    negatives = {"kind": "random", "count": 3, "depth": 6, "dev_candidates": 6} | (negatives or {})
    return CrossEncoderTask(
        model,
        train or [corpus(12, 12)],
        [corpus(4, 8, name="dev", start=30)],
        NegativesSettings(**negatives),
        seed=seed,
    )


def make_dual_task(encoder, *, seed=0, train=None, negatives=None, **config):
    import torch

    from crossknn.models.dual_encoder import DualEncoderConfig, DualEncoderModel
    from crossknn.training.labelled import DualEncoderTask
    from crossknn.training.settings import NegativesSettings

    torch.manual_seed(seed)
    lengths = {"query_length": 16, "item_length": 16}
    model = DualEncoderModel.new(encoder, DualEncoderConfig(**(lengths | config)))
    negatives = {"count": 1, "depth": 4} | (negatives or {})
    return DualEncoderTask(
        model,
        train or [corpus(12, 12)],
        [corpus(4, 8, name="dev", start=30)],
        NegativesSettings(**negatives),
        seed=seed,
    )
