"""Folders of tiny encoders."""

from __future__ import annotations

import pytest
from tiny_models import save_bert


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """An encoder with 256 positions and `[unused0]` to `[unused2]`."""
    return save_bert(tmp_path_factory.mktemp("bert"), positions=256)


@pytest.fixture(scope="session")
def bert_without_unused(tmp_path_factory):
    """An encoder whose vocabulary has no place for marks."""
    return save_bert(tmp_path_factory.mktemp("bert"), unused=False, seed=1, positions=256)
