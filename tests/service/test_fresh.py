"""What ships the service from a clone: the image, and the service over Qdrant."""

import json
import re
import runpy
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from service_helpers import TEXTS

import crossknn as ck
from crossknn.cli.serve import keys_of
from crossknn.service.app import create_app

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"


def steps(kind):
    """The arguments of the Dockerfile's lines of a kind, by stage."""
    stages = DOCKERFILE.read_text().split("\nFROM ")[1:]
    found = [re.findall(rf"^{kind} (.*)$", stage, re.MULTILINE) for stage in stages]
    assert len(found) == 2
    return found


def test_the_image_has_no_root_and_all_it_copies():
    assert steps("USER")[1] == ["crossknn"]
    assert steps("RUN")[1] == ["useradd --uid 10001 crossknn"]
    assert json.loads(steps("ENTRYPOINT")[1][0])[:2] == ["/opt/crossknn/bin/crossknn", "serve"]
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
    vectors = encoder.encode_items(texts).tolist()
    points = [
        client_of.models.PointStruct(id=n, vector=vector, payload={field: text})
        for n, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]
    client.upsert(collection, points)
    monkeypatch.setenv("CROSSKNN_SERVE_KEYS", "a-good-key")
    made = runpy.run_path(str(DOCKERFILE.parent / "over_qdrant.py"))["engine_over"]
    app = create_app(made(client, collection, field), keys=keys_of(None))
    with TestClient(app) as asking:
        body = {"query": texts[3], "k": 2, "budget": 5}
        assert asking.post("/search", json=body).status_code == 401
        key = {"Authorization": "Bearer a-good-key"}
        found = asking.post("/search", json=body, headers=key).json()["results"][0]["hits"]
    assert found[0]["text"] == texts[3]
