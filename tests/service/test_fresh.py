"""From a fresh clone to a service: `make serve`, and the steps of the Dockerfile, without Docker."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from service_helpers import TEXTS, ask, free_port, wait_for

import crossknn as ck
from crossknn.cli.serve import keys_of
from crossknn.service.app import create_app

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
QUESTION = {"query": "how do I open a zip file", "k": 3, "budget": 20, "deadline_ms": 60_000}


@contextmanager
def started(command, folder, port, package):
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(package)}, process_group=0
    )
    try:
        url = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            try:
                wait_for(f"{url}/readyz")
                break
            except TimeoutError:
                continue
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait(20)


@pytest.mark.slow
def test_make_serve_in_a_fresh_clone(tmp_path):
    """What is installed is this environment: the target itself asks pip for the same extra."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", clone], check=True)
    steps = subprocess.run(
        ["make", "-n", "serve"], cwd=clone, capture_output=True, text=True, check=True
    ).stdout
    assert "pip install '.[serve]'" in steps
    own = clone / ".venv-serve"
    (own / "bin").mkdir(parents=True)
    entry = own / "bin" / "crossknn"
    entry.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m crossknn "$@"\n')
    entry.chmod(0o755)
    (own / ".installed").touch()
    port = free_port()
    with started(["make", "serve", f"PORT={port}"], clone, port, clone / "src") as url:
        found = ask(f"{url}/search", QUESTION)["results"][0]["hits"]
    assert any("zip" in hit["text"].lower() for hit in found)
    assert next((clone / "crossknn-demo").glob("python-*/docs.index/scores.db")).is_file()


def steps(kind):
    """The arguments of the Dockerfile's lines of a kind, by stage."""
    stages = DOCKERFILE.read_text().split("\nFROM ")[1:]
    found = [re.findall(rf"^{kind} (.*)$", stage, re.MULTILINE) for stage in stages]
    assert len(found) == 2
    return found


@pytest.mark.slow
def test_the_steps_of_the_dockerfile(tmp_path):
    pytest.importorskip("hatchling")
    context, site, data = (tmp_path / name for name in ("context", "site", "data"))
    context.mkdir()
    for line in steps("COPY")[0]:
        *sources, target = line.split()
        for source in sources:
            place = context / target / (source if target == "./" else "")
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, place)
    _, install = steps("RUN")[0]
    assert (wanted := re.fullmatch(r"\S+/bin/pip install --no-cache-dir \.\[(.*)\]", install))
    extras = tomllib.loads((context / "pyproject.toml").read_text())["project"]
    assert {*wanted[1].split(",")} <= {*extras["optional-dependencies"]}
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "install", *offline, "--target", site, context]
    subprocess.run(pip, check=True)
    ck.ItemIndex.build(TEXTS, lsa=4).save(data / "docs.index")
    ((entry,), (arguments,)) = steps("ENTRYPOINT")[1], steps("CMD")[1]
    program, *options = json.loads(entry)
    assert program == "/opt/crossknn/bin/crossknn"
    port = free_port()
    command = [sys.executable, "-m", "crossknn", *options, *json.loads(arguments)]
    with started([*command, "--port", str(port)], data, port, site) as url:
        assert ask(f"{url}/search", QUESTION | {"query": "zip a file"})["n_calls"] == 20


def test_the_image_has_no_root_and_all_it_copies():
    assert steps("USER")[1] == ["crossknn"]
    assert steps("RUN")[1] == ["useradd --uid 10001 crossknn"]
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in [*steps("COPY")[0], *steps("COPY")[1][1:]]:
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert any(
                fnmatch(source.split("/")[0], kept[1:]) for kept in ignored if kept[0] == "!"
            )


@pytest.mark.slow
def test_over_qdrant(monkeypatch):
    client_of = pytest.importorskip("qdrant_client")
    services = yaml.safe_load((DOCKERFILE.parent / "compose.yaml").read_text())["services"]
    address, collection, field = services["crossknn"]["command"]
    assert address == "http://qdrant:6333"
    assert services["crossknn"]["depends_on"] == ["qdrant"]
    assert services["crossknn"]["entrypoint"][1] == steps("COPY")[1][1].split()[1]
    client, encoder = client_of.QdrantClient(":memory:"), ck.DualEncoder()
    texts = [item["text"] for item in TEXTS[:8]]
    parameters = client_of.models.VectorParams(size=encoder.dimensions, distance="Dot")
    client.create_collection(collection, vectors_config=parameters)
    client.upsert(
        collection,
        [
            client_of.models.PointStruct(id=n, vector=vector.tolist(), payload={field: text})
            for n, (text, vector) in enumerate(zip(texts, encoder.encode_items(texts), strict=True))
        ],
    )
    monkeypatch.setenv("CROSSKNN_SERVE_KEYS", "a-good-key")
    made = runpy.run_path(str(DOCKERFILE.parent / "over_qdrant.py"))["engine_over"]
    app = create_app(made(client, collection, field), keys=keys_of(None))
    with TestClient(app) as asking:
        body = {"query": texts[3], "k": 2, "budget": 5}
        assert asking.post("/search", json=body).status_code == 401
        key = {"Authorization": "Bearer a-good-key"}
        found = asking.post("/search", json=body, headers=key).json()["results"][0]["hits"]
    assert found[0]["text"] == texts[3]
