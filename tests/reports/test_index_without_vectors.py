"""An index of words alone (`--encoder none --lsa 0`): the default method and the services work."""

import json

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run

TOPICS = ("archives", "threads", "files", "strings", "queues", "dates", "ports", "locks")
TEXTS = [f"part {i} on {TOPICS[i % 8]} and {TOPICS[i // 8 % 8]}" for i in range(80)]
QUERY = "threads or locks"


def overlap(pairs):
    return [3.0 * len({*q.split()} & {*t.split()}) - len(t) / 50 for q, t in pairs]


@pytest.fixture
def index():
    return ck.ItemIndex.build(TEXTS, lsa=0)


@pytest.mark.parametrize("method", ["auto", "kriging(rounds=5)", "auto(k=100)"])
@pytest.mark.parametrize("budget", [1, 2, 30, 200])
def test_the_default_method_searches_by_words(index, method, budget):
    assert not index.vectors
    found = ck.Searcher(index, overlap, method).search(QUERY, k=5, budget=budget)
    words = ck.Searcher(index, overlap, "rerank(retriever=bm25)").search(QUERY, k=5, budget=budget)
    assert found.n_scored == min(budget, 80)
    assert [hit.score for hit in found[0]] == [hit.score for hit in words[0]]
    texts = ["archives", QUERY, "no word of it", "\u2605"]
    assert len(ck.Searcher(index, overlap, method).search(texts, k=3, budget=budget)) == 4


def test_more_hits_than_calls_and_filters_and_added_items(index):
    search = ck.Searcher(index, ck.CallableScorer(overlap, "words")).search
    found = search(QUERY, k=80, budget=10)
    assert sorted(hit.position for hit in found[0]) == list(range(80))
    allowed = np.arange(80) % 2 == 0
    assert all(hit.position % 2 == 0 for hit in search(QUERY, k=9, budget=9, filter=allowed)[0])
    ck.collect_anchors(index, ck.CallableScorer(overlap, "words"), ["files", "dates", "ports"])
    index.add([{"id": "new", "text": QUERY}])
    index.delete(["3"])
    assert search(QUERY, k=3, budget=10)[0][0].id == "new"
    index.compact()
    assert search(QUERY, k=3, budget=10)[0][0].id == "new"


def test_the_commands_over_words_alone(tmp_path, capsys):
    items, folder = tmp_path / "items.txt", str(tmp_path / "docs")
    items.write_text("\n".join(TEXTS))
    assert run(["index", "build", str(items), folder, "--encoder", "none", "--lsa", "0"]) == 0
    capsys.readouterr()
    assert run(["search", folder, QUERY, "-k", "2", "--budget", "10", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["results"][0]["hits"]) == 2
    assert run(["index", "info", folder]) == 0
    assert run(["index", "verify", folder]) == 0


def test_the_service_answers(index):
    pytest.importorskip("fastapi")
    from service_helpers import Words, ask, running

    with running({"docs": index}, Words()) as port:
        url = f"http://127.0.0.1:{port}"
        found = ask(f"{url}/search", {"query": QUERY, "k": 3, "budget": 20})
        assert len(found["results"][0]["hits"]) == 3
