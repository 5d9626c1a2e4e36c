"""Another process changes, replaces or removes an index that is served."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from service_helpers import QUERIES, TEXTS, Words, ids, served

import crossknn as ck
from crossknn.extend import ScoreStore
from crossknn.types import Pairs

NEW = {"id": "new", "text": "sort the list of today", "lang": "en", "year": 2026}
FILES = ("scores.db", "scores.db-wal", "scores.db-shm")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "docs"
    ck.ItemIndex.build(TEXTS, lsa=4).save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "docs")


@pytest.fixture
def client(folder):
    with served({"docs": ck.ItemIndex.load(folder)}, Words()) as client:
        yield client


def found(client, query="sort the list of today"):
    answer = client.post("/search", json={"query": query, "k": 5, "budget": 40})
    assert answer.status_code == 200, answer.text
    return ids(answer)[0]


def test_items_are_added_and_deleted(client, folder):
    gone = found(client)[0]
    script = (
        "import sys, json, crossknn as ck; index = ck.ItemIndex.load(sys.argv[1]); "
        "index.add([json.loads(sys.argv[2])]); index.delete([sys.argv[3]])"
    )
    subprocess.run([sys.executable, "-c", script, folder, json.dumps(NEW), gone], check=True)
    first = found(client)
    assert first[0] == "new"
    assert gone not in first
    assert client.get("/items/new").json()["text"] == NEW["text"]
    assert client.get("/indexes").json()["indexes"][0]["items"] == 40
    assert client.get("/readyz").json()["status"] == "ready"


@pytest.mark.parametrize("way", ["written over", "moved into its place"])
def test_the_index_is_replaced(client, folder, tmp_path, way):
    assert found(client)
    index = ck.ItemIndex.build([NEW, TEXTS[1]], lsa=2)
    index.save(folder if way == "written over" else tmp_path / "next")
    if way == "moved into its place":
        folder.rename(tmp_path / "old")
        (tmp_path / "next").rename(folder)
    assert found(client) == ["new", TEXTS[1]["id"]]
    assert client.get(f"/items/{TEXTS[0]['id']}").status_code == 404


def test_the_index_is_removed_and_comes_back(client, folder):
    before = found(client)
    shutil.rmtree(folder)
    assert found(client) == before
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert f"there is no index in {folder}" in ready.json()["error"]["message"]
    assert client.get("/healthz").status_code == 200
    ck.ItemIndex.build([*TEXTS, NEW], lsa=4).save(folder)
    assert client.get("/readyz").json()["status"] == "ready"
    assert found(client)[0] == "new"


def test_the_index_is_damaged(client, folder):
    before = found(client)
    manifest = folder / "crossknn-index.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    assert found(client) == before
    assert "damaged" in client.get("/readyz").json()["error"]["message"]


@pytest.mark.parametrize("deleted", [FILES, FILES[:1]])
def test_the_scores_are_deleted(client, folder, deleted):
    """A deleted scores.db is made anew with the next score, and nothing fails meanwhile. SQLite's
    other two files may stay: they are of the old one, and harm nothing."""
    found(client)
    for name in deleted:
        (folder / name).unlink(missing_ok=True)
    found(client, QUERIES[1])
    found(client, QUERIES[2])
    client.engine.close()
    store = ScoreStore(folder / "scores.db")
    assert len(store) == 80
    assert store.verify() == []


@pytest.mark.parametrize("place", [os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_something_else_is_in_the_place_of_the_scores(client, folder, place):
    before = found(client)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    place(folder / "scores.db")
    assert found(client) == before


def test_a_store_of_scores_is_replaced_and_its_folder_removed(tmp_path):
    """Scores of the file that took the place are used, by their texts and not by their numbers;
    without its folder, a search says in a sentence what is missing."""
    (tmp_path / "kept").mkdir()
    store = ScoreStore(tmp_path / "kept" / "scores.db")
    scorer = ck.StoredScorer(ck.CallableScorer(lambda pairs: [1.0] * len(pairs), "one"), store)
    index = ck.ItemIndex.build([text["text"] for text in TEXTS[:5]], lsa=0)
    searcher = ck.Searcher(index, scorer, "exact")
    assert searcher.search("a query", k=1)[0][0].score == 1
    with ScoreStore(tmp_path / "other.db") as other:
        queries, items = ["another", "a query"], [*reversed(index.items.texts)]
        pairs = Pairs(np.ones(5, np.int64), np.arange(5))
        other.put(scorer.fingerprint, queries, items, pairs, [50.0, 40.0, 30.0, 20.0, 10.0])
    for name in FILES[1:]:
        (tmp_path / "kept" / name).unlink(missing_ok=True)
    os.replace(tmp_path / "other.db", tmp_path / "kept" / "scores.db")
    hits = searcher.search("a query", k=5)[0]
    assert [hit.score for hit in hits] == [50, 40, 30, 20, 10]
    assert [hit.text for hit in hits] == items
    assert len(store) == 5
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(ck.InputError, match="there is no folder"):
        searcher.search("a query")


def test_mcp_reads_the_index_as_it_is(folder):
    mcp = pytest.importorskip("mcp")
    server_of = pytest.importorskip("crossknn.adapters.mcp")
    searcher = ck.Searcher(ck.ItemIndex.load(folder), Words())
    server = server_of.create_server(searcher, "docs", ck.Budget(per_query=40))

    async def run():
        async with mcp.Client(server) as client:
            query = {"query": NEW["text"], "k": 1}
            await client.call_tool("search", query)
            ck.ItemIndex.load(folder).add([NEW])
            first = await client.call_tool("search", query)
            shutil.rmtree(folder)
            return first, await client.call_tool("search", query)

    first, last = (answer.structured_content for answer in asyncio.run(run()))
    assert first["results"][0]["id"] == last["results"][0]["id"] == "new"
    assert "there is no index" in last["note"]
