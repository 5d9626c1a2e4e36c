"""What a service asks for in `Retry-After` is waited for, in whichever form it asks."""

import time
from email.utils import formatdate

import pytest
from faulty_server import Faulty, answer, good

import crossknn as ck
from crossknn.scorers.http import _pause


def seconds_until_scored(asked, *more):
    """How long a reranking takes whose first request is answered by 429 and `Retry-After`."""
    busy = answer(b"slow down", "429 Too Many Requests", f"Retry-After: {asked()}", *more)
    server = Faulty(lambda body: [busy] if server.count == 1 else [good(body)])
    began = time.perf_counter()
    try:
        ck.rerank("q", ["a", "b"], scorer=ck.HttpScorer(server.url, retries=1))
        assert server.count == 2
        return time.perf_counter() - began
    finally:
        server.close()


def test_a_fraction_of_a_second():
    """A gateway answers `Retry-After: 0.9`."""
    assert 0.9 <= seconds_until_scored(lambda: "0.9") < 5


def test_a_date():
    """A load balancer answers with a date, which has whole seconds."""
    assert 1 <= seconds_until_scored(lambda: formatdate(time.time() + 2.5, usegmt=True)) < 6


def test_a_date_by_a_clock_that_is_wrong():
    """The server's clock is a year behind, as its header `Date` says."""
    past = time.time() - 365 * 86_400
    date = f"Date: {formatdate(past, usegmt=True)}"
    asked = formatdate(past + 1, usegmt=True)
    assert 1 <= seconds_until_scored(lambda: asked, date) < 5


@pytest.mark.parametrize("status", [408, 425, 429, 503, 520, 524, 529])
def test_every_answer_of_a_service_that_is_busy(status):
    """A gateway, or what stands before the service, says that it may work soon."""
    busy = answer(b"later", f"{status} Later", "Retry-After: 0.3")
    server = Faulty(lambda body: [busy] if server.count == 1 else [good(body)])
    assert len(ck.rerank("q", ["a", "b"], scorer=ck.HttpScorer(server.url, retries=1))) == 2
    assert server.count == 2
    server.close()


def test_a_service_that_answers_created():
    """The status is 201, and the scores are there."""
    server = Faulty(lambda body: [good(body).replace(b"200 OK", b"201 Created")])
    assert len(ck.rerank("q", ["a", "b"], scorer=ck.HttpScorer(server.url))) == 2
    server.close()


def test_more_requests_at_once_than_can_be():
    """A typo asks for a thousand million connections, whose places alone would fill the memory."""
    with pytest.raises(ck.InputError, match="concurrency is 1000000000; it must be 1000 or less"):
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


def test_more_than_a_minute_is_not_waited_for():
    """A quota is used up until a date in 2099: the call ends and says so."""
    date = "Retry-After: Fri, 31 Dec 2099 23:59:59 GMT"
    server = Faulty(lambda body: [answer(b"quota", "429 Too Many Requests", date)])
    with pytest.raises(ck.ScorerError, match=r"it asks for a pause of [\d,]{13} s$"):
        ck.rerank("q", ["a"], scorer=ck.HttpScorer(server.url))
    assert server.count == 1
    server.close()
