"""Requests to an HTTP service that scores pairs: connections, retries, errors."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from crossknn.errors import InputError, ScorerError, counted, visible
from crossknn.scorers.streaming import BatchedScorer, BatchError, Deadline, excerpt
from crossknn.types import as_count, as_positive

API_KEY_VARIABLE = "CROSSKNN_API_KEY"

MOST_AT_ONCE = 1000  # requests of a scorer
MAX_ANSWER = 16 << 20  # bytes of an answer that are read at most
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 60.0
_BUSY = (408, 425, 429, 502, 503, 504, *range(520, 531))
"""Temporary HTTP status codes of a server or its proxy (52x: Cloudflare), after which a request is
repeated."""
_PORTS = {"http": 80, "https": 443}


class Endpoint(BatchedScorer):
    """A scorer whose batches are requests to the service at `url`, several at the same time.

    `path` is the path if the URL has none, and `per_request` the maximum number of items in a
    request; the other arguments are those of `HttpScorer`, which says what `score` raises."""

    per_request: int
    verb, _hint = "rerank", ""

    def __init__(
        self,
        url: str,
        path: str,
        *,
        per_request: int,
        api_key: str | None,
        timeout: float,
        retries: int,
        concurrency: int,
    ) -> None:
        parts = _checked(url)
        self._timeout = as_positive(timeout, "timeout", 1e6)
        self._key = api_key or os.environ.get(API_KEY_VARIABLE) or ""
        if not (self._key.isascii() and (self._key + "x").isprintable()):
            raise InputError(f"the API key (api_key or {API_KEY_VARIABLE}) is not printable ASCII")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        path = self._path(parts.path, path)
        name = urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))
        super().__init__(name, "the endpoint {}")
        self.per_request = as_count(per_request, "batch")
        self._retries = as_count(retries, "retries", 0)
        self.workers = as_count(concurrency, "concurrency")
        if self.workers > MOST_AT_ONCE:
            raise InputError(f"concurrency is {concurrency}: it must be {MOST_AT_ONCE} or less")
        self._url = urlunsplit((parts.scheme, parts.netloc.lower(), path, parts.query, ""))
        # Several searches may share this object.
        options = {"maxsize": 16 * self.workers, "retries": False, "headers": headers}
        self._pool, self._via = _connections(_proxy_of(parts), options)

    def _path(self, given: str, default: str) -> str:
        return given if given.strip("/") else default

    def _request(self, body: dict[str, Any], count: int, deadline: Deadline) -> bytes:
        data = json.dumps(body).encode()
        for attempt in range(1 + self._retries):
            pause = _FIRST_PAUSE * 2**attempt
            try:
                status, answer, retry_after = self._send(data, deadline)
            except TimeoutError as error:
                fewer = "batch" if count > 1 else "concurrency"
                raise ScorerError(
                    f"{self.name} did not answer a request of {counted(count, 'item')} within "
                    f"{self._timeout:g} s: raise timeout or lower {fewer}"
                ) from error
            except ConnectionError as error:
                why = f"{self.name} cannot be reached{self._via}: {visible(str(error))}"
            else:
                if 200 <= status < 300:
                    return answer
                if status not in _BUSY:
                    raise self._refusal(status, answer, count)
                why = f"{self.name} is overloaded or down (HTTP {status}): {self._excerpt(answer)}"
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
                f"{self.name} does not {self.verb} ({why}): check the URL, and the model's name if "
                "the service wants one"
            )
        if status == 422:
            why += self._hint
        return BatchError(why, too_large=status in (413, 422) and count > 1)

    def _excerpt(self, data: bytes) -> str:
        text = visible(data[:10_000].decode("utf-8", errors="replace"))
        return excerpt(text.replace(self._key, "***") if self._key else text)


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
            "the URL of an endpoint starts with http:// or https:// and a host, without a login "
            f"(the key is in {API_KEY_VARIABLE}), got {shown!r}"
        )
    return parts


def _reason(error: BaseException) -> str:
    """Describe an error without the objects that urllib3 wraps around it."""
    while error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    line = re.sub(r"^.*\[Errno -?\d+\] (.*?)\)?$", r"\1", " ".join(str(error).split()))
    return line or type(error).__name__
