"""The Python of these pages runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["rerank.md", "vector-stores.md"])
def test_the_blocks_run_and_print_what_they_say(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, shown in re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", (DOCS / page).read_text(), re.DOTALL
    ):
        exec(compile(code, page, "exec"), names)
        assert capsys.readouterr().out == shown
