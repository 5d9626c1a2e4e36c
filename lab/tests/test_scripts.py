"""The scripts of measurements can be run with today's package: everything that they import exists."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))
EXTRAS = (
    *("torch", "transformers", "sentence_transformers", "safetensors", "onnx"),
    *("elasticsearch", "opensearchpy", "faiss"),
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_can_be_imported(script, monkeypatch):
    monkeypatch.syspath_prepend(script.parent)  # some import others
    try:
        runpy.run_path(str(script), run_name="imported")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRAS:
            raise
        pytest.skip(f"needs {error.name}")
