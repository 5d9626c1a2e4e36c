"""A `/rerank` endpoint as the cross-encoder."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import numpy as np

from crossknn.errors import InputError, ScorerError, visible
from crossknn.scorers.streaming import (
    BatchedScorer,
    BatchTooLargeError,
    Call,
    Deadline,
    PlainError,
    excerpt,
)
from crossknn.types import FloatArray, IntArray

API_KEY_VARIABLE = "CROSSKNN_API_KEY"

Shape = Literal["auto", "cohere", "tei"]

MAX_ANSWER = 16 << 20
"""Bytes of an answer that are read at most: 16 MiB."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 60.0
_EPSILON = 1e-7
_SHORTEST_SECRET = 4
_STATED_LIMIT = re.compile(r"max(?:imum)?[\w ]*batch[\w ]*size\D{0,12}(\d+)", re.IGNORECASE)


class HttpScorer(BatchedScorer):
    """Scores with the reranking service at `url` (`/rerank` is added to a URL without a path).

    Batches that are refused as too large are cut to the limit that the service states, or halved,
    for good. `fingerprint` is None unless `model` is named: what stands behind a URL may change.
    Neither it nor any message holds what stands in the URL before `@` or after `?`. `score` raises
    ScorerError, in one sentence with the URL, if the endpoint is down, too slow, refuses the key or
    answers nonsense; at the deadline requests under way are broken off.

    Args:
        api_key: by default what the variable CROSSKNN_API_KEY says.
        shape: how the service speaks: "cohere" (also Jina, Voyage-like, infinity, vLLM): `query`,
            `documents` -> `results[{index, relevance_score}]`; "tei" (Text Embeddings Inference):
            `query`, `texts`, `raw_scores` -> `[{index, score}]`; "auto": the first request tells.
        timeout: seconds for a whole request: connecting, sending, and the last byte of the answer,
            of which 16 MiB are read at most.
        retries: more tries after a connection that fails and the answers 429 and 5xx, with growing
            pauses or those that `Retry-After` asks for, up to a minute.
        batch: most items in a request.
        concurrency: requests at once.
        probabilities: turn answers between 0 and 1 back into logits, which methods fit.

    Raises:
        InputError: the URL is not http(s), or an option is out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        shape: Shape = "auto",
        timeout: float = 10.0,
        retries: int = 2,
        batch: int = 64,
        concurrency: int = 4,
        probabilities: bool = False,
    ) -> None:
        parts = _checked(url)
        if model is not None and not isinstance(model, str):
            raise InputError(f"model must be a name, got {model!r}")
        if shape not in ("auto", "cohere", "tei"):
            raise InputError(f"shape must be auto, cohere or tei, got {shape!r}")
        if not isinstance(probabilities, bool):
            raise InputError(f"probabilities must be true or false, got {probabilities!r}")
        for name, value, least in (
            ("batch", batch, 1),
            ("concurrency", concurrency, 1),
            ("retries", retries, 0),
        ):
            if type(value) is not int or value < least:
                raise InputError(f"{name} must be a whole number of {least} or more, got {value!r}")
        if type(timeout) not in (int, float) or not 0 < timeout < 1e6:
            raise InputError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        key = api_key or os.environ.get(API_KEY_VARIABLE)
        if key and not (key.isascii() and key.isprintable()):
            raise InputError(f"the API key (api_key or {API_KEY_VARIABLE}) is not printable ASCII")
        self._client = _Client(parts, key, float(timeout))
        super().__init__(self._client.name, "the endpoint {}")
        values = (value for _, value in parse_qsl(parts.query))
        known = (key, parts.username, parts.password, *values)
        self._secrets = [s for s in known if s and len(s) >= _SHORTEST_SECRET]
        self._model, self._probabilities = model, probabilities
        self._shape: Shape = shape
        self._timeout, self._retries, self._batch = float(timeout), retries, batch
        self.workers = concurrency
        self._finding_shape = threading.Lock()
        self._ailing = self._asked_limit = False
        raw = "|probabilities" if probabilities else ""
        self.fingerprint = None if model is None else f"http:{self.name}|model={model}{raw}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        """Positions of one query at a time, queries in order of appearance."""
        self._ailing = False
        _, first, inverse = np.unique(call.pairs.query, return_index=True, return_inverse=True)
        order = np.argsort(first[inverse], kind="stable")
        starts = np.searchsorted(first[inverse][order], np.sort(first))
        for group in np.split(order, starts[1:]) if len(order) else []:
            while len(group):
                size = self._batch
                yield group[:size]
                group = group[size:]

    def _run(self, call: Call, positions: IntArray) -> FloatArray:
        pairs = call.texts(positions)
        query, texts = pairs[0][0], [item for _, item in pairs]
        scores = self._rerank(query, texts, call.deadline)
        if self._probabilities:
            clipped = np.clip(scores, _EPSILON, 1 - _EPSILON)
            scores = np.log(clipped / (1 - clipped))
        return scores

    def _rerank(self, query: str, texts: list[str], deadline: Deadline) -> FloatArray:
        """Scores (b,) of `texts`."""
        if self._shape == "auto":
            with self._finding_shape:  # the first request finds the shape for all that wait here
                if self._shape == "auto":
                    return self._find_shape(query, texts, deadline)
        answer = self._post(self._shape, query, texts, deadline)
        if (scores := _parse(self._shape, answer, len(texts))) is None:
            raise ScorerError(
                f"{self.name} gave an answer that is not a list of {len(texts)} scores in the "
                f"{self._shape} shape"
            )
        return scores

    def _find_shape(self, query: str, texts: list[str], deadline: Deadline) -> FloatArray:
        """Try the shapes; keep the one whose answer makes sense."""
        refusal: Exception | None = None
        answered = False
        shapes: tuple[Shape, ...] = ("cohere", "tei")
        for shape in shapes:
            try:
                answer = self._post(shape, query, texts, deadline)
            except (_RefusedError, BatchTooLargeError) as error:
                refusal = error
                continue
            answered = answered or answer is not None
            if (scores := _parse(shape, answer, len(texts))) is not None:
                self._shape = shape
                return scores
        if refusal is not None and not answered:
            raise refusal
        raise ScorerError(
            f"{self.name} does not answer like a reranking service: neither "
            f"results[index, relevance_score] nor [index, score] for {len(texts)} texts"
        )

    def _post(self, shape: Shape, query: str, texts: list[str], deadline: Deadline) -> object:
        """One request, with retries -> the decoded answer."""
        body: dict[str, Any] = {"query": query}
        if shape == "tei":
            body |= {"texts": texts, "raw_scores": True, "truncate": True}
        else:
            body |= {"documents": texts, "top_n": len(texts)}
            if self._model is not None:
                body["model"] = self._model
        status, data = self._request(json.dumps(body).encode(), len(texts), deadline)
        if status != 200:
            raise self._refusal(status, data, len(texts), deadline)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ScorerError(
                f"{self.name} gave an answer that is not JSON: {self._said(data, 60)}"
            ) from error

    def _request(self, body: bytes, count: int, deadline: Deadline) -> tuple[int, bytes]:
        """Status and answer of a request, tried again where that may help."""
        for attempt in range(1 + self._retries):
            last = attempt == self._retries
            wait = _FIRST_PAUSE * 2**attempt
            try:
                status, data, retry_after = self._client.send("POST", body, deadline)
            except _UnreachableError as error:
                why = f"{self.name} cannot be reached: {self._clean(str(error))}"
            except TimeoutError as error:
                raise ScorerError(
                    f"{self.name} did not answer a request of {count} items within "
                    f"{self._timeout:g} s: raise timeout or lower batch"
                ) from error
            else:
                passing = status == 429 or status >= 500
                # A 500 that outlasts its retries is an item's fault: its halves get one try each.
                if not passing or last or (status == 500 and self._ailing):
                    self._ailing |= status == 500
                    return status, data
                if retry_after > _LONGEST_PAUSE:
                    raise ScorerError(
                        f"{self.name} asks to be tried again in {retry_after:g} s (HTTP {status})"
                    )
                wait = max(wait, retry_after)
                why = f"{self.name} is overloaded or down (HTTP {status}): {self._said(data)}"
            if last or wait >= deadline.left() or not deadline.sleep(wait):
                raise ScorerError(why)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _refusal(self, status: int, data: bytes, count: int, deadline: Deadline) -> Exception:
        """What an answer other than 200 means."""
        said = self._said(data)
        if status in (413, 422) and count > 1:
            stated = None
            if self._shape != "auto":  # else it may be the wrong shape that is refused
                stated = self._stated_limit(data, deadline)
                with self._lock:
                    self._batch = max(1, min(self._batch, stated or count // 2))
            return BatchTooLargeError(f"HTTP {status}: {said}", stated)
        if status in (401, 403):
            return ScorerError(
                f"{self.name} refused access (HTTP {status}): set api_key or {API_KEY_VARIABLE}"
            )
        if status == 404 or 300 <= status < 400:
            return ScorerError(f"{self.name} is not a reranking service (HTTP {status})")
        if status in (429, 502, 503, 504):
            return ScorerError(
                f"{self.name} is overloaded or down (HTTP {status}, after "
                f"{self._retries + 1} tries): {said}"
            )
        return _RefusedError(f"HTTP {status}: {said}")

    def _stated_limit(self, data: bytes, deadline: Deadline) -> int | None:
        """The most items in a request: what the refusal says, or else `/info` (asked once)."""
        if (found := _STATED_LIMIT.search(_text(data))) is not None:
            return int(found[1])
        if self._asked_limit:
            return None
        self._asked_limit = True
        try:
            status, answer, _ = self._client.send("GET", None, deadline, path="/info")
            limit = json.loads(answer)["max_client_batch_size"] if status == 200 else None
        except (ScorerError, _UnreachableError, TimeoutError, ValueError, KeyError, TypeError):
            return None
        return limit if isinstance(limit, int) and limit > 0 else None

    def _said(self, data: bytes, length: int = 120) -> str:
        """The beginning of an answer, for messages."""
        return excerpt(self._clean(_text(data)), length)

    def _clean(self, text: str) -> str:
        """A text without the key, the password and the values in the URL, fit for a message."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return visible(text)


