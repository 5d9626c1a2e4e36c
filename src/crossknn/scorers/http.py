"""A `/rerank` endpoint as the cross-encoder."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import numpy as np

from crossknn.errors import InputError, ScorerError, visible
from crossknn.scorers.deadline import Deadline, Speed
from crossknn.scorers.robust import BatchTooLargeError, PlainError, excerpt, stream
from crossknn.types import FloatArray, IntArray, Pairs

if TYPE_CHECKING:
    import urllib3

API_KEY_VARIABLE = "CROSSKNN_API_KEY"

Shape = Literal["auto", "cohere", "tei"]

MAX_ANSWER = 16 << 20
"""Bytes of an answer that are read at most: 16 MiB."""

_TOO_LARGE = (413, 422)
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 60.0
_EPSILON = 1e-7
_CHUNK = 1 << 16
_SHORTEST_SECRET = 4
_SAID_LIMIT = re.compile(r"max(?:imum)?[\w ]*batch[\w ]*size\D{0,12}(\d+)", re.IGNORECASE)


class HttpScorer:
    """Scores with the reranking service at `url` (`/rerank` is added to a URL without a path).

    `shape` is how the service speaks: "cohere" (also Jina, Voyage-like, infinity, vLLM): `query`,
    `documents` -> `results[{index, relevance_score}]`; "tei" (Text Embeddings Inference):
    `query`, `texts`, `raw_scores` -> `[{index, score}]`; "auto" finds out with the first request.

    `timeout` is in seconds, for a whole request: connecting, sending, and the last byte of the
    answer, of which 16 MiB are read at most. A connection that fails and the answers 429 and 5xx
    are tried `retries` times more, with growing pauses or those that `Retry-After` asks for, up to
    a minute. `batch` is the most items in a request; batches that are refused as too large are cut
    to the limit that the service states, or halved, for good. `concurrency` requests run at once.
    `probabilities=True` turns answers between 0 and 1 back into logits, which the methods that
    fit scores need. The API key comes from `api_key` or the variable CROSSKNN_API_KEY.

    `fingerprint` is None unless `model` is named: what stands behind a URL may change. Neither it
    nor any message holds what stands in the URL before `@` or after `?`.
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
        """Raises InputError for a URL that is not http(s), or an option out of range."""
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
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of {least} or more, got {value!r}")
        if type(timeout) not in (int, float) or not 0 < timeout < 1e6:
            raise InputError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        key = api_key or os.environ.get(API_KEY_VARIABLE)
        if key and not (key.isascii() and key.isprintable()):
            raise InputError(f"the API key (api_key or {API_KEY_VARIABLE}) is not printable ASCII")
        import urllib3

        host = parts.hostname if ":" not in str(parts.hostname) else f"[{parts.hostname}]"
        netloc = host if parts.port is None else f"{host}:{parts.port}"
        path = parts.path if parts.path.strip("/") else "/rerank"
        self._url = urlunsplit((parts.scheme, netloc, path, parts.query, ""))
        self._name = urlunsplit((parts.scheme, netloc, path, "", ""))
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        elif parts.username:
            login = f"{parts.username}:{parts.password or ''}"
            self._headers |= urllib3.make_headers(basic_auth=login)
        values = (value for _, value in parse_qsl(parts.query))
        known = (key, parts.username, parts.password, *values)
        self._secrets = [s for s in known if s and len(s) >= _SHORTEST_SECRET]
        self._model, self._probabilities = model, probabilities
        self._shape: Shape = shape
        self._timeout, self._retries, self._batch = float(timeout), retries, batch
        self._concurrency = concurrency
        self._pool = _pool(concurrency)
        self._speed = Speed()
        self._lock, self._finding = threading.Lock(), threading.Lock()
        self._ailing = self._asked_limit = False

    def __repr__(self) -> str:
        return f"HttpScorer({self._name!r}, model={self._model!r})"

    @property
    def fingerprint(self) -> str | None:
        """URL and model, or None if no model is named."""
        if self._model is None:
            return None
        raw = "|probabilities" if self._probabilities else ""
        return f"http:{self._name}|model={self._model}{raw}"

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions (b,), scores (b,) float32), as the answers come.

        Raises ScorerError, in one sentence with the URL, if the endpoint is down, too slow,
        refuses the key or answers nonsense. At the deadline requests under way are broken off.
        """
        self._ailing = False
        deadline = Deadline(time_left, cancel)

        def run(positions: IntArray) -> object:
            query = queries[int(pairs.query[positions[0]])]
            texts = [items[i] for i in pairs.item[positions].tolist()]
            return self._rerank(query, texts, deadline)

        return stream(
            pairs,
            queries,
            items,
            self._batches(pairs),
            run,
            who=f"the endpoint {self._name}",
            deadline=deadline,
            speed=self._speed,
            workers=self._concurrency,
        )

    def _batches(self, pairs: Pairs) -> Iterator[IntArray]:
        """Positions of one query at a time, queries in order of appearance."""
        order = np.argsort(pairs.query, kind="stable")
        _, starts = np.unique(pairs.query[order], return_index=True)
        groups = np.split(order, starts[1:]) if len(order) else []
        for group in sorted(groups, key=lambda g: int(g[0])):
            start = 0
            while start < len(group):
                size = self._batch
                yield group[start : start + size]
                start += size

    def _rerank(self, query: str, texts: list[str], deadline: Deadline) -> FloatArray:
        if self._shape == "auto":
            with self._finding:  # the first request finds the shape for all that wait here
                scores = self._find_shape(query, texts, deadline)
        else:
            scores = self._scores(query, texts, deadline)
        if scores is None:
            raise ScorerError(
                f"{self._name} gave an answer that is not a list of {len(texts)} scores in the "
                f"{self._shape} shape"
            )
        if self._probabilities:
            clipped = np.clip(scores.astype(np.float64), _EPSILON, 1 - _EPSILON)
            scores = np.log(clipped / (1 - clipped)).astype(np.float32)
        return scores

    def _scores(self, query: str, texts: list[str], deadline: Deadline) -> FloatArray | None:
        answer = self._post(self._shape, query, texts, deadline)
        return _parse(self._shape, answer, len(texts))

    def _find_shape(self, query: str, texts: list[str], deadline: Deadline) -> FloatArray | None:
        """Try the shapes; keep the one whose answer makes sense."""
        if self._shape != "auto":
            return self._scores(query, texts, deadline)
        refusal: Exception | None = None
        answer: object = None
        shapes: tuple[Shape, ...] = ("cohere", "tei")
        for shape in shapes:
            try:
                answer = self._post(shape, query, texts, deadline)
            except (_RefusedError, BatchTooLargeError) as error:
                refusal = error
                continue
            scores = _parse(shape, answer, len(texts))
            if scores is not None:
                self._shape = shape
                return scores
        if answer is None and refusal is not None:
            raise refusal
        raise ScorerError(
            f"{self._name} does not answer like a reranking service: neither "
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
                f"{self._name} gave an answer that is not JSON: {self._said(data, 60)}"
            ) from error

    def _request(self, body: bytes, count: int, deadline: Deadline) -> tuple[int, bytes]:
        """Status and answer of a request, tried again where that may help."""
        for attempt in range(1 + self._retries):
            last = attempt == self._retries
            wait, why = _FIRST_PAUSE * 2**attempt, ""
            try:
                status, data, retry_after = self._attempt("POST", self._url, body, deadline)
            except _UnreachableError as error:
                why = f"{self._name} cannot be reached: {self._clean(str(error))}"
            except TimeoutError as error:
                raise ScorerError(
                    f"{self._name} did not answer a request of {count} items within "
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
                        f"{self._name} asks to be tried again in {retry_after:g} s (HTTP {status})"
                    )
                wait = max(wait, retry_after)
                why = f"{self._name} is overloaded or down (HTTP {status}): {self._said(data)}"
            if last or wait >= deadline.left() or not deadline.sleep(wait):
                raise ScorerError(why)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _attempt(
        self, verb: str, url: str, body: bytes | None, deadline: Deadline
    ) -> tuple[int, bytes, float]:
        """Status, body and `Retry-After` in seconds of one answer.

        Raises `_UnreachableError` or TimeoutError.
        """
        from urllib3.exceptions import (
            ConnectTimeoutError,
            HTTPError,
            NewConnectionError,
            ReadTimeoutError,
        )

        most = min(self._timeout, max(deadline.left(), 1e-3))
        link = _Link()
        deadline.interrupt(link, link.cut, most)
        try:
            answer = self._pool.request(
                verb,
                url,
                body=body,
                headers=self._headers,
                redirect=False,
                preload_content=False,
                timeout=most,
            )
            data = bytearray()
            for chunk in answer.stream(_CHUNK):
                data += chunk
                if len(data) > MAX_ANSWER:
                    answer.close()
                    raise ScorerError(
                        f"{self._name} gave an answer of more than {MAX_ANSWER >> 20} MiB"
                    )
            answer.release_conn()
        except (HTTPError, OSError, ValueError) as error:
            # The library counts refused connections among the slow ones.
            refused = isinstance(error, NewConnectionError)
            if isinstance(error, ConnectTimeoutError) and not refused:
                raise _UnreachableError(f"no connection within {most:g} s") from error
            if link.is_cut or isinstance(error, ReadTimeoutError | TimeoutError):
                raise TimeoutError from error
            raise _UnreachableError(_reason(error)) from error
        finally:
            deadline.forget(link)
            link.leave()
        return int(answer.status), bytes(data), _retry_after(answer.headers.get("Retry-After"))

    def _refusal(self, status: int, data: bytes, count: int, deadline: Deadline) -> Exception:
        """What an answer other than 200 means."""
        said = self._said(data, 120)
        if status in _TOO_LARGE and count > 1:
            stated = None
            if self._shape != "auto":  # else it may be the wrong shape that is refused
                stated = self._stated_limit(data, deadline)
                with self._lock:
                    self._batch = max(1, min(self._batch, stated or count // 2))
            return BatchTooLargeError(f"HTTP {status}: {said}", stated)
        if status in (401, 403):
            return ScorerError(
                f"{self._name} refused access (HTTP {status}): set api_key or {API_KEY_VARIABLE}"
            )
        if status == 404 or 300 <= status < 400:
            return ScorerError(f"{self._name} is not a reranking service (HTTP {status})")
        if status in (429, 502, 503, 504):
            return ScorerError(
                f"{self._name} is overloaded or down (HTTP {status}, after "
                f"{self._retries + 1} tries): {said}"
            )
        return _RefusedError(f"HTTP {status}: {said}")

    def _stated_limit(self, data: bytes, deadline: Deadline) -> int | None:
        """The most items in a request: what the refusal says, or else `/info` (asked once)."""
        if (found := _SAID_LIMIT.search(_text(data[:10_000]))) is not None:
            return int(found[1])
        if self._asked_limit:
            return None
        self._asked_limit = True
        parts = urlsplit(self._url)
        url = urlunsplit((parts.scheme, parts.netloc, "/info", parts.query, ""))
        try:
            status, answer, _ = self._attempt("GET", url, None, deadline)
            limit = json.loads(answer)["max_client_batch_size"] if status == 200 else None
        except (ScorerError, _UnreachableError, TimeoutError, ValueError, KeyError, TypeError):
            return None
        return limit if isinstance(limit, int) and limit > 0 else None

    def _said(self, data: bytes, length: int = 120) -> str:
        """The beginning of an answer, for messages."""
        return excerpt(self._clean(_text(data[:10_000])), length)

    def _clean(self, text: str) -> str:
        """A text without the key, the password and the values in the URL, fit for a message."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return visible(text)


