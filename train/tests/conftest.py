"""Tests of crossknn-train: all need torch."""

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

if find_spec("torch") is None or find_spec("crossknn_train") is None:
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A tiny encoder without dropout."""
    from tiny_models import save_bert

    return save_bert(tmp_path_factory.mktemp("bert"), hidden=32, std=0.1)


@pytest.fixture(scope="session")
def dropping_bert(tmp_path_factory):
    """A tiny encoder with dropout."""
    from tiny_models import save_bert

    return save_bert(tmp_path_factory.mktemp("bert"), dropout=0.2)


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.torch)
