"""Endpoints behind a real proxy, and endpoints that are busy: `Retry-After` in whichever form."""

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from urllib.parse import urlsplit

import pytest
from faulty_server import Faulty, answer, good, rows
from tiny_models import grid

import crossknn as ck
from crossknn.scorers.endpoint import _pause

HOST = "reranker.example"
NOBODY = "http://127.0.0.1:9"
YEAR = 365 * 86_400


class Proxy(ThreadingHTTPServer):
    """Forwards what is asked of `HOST` to a port of this machine, and notes what was asked."""

    daemon_threads = True

    def __init__(self, port, login=None):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def may_pass(self):
                asked.append((self.path, dict(self.headers)))
                if login and self.headers["Proxy-Authorization"] != login:
                    self.send_error(407)
                    return False
                return True

            def do_POST(self):
                if not self.may_pass():
                    return
                body = self.rfile.read(int(self.headers["Content-Length"]))
                forward = http.client.HTTPConnection("127.0.0.1", port)
                forward.request("POST", urlsplit(self.path).path, body, {"Host": HOST})
                answer = forward.getresponse()
                self.send_response(answer.status)
                self.end_headers()
                self.wfile.write(answer.read())

            def do_CONNECT(self):
                if not self.may_pass():
                    return
                self.send_response(200)
                self.end_headers()
                with socket.create_connection(("127.0.0.1", port)) as there:
                    back = threading.Thread(target=copy, args=(there, self.connection))
                    back.start()
                    copy(self.connection, there)
                    back.join()

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def opened():
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(closing(server))


@pytest.fixture
def service(opened):
    return opened(Faulty(lambda body: [good(body)]))


@pytest.fixture
def start(service, opened):
    return lambda login=None: opened(Proxy(urlsplit(service.url).port, login))


@pytest.fixture
def busy(opened):
    """Start an endpoint that gives these answers, and then scores."""

    def start(*answers):
        server = Faulty(lambda body: [[*answers, good(body)][server.count - 1]])
        return opened(server)

    return start


def reranked(url, retries=0, **options):
    return ck.rerank("a", ["b", "c"], scorer=ck.HttpScorer(url, retries=retries, **options))


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_the_proxy_of_the_environment_is_used(start, service, monkeypatch, name):
    proxy = start()
    monkeypatch.setenv(name, proxy.url)
    assert reranked(f"http://{HOST}/rerank?a=b") == reranked(service.url)
    assert [path for path, _ in proxy.asked] == [f"http://{HOST}/rerank?a=b"]


def test_the_proxy_may_be_given_without_a_scheme_and_with_a_login(start, monkeypatch):
    """A company's proxy requires a login, whose password has a percent sign for `@`."""
    proxy = start(login="Basic bWU6cEBzcw==")
    monkeypatch.setenv("HTTP_PROXY", f"me:p%40ss@127.0.0.1:{proxy.server_port}")
    assert len(reranked(f"http://{HOST}/rerank")) == 2
    monkeypatch.setenv("HTTP_PROXY", f"me:secret@127.0.0.1:{proxy.server_port}")
    with pytest.raises(ck.ScorerError, match=r"proxy http://127.0.0.1:.* requires a login") as said:
        reranked(f"http://{HOST}/rerank")
    assert "secret" not in str(said.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
def test_an_https_endpoint_is_reached_through_a_tunnel(start, service, tmp_path, monkeypatch):
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -subj /CN={HOST}"
    command += f" -addext subjectAltName=DNS:{HOST}"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    plain = service._server.socket
    service._server.socket = context.wrap_socket(plain, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    proxy = start()
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    assert len(reranked(f"https://{HOST}/rerank", api_key="secret")) == 2
    [(path, headers)] = proxy.asked
    assert path == f"{HOST}:443"
    assert "secret" not in str(headers)
    assert service.requests[0][1]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("listed", "host", "by_proxy"),
    [
        ("", HOST, True),
        (HOST, HOST, False),
        ("a.b, .example", HOST, False),
        ("*.example", HOST, False),
        ("*", HOST, False),
        ("ranker.example", HOST, True),
        (f"{HOST}:8080", HOST, True),
        (f"{HOST}:8080", f"{HOST}:8080", False),
        (HOST.upper(), HOST, False),
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("fd00::/8", "[fd00::1]:80", False),
        ("fd00::1", "[fd00::1]:80", False),
        *[("", f"{own}:8000", False) for own in ("127.0.0.1", "localhost", "127.1.2.3", "[::1]")],
    ],
)
def test_hosts_in_no_proxy_and_this_machine_are_asked_directly(monkeypatch, listed, host, by_proxy):
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    monkeypatch.setenv("NO_PROXY", listed)
    scorer = ck.HttpScorer(f"http://{host}")
    assert scorer._via == (f" through the proxy {NOBODY}" if by_proxy else "")


@pytest.mark.parametrize(
    ("proxy", "kind", "said"),
    [
        ("http://me:secret@127.0.0.1:9", ck.ScorerError, f"the proxy {NOBODY}: Connection refused"),
        *[
            (wrong, ck.InputError, r"the proxy is .*give http:// or https://")
            for wrong in ("socks5://h:1", "http://", "http://a:b#secret@h:1", "h:x", "a b")
        ],
    ],
)
def test_a_proxy_that_is_down_or_none_is_named(monkeypatch, proxy, kind, said):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(kind, match=said) as caught:
        reranked(f"http://{HOST}/rerank")
    assert "secret" not in str(caught.value)


def date(seconds):
    return formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        (lambda: ["Retry-After: 0.4"], 0.4, 5),  # of a gateway
        # A date has whole seconds; the server's clock is a year behind, as its `Date` says.
        (lambda: [f"Retry-After: {date(1.5 - YEAR)}", f"Date: {date(-YEAR)}"], 0.4, 6),
    ],
)
def test_the_pause_is_waited_for(busy, headers, least, most):
    server = busy(answer(b"slow down", "429 Too Many Requests", *headers()))
    began = time.perf_counter()
    assert len(reranked(server.url, retries=1)) == 2
    assert least <= time.perf_counter() - began < most
    assert server.count == 2


