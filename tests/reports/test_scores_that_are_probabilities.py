"""An endpoint that answers only between 0 and 1: a warning says once what to do."""

import json
from itertools import cycle

import pytest
from faulty_server import Faulty, answer, rows
from tiny_models import grid

import crossknn as ck

TEXTS = [f"text number {i}" for i in range(30)]
SAID = "lie between 0 and 1: if they are probabilities, give the option probabilities"


@pytest.fixture
def served():
    """Start an endpoint that gives these scores, one after the other."""
    servers = []

    def start(*scores):
        values = cycle(scores)

        def respond(body):
            results = rows(body)
            for row in results:
                row["relevance_score"] = next(values)
            return [answer(json.dumps({"results": results}).encode())]

        servers.append(Faulty(respond))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


def times(caplog):
    return sum(SAID in record.getMessage() for record in caplog.records)


def test_a_rerank(served, caplog):
    """Six documents by Cohere's service, and again."""
    scorer = ck.HttpScorer(served(0.01, 0.5, 0.99))
    for _ in range(3):
        ck.rerank("q", TEXTS[:6], scorer=scorer)
    assert times(caplog) == 1


def test_a_search(served, caplog):
    """Searches of several queries, on several threads, by one scorer and its copies."""
    scorer = ck.HttpScorer(served(0.0, 0.25, 1.0), concurrency=4, batch=2)
    searcher = ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), scorer)
    searcher.search(["number 3", "number 4"], budget=20)
    list(scorer.one_by_one().score(grid(1, 8), ["q"], TEXTS))
    assert times(caplog) == 1


@pytest.mark.parametrize("scores", [[-0.5, 0.2, 0.9], [0.2, 0.9, 1.5], [7.0]])
def test_logits(served, caplog, scores):
    """Some scores lie elsewhere, so that they are no probabilities."""
    ck.rerank("q", TEXTS, scorer=ck.HttpScorer(served(*scores)))
    assert times(caplog) == 0


def test_probabilities_that_are_known_as_such(served, caplog):
    """The advice was followed: scores are logits, and nothing is said."""
    found = ck.rerank("q", TEXTS, scorer=ck.HttpScorer(served(0.5, 0.9), probabilities=True))
    assert found[0]["score"] == pytest.approx(2.197, abs=1e-3)
    assert times(caplog) == 0


def test_too_few_to_tell(served, caplog):
    """Two scores may lie there by chance; with those of the next calls they are enough."""
    scorer = ck.HttpScorer(served(0.5))
    ck.rerank("q", TEXTS[:2], scorer=scorer)
    assert times(caplog) == 0
    ck.rerank("q", TEXTS[:4], scorer=scorer)
    assert times(caplog) == 1
