"""Use a `/rerank` endpoint as the cross-encoder."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from ipaddress import ip_address, ip_network
from typing import Any, Literal, get_args
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import numpy as np

from crossknn.errors import InputError, ScorerError, visible
from crossknn.files import parse_json
from crossknn.scorers.streaming import BatchedScorer, BatchError, Call, Deadline, excerpt
from crossknn.types import FloatArray, IntArray, as_count

logger = logging.getLogger(__name__)

API_KEY_VARIABLE = "CROSSKNN_API_KEY"

Api = Literal["cohere", "tei"]

MOST_AT_ONCE = 1000  # requests of a scorer
MAX_ANSWER = 16 << 20  # bytes of an answer that are read at most
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 60.0
_EPSILON = 1e-7
_FEW = 5
"""If the first scores, this many, lie between 0 and 1, they are taken for probabilities."""
_BUSY = (408, 425, 429, 502, 503, 504, *range(520, 531))
"""Temporary HTTP status codes of a server or its proxy (52x: Cloudflare), after which a request is
repeated."""
_PORTS = {"http": 80, "https": 443}


class HttpScorer(BatchedScorer):
    """Scores with the reranking service at `url` (`/rerank` is added to a URL without a path).

    A batch that the service cannot score is halved. Requests use the proxy of the environment.
    `fingerprint` is None unless `model` is named, because the model behind a URL may change.
    `score` raises ScorerError if the endpoint is down, too slow, refuses the key or returns an
    invalid answer.

    Args:
        url: Address of the service, http:// or https://.
        model: Name of the model, sent with every request.
        api_key: The API key; by default the environment variable CROSSKNN_API_KEY.
        api: "cohere" (also Jina, infinity, vLLM): `query`, `documents` -> `results[{index,
            relevance_score}]`; "tei" (Text Embeddings Inference): `query`, `texts`, `raw_scores` ->
            `[{index, score}]`.
        timeout: Seconds for a request, from connecting to the last byte of the answer.
        retries: How often to repeat a request after a failed connection or the HTTP status 408,
            425, 429, 502 to 504 or 520 to 530, after growing pauses or those that `Retry-After`
            asks for, up to a minute.
        batch, concurrency: Maximum number of items in a request, and of requests at the same time.
        probabilities: Turn scores between 0 and 1 back into logits, which methods predict better; a
            warning is logged once if the scores look like probabilities.
    """

    per_request: int

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        api: Api = "cohere",
        timeout: float = 10.0,
        retries: int = 2,
        batch: int = 64,
        concurrency: int = 4,
        probabilities: bool = False,
    ) -> None:
        parts = _checked(url)
        if api not in get_args(Api):
            raise InputError(f"api must be cohere or tei, got {api!r}")
        if not isinstance(model, str | None) or not isinstance(probabilities, bool):
            raise InputError("model must be a name, and probabilities true or false")
        if type(timeout) not in (int, float) or not 0 < timeout < 1e6:
            raise InputError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        self._key = api_key or os.environ.get(API_KEY_VARIABLE) or ""
        if not (self._key.isascii() and (self._key + "x").isprintable()):
            raise InputError(f"the API key (api_key or {API_KEY_VARIABLE}) is not printable ASCII")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        path = parts.path if parts.path.strip("/") else "/rerank"
        name = urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))
        super().__init__(name, "the endpoint {}")
        self.per_request = as_count(batch, "batch")
        self._retries = as_count(retries, "retries", 0)
        self.workers = as_count(concurrency, "concurrency")
        if self.workers > MOST_AT_ONCE:
            raise InputError(f"concurrency is {concurrency}: it must be {MOST_AT_ONCE} or less")
        self._model, self.probabilities, self._timeout = model, probabilities, float(timeout)
        self._api, self._range = api, _Range()
        self._url = urlunsplit((parts.scheme, parts.netloc.lower(), path, parts.query, ""))
        # Several searches may share this object.
        options = {"maxsize": 16 * self.workers, "retries": False, "headers": headers}
        self._pool, self._via = _connections(_proxy_of(parts), options)
        raw = "|probabilities" if probabilities else ""
        self.fingerprint = None if model is None else f"http:{self.name}|model={model}{raw}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        """Yield batches (positions of pairs) of one query each, queries in order of appearance."""
        _, first, inverse = np.unique(call.pairs.query, return_index=True, return_inverse=True)
        order = np.argsort(first[inverse], kind="stable")
        starts = np.searchsorted(first[inverse][order], np.sort(first))
        for group in np.split(order, starts[1:]):
            size = self.per_request
            yield from (group[at : at + size] for at in range(0, len(group), size))

    def _run(self, call: Call, positions: IntArray) -> FloatArray:
        pairs = call.texts(positions)
        scores = self._rerank(pairs[0][0], [item for _, item in pairs], call.deadline)
        if not self.probabilities:
            if self._range.looks_like_probabilities(scores):
                logger.warning(
                    "all scores of %s lie between 0 and 1: if they are probabilities, give "
                    "the option probabilities (--scorer-option probabilities=true), which turns "
                    "them back into logits. The ranking is the same, but logits are easier to "
                    "predict: on two of three corpora, recall of the exact top items was 4 to 25 "
                    "points higher with logits",
                    self.name,
                )
            return scores
        if len(outside := scores[(scores < -_EPSILON) | (scores > 1 + _EPSILON)]):
            raise ScorerError(
                f"{self.name} gave the score {outside[0]:g}, which is not a probability: leave "
                "out the option probabilities"
            )
        clipped = np.clip(scores, _EPSILON, 1 - _EPSILON)
        return np.log(clipped / (1 - clipped))

    def _rerank(self, query: str, texts: list[str], deadline: Deadline) -> FloatArray:
        body: dict[str, Any] = {"query": query, "documents": texts, "top_n": len(texts)}
        if self._api == "tei":
            body = {"query": query, "texts": texts, "raw_scores": True, "truncate": True}
        elif self._model is not None:
            body["model"] = self._model
        data = self._request(json.dumps(body).encode(), len(texts), deadline)
        if (scores := _parse(self._api, data, len(texts))) is None:
            raise ScorerError(
                f"{self.name} sent an answer that is not {len(texts)} scores in the format of "
                f"{self._api}: {self._excerpt(data)}"
            )
        return scores

    def _request(self, body: bytes, count: int, deadline: Deadline) -> bytes:
        for attempt in range(1 + self._retries):
            pause = _FIRST_PAUSE * 2**attempt
            try:
                status, data, retry_after = self._send(body, deadline)
            except TimeoutError as error:
                raise ScorerError(
                    f"{self.name} did not answer a request of {count} items within "
                    f"{self._timeout:g} s: raise timeout or lower batch"
                ) from error
            except ConnectionError as error:
                why = f"{self.name} cannot be reached{self._via}: {visible(str(error))}"
            else:
                if 200 <= status < 300:
                    return data
                if status not in _BUSY:
                    raise self._refusal(status, data, count)
                why = f"{self.name} is overloaded or down (HTTP {status}): {self._excerpt(data)}"
                if retry_after > _LONGEST_PAUSE:
                    why += f"; it asks for a pause of {retry_after:,.0f} s"
                pause = max(pause, retry_after)
            too_long = pause > _LONGEST_PAUSE or pause >= deadline.left()
            if attempt == self._retries or too_long or not deadline.sleep(pause):
                break
        raise ScorerError(why)

    def _send(self, body: bytes, deadline: Deadline) -> tuple[int, bytes, float]:
        """Send a request once: status, body and `Retry-After` in seconds.

        Raises TimeoutError, or ConnectionError if no connection could be made or it broke.
        """
        from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError

        most = min(self._timeout, max(deadline.left(), 1e-3))
        until = time.monotonic() + most
        try:
            answer = self._pool.urlopen(
                "POST", self._url, body=body, redirect=False, preload_content=False, timeout=most
            )
            data = b""
            while part := answer.read1(1 << 16):  # what has arrived, then check the time
                data += part
                if time.monotonic() > until:
                    raise TimeoutError
                if len(data) > MAX_ANSWER:
                    raise ScorerError(f"{self.name} sent an answer of more than 16 MiB")
            answer.release_conn()
        except (ReadTimeoutError, TimeoutError) as error:
            raise TimeoutError from error
        except (HTTPError, OSError, ValueError) as error:
            why = _reason(error)
            if isinstance(error, NewConnectionError):
                why += " (is the server running, and are host and port right?)"
            raise ConnectionError(why) from error
        return answer.status, data, _pause(answer.headers)

    def _refusal(self, status: int, data: bytes, count: int) -> Exception:
        if status in (401, 403):
            return ScorerError(
                f"{self.name} refused access (HTTP {status}): put the key into the environment "
                f"variable {API_KEY_VARIABLE} (in Python also api_key=)"
            )
        if status == 407:
            return ScorerError(
                f"{self.name} was asked{self._via}, which requires a login: put the login into its "
                "address: http://user:password@host:port"
            )
        why = f"HTTP {status}: {self._excerpt(data)}"
        if status == 404 or 300 <= status < 400:
            why = why if data.startswith(b"{") else f"HTTP {status}"  # a page says nothing
            return ScorerError(
                f"{self.name} does not rerank ({why}): check the URL, and the model's name if the "
                "service wants one"
            )
        if status == 422 and self._api == "cohere":
            why += " (Text Embeddings Inference needs the option api=tei)"
        return BatchError(why, too_large=status in (413, 422) and count > 1)

    def _excerpt(self, data: bytes) -> str:
        text = visible(data[:10_000].decode("utf-8", errors="replace"))
        return excerpt(text.replace(self._key, "***") if self._key else text)


class _Range:
    """Whether all scores of an endpoint may be probabilities; copies of a scorer share it."""

    count, done = 0, False

    def looks_like_probabilities(self, scores: FloatArray) -> bool:
        """Check scores (b,); return true once, when enough were checked and all lay in 0 to 1."""
        inside = scores.min(initial=1) >= -_EPSILON and scores.max(initial=0) <= 1 + _EPSILON
        self.count += len(scores)
        warns = bool(inside) and not self.done and self.count >= _FEW
        self.done = self.done or warns or not inside
        return warns


def _pause(headers: Any) -> float:
    """Return the seconds that `Retry-After` asks for, as a number or a date, or 0."""
    asked = headers.get("Retry-After") or ""
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", asked, re.ASCII):
        return float(asked)
    with suppress(ValueError, OverflowError, TypeError):
        # Use the server's clock if it sends its time: the local one may differ.
        now = parsedate_tz(headers.get("Date") or "")
        until = mktime_tz(parsedate_tz(asked))  # type: ignore[arg-type]
        return max(0.0, until - (time.time() if now is None else mktime_tz(now)))
    return 0.0


def _proxy_of(parts: SplitResult) -> str:
    """Return the environment's proxy for a URL; "" for this machine and the hosts in NO_PROXY."""
    proxies, host = getproxies_environment(), (parts.hostname or "").rstrip(".")
    excepted = proxies.get("no", "").lower().replace("*.", "")
    address = f"{host}:{parts.port or _PORTS[parts.scheme]}"
    if f".{host}".endswith(".localhost") or proxy_bypass_environment(address, {"no": excepted}):
        return ""
    with suppress(ValueError):  # not an address but a name
        ip = ip_address(host)
        if ip.is_loopback or ip.is_unspecified:
            return ""
        for network in excepted.split(","):  # such as 10.0.0.0/8
            with suppress(ValueError):
                if ip in ip_network(network.strip(), strict=False):
                    return ""
    return proxies.get(parts.scheme) or proxies.get("all") or ""


