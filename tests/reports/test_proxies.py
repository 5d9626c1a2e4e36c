"""Endpoints behind a proxy: a real one, that forwards requests and opens tunnels."""

import http.client
import shutil
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from faulty_server import Faulty, good

import crossknn as ck

HOST = "reranker.example"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


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


def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def service():
    server = Faulty(lambda body: [good(body)])
    yield server
    server.close()


@pytest.fixture
def start(service):
    proxies = []

    def make(login=None):
        proxies.append(Proxy(urlsplit(service.url).port, login))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.shutdown()
        proxy.server_close()


def reranked(url, **options):
    return ck.rerank("a", ["b", "c"], scorer=ck.HttpScorer(url, retries=0, **options))


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_the_proxy_of_the_environment_is_used(start, service, monkeypatch, name):
    """HTTP_PROXY is set, and the endpoint can be reached by the proxy alone."""
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
    with pytest.raises(
        ck.ScorerError, match=r"the proxy http://127.0.0.1:.* requires a login"
    ) as said:
        reranked(f"http://{HOST}/rerank")
    assert "secret" not in str(said.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
def test_an_https_endpoint_is_reached_through_a_tunnel(start, service, tmp_path, monkeypatch):
    """HTTPS_PROXY is set: the proxy opens a tunnel and sees neither the key nor the texts."""
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
    ("listed", "url", "by_proxy"),
    [
        ("", f"http://{HOST}", True),
        (HOST, f"http://{HOST}", False),
        ("a.b, .example", f"http://{HOST}", False),
        ("*.example", f"http://{HOST}", False),
        ("*", f"http://{HOST}", False),
        ("ranker.example", f"http://{HOST}", True),
        (f"{HOST}:8080", f"http://{HOST}", True),
        (f"{HOST}:8080", f"http://{HOST}:8080", False),
        (HOST.upper(), f"http://{HOST}", False),
        ("10.0.0.0/8", "http://10.1.2.3", False),
        ("10.0.0.0/8", "http://11.1.2.3", True),
        ("fd00::/8", "http://[fd00::1]:80", False),
        ("fd00::1", "http://[fd00::1]:80", False),
    ],
)
def test_hosts_in_no_proxy_are_asked_directly(monkeypatch, listed, url, by_proxy):
    """NO_PROXY has hosts, domains, ports and networks, as curl and Go read them."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", listed)
    scorer = ck.HttpScorer(url)
    assert scorer._via == (" through the proxy http://127.0.0.1:9" if by_proxy else "")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "127.1.2.3", "[::1]"])
def test_this_machine_is_asked_directly(monkeypatch, host):
    """A proxy is set for the whole company, and the reranker runs on the own machine."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert ck.HttpScorer(f"http://{host}:8000")._via == ""


def test_the_option_comes_before_the_environment(start, service, monkeypatch):
    """`proxy=` names a proxy, for this machine too, or says that none is used."""
    proxy, other = start(), start()
    monkeypatch.setenv("HTTP_PROXY", other.url)
    reranked(service.url, proxy=proxy.url)
    assert (len(proxy.asked), len(other.asked)) == (1, 0)
    assert ck.HttpScorer(f"http://{HOST}", proxy="")._via == ""


def test_a_proxy_that_is_down_is_named(monkeypatch):
    """The proxy has another port now: the message says that it is the proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    said = r"cannot be reached through the proxy http://127\.0\.0\.1:9: Connection refused"
    with pytest.raises(ck.ScorerError, match=said) as caught:
        reranked(f"http://{HOST}/rerank")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["socks5://h:1", "http://", "http://a:b#secret@h:1", "h:x", "a b"]
)
def test_what_is_no_proxy_is_refused_in_a_sentence(monkeypatch, wrong):
    """A SOCKS proxy, or an address that cannot be read, without its password."""
    monkeypatch.setenv("HTTP_PROXY", wrong)
    with pytest.raises(ck.InputError, match=r"the proxy is .*give http:// or https://") as said:
        ck.HttpScorer(f"http://{HOST}")
    assert "secret" not in str(said.value)
