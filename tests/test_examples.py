"""The scripts in `examples/` run as they stand, and answer what a reader expects."""

import runpy
import sys
from pathlib import Path

import pytest
from service_helpers import command, url_of

import crossknn as ck

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "own_texts": "zipfile.ZipFile(path).extractall",
    "own_scorer": "second search: 0 pairs scored, best: csv.DictReader",
    "endpoint": "threading.Event",
    "filter": "14 of 40 items are allowed",
    "vectors_in_qdrant": "hashlib.sha256",
    "service_client": "[0, ",
    "learn_from_use": "what the index has learned: ['kriging",
    "compare_with_judgements": "right in 20 0.967",
    "rerank_given_documents": "smtplib.SMTP",
    "own_method": "-> shop floor",
}
"""What each script prints, among other things."""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """`crossknn serve` over the examples' texts: searches, and a `/rerank` endpoint."""
    pytest.importorskip("fastapi")
    folder = tmp_path_factory.mktemp("examples") / "texts"
    ck.ItemIndex.build(EXAMPLES / "texts.jsonl", encoder="bundled").save(folder)
    with command(folder.parent, "texts", "--port", "0") as process:
        yield url_of(process)


def test_every_example_is_tried_and_listed():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == set(SAYS)
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"`{script}.py`" in readme for script in scripts)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "learn_from_use")) for n in SAYS]
)
def test_an_example(name, monkeypatch, capsys, request):
    route = {"endpoint": "/rerank", "service_client": ""}.get(name)
    if name == "vectors_in_qdrant":
        pytest.importorskip("qdrant_client")
    arguments = [] if route is None else [request.getfixturevalue("address") + route]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out
