"""Reranking endpoints: a real server in a thread, in both APIs, in good and in bad health."""

import json
import logging
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from tiny_models import collect, grid

from crossknn import CrossEncoder, HttpScorer
from crossknn.errors import InputError, ScorerError
from crossknn.scorers.base import Scorer

QUERIES = ["a", "bb"]
ITEMS = ["x" * (i + 1) for i in range(10)]
EXPECTED = np.array([len(q) * 10.0 + len(i) for q in QUERIES for i in ITEMS])


def sizes(server):
    bodies = [body for _, _, body in server.requests]
    return [len(body.get("documents") or body.get("texts")) for body in bodies]


def scores_of(scorer, m=2):
    return collect(scorer, grid(m, 10), QUERIES, ITEMS)


def values(body, texts):
    return [len(body["query"]) * 10 + len(text) for text in texts]


def cohere(body):
    if "documents" not in body:
        return 400, {"message": "documents is required"}
    scores = values(body, body["documents"])
    ranked = sorted(range(len(scores)), key=lambda i: -scores[i])[: body["top_n"]]
    return 200, {"results": [{"index": i, "relevance_score": scores[i]} for i in ranked]}


def tei(body):
    if "texts" not in body:
        return 422, b"Failed to deserialize the JSON body: missing field `texts`"
    if not body.get("raw_scores"):
        return 200, [{"index": i, "score": 0.5} for i in range(len(body["texts"]))]
    scores = values(body, body["texts"])
    ranked = sorted(range(len(scores)), key=lambda i: -scores[i])
    return 200, [{"index": i, "score": scores[i]} for i in ranked]


@pytest.mark.parametrize(("respond", "api"), [(cohere, "cohere"), (tei, "tei")])
def test_both_apis(serve, respond, api):
    service = serve(respond)
    scorer = HttpScorer(service.url, api=api, model="m", batch=4, concurrency=1)
    assert isinstance(scorer, Scorer)
    np.testing.assert_array_equal(scores_of(scorer), EXPECTED)
    path, _, body = service.requests[-1]
    assert (path, body["query"]) == ("/rerank", "bb")
    assert sizes(service) == [4, 4, 2, 4, 4, 2]


def test_path_key_and_what_stands_behind_the_question_mark(serve, monkeypatch, caplog):
    service = serve(lambda body: cohere(body) if len(service.requests) < 5 else (500, b"secret-1"))
    url = service.url.replace("/rerank", "/v2/rerank?version=9")
    with caplog.at_level(logging.DEBUG, logger="crossknn"):
        scorer = CrossEncoder(url, api_key="secret-1", model="m", retries=0)
        scores_of(scorer)
    path, headers, body = service.requests[-1]
    assert (path, headers["Authorization"]) == ("/v2/rerank?version=9", "Bearer secret-1")
    assert (body["model"], body["top_n"]) == ("m", 10)
    assert scorer.fingerprint == f"http:{url.partition('?')[0]}|model=m"
    monkeypatch.setenv("CROSSKNN_API_KEY", "secret-2")
    scores_of(unnamed := HttpScorer(service.url))
    assert unnamed.fingerprint is None
    assert service.requests[-1][1]["Authorization"] == "Bearer secret-2"
    with pytest.raises(ScorerError) as failed:
        scores_of(scorer)
    assert "secret-1" not in caplog.text + repr(scorer) + str(failed.value)
    with pytest.raises(InputError, match="without a login") as failed:
        HttpScorer("http://me:secret-3@host/rerank")
    assert "secret-3" not in str(failed.value)


@pytest.mark.parametrize("status", [413, 422])
def test_batches_refused_as_too_large_get_smaller_for_good(serve, status):
    service = serve(lambda b: tei(b) if len(b["texts"]) <= 3 else (status, b"too many"))
    scorer = HttpScorer(service.url, api="tei", concurrency=1)
    for _ in range(2):
        np.testing.assert_array_equal(scores_of(scorer), EXPECTED)
    assert [size for size in sizes(service) if size > 3] == [10, 5]


def test_what_the_service_says_of_an_unknown_model_is_passed_on(serve):
    server = serve(lambda body: (404, {"message": f"no model {body['model']}"}))
    with pytest.raises(ScorerError, match=r"HTTP 404: .*no model mine.*the model's name"):
        scores_of(HttpScorer(server.url, model="mine"))


def test_one_item_the_service_chokes_on_fails_no_other(serve):
    service = serve(lambda b: (500, b"crash") if ITEMS[3] in b["documents"] else cohere(b))
    order = np.random.default_rng(0).permutation(20)  # queries interleaved
    scorer = HttpScorer(service.url, api="cohere")
    found = collect(scorer, grid(2, 10).take(order), QUERIES, ITEMS)
    bad = np.tile(np.arange(10) == 3, 2)
    np.testing.assert_array_equal(found, np.where(bad, np.nan, EXPECTED)[order])


@pytest.mark.parametrize("said", [b"<html>hello</html>", {"message": "ok"}, [1.0] * 10])
@pytest.mark.parametrize("api", ["cohere", "tei"])
def test_nonsense_is_an_error_with_the_url(serve, said, api):
    service = serve(lambda body: (200, said))
    message = f"{service.url} sent an answer that is not 10 scores in the format of"
    with pytest.raises(ScorerError, match=message):
        scores_of(HttpScorer(service.url, api=api), 1)


def test_probabilities_become_logits(serve):
    logits = np.linspace(-8, 8, 10)

    def respond(body):
        scores = 1 / (1 + np.exp(-logits))
        scores[0] = 0.0
        return 200, {"results": [{"index": i, "relevance_score": s} for i, s in enumerate(scores)]}

    scorer = HttpScorer(serve(respond).url, probabilities=True, model="m")
    assert scorer.fingerprint.endswith("|model=m|probabilities")
    found = scores_of(scorer, 1)
    np.testing.assert_allclose(found[1:], logits[1:], rtol=1e-4)
    assert -np.inf < found[0] < found[1]


def test_requests_run_at_once(serve):
    meeting = threading.Barrier(4, timeout=10)  # nobody is answered before four have asked

    def respond(body):
        meeting.wait()
        return cohere(body)

    scorer = HttpScorer(serve(respond).url, api="cohere", batch=1, concurrency=4)
    np.testing.assert_array_equal(scores_of(scorer), EXPECTED)


@pytest.mark.parametrize("at", [0, 1])
def test_the_page_shows_what_is_sent_and_what_is_answered(serve, at):
    page = Path(__file__).parents[2] / "docs/how-to/scorers.md"
    block = re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)[at]
    sent, answered = map(json.loads, block.splitlines())
    service = serve(lambda body: (200, answered))
    scorer = HttpScorer(service.url, api=("cohere", "tei")[at], model="NAME", api_key="KEY")
    texts = sent.get("documents") or sent["texts"]
    found = collect(scorer, grid(1, 2), [sent["query"]], texts)
    assert found.tolist() == pytest.approx([-2.1, 6.8])
    _, headers, body = service.requests[-1]
    assert (body, headers["Authorization"]) == (sent, "Bearer KEY")
