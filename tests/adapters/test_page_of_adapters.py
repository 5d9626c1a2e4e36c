"""The page about adapters runs as it stands: three scores in order, then what fits the query."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/how-to/adapters.md").read_text()
BLOCKS = dict(re.findall(r"^## (\w+)\n+```python\n(.*?)```", PAGE, re.M | re.S))
NEEDS = {
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index.core",
    "Haystack": "haystack",
    "PyTerrier": "pyterrier",
    "MTEB": "mteb",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.torch if n == "MTEB" else ()) for n in NEEDS]
)
def test_its_block_runs(name, capsys):
    pytest.importorskip(NEEDS[name])
    exec(BLOCKS[name], {})
    *_, scores, first = capsys.readouterr().out.splitlines()
    found = [float(score) for score in scores.strip("[]").split(",")]
    assert found == sorted(found, reverse=True)
    assert len(found) == 3
    assert first == "the dog barked"