class _RefusedError(PlainError):
    """The endpoint refused one request, possibly because of one item."""


class _UnreachableError(Exception):
    """There was no connection, or it broke."""


class _Link:
    """The socket of the request that a thread is making, so that another thread can cut it."""

    _of_thread = threading.local()

    def __init__(self) -> None:
        self.is_cut = False
        self._socket: socket.socket | None = None
        _Link._of_thread.link = self

    @classmethod
    def opened(cls, connection: Any) -> None:
        """The thread's request goes over this connection."""
        link = getattr(cls._of_thread, "link", None)
        if link is not None and connection.sock is not None:
            link._socket = connection.sock
            if link.is_cut:
                link.cut()

    def cut(self) -> None:
        """Break the connection off: whoever reads from it or writes to it gets an error."""
        self.is_cut = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed already
                return

    def leave(self) -> None:
        """The request has ended."""
        _Link._of_thread.link = None


class _Watched:
    """A connection that tells the thread's `_Link` its socket, when it is made and when reused."""

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        _Link.opened(self)

    def putrequest(self, *args: Any, **options: Any) -> None:
        _Link.opened(self)
        super().putrequest(*args, **options)  # type: ignore[misc]


def _pool(size: int) -> urllib3.PoolManager:
    """Connections whose sockets are known to the thread's `_Link`."""
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection

    class Plain(_Watched, HTTPConnection):
        pass

    class Secure(_Watched, HTTPSConnection):
        pass

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    logging.getLogger("urllib3.connectionpool").addFilter(_without_query)
    pool = urllib3.PoolManager(maxsize=max(size, 4), retries=False)
    pool.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
    return pool


