"""The bodies of requests: bounded before they are parsed, then parsed and validated on threads, so
that no body keeps the event loop from other requests."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

MOST_DEPTH = 32  # of objects and lists within each other
MOST_KEYS = 10_000  # of all objects together
MOST_TEXTS = 100_000  # keys included
MOST_NUMBERS = 1_100_000  # and other values: 1,000 documents with vectors of 1,024 dimensions
MOST_ERRORS = 100  # of pydantic, which has one for each kind that a field may be of


class CheckedRoute(APIRoute):
    """A route whose body is bounded, parsed and validated on a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, which gets the body as an instance of its model."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model: Any = self.body_field.field_info.annotation

        async def checked(request: Request) -> Response:
            try:
                return await handle(_CheckedRequest(request, model))
            except _InvalidError as invalid:
                raise RequestValidationError(invalid.errors, body=invalid.body) from None

        return checked


class _CheckedRequest(Request):
    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def json(self) -> Any:
        return await asyncio.to_thread(read_body, await self.body(), self._model)


class _InvalidError(HTTPException):
    """Fields are wrong. FastAPI passes only this kind of error on while it reads a body."""

    def __init__(self, errors: list[Any], body: Any) -> None:
        super().__init__(422)
        self.errors, self.body = errors, body


def read_body(raw: bytes, model: type[BaseModel]) -> BaseModel:
    """The model that a body is; 413 or 422 if it has too many parts, 400 if it is not JSON."""
    check_outline(raw)
    try:
        given = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_each_once)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("it is not UTF-8", "", error.start) from None
    except ValueError:
        raise json.JSONDecodeError("a number has too many digits", "", 0) from None
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[:MOST_ERRORS]
        raise _InvalidError([e | {"loc": ("body", *e["loc"])} for e in first], given) from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two equal keys one would be left out in silence, such as a filter's `not`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        said = f"the body has {twice!r:.80} twice in one object: give each key once"
        raise HTTPException(422, said)
    return found


def check_outline(raw: bytes) -> None:
    """Refuse JSON of too many values, keys or texts, or nested too deeply, by its punctuation.

    Parsing holds the interpreter's lock, and 8 MiB can become half a gigabyte of objects.
    """
    counts = [raw.count(mark) for mark in (b",", b":", b"[", b"{", b'"')]
    commas, colons, lists, objects, quotes = counts
    few = commas + lists + objects <= MOST_NUMBERS and colons <= MOST_KEYS
    if few and quotes <= 2 * MOST_TEXTS and lists + objects <= MOST_DEPTH:
        return
    # With backslashes and quotes out of the way, what stands outside of texts is every other part.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    _bound("texts", plain.count(b'"') // 2, MOST_TEXTS)
    outline = b"".join(plain.split(b'"')[::2])
    _bound("keys", outline.count(b":"), MOST_KEYS)
    _bound("values", sum(outline.count(mark) for mark in (b",", b"[", b"{")), MOST_NUMBERS)
    marks = np.frombuffer(outline, np.uint8)
    opened, closed = (np.isin(marks, [*pair]) for pair in (b"[{", b"]}"))
    depth = np.cumsum(opened.astype(np.int8) - closed, dtype=np.int32).max(initial=0)
    if depth > MOST_DEPTH:
        raise HTTPException(422, f"the body is nested more than {MOST_DEPTH} deep: give a flat one")


def _bound(what: str, count: int, most: int) -> None:
    if count > most:
        raise HTTPException(413, f"the body has more than {most:,} {what}: send less at once")
