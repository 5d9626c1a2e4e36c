"""Request bodies, which are limited, parsed and validated on threads, so that none blocks the event
loop; and answers to failed requests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from crossknn.errors import CrossknnError, InputError, visible, wrong_field

logger = logging.getLogger(__name__)

MAX_COUNTS = {"texts": 100_000, "keys": 10_000, "values": 1_100_000}
"""Limits of a body; keys are texts, too. 1,000 documents with 1,024-dimensional vectors fit."""
MAX_ERRORS = 100  # errors read from pydantic: one for each type that a field may have
MAX_MESSAGE = 2000  # characters


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
    """Parse a body as its model; HTTP errors 413 (too large), 400 (not JSON), 422 (wrong field)."""
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


class ErrorAnswer(BaseModel):
    """What went wrong: `message`, `status`, and the name of a wrong `field`."""

    error: dict[str, Any]


class InvalidBodyError(HTTPException):
    """Raised for a wrong field, with a sentence about it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(422, message)
        self.field = field


async def answer_error(_: object, failure: Exception) -> JSONResponse:
    """Answer a failed request by an `ErrorAnswer`; unexpected errors are logged."""
    status, message = 500, f"the service failed: {type(failure).__name__}; its log says more"
    match failure:
        case RequestValidationError(body=bytes()):
            status, message = 415, "send the body as JSON: Content-Type: application/json"
        case RequestValidationError():
            status, message = 422, "the body is missing"
        case HTTPException():
            status, message = failure.status_code, str(failure.detail)
        case CrossknnError():
            status, message = 422 if isinstance(failure, InputError) else 503, str(failure)
        case _:
            logger.error("a request failed", exc_info=failure)
    error = {"message": visible(message)[:MAX_MESSAGE], "status": status}
    if isinstance(failure, InvalidBodyError):
        error["field"] = failure.field[:200]
    return JSONResponse({"error": error}, status, getattr(failure, "headers", None))