def _connections(proxy: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Make a connection pool, through `proxy` unless it is "", and the words for it in messages."""
    from urllib3 import PoolManager, ProxyManager, make_headers
    from urllib3.exceptions import HTTPError
    from urllib3.util import parse_url

    if proxy == "":
        return PoolManager(**options), ""
    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        parts = parse_url(url)
        if not re.fullmatch(r"[^\s%]+", parts.host or ""):
            raise ValueError
        address = f"{parts.scheme}://{parts.host}:{parts.port or _PORTS[str(parts.scheme)]}"
        login = make_headers(proxy_basic_auth=unquote(parts.auth)) if parts.auth else None
        pool = ProxyManager(address, proxy_headers=login, **options)
    except (HTTPError, ValueError, KeyError):
        shown = re.sub(r"//.*@", "//", url)  # no password
        raise InputError(
            f"the proxy is {shown!r:.80}: give http:// or https:// and a host, in HTTP_PROXY, "
            "HTTPS_PROXY or ALL_PROXY"
        ) from None
    return pool, f" through the proxy {address}"


def _checked(url: str) -> SplitResult:
    """Parse a URL; the InputError for an invalid one omits possible secrets."""
    try:
        parts = urlsplit(url)
        plain = all(c.isprintable() and c not in " @" for c in url) and parts.port != 0
        good = parts.scheme in _PORTS and parts.hostname and plain
        (parts.hostname or "").encode("idna")
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        shown = re.sub(r"//[^/?#]*@", "//", re.split(r"[?#]", str(url), maxsplit=1)[0])
        raise InputError(
            f"a reranking URL starts with http:// or https:// and a host, without a login (the key "
            f"is in {API_KEY_VARIABLE}), got {shown!r}"
        )
    return parts


def _parse(api: Api, data: bytes, count: int) -> FloatArray | None:
    """Parse scores (count,) in the order of the request; None for any other answer."""
    field = "score" if api == "tei" else "relevance_score"
    with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
        answer = parse_json(data)
        rows = answer if api == "tei" else answer["results"]
        by_index = {row["index"]: row[field] for row in rows}
        scores = [by_index[index] for index in range(count)]
        if len(rows) == count and {type(score) for score in scores} <= {int, float}:
            return np.array(scores, dtype=np.float64)
    return None


def _reason(error: BaseException) -> str:
    """Describe an error without the objects that urllib3 wraps around it."""
    while error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    line = re.sub(r"^.*\[Errno -?\d+\] (.*?)\)?$", r"\1", " ".join(str(error).split()))
    return line or type(error).__name__
