"""The service as an ASGI application: access, limits, routes, and running the server.

Bodies are limited, parsed and validated on threads, so that none blocks the event loop. Each route
checks its request on the event loop, and does the work on a thread of the engine.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from socket import socket
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossknn import __version__
from crossknn.errors import CrossknnError, InputError, visible, wrong_field
from crossknn.service.connections import BoundedServer
from crossknn.service.engine import Engine
from crossknn.service.shapes import RerankBody, SearchBody, rerank_answer
from crossknn.types import json_value

logger = logging.getLogger(__name__)

LOCAL = ("127.0.0.1", "::1", "localhost")
MAX_BYTES = 8 << 20  # in a request's body
MAX_COUNTS = {"texts": 100_000, "keys": 10_000, "values": 1_100_000}
"""Limits of a body; keys are texts, too. 1,000 documents with 1,024-dimensional vectors fit."""
MAX_ERRORS = 100  # errors read from pydantic: one for each type that a field may have
MAX_MESSAGE = 2000  # characters
_OPEN = ("/healthz", "/readyz", "/openapi.json", "/page")
_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def create_app(engine: Engine, *, keys: Sequence[str] = (), local: bool = False) -> FastAPI:
    """Make the ASGI application. With `keys`, only requests with one of these are served. `local`
    accepts only names of this machine, because a foreign page could make its own name point here
    (DNS rebinding)."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    app = FastAPI(
        title="crossknn",
        version=__version__,
        summary="k-nearest-neighbour search directly with a cross-encoder, on a budget of calls",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": ErrorAnswer, "description": "What went wrong."}},
        telemetry=None,
    )
    app.state.engine = engine
    app.add_middleware(Guard, engine=engine, keys=[key.encode() for key in keys])
    if local:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL, "[::1]"])
    for kind in (RequestValidationError, HTTPException, CrossknnError, Exception):
        app.add_exception_handler(kind, answer_error)
    app.include_router(router)
    app.include_router(health)
    page = Path(str(files("crossknn.service"))) / "page"
    app.mount("/page", StaticFiles(directory=page), name="page")

    @app.get("/", include_in_schema=False)
    async def first() -> Response:
        html = (page / "index.html").read_bytes()
        return Response(html, headers={"Content-Security-Policy": _POLICY}, media_type="text/html")

    return app


def serve(
    engine: Engine, sockets: list[socket], *, keys: Sequence[str] = (), local: bool = False
) -> None:
    """Serve on sockets until a signal comes; see `create_app` and `BoundedServer`."""
    BoundedServer(create_app(engine, keys=keys, local=local), engine).run(sockets)


class Guard:
    """Checks the API key of a request, limits its body, and counts the request when it ends. The
    connection of a refused request stays open, so that a client that still sends its body reads
    the reason."""

    def __init__(self, app: ASGIApp, engine: Engine, keys: Sequence[bytes]) -> None:
        self.app, self.engine, self.keys = app, engine, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrived, status, size = time.monotonic(), 499, 0  # 499: the client went away
        scope.setdefault("state", {})["arrived"] = arrived

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BYTES:
                limit = MAX_BYTES >> 20
                raise HTTPException(413, f"the body is larger than {limit} MiB: send less at once")
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            if self._allows(scope):
                await self.app(scope, limited, noted)
            else:
                message = "give an API key in the header  Authorization: Bearer KEY"
                refusal = HTTPException(401, message, {"WWW-Authenticate": "Bearer"})
                await (await answer_error(None, refusal))(scope, limited, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.engine.metrics.request(route, status, time.monotonic() - arrived)

    def _allows(self, scope: Scope) -> bool:
        path = scope["path"]
        if not self.keys or path == "/" or path.startswith(_OPEN):
            return True
        kind, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        same = [hmac.compare_digest(key.strip(), each) for each in self.keys]
        return kind.lower() == b"bearer" and any(same)


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


async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


Served = Annotated[Engine, Depends(_engine)]
health = APIRouter()
# The security is for /openapi.json: `Guard` checks the key.
router = APIRouter(route_class=CheckedRoute, dependencies=[Security(HTTPBearer(auto_error=False))])


@router.post("/search")
async def search(body: SearchBody, request: Request, engine: Served) -> Response:
    """Return the k best items by cross-encoder score, under a budget of calls."""
    engine.check(body)
    arrived = request.state.arrived
    return await _answer(request, lambda cancel: engine.search(body, arrived, cancel))


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(body: RerankBody, request: Request, engine: Served) -> Response:
    """Order given documents, scoring `budget` of them at most: for clients of Cohere (/v2/rerank),
    Jina (/v1/rerank), infinity and Text Embeddings Inference (/rerank)."""
    engine.check_pairs(sum(engine.calls_of(body)) if body.budget else 0)
    path = request.scope["route"].path
    shown = body.return_text if body.documents is None else body.return_documents
    if shown is None:
        shown = body.documents is not None and path == "/v1/rerank"

    def work(cancel: threading.Event) -> Any:
        ranked, degraded = engine.rerank(body, request.state.arrived, cancel, shown=bool(shown))
        return rerank_answer(body, ranked, degraded, strings=path == "/rerank")

    return await _answer(request, work)


@router.get("/indexes")
async def indexes(engine: Served) -> Response:
    """List the indexes, the methods, and the default cost of a request."""
    return JSONResponse(await asyncio.to_thread(engine.described))


@router.get("/items/{item_id:path}")
async def item(engine: Served, item_id: str, index: str | None = None) -> Response:
    """Return an item: its title, text and further fields."""
    name = engine.name_of(index)

    def read() -> JSONResponse:  # perhaps of a database
        try:
            wanted = engine.searcher(name).index.item(item_id)
        except InputError as error:
            raise HTTPException(404, f"there is no item {item_id!r:.200}") from error
        names = "id", "title", "text", "extra"
        return JSONResponse(json_value({name: getattr(wanted, name) for name in names}))

    return await asyncio.to_thread(read)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(engine: Served) -> Response:
    """Counters in Prometheus' format."""
    return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4")


@health.get("/healthz")
async def healthz() -> Response:
    """Report that the process is alive."""
    return JSONResponse({"status": "ok"})


@health.get("/readyz")
async def readyz(engine: Served) -> Response:
    """Report that the service accepts requests; `scorer` is `failing` if nothing was scored lately
    (see the log). 503 if an index was removed or damaged."""
    if engine.closing:
        raise HTTPException(503, "the service is stopping")
    if problems := await asyncio.to_thread(engine.problems):
        raise HTTPException(503, "; ".join(problems))
    failing = any(scorer.failure for scorer in engine.scorers)
    return JSONResponse({"status": "ready", "scorer": "failing" if failing else "ok"})


async def _answer(request: Request, work: Callable[[threading.Event], Any]) -> Response:
    """Run `work` on a thread of the engine, which also writes its result as JSON, since a long
    answer would block the event loop. Its argument is set when the client has disconnected."""
    engine: Engine = request.app.state.engine
    future, cancel = engine.submit(lambda cancel: JSONResponse(work(cancel)))
    answer = asyncio.wrap_future(future)
    gone = asyncio.create_task(_gone(request))
    either: set[asyncio.Future[Any]] = {answer, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else Response(status_code=499)
    finally:
        cancel.set()
        gone.cancel()
        answer.cancel()  # in case it still waits for a thread


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