class _RefusedError(PlainError):
    """The endpoint refused one request, possibly because of one item."""


class _UnreachableError(Exception):
    """There was no connection, or it broke."""


class _Client:
    """Sends requests to one host, over connections that are kept open between them.

    The connections are our own, not a pool's: another thread has to be able to cut one.
    """

    def __init__(self, parts: Any, key: str | None, timeout: float) -> None:
        import urllib3.connection

        host = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
        netloc = host if parts.port is None else f"{host}:{parts.port}"
        self._path = parts.path if parts.path.strip("/") else "/rerank"
        self._query, self._timeout = parts.query, timeout
        self.name = urlunsplit((parts.scheme, netloc, self._path, "", ""))
        kinds = urllib3.connection.HTTPConnection, urllib3.connection.HTTPSConnection
        self._kind = kinds[parts.scheme == "https"]
        self._host, self._port = parts.hostname, parts.port
        self._idle: list[Any] = []
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        elif parts.username:
            login = f"{parts.username}:{parts.password or ''}"
            self._headers |= urllib3.make_headers(basic_auth=login)

    def send(
        self, verb: str, body: bytes | None, deadline: Deadline, path: str | None = None
    ) -> tuple[int, bytes, float]:
        """Status, body and `Retry-After` in seconds of one answer.

        Raises `_UnreachableError` or TimeoutError; ScorerError for an answer without end.
        """
        from urllib3.exceptions import (
            ConnectTimeoutError,
            HTTPError,
            NewConnectionError,
            ReadTimeoutError,
        )

        most = min(self._timeout, max(deadline.left(), 1e-3))
        connection = self._connection(most)
        cut = threading.Event()

        def interrupt() -> None:
            cut.set()
            with suppress(AttributeError, OSError):  # not connected yet, or closed already
                connection.sock.shutdown(socket.SHUT_RDWR)

        target = urlunsplit(("", "", path or self._path, self._query, ""))
        try:
            with deadline.interrupting(interrupt, most):
                if connection.is_closed:
                    connection.connect()
                if cut.is_set():
                    raise TimeoutError
                connection.request(verb, target, body, self._headers, preload_content=False)
                answer = connection.getresponse()
                data = self._read(answer)
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            connection.close()
            # The library counts refused connections among the slow ones.
            refused = isinstance(error, NewConnectionError)
            if isinstance(error, ConnectTimeoutError) and not refused:
                raise _UnreachableError(f"no connection within {most:g} s") from error
            if cut.is_set() or isinstance(error, ReadTimeoutError | TimeoutError):
                raise TimeoutError from error
            raise _UnreachableError(_reason(error)) from error
        except ScorerError:
            connection.close()
            raise
        self._idle.append(connection)
        return answer.status, data, _retry_after(answer.headers.get("Retry-After"))

    def _connection(self, timeout: float) -> Any:
        """A connection that nobody uses, or a new one."""
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                connection = self._idle.pop()
                if connection.is_connected:
                    connection.timeout = timeout
                    return connection
                connection.close()
        return self._kind(self._host, self._port, timeout=timeout)

    def _read(self, answer: Any) -> bytes:
        data = bytearray()
        for chunk in answer.stream(1 << 16):
            data += chunk
            if len(data) > MAX_ANSWER:
                raise ScorerError(f"{self.name} gave an answer of more than {MAX_ANSWER >> 20} MiB")
        return bytes(data)


