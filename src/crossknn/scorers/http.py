"""A `/rerank` endpoint as the cross-encoder."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.robust import BatchTooLargeError, excerpt, stream
from crossknn.types import FloatArray, IntArray, Pairs

API_KEY_VARIABLE = "CROSSKNN_API_KEY"

Shape = Literal["auto", "cohere", "tei"]

_TOO_LARGE = (413, 422)
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_EPSILON = 1e-7


class HttpScorer:
    """Scores with the reranking service at `url` (`/rerank` is added to a URL without a path).

    `shape` is how the service speaks: "cohere" (also Jina, Voyage-like, infinity, vLLM): `query`,
    `documents` -> `results[{index, relevance_score}]`; "tei" (Text Embeddings Inference):
    `query`, `texts`, `raw_scores` -> `[{index, score}]`; "auto" finds out with the first request.

    `timeout` is in seconds, for connecting and for each answer; a connection that fails and the
    answers 429 and 5xx are tried `retries` times more, with growing pauses. `batch` is the
    most items in a request; batches that are refused as too large are halved for good.
    `probabilities=True` turns answers between 0 and 1 back into logits, which the methods that
    fit scores need. The API key comes from `api_key` or the variable CROSSKNN_API_KEY.

    `fingerprint` is None unless `model` is named: what stands behind a URL may change.
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
        probabilities: bool = False,
    ) -> None:
        """Raises InputError for a URL that is not http(s), or an option out of range."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"a reranking URL starts with http:// or https://, got {url!r}")
        if shape not in ("auto", "cohere", "tei"):
            raise InputError(f"shape must be auto, cohere or tei, got {shape!r}")
        if batch < 1 or retries < 0 or timeout <= 0:
            raise InputError(
                f"batch and timeout must be positive and retries not negative, got "
                f"batch={batch}, timeout={timeout}, retries={retries}"
            )
        import urllib3

        host = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
        netloc = host if parts.port is None else f"{host}:{parts.port}"
        path = parts.path if parts.path.strip("/") else "/rerank"
        self._url = urlunsplit((parts.scheme, netloc, path, parts.query, ""))
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = api_key or os.environ.get(API_KEY_VARIABLE)
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        elif parts.username:
            login = f"{parts.username}:{parts.password or ''}"
            self._headers |= urllib3.make_headers(basic_auth=login)
        self._model, self._probabilities = model, probabilities
        self._shape: Shape = shape
        self._timeout, self._retries, self._batch = timeout, retries, batch
        self._pool = urllib3.PoolManager(
            maxsize=16, timeout=urllib3.Timeout(connect=timeout, read=timeout), retries=False
        )
        self._lock = threading.Lock()
        self._ailing = False

    def __repr__(self) -> str:
        return f"HttpScorer({self._url!r}, model={self._model!r})"

    @property
    def fingerprint(self) -> str | None:
        """URL and model, or None if no model is named."""
        if self._model is None:
            return None
        raw = "|probabilities" if self._probabilities else ""
        return f"http:{self._url}|model={self._model}{raw}"

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str]
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions (b,), scores (b,) float32), query by query.

        Raises ScorerError, in one sentence with the URL, if the endpoint is down, too slow,
        refuses the key or answers nonsense.
        """

        self._ailing = False

        def run(positions: IntArray) -> object:
            query = queries[int(pairs.query[positions[0]])]
            return self._rerank(query, [items[i] for i in pairs.item[positions].tolist()])

        return stream(
            pairs, queries, items, self._batches(pairs), run, who=f"the endpoint {self._url}"
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

    def _rerank(self, query: str, texts: list[str]) -> FloatArray:
        if self._shape != "auto":
            scores = _parse(self._shape, self._post(self._shape, query, texts), len(texts))
        else:
            scores = self._find_shape(query, texts)
        if scores is None:
            raise ScorerError(
                f"{self._url} gave an answer that is not a list of {len(texts)} scores in the "
                f"{self._shape} shape"
            )
        if self._probabilities:
            clipped = np.clip(scores.astype(np.float64), _EPSILON, 1 - _EPSILON)
            scores = np.log(clipped / (1 - clipped)).astype(np.float32)
        return scores

    def _find_shape(self, query: str, texts: list[str]) -> FloatArray | None:
        """Try the shapes; keep the one whose answer makes sense."""
        refusal: Exception | None = None
        answer: object = None
        shapes: tuple[Shape, ...] = ("cohere", "tei")
        for shape in shapes:
            try:
                answer = self._post(shape, query, texts)
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
            f"{self._url} does not answer like a reranking service: neither "
            f"results[index, relevance_score] nor [index, score] for {len(texts)} texts"
        )

    def _post(self, shape: Shape, query: str, texts: list[str]) -> object:
        """One request, with retries -> the decoded answer."""
        body: dict[str, Any] = {"query": query}
        if shape == "tei":
            body |= {"texts": texts, "raw_scores": True}
        else:
            body |= {"documents": texts, "top_n": len(texts)}
            if self._model is not None:
                body["model"] = self._model
        status, data = self._request(json.dumps(body).encode(), len(texts))
        if status != 200:
            raise self._refusal(status, data, len(texts))
        try:
            return json.loads(data)
        except ValueError as error:
            raise ScorerError(
                f"{self._url} gave an answer that is not JSON: {excerpt(_text(data))}"
            ) from error

    def _request(self, body: bytes, count: int) -> tuple[int, bytes]:
        import urllib3
        from urllib3.exceptions import (
            ConnectTimeoutError,
            HTTPError,
            NewConnectionError,
            ReadTimeoutError,
        )

        tries = 1 + self._retries
        for attempt in range(tries):
            last = attempt + 1 == tries
            wait = _FIRST_PAUSE * 2**attempt
            try:
                answer: urllib3.BaseHTTPResponse = self._pool.request(
                    "POST", self._url, body=body, headers=self._headers, redirect=False
                )
            except ReadTimeoutError as error:
                raise ScorerError(
                    f"{self._url} did not answer a request of {count} items within "
                    f"{self._timeout:g} s: raise timeout or lower batch"
                ) from error
            except HTTPError as error:
                if last:
                    # The library counts refused connections among the slow ones.
                    slow = isinstance(error, ConnectTimeoutError) and not isinstance(
                        error, NewConnectionError
                    )
                    why = f"no connection within {self._timeout:g} s" if slow else _reason(error)
                    raise ScorerError(f"{self._url} cannot be reached: {why}") from error
            else:
                status = int(answer.status)
                passing = status == 429 or status >= 500
                # A 500 that outlasts its retries is an item's fault: its halves get one try each.
                if not passing or last or (status == 500 and self._ailing):
                    self._ailing |= status == 500
                    return status, answer.data
                wait = max(wait, _retry_after(answer.headers.get("Retry-After")))
            time.sleep(min(wait, _LONGEST_PAUSE))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _refusal(self, status: int, data: bytes, count: int) -> Exception:
        """What an answer other than 200 means."""
        said = excerpt(_text(data), 120)
        if status in _TOO_LARGE and count > 1:
            if self._shape != "auto":  # else it may be the wrong shape that is refused
                with self._lock:
                    self._batch = min(self._batch, max(1, count // 2))
            return BatchTooLargeError(f"HTTP {status}: {said}")
        if status in (401, 403):
            return ScorerError(
                f"{self._url} refused access (HTTP {status}): set api_key or {API_KEY_VARIABLE}"
            )
        if status == 404 or 300 <= status < 400:
            return ScorerError(f"{self._url} is not a reranking service (HTTP {status})")
        if status in (429, 502, 503, 504):
            return ScorerError(
                f"{self._url} is overloaded or down (HTTP {status}, after "
                f"{self._retries + 1} tries): {said}"
            )
        return _RefusedError(f"HTTP {status}: {said}")


class _RefusedError(Exception):
    """The endpoint refused one request, possibly because of one item."""


def _parse(shape: Shape, answer: object, count: int) -> FloatArray | None:
    """Scores (count,) in the order of the request; None for any other answer."""
    field = "score" if shape == "tei" else "relevance_score"
    if shape == "cohere":
        answer = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(answer, list) or len(answer) != count:
        return None
    scores = np.full(count, np.nan, dtype=np.float32)
    seen = np.zeros(count, dtype=np.bool_)
    for entry in answer:
        index = entry.get("index") if isinstance(entry, dict) else None
        if not isinstance(index, int) or not 0 <= index < count or seen[index]:
            return None
        score = entry.get(field)
        if not isinstance(score, (int, float)) or isinstance(score, bool):
            return None
        seen[index] = True
        scores[index] = score
    return scores


def _retry_after(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:  # a date: the growing pauses have to do
        return 0.0


def _reason(error: Exception) -> str:
    """urllib3's message without the object it starts with."""
    return str(error).rsplit(": ", 1)[-1] or type(error).__name__


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
