"""An index of a few texts, and a searcher that counts common words."""

from __future__ import annotations

import os

import pytest
from adapter_helpers import TEXTS, overlap

import crossknn as ck

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"


@pytest.fixture(scope="session")
def index():
    return ck.ItemIndex.build(TEXTS, lsa=4)


@pytest.fixture
def searcher(index):
    return ck.Searcher(index, overlap)