@pytest.mark.parametrize("status", [408, 425, 429, 503, 520, 524, 529])
def test_every_answer_of_a_service_that_is_busy(busy, status):
    server = busy(*[answer(b"later", f"{status} Later", "Retry-After: 0.05")] * 2)
    assert len(reranked(server.url, retries=2)) == 2
    assert server.count == 3


def test_a_service_that_answers_created(opened):
    server = opened(Faulty(lambda body: [good(body).replace(b"200 OK", b"201 Created")]))
    assert len(reranked(server.url)) == 2


def test_more_requests_at_once_than_can_be():
    with pytest.raises(ck.InputError, match="concurrency is 1000000000: it must be 1000 or less"):
        ck.HttpScorer(NOBODY, concurrency=10**9)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("2.", 2),
        (".25", 0.25),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10),  # the older forms that RFC 9110 lists
        ("Sun Nov  6 08:49:47 1994", 10),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),  # in the past
        *[(nonsense, 0) for nonsense in ("soon", "", "-5", "nan", "inf", "1e9", "\u0661\u0662")],
        ("Sun, 06 Nov 199999999999999 08:49:47 GMT", 0),
        ("Sun, 99 Foo 1994 99:99:99 GMT", 0),
    ],
)
def test_every_form_of_retry_after(asked, seconds):
    assert _pause({"Retry-After": asked, "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}) == seconds


def test_more_than_a_minute_is_not_waited_for(busy):
    until = "Retry-After: Fri, 31 Dec 2099 23:59:59 GMT"
    server = busy(answer(b"quota", "429 Too Many Requests", until))
    with pytest.raises(ck.ScorerError, match=r"it asks for a pause of [\d,]{13} s$"):
        reranked(server.url, retries=1)
    assert server.count == 1


TEXTS = [f"text number {i}" for i in range(30)]
SAID = "lie between 0 and 1: if they are probabilities, give the option probabilities"


@pytest.fixture
def endpoint(opened):
    """Start an endpoint that gives these scores, one after the other."""

    def start(*scores):
        values = cycle(scores)

        def respond(body):
            results = [row | {"relevance_score": next(values)} for row in rows(body)]
            return [answer(json.dumps({"results": results}).encode())]

        return opened(Faulty(respond)).url

    return start


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
def test_scores_that_look_like_probabilities_warn_once_of_the_option(
    endpoint, caplog, scores, counts, options, warnings
):
    scorer = ck.HttpScorer(endpoint(*scores), **options)
    for count in counts:
        found = ck.rerank("q", TEXTS[:count], scorer=scorer)
    assert times(caplog) == warnings
    if options:
        assert found[0]["score"] == pytest.approx(2.197, abs=1e-3)


def test_a_search_on_several_threads_and_copies_of_the_scorer(endpoint, caplog):
    scorer = ck.HttpScorer(endpoint(0.0, 0.25, 1.0), concurrency=4, batch=2)
    searcher = ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), scorer)
    searcher.search(["number 3", "number 4"], budget=20)
    list(scorer.one_by_one().score(grid(1, 8), ["q"], TEXTS))
    assert times(caplog) == 1
