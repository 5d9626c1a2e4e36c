"""Reranking endpoints: a real server in a thread, in both shapes, in good and in bad health."""

import http.server
import json
import logging
import threading

import numpy as np
import pytest
from scorer_helpers import collect, grid

from crossknn.errors import ScorerError
from crossknn.scorers import CrossEncoder, HttpScorer
from crossknn.scorers.base import Scorer
from crossknn.scores.stored import StoredScorer

QUERIES = ["a", "bb"]
ITEMS = ["x" * (i + 1) for i in range(10)]
EXPECTED = np.array([len(q) * 10.0 + len(i) for q in QUERIES for i in ITEMS])


class Service:
    """A reranking server whose behaviour `respond(body) -> (status, answer)` decides."""

    def __init__(self, respond):
        self.requests = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append((self.path, dict(self.headers), body))
                status, answer = respond(body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def sizes(self):
        bodies = [body for _, _, body in self.requests]
        return [len(body.get("documents") or body.get("texts")) for body in bodies]


@pytest.fixture
def serve():
    services = []

    def start(respond):
        services.append(Service(respond))
        return services[-1]

    yield start
    for service in services:
        service.server.shutdown()
        service.server.server_close()


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


@pytest.mark.parametrize(("respond", "shape"), [(cohere, "cohere"), (tei, "tei")])
@pytest.mark.parametrize("told", [True, False])
def test_both_shapes(serve, respond, shape, told):
    service = serve(respond)
    scorer = HttpScorer(
        service.url, shape=shape if told else "auto", model="m", batch=4, concurrency=1
    )
    assert isinstance(scorer, Scorer)
    found = collect(scorer, grid(2, 10), QUERIES, ITEMS)
    np.testing.assert_array_equal(found, EXPECTED)
    path, _, body = service.requests[-1]
    assert (path, body["query"]) == ("/rerank", "bb")
    # One request to find the shape out, at most; full batches afterwards.
    assert service.sizes()[-6:] == [4, 4, 2, 4, 4, 2]
    assert len(service.requests) == 6 + (shape == "tei" and not told)


def test_a_path_of_ones_own_and_the_key(serve, monkeypatch, caplog):
    service = serve(cohere)
    with caplog.at_level(logging.DEBUG):
        scorer = CrossEncoder(service.url + "/v2/rerank", api_key="secret-1", model="m")
        collect(scorer, grid(2, 10), QUERIES, ITEMS)
    path, headers, body = service.requests[-1]
    assert (path, headers["Authorization"]) == ("/v2/rerank", "Bearer secret-1")
    assert (body["model"], body["top_n"]) == ("m", 10)
    assert "secret-1" not in caplog.text + repr(scorer) + str(scorer.fingerprint)
    monkeypatch.setenv("CROSSKNN_API_KEY", "secret-2")
    collect(HttpScorer(service.url), grid(2, 10), QUERIES, ITEMS)
    assert service.requests[-1][1]["Authorization"] == "Bearer secret-2"


@pytest.mark.parametrize("status", [413, 422])
def test_batches_refused_as_too_large_get_smaller_for_good(serve, status):
    service = serve(lambda b: tei(b) if len(b["texts"]) <= 3 else (status, b"too many"))
    scorer = HttpScorer(service.url, shape="tei", concurrency=1)
    for _ in range(2):
        found = collect(scorer, grid(2, 10), QUERIES, ITEMS)
        np.testing.assert_array_equal(found, EXPECTED)
    assert [size for size in service.sizes() if size > 3] == [10, 5]


@pytest.mark.parametrize("status", [429, 503])
def test_passing_failures_are_tried_again(serve, status):
    states = iter([status, status])
    service = serve(lambda b: (s, b"wait") if (s := next(states, None)) else cohere(b))
    found = collect(HttpScorer(service.url), grid(2, 10), QUERIES, ITEMS)
    np.testing.assert_array_equal(found, EXPECTED)
    assert service.sizes() == [10] * 4


def test_one_item_the_service_chokes_on_fails_no_other(serve):
    service = serve(lambda b: (500, b"crash") if ITEMS[3] in b["documents"] else cohere(b))
    order = np.random.default_rng(0).permutation(20)  # queries interleaved
    found = collect(
        HttpScorer(service.url, shape="cohere"), grid(2, 10).take(order), QUERIES, ITEMS
    )
    bad = np.tile(np.arange(10) == 3, 2)
    np.testing.assert_array_equal(found, np.where(bad, np.nan, EXPECTED)[order])


@pytest.mark.parametrize("answer", [b"<html>hello</html>", {"message": "ok"}, [1.0] * 10])
@pytest.mark.parametrize("shape", ["auto", "cohere", "tei"])
def test_nonsense_is_an_error_with_the_url(serve, answer, shape):
    service = serve(lambda body: (200, answer))
    message = f"{service.url}/rerank gave an answer that is not 10 scores in the shape of"
    with pytest.raises(ScorerError, match=message):
        collect(HttpScorer(service.url, shape=shape), grid(1, 10), QUERIES, ITEMS)


def test_probabilities_become_logits(serve):
    logits = np.linspace(-8, 8, 10)

    def respond(body):
        scores = 1 / (1 + np.exp(-logits))
        scores[0] = 0.0
        return 200, {"results": [{"index": i, "relevance_score": s} for i, s in enumerate(scores)]}

    scorer = HttpScorer(serve(respond).url, probabilities=True)
    found = collect(scorer, grid(1, 10), QUERIES, ITEMS)
    np.testing.assert_allclose(found[1:], logits[1:], rtol=1e-4)
    assert np.isfinite(found[0])
    assert found[0] < found[1]


def test_a_fingerprint_needs_a_named_model():
    assert HttpScorer("http://x").fingerprint is None
    named = HttpScorer("http://me:pass@x/rerank", model="m")
    assert named.fingerprint == "http:http://x/rerank|model=m"
    raw = HttpScorer("http://x", model="m", probabilities=True)
    assert raw.fingerprint == "http:http://x/rerank|model=m|probabilities"


def test_what_may_be_secret_in_a_url_stays_out_of_everything(serve, caplog, tmp_path):
    def respond(body):
        if len(service.requests) > 3:
            return 500, b"no access for pass-word-7 with ?token=query-secret-9"
        return cohere(body)

    service = serve(respond)
    host = service.url.removeprefix("http://")
    url = f"http://user-name-5:pass-word-7@{host}/rerank?token=query-secret-9"
    scorer = HttpScorer(url, model="m", batch=4, concurrency=1, retries=0)
    cached = StoredScorer(scorer, tmp_path / "scores.db")
    with caplog.at_level(logging.DEBUG):
        collect(cached, grid(1, 10), QUERIES, ITEMS)
        with pytest.raises(ScorerError) as failed:
            collect(scorer, grid(2, 10), QUERIES, ITEMS)
    path, headers, _ = service.requests[0]
    assert path.endswith("?token=query-secret-9")
    assert {name.lower(): value for name, value in headers.items()}["authorization"][:6] == "Basic "
    cached.store.close()
    told = [repr(scorer), scorer.fingerprint, str(failed.value), caplog.text]
    told += [file.read_bytes().decode("latin-1") for file in tmp_path.iterdir()]
    for secret in ("user-name-5", "pass-word-7", "query-secret-9"):
        assert not [text for text in told if secret in text], secret


def test_requests_run_at_once(serve):
    meeting = threading.Barrier(4, timeout=10)  # nobody is answered before four have asked

    def respond(body):
        meeting.wait()
        return cohere(body)

    scorer = HttpScorer(serve(respond).url, shape="cohere", batch=1, concurrency=4)
    np.testing.assert_array_equal(collect(scorer, grid(2, 10), QUERIES, ITEMS), EXPECTED)
