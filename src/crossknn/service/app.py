"""The service as an ASGI application: access, limits, and running the server."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from socket import socket

from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossknn import __version__
from crossknn.errors import CrossknnError
from crossknn.service.bodies import ErrorAnswer, answer_error
from crossknn.service.connections import BoundedServer
from crossknn.service.engine import Engine
from crossknn.service.routes import health, router

LOCAL = ("127.0.0.1", "::1", "localhost")
MAX_BYTES = 8 << 20  # in a request's body
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
