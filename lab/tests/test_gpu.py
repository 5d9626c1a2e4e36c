"""The script for a GPU runs on a CPU, with tiny models."""

import json
import runpy
import sys
from pathlib import Path

import pytest

METHODS = ("rerank", "axn(ridge=0.3)", "auto", "auto(rounds=20)")
GPU = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.mark.torch
def test_the_script_for_a_gpu_runs_on_a_cpu(tmp_path, monkeypatch):
    out = tmp_path / "gpu.json"
    models = ["MiniLM-L6", "Qwen3-0.6B"]
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", str(out), "--tiny", "--items", "200", "--models", *models]
    )
    runpy.run_path(str(GPU), run_name="__main__")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["model"] for row in rows if "model" in row] == models
    assert all(min(row["pairs a second"].values()) > 0 for row in rows if "model" in row)
    searches = [(row["scorer"], row["method"]) for row in rows if "scorer" in row]
    assert searches == [(m, way) for m in models for way in METHODS]
    assert all(row["ms"] > 0 and 1 <= row["rounds"] <= 20 for row in rows if "scorer" in row)
