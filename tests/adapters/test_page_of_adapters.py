"""The page about adapters runs as it stands: three scores in order, then what fits the query."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/how-to/adapters.md").read_text()
SECTIONS = re.findall(
    r"^## (\w+).*?```python\n(.*?)```", PAGE.split("## LangChain")[1], re.M | re.S
)
NEEDS = {
    "LlamaIndex": "llama_index.core",
    "Haystack": "haystack",
    "PyTerrier": "pyterrier",
    "MTEB": "mteb",
}
LANGCHAIN = re.search(r"## LangChain\n+```python\n(.*?)```", PAGE, re.S)[1]
TORCH = pytest.mark.torch


def test_every_framework_has_its_block():
    assert [name for name, _ in SECTIONS] == [*NEEDS]


@pytest.mark.parametrize(
    ("module", "block"),
    [
        pytest.param("langchain_core", LANGCHAIN, id="LangChain"),
        *(
            pytest.param(NEEDS[name], block, id=name, marks=TORCH if name == "MTEB" else ())
            for name, block in SECTIONS
        ),
    ],
)
def test_its_block_runs(module, block, capsys):
    pytest.importorskip(module)
    exec(block, {})
    *_, scores, first = capsys.readouterr().out.splitlines()
    found = [float(score) for score in scores.strip("[]").split(",")]
    assert found == sorted(found, reverse=True)
    assert len(found) == 3
    assert first == "the dog barked"
