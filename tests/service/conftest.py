"""A service over two small indexes."""

from __future__ import annotations

import pytest
from service_helpers import TEXTS, Words, served

import crossknn as ck


@pytest.fixture
def words():
    return Words()


@pytest.fixture
def indexes(tmp_path):
    ck.ItemIndex.build(TEXTS, lsa=4).save(tmp_path / "docs")
    ck.ItemIndex.build(TEXTS[:9], lsa=2).save(tmp_path / "faq")
    return {name: ck.ItemIndex.load(tmp_path / name) for name in ("docs", "faq")}


@pytest.fixture
def client(indexes, words):
    with served(indexes, words) as client:
        yield client
