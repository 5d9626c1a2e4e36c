"""Tiny encoders."""

from __future__ import annotations

import pytest
from tiny_models import save_bert


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """An encoder without dropout."""
    return save_bert(tmp_path_factory.mktemp("bert"), hidden=32, std=0.1)


@pytest.fixture(scope="session")
def dropping_bert(tmp_path_factory):
    """An encoder with dropout."""
    return save_bert(tmp_path_factory.mktemp("bert"), dropout=0.2)
