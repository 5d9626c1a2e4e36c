"""The README's ten lines do what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = [
    "zipfile.ZipFile.extractall(path) Extract all members from the archive to the working directory.",
    "shutil.copyfile(src, dst) Copy the contents of a file to another file.",
    "threading.Lock() A lock object; acquire and release it around shared data.",
    "json.dumps(obj) Serialize an object to a JSON formatted string.",
    "list.sort() Sort the list in place.",
    *(f"unrelated thing number {i}" for i in range(40)),
]


def test_ten_lines(tmp_path, monkeypatch, capsys):
    block = next(
        code
        for code in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if "Searcher" in code
    )
    assert len(block.strip().splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"item-{i}", "text": text}) for i, text in enumerate(TEXTS)]
    Path("docs.jsonl").write_text("\n".join(lines))
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 11
    assert printed[0].split()[1] == "item-0"
    calls, seconds = printed[-1].split()
    assert int(calls) == len(TEXTS)  # fewer items than the budget: exact
    assert float(seconds) > 0


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))],
    ids=lambda path: path.name,
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
