"""What a service asks for in `Retry-After` is waited for, in whichever form it asks."""

import time
from contextlib import closing
from email.utils import formatdate

import pytest
from faulty_server import Faulty, answer, good

import crossknn as ck
from crossknn.scorers.http import _pause


@pytest.fixture
def endpoint():
    servers = []

    def start(*answers):
        """An endpoint that gives these answers, and then scores."""
        servers.append(Faulty(lambda body: [[*answers, good(body)][servers[-1].count - 1]]))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def reranked(server):
    return ck.rerank("q", ["a", "b"], scorer=ck.HttpScorer(server.url, retries=1))


def now(seconds):
    return formatdate(time.time() + seconds, usegmt=True)


YEAR = 365 * 86_400


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        (lambda: ["Retry-After: 0.4"], 0.4, 5),  # of a gateway
        (lambda: [f"Retry-After: {now(1.5)}"], 0.4, 6),  # a date, which has whole seconds
        # The server's clock is a year behind, as its header `Date` says.
        (lambda: [f"Retry-After: {now(1 - YEAR)}", f"Date: {now(-YEAR)}"], 0.9, 5),
    ],
)
def test_what_is_asked_for_is_waited_for(endpoint, headers, least, most):
    """A gateway asks for a fraction, a load balancer for a date, by a clock that may be wrong."""
    server = endpoint(answer(b"slow down", "429 Too Many Requests", *headers()))
    began = time.perf_counter()
    assert len(reranked(server)) == 2
    assert least <= time.perf_counter() - began < most
    assert server.count == 2


@pytest.mark.parametrize("status", [408, 425, 429, 503, 520, 524, 529])
def test_every_answer_of_a_service_that_is_busy(endpoint, status):
    """A gateway, or what stands before the service, says that it may work soon."""
    server = endpoint(answer(b"later", f"{status} Later", "Retry-After: 0.05"))
    assert len(reranked(server)) == 2
    assert server.count == 2


def test_a_service_that_answers_created():
    """The status is 201, and the scores are there."""
    with closing(Faulty(lambda body: [good(body).replace(b"200 OK", b"201 Created")])) as server:
        assert len(reranked(server)) == 2


def test_more_requests_at_once_than_can_be():
    """A typo asks for a thousand million connections, whose places alone would fill the memory."""
    with pytest.raises(ck.InputError, match="concurrency is 1000000000: it must be 1000 or less"):
        ck.HttpScorer("http://127.0.0.1:1", concurrency=10**9)


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
        ("soon", 0),
        ("", 0),
        ("-5", 0),
        ("nan", 0),
        ("inf", 0),
        ("1e9", 0),
        ("\u0661\u0662", 0),
        ("Sun, 06 Nov 199999999999999 08:49:47 GMT", 0),
        ("Sun, 99 Foo 1994 99:99:99 GMT", 0),
    ],
)
def test_every_form(asked, seconds):
    """Whole seconds, fractions, the three forms of dates, and nonsense, at a known time."""
    headers = {"Retry-After": asked, "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}
    assert _pause(headers) == seconds


def test_more_than_a_minute_is_not_waited_for(endpoint):
    """A quota is used up until a date in 2099: the call ends and says so."""
    date = "Retry-After: Fri, 31 Dec 2099 23:59:59 GMT"
    server = endpoint(answer(b"quota", "429 Too Many Requests", date))
    with pytest.raises(ck.ScorerError, match=r"it asks for a pause of [\d,]{13} s$"):
        reranked(server)
    assert server.count == 1
