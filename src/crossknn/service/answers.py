"""Answers to failed requests."""

from __future__ import annotations

import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from crossknn.errors import CrossknnError, InputError, visible

logger = logging.getLogger(__name__)

MAX_MESSAGE = 2000  # characters


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
