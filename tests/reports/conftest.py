"""What tests of reports share. Frameworks are not to report their use."""

import os

import pytest

import crossknn as ck

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"


@pytest.fixture
def folder(tmp_path):
    """The folder of a small index."""
    texts = [
        f"how to {verb} {noun}" for verb in ("zip", "sort", "read") for noun in ("it", "a list")
    ]
    ck.ItemIndex.build(texts, lsa=2).save(tmp_path / "index")
    return tmp_path / "index"
