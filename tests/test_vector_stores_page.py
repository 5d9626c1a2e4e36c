"""The Python of docs/vector-stores.md runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs/vector-stores.md").read_text()


def test_the_blocks_run_and_print_what_they_say(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, shown in re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.DOTALL
    ):
        exec(compile(code, "vector-stores.md", "exec"), names)
        assert capsys.readouterr().out == shown
