"""Request bodies: limited in size before they are parsed, then parsed and validated on threads, so
that no body blocks the event loop."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from crossknn.errors import wrong_field
from crossknn.service.answers import InvalidBodyError

MAX_COUNTS = {"texts": 100_000, "keys": 10_000, "values": 1_100_000}
"""Limits of a body; keys are texts, too. 1,000 documents with 1,024-dimensional vectors fit."""
MAX_ERRORS = 100  # errors read from pydantic: one for each type that a field may have


class CheckedRoute(APIRoute):
    """A route whose body is limited, parsed and validated on a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, which gets the body as an instance of its model."""
        handle, field = super().get_route_handler(), self.body_field

        class CheckedRequest(Request):
            async def json(self) -> Any:
                assert field is not None  # only routes with a body read it
                model: Any = field.field_info.annotation
                return await asyncio.to_thread(read_body, await self.body(), model)

        async def checked(request: Request) -> Response:
            return await handle(CheckedRequest(request.scope, request.receive))

        return checked


def read_body(raw: bytes, model: type[BaseModel]) -> BaseModel:
    """Parse a body as its model. Raises 413 if it has too many values, 400 if it is not JSON, and
    422 for a wrong field."""
    check_size(raw)
    try:
        given = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    try:
        return model.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_ERRORS]
        raise InvalidBodyError(*wrong_field(errors, given)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that is given twice, such as `not` in a filter: one would be ignored."""
    values = dict(pairs)
    if len(values) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        message = f"the body has {twice!r:.80} twice in one object: give each key once"
        raise HTTPException(422, message)
    return values


def check_size(raw: bytes) -> None:
    """Refuse JSON with too many texts, keys or values, by counting its punctuation.

    Parsing first would be too late: 8 MiB can become half a gigabyte of objects, and parsing holds
    the interpreter's lock.
    """
    # After removing escaped quotes, every other part between quotes is outside of texts.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(plain.split(b'"')[::2])
    counts = {
        "texts": plain.count(b'"') // 2,
        "keys": outside.count(b":"),
        "values": sum(map(outside.count, (b",", b"[", b"{"))),
    }
    for name, most in MAX_COUNTS.items():
        if counts[name] > most:
            message = f"the body has more than {most:,} {name}: send less at once"
            raise HTTPException(413, message)
