"""Request bodies: limited in size before they are parsed, then parsed and validated on threads, so
that no body blocks the event loop."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from crossknn.errors import wrong_fields

MAX_DEPTH = 32  # of objects and lists within each other
MAX_KEYS = 10_000  # of all objects together
MAX_TEXTS = 100_000  # keys included
MAX_VALUES = 1_100_000  # 1,000 documents with vectors of 1,024 dimensions, and some more
MAX_ERRORS = 100  # that pydantic reports: one for each type that a field may have
_ALL_BUT_BRACKETS = bytes({*range(256)} - {*b"[]{}"})


class CheckedRoute(APIRoute):
    """A route whose body is limited, parsed and validated on a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, which gets the body as an instance of its model."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model: Any = self.body_field.field_info.annotation

        async def checked(request: Request) -> Response:
            return await handle(_CheckedRequest(request, model))

        return checked


class _CheckedRequest(Request):
    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def json(self) -> Any:
        return await asyncio.to_thread(read_body, await self.body(), self._model)


class InvalidBodyError(HTTPException):
    """Raised for wrong fields; `fields` has the name of each, and a sentence about it."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__(422)
        self.fields = fields


def read_body(raw: bytes, model: type[BaseModel]) -> BaseModel:
    """Parse a body as its model. Raises 413 or 422 if it has too many values, 400 if it is not
    JSON, and `InvalidBodyError`."""
    check_size(raw)
    try:
        given = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not JSON: it is not UTF-8") from None
    except ValueError:
        raise HTTPException(400, "the body is not JSON: a number has too many digits") from None
    try:
        return model.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_ERRORS]
        raise InvalidBodyError(wrong_fields(errors, given)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse repeated keys, one of which would be ignored, such as a second `not` of a filter."""
    values = dict(pairs)
    if len(values) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        message = f"the body has {twice!r:.80} twice in one object: give each key once"
        raise HTTPException(422, message)
    return values


def check_size(raw: bytes) -> None:
    """Refuse JSON with too many texts, keys or values, or nested too deeply, by counting its
    punctuation.

    Parsing first would be too late: 8 MiB can become half a gigabyte of objects, and parsing holds
    the interpreter's lock.
    """
    # Without escaped quotes every other part between quotes is outside of texts.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    _check_count("texts", plain.count(b'"') // 2, MAX_TEXTS)
    outside = b"".join(plain.split(b'"')[::2])
    _check_count("keys", outside.count(b":"), MAX_KEYS)
    _check_count("values", sum(map(outside.count, (b",", b"[", b"{"))), MAX_VALUES)
    brackets = np.frombuffer(outside.translate(None, _ALL_BUT_BRACKETS), np.uint8)
    steps = np.where(np.isin(brackets, [*b"[{"]), 1, -1)
    if steps.cumsum().max(initial=0) > MAX_DEPTH:
        raise HTTPException(422, f"the body is nested more than {MAX_DEPTH} deep: give a flat one")


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise HTTPException(413, f"the body has more than {most:,} {what}: send less at once")
