"""Answers to failed requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from crossknn.errors import CrossknnError, InputError, visible
from crossknn.service.bodies import InvalidBodyError
from crossknn.service.shapes import ErrorAnswer

logger = logging.getLogger(__name__)

MAX_FIELDS = 10  # wrong fields that an answer lists
MAX_MESSAGE = 2000  # characters

DESCRIBED: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "The body is not JSON, or the Host header is wrong.",
        401: "The API key is missing or wrong.",
        404: "There is no such index or item.",
        413: "The body is too large.",
        415: "The body is not sent as JSON.",
        422: "A field is wrong; the message names it.",
        429: "The service is busy; Retry-After says when to come again.",
        503: "The scorer or a database is down, and there is no answer without it.",
    }.items()
}


def error_body(failure: Exception) -> dict[str, Any]:
    """Make the `ErrorAnswer` to a failed request; unexpected errors are logged."""
    match failure:
        case InvalidBodyError(fields=fields):
            errors = [
                {"field": field[:200], "message": visible(sentence)[:MAX_MESSAGE]}
                for field, sentence in fields[:MAX_FIELDS]
            ]
            message = errors[0]["message"]
            if len(fields) > 1:
                message += " (and others: see errors)"
            return _error(422, message, field=errors[0]["field"], errors=errors)
        case RequestValidationError(body=bytes()):
            return _error(415, "send the body as JSON, with  Content-Type: application/json")
        case RequestValidationError():
            return _error(422, "the body is missing")
        case HTTPException():
            return _error(failure.status_code, str(failure.detail))
        case InputError():
            return _error(422, str(failure))
        case CrossknnError():
            return _error(503, str(failure))
    logger.error("a request failed", exc_info=failure)
    return _error(500, f"the service failed: {type(failure).__name__}; its log says more")


def _error(status: int, message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": visible(message)[:MAX_MESSAGE], "status": status, **more}}


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Make an answer with an error message."""
    return JSONResponse(_error(status, message), status, headers)


async def answer_error(_: Request, failure: Exception) -> JSONResponse:
    """Answer a failed request."""
    body = error_body(failure)
    return JSONResponse(body, body["error"]["status"], getattr(failure, "headers", None))
