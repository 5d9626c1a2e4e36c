"""Every block of README runs, and prints what it says."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from faulty_server import Faulty, good

from crossknn.cli.app import run

ROOT = Path(__file__).parent.parent
TEXTS = [
    "zipfile.ZipFile.extractall(path) Extract all members from the archive to the working directory.",
    "shutil.copyfile(src, dst) Copy the contents of a file to another file.",
    "threading.Lock() A lock object; acquire and release it around shared data.",
    "json.dumps(obj) Serialize an object to a JSON formatted string.",
    "list.sort() Sort the list in place.",
    *(f"Unrelated thing number {i}." for i in range(20)),
]
REST = "It is described at length, in a text of more than eight words."
"""With it, an item can answer a made-up query: the first ten have it."""


README = (ROOT / "README.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the blocks read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crossknn.trial.data.SECONDS", 0.1)
    records = {
        "docs": [
            {"id": f"item-{i}", "text": f"{text} {REST}" if i < 10 else text}
            for i, text in enumerate(TEXTS)
        ],
        "queries": [{"id": f"q{i}", "text": text[-30:]} for i, text in enumerate(TEXTS[:6])],
        "train-queries": [{"id": "t1", "text": "sort a list"}],
    }
    for name, rows in records.items():
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    judged = "".join(f"q{i}\t0\titem-{i}\t1\n" for i in range(6))
    Path("qrels.tsv").write_text(judged)
    return tmp_path


def test_the_python_runs_and_prints_what_it_says(folder, capsys):
    first, second = blocks("python")
    exec(compile(first, "README.md", "exec"), {})
    assert [capsys.readouterr().out] == blocks("text")
    exec(compile(f"import crossknn as ck\n{second}", "README.md", "exec"), {})
    best = capsys.readouterr().out.splitlines()[0]
    assert best.split()[1] == "item-0"


def test_the_commands_run(folder, capsys):
    lines = "".join(blocks("sh")).splitlines()
    server = Faulty(lambda body: [good(body)])
    try:
        for line in filter(None, lines):
            program, *given = shlex.split(line, comments=True)
            given = [re.sub(r"http://localhost:\d+/rerank", server.url, word) for word in given]
            if program == "crossknn":
                assert run(given) == 0, line
                shown = capsys.readouterr().out
                assert given != ["demo"] or shown.split("\nWith")[0] in README
            else:
                assert (program, given) == ("pip", ["install", "."]), line
    finally:
        server.close()
    for target in re.findall(r"`make ([\w-]+)`", README):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_the_extras_that_pages_name_are_those_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"].keys() - {"dev"}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for named in re.findall(r"pip install '([^']*)\[([\w,-]+)\]'", page.read_text()):
            assert named[0] == "crossknn"
            assert set(named[1].split(",")) <= known, page
    listed = (ROOT / "docs/how-to/installing.md").read_text().split("## Size")[0]
    rows = re.findall(r"(?m)^\| (`[^|]*`) \|", listed)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == known


@pytest.mark.parametrize(
    "path",
    [
        *(ROOT / "README.md", ROOT / "CHANGELOG.md"),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "docs").rglob("*.ipynb")),
    ],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        # `lab/site.py` makes the page report.md, and checks links of the built site.
        if not re.match(r"[a-z]+:|report\.md", target):
            file, _, anchor = target.partition("#")
            to = path.parent / file if file else path
            assert to.exists(), target
            assert not anchor or anchor in anchors(to), target


def anchors(page):
    """What headings of a page are called in links."""
    text = re.sub(r"(?s)```.*?```", "", page.read_text())
    heads = [
        re.sub(r"[`*]", "", head).strip().lower() for head in re.findall(r"(?m)^#+ (.*)", text)
    ]
    named = {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head)) for head in heads}
    return named | set(re.findall(r'id="([^"]+)"', text))
