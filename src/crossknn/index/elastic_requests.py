"""Requests to an index of Elasticsearch or OpenSearch, through the official client of either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import Any, NoReturn

from crossknn.errors import InputError, StoreError, first_line

PAGE = 10_000
"""Maximum number of hits of one search, the default of `index.max_result_window`."""
_AT_ONCE = 50  # searches in one request
_KEPT = "2m"  # how long the server keeps the state of a scroll between two pages
_ERRORS = {
    "elasticsearch": ("elastic_transport", ("ApiError", "TransportError")),
    "opensearchpy": ("opensearchpy.exceptions", ("OpenSearchException",)),
}
_REASONS = {
    "(401)": "it refuses the credentials (401): give the client a user and password or an API key",
    "(403)": "its user may not do this (403): it needs the privilege to read the index",
    "(429)": "it has too many requests (429): search again later",
    "(503)": "no node can answer (503): search again later",
    "index_not_found": "there is no such index: check its name, and open the store again",
    "CERTIFICATE": "its certificate cannot be verified: give the client ca_certs=, a file with the "
    "certificate of the authority that signed it",
    "Timeout": "it has not answered in time: give the client a longer timeout",
    "ClosedPool": "the client is closed: open the store with a new one",
    "ConnectionError": "it cannot be reached: check the URL, and whether the server runs",
    "UnsupportedProduct": "the server is not Elasticsearch: use the client of OpenSearch",
}
"""What is said instead of a message that contains a text, which starts with the error's name."""


class Requests:
    """What is asked of the index `index`. Errors of the client become one sentence."""

    def __init__(self, client: Any, index: str) -> None:
        classes = type(client).__mro__
        packages = {each.__module__.partition(".")[0] for each in classes} & _ERRORS.keys()
        if not packages or any(each.__name__.startswith("Async") for each in classes):
            raise InputError(
                f"the client is {client!r:.80}: give Elasticsearch(url) or OpenSearch(url)"
            )
        module, names = _ERRORS[package := packages.pop()]
        self.errors = (OSError, *(getattr(import_module(module), name) for name in names))
        self.product = "Elasticsearch" if package == "elasticsearch" else "OpenSearch"
        self.name = f"the {self.product} index {index!r}"
        self._client, self._index = client, index

    def fields(self) -> dict[str, Mapping[str, Any]]:
        """Read the mapping: the definition of each field, entry of an object, and subfield."""
        try:
            found = self._client.indices.get_mapping(index=self._index)
        except self.errors as error:
            if getattr(error, "status_code", None) == 404:
                raise InputError(
                    f"{self.product} has no index {self._index!r}: check its name"
                ) from error
            self._fail(error)
        if len(found) != 1:
            raise InputError(f"{self.name} is {len(found)} indices: give the name of one")
        (index,) = found.values()
        return dict(_flat(index["mappings"].get("properties", {})))

    def hits(self, bodies: Sequence[Mapping[str, Any]], count: int) -> list[Sequence[Any]]:
        """Return the `count` best hits of each search, best first."""
        if count > PAGE:
            return [[*islice(self.scroll(body), count)] for body in bodies]
        hits = list[Sequence[Any]]()
        for start in range(0, len(bodies), _AT_ONCE):
            some = [{"size": count, "_source": False, **body} for body in bodies[start:][:_AT_ONCE]]
            lines = [line for body in some for line in ({}, body)]
            answer = self._ask(self._client.msearch, index=self._index, body=lines)
            hits += map(self._hits, answer["responses"])
        return hits

    def scroll(self, body: Mapping[str, Any]) -> Iterator[Any]:
        """Yield all hits of a search, page by page."""
        body = {"size": PAGE, "_source": False, **body}
        page = self._ask(self._client.search, index=self._index, body=body, scroll=_KEPT)
        try:
            while hits := self._hits(page):
                yield from hits
                state = {"scroll_id": page["_scroll_id"], "scroll": _KEPT}
                page = self._ask(self._client.scroll, body=state)
        finally:
            with suppress(*self.errors):  # it expires by itself
                self._client.clear_scroll(body={"scroll_id": [page["_scroll_id"]]})

    def sources(self, ids: Sequence[Any], which: Mapping[str, Any]) -> dict[Any, Any]:
        """Read `_source` by id; `which` includes or excludes some of its fields."""
        docs = [{"_id": str(key), "_source": which} for key in ids]
        answer = self._ask(self._client.mget, index=self._index, body={"docs": docs})
        if errors := [doc["error"] for doc in answer["docs"] if "error" in doc]:
            self._fail(errors[0])
        return {doc["_id"]: doc.get("_source", {}) for doc in answer["docs"] if doc["found"]}

    def _ask(self, send: Callable[..., Any], **given: Any) -> Any:
        try:
            return send(**given)
        except self.errors as error:
            self._fail(error)

    def _hits(self, answer: Mapping[str, Any]) -> Sequence[Any]:
        if "error" in answer:  # of one search in a request of several
            self._fail({"status": answer.get("status"), **answer["error"]})
        if failures := answer["_shards"].get("failures"):
            self._fail(failures[0]["reason"])
        if answer["timed_out"]:
            raise StoreError(f"{self.name} failed: a search was stopped by the server's timeout")
        hits: Sequence[Any] = answer["hits"]["hits"]
        return hits

    def _fail(self, error: Any) -> NoReturn:
        """Raise a `StoreError` for an exception of the client, or for an error in an answer."""
        if isinstance(error, Mapping):
            cause, kind, status = None, error.get("type"), error.get("status")
            said = f"{kind}: {error.get('reason')}"
        else:
            cause, kind, status = error, type(error).__name__, getattr(error, "status_code", None)
            said = first_line(error)
        whole = f"{kind} ({status}): {said}"
        said = next((reason for text, reason in _REASONS.items() if text in whole), said)
        raise StoreError(f"{self.name} failed: {said:.300}") from cause


def _flat(properties: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, about in properties.items():
        yield of + name, {"type": "object", **about}
        yield from _flat(about.get("fields", {}), f"{of}{name}.")
        if about.get("type") != "nested":  # its entries can only be searched by a nested query
            yield from _flat(about.get("properties", {}), f"{of}{name}.")
