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
            results = [row | {"relevance_score": next(values)} for row in rows(body)]
            return [answer(json.dumps({"results": results}).encode())]

        servers.append(Faulty(respond))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


def times(caplog):
    return sum(SAID in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("scores", "counts", "options", "warnings"),
    [
        ([0.01, 0.5, 0.99], [6, 6, 6], {}, 1),
        # Some scores lie elsewhere, so that they are no probabilities.
        ([-0.5, 0.2, 0.9], [30], {}, 0),
        ([0.2, 0.9, 1.5], [30], {}, 0),
        # Two scores may lie there by chance; with those of the next call they are enough.
        ([0.5], [2], {}, 0),
        ([0.5], [2, 4], {}, 1),
        # The advice was followed: scores are logits, and nothing is said.
        ([0.5, 0.9], [30], {"probabilities": True}, 0),
    ],
)
def test_reranking(served, caplog, scores, counts, options, warnings):
    scorer = ck.HttpScorer(served(*scores), **options)
    for count in counts:
        found = ck.rerank("q", TEXTS[:count], scorer=scorer)
    assert times(caplog) == warnings
    if options:
        assert found[0]["score"] == pytest.approx(2.197, abs=1e-3)


def test_a_search_on_several_threads_and_copies_of_the_scorer(served, caplog):
    scorer = ck.HttpScorer(served(0.0, 0.25, 1.0), concurrency=4, batch=2)
    searcher = ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), scorer)
    searcher.search(["number 3", "number 4"], budget=20)
    list(scorer.one_by_one().score(grid(1, 8), ["q"], TEXTS))
    assert times(caplog) == 1