def _without_query(record: logging.LogRecord) -> bool:
    """Takes from the library's log lines what stands after `?` in a URL."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            arg.split("?")[0] + "?..." if isinstance(arg, str) and "?" in arg else arg
            for arg in record.args
        )
    return True


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
    if not isinstance(answer, list) or len(answer) != count:
        return None
    scores = np.full(count, np.nan, dtype=np.float64)
    seen = np.zeros(count, dtype=np.bool_)
    for entry in answer:
        index = entry.get("index") if isinstance(entry, dict) else None
        if type(index) is not int or not 0 <= index < count or seen[index]:
            return None
        score = entry.get(field)
        if not isinstance(score, (int, float)) or isinstance(score, bool):
            return None
        seen[index] = True
        try:
            scores[index] = score
        except OverflowError:  # a whole number of 400 digits
            return None
    return scores


def _retry_after(value: str | None) -> float:
    """Seconds; 0 for a date, for which the growing pauses have to do."""
    try:
        seconds = float(value or 0)
    except ValueError:
        return 0.0
    return seconds if seconds >= 0 else 0.0


def _reason(error: BaseException) -> str:
    """What went wrong, without the objects that urllib3 puts around it."""
    while error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    said = re.sub(r"^.*\[Errno -?\d+\] ", "", " ".join(str(error).split()))
    return said or type(error).__name__


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
