"""The Python of the pages and of the tutorials runs, and prints what it says; their commands exist."""

import json
import re
import shlex
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import typer.main
from tiny_models import save_beir
from typer.testing import CliRunner

import crossknn as ck
from crossknn.cli.app import app

DOCS = Path(__file__).parent.parent / "docs"
ELSEWHERE = {
    "how-to/adapters.md": "tests/adapters",
    "how-to/own-method.md": "tests/search/test_own_method.py",
    "how-to/reproduce.md": "lab/tests/test_lab_pages.py",
    "how-to/sweeps.md": "lab/tests/test_lab_pages.py",
    "how-to/reports.md": "lab/tests/test_lab_pages.py",
    "how-to/serving.md": "tests/service",
}
"""Pages whose blocks need more than is here, and where they run."""
UNFIT = {"export_model", "def score(self", "distill", "models/emb-ce"}
"""Blocks that need torch, the lab or a trained model, or are a part of a class: they are compiled."""
TEXTS = {"how-to/fitting.md": "queries", "how-to/scorers.md": "train_queries"}
"""Pages where queries are texts, without ids."""
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
}
WITH_PYTHON = [page for page, text in PAGES.items() if "```python" in text]
HELPED = ("collect", "fit", "search", "serve", "mcp", "compare", "demo", "try")
ENDS = ("", " now", " please", " well")
WAYS = range(20)
TASKS = (
    "unzip a file",
    "sort a list",
    "lock a thread",
    "open a socket",
    "parse a date",
    "read a table",
)


def overlap(pairs: list[tuple[str, str]]) -> list[float]:
    """Words in common, and a little by length."""
    return [
        6 * len({*query.split()} & {*text.split()}) / len(query.split()) - len(text) / 300
        for query, text in pairs
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(items, folder of their index)."""
    ids = {1: "id1", 2: "id2"}
    items = [
        {"id": ids.get(n, str(n)), "text": f"how to {task} in {way} ways, {n}"}
        for n, (task, way) in enumerate(product(TASKS, WAYS))
    ]
    folder = tmp_path_factory.mktemp("pages") / "docs.index"
    ck.ItemIndex.build(items, encoder="bundled").save(folder)
    return items, folder


@pytest.fixture
def world(built, tmp_path, monkeypatch):
    """Names and files that blocks take as given."""
    monkeypatch.chdir(tmp_path)
    items, folder = built
    shutil.copytree(folder, "docs.index")
    vectors = np.random.default_rng(0).standard_normal((len(items), 8)).astype(np.float32)
    index = ck.ItemIndex.load("docs.index")
    asked = [f"how do I {task}{end}" for task in TASKS for end in ENDS]
    queries = ck.QuerySet([f"q{at}" for at in range(len(asked))], asked)
    qrels = {f"q{at}": {index.items.ids[20 * (at // 4) + at % 4]: 1} for at in range(len(asked))}
    scorer = ck.CallableScorer(overlap, "overlap")
    for name, item in (("new", "x"), ("changed", "0")):
        Path(f"{name}.jsonl").write_text(json.dumps({"id": item, "text": name}))
    texts = dict(zip(index.items.ids, index.items.texts, strict=True))
    save_beir(Path("scifact"), texts, dict(zip(queries.ids, asked, strict=True)), test=qrels)
    given = {"ck": ck, "index": index, "items": items, "query": asked[0], "queries": queries}
    given |= {"qrels": qrels, "scorer": scorer, "searcher": ck.Searcher(index, scorer)}
    given |= {"my_vectors": vectors, "my_encoder": lambda texts: vectors[: len(texts)]}
    given |= {"scores_of": lambda pairs: np.ones(len(pairs)), "train_queries": queries}
    return given | {"views": np.arange(len(items), dtype=np.float32)}


@pytest.mark.parametrize("page", [page for page in WITH_PYTHON if page not in ELSEWHERE])
def test_the_python_of_a_page_runs_and_prints_what_it_says(page, world, capsys):
    if page in TEXTS:
        world[TEXTS[page]] = world["queries"].texts
    for code, shown in re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGES[page], re.DOTALL
    ):
        block = compile(code, page, "exec")
        if not any(part in code for part in UNFIT):
            exec(block, world)
            printed = capsys.readouterr().out
            assert not shown or printed == shown


def test_pages_that_run_elsewhere_are_there():
    assert set(ELSEWHERE) <= set(WITH_PYTHON)
    assert all((DOCS.parent / place).exists() for place in ELSEWHERE.values())


SLOW = ("search-your-documents", "cheap-scorer-first")
"""They search for half a minute."""


@pytest.mark.parametrize(
    "book",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
        for path in sorted((DOCS / "tutorials").glob("*.ipynb"))
    ],
)
def test_a_tutorial_runs_from_top_to_bottom(book, tmp_path, monkeypatch, capsys):
    if "database" in book.stem:
        pytest.importorskip("qdrant_client")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(book.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {"__name__": "tutorial"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), book.name, "exec"), names)
            assert bool(capsys.readouterr().out) == bool(cell["outputs"])


def test_no_page_is_longer_than_four_hundred_lines():
    assert [page for page, text in PAGES.items() if text.count("\n") > 400] == []


def test_a_list_in_a_list_is_indented_by_four_spaces():
    """By three it would not be one on the site."""
    root = DOCS.parent
    others = {name: (root / name).read_text() for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
    less = re.compile(r"(?m)^ {1,3}(?:[-*+]|\d+\.) .*")
    found = {page: less.findall(text) for page, text in (PAGES | others).items()}
    assert {page: lines for page, lines in found.items() if lines} == {}


def test_pictures_are_light_of_weight_and_suit_dark_screens():
    for path in (DOCS / "images").glob("*.svg"):
        svg = path.read_text(encoding="utf-8")
        assert len(svg) < 150_000, path.name
        assert "prefers-color-scheme: dark" in svg, path.name


@pytest.mark.parametrize("words", [["index", "build"], *([name] for name in HELPED)])
def test_a_help_fits_a_terminal_of_eighty_columns(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*words, "--help"]).output
    _, *paragraphs = re.split(r"\n\s*\n", shown.split("╭")[0].strip())
    assert "…" not in shown
    assert all(len(line) > 55 for p in paragraphs for line in p.splitlines()[:-1]), paragraphs


def commands() -> list[str]:
    """Every line of a page that calls the program, in a block."""
    found = set()
    for text in PAGES.values():
        blocks = re.findall(r"(?s)```sh\n(.*?)```", text) + re.findall(r"(?m)^(?: {4}.*\n)+", text)
        for line in re.sub(r"\\\n\s*", "", "\n".join(blocks)).split("\n"):
            if line.strip().startswith(("crossknn ", "crossknn-train ", "crossknn-lab ")):
                found.add(line.strip())
    return sorted(found)


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_pages_has_the_options_that_it_names(line):
    program, *words = (w for w in shlex.split(line, comments=True) if w not in ("...", "|"))
    other = {"crossknn-train": "crossknn_train.cli", "crossknn-lab": "crossknn_lab.cli"}
    own = pytest.importorskip(other[program]).app if program in other else app
    command = typer.main.get_command(own)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {"--help", "-h", "--version"} | {
        name for p in command.params for name in (*p.opts, *p.secondary_opts)
    }
    named = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert named <= known, sorted(named - known)


def test_pages_stay_short():
    words = {path: len(path.read_text(encoding="utf-8").split()) for path in DOCS.rglob("*.md")}
    assert sum(words.values()) <= 45_000
    assert sum(n for path, n in words.items() if path.parent.name == "evidence") <= 14_000
