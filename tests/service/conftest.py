"""A service over two small indexes."""

import shutil

import pytest
from service_helpers import TEXTS, Words, served

import crossknn as ck


@pytest.fixture(scope="session")
def saved_indexes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    ck.ItemIndex.build(TEXTS, lsa=4).save(folder / "docs")
    ck.ItemIndex.build(TEXTS[:9], lsa=2).save(folder / "faq")
    return folder


@pytest.fixture
def words():
    return Words()


@pytest.fixture
def indexes(saved_indexes, tmp_path):
    shutil.copytree(saved_indexes, tmp_path, dirs_exist_ok=True)
    return {name: ck.ItemIndex.load(tmp_path / name) for name in ("docs", "faq")}


@pytest.fixture
def client(indexes, words):
    with served(indexes, words) as client:
        yield client


@pytest.fixture(scope="module")
def shared_client():
    """One client for tests that leave nothing behind."""
    indexes = {"docs": ck.ItemIndex.build(TEXTS, lsa=4), "faq": ck.ItemIndex.build(TEXTS[:9])}
    with served(indexes, Words()) as client:
        yield client