def _checked(url: str) -> Any:
    """A URL in its parts. Raises InputError, without what may be secret in it."""
    try:
        parts = urlsplit(url)
        odd = any(not c.isprintable() or c.isspace() for c in url) or parts.port == 0
        good = parts.scheme in ("http", "https") and parts.hostname and not odd
        (parts.hostname or "").encode("idna")
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        shown = shown_url(url) if isinstance(url, str) else url
        raise InputError(
            f"a reranking URL starts with http:// or https:// and a host, got {shown!r}"
        )
    return parts


def shown_url(url: str) -> str:
    """A URL without what stands before `@` and after `?`: these may be secret.

    >>> shown_url("https://user:word@host/rerank?key=secret")
    'https://host/rerank'
    """
    return re.sub(r"//[^/?#]*@", "//", re.split(r"[?#]", url, maxsplit=1)[0])


def _parse(shape: Shape, answer: object, count: int) -> FloatArray | None:
    """Scores (count,) in the order of the request; None for any other answer."""
    field = "score" if shape == "tei" else "relevance_score"
    if shape == "cohere":
        answer = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(answer, list) or not all(isinstance(entry, dict) for entry in answer):
        return None
    found = {
        entry.get("index"): entry.get(field) for entry in answer if type(entry.get("index")) is int
    }
    if len(answer) != count or sorted(found) != list(range(count)):
        return None
    scores = [found[index] for index in range(count)]
    if any(isinstance(score, bool) or not isinstance(score, int | float) for score in scores):
        return None
    with suppress(OverflowError):  # a whole number of 400 digits
        return np.array(scores, dtype=np.float64)
    return None


def _retry_after(value: str | None) -> float:
    """Seconds; 0 for a date, for which the growing pauses have to do."""
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0


def _reason(error: BaseException) -> str:
    """What went wrong, without the objects that urllib3 puts around it."""
    while error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    said = re.sub(r"^.*\[Errno -?\d+\] ", "", " ".join(str(error).split()))
    return said or type(error).__name__


def _text(data: bytes) -> str:
    """The beginning of an answer."""
    return data[:10_000].decode("utf-8", errors="replace")
