"""The routes of the service, its limits, and what becomes of errors."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from socket import socket
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Header, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi.sse import format_sse_event
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crossknn import __version__
from crossknn.errors import CrossknnError, InputError, visible, wrong_fields
from crossknn.service import engine as e
from crossknn.service import shapes as s
from crossknn.service.bodies import CheckedRoute
from crossknn.service.connections import BoundedServer, bounded
from crossknn.types import json_value

logger = logging.getLogger(__name__)

LOCAL = ("127.0.0.1", "::1", "localhost")
MOST_BYTES = 8 << 20  # of a request's body
MOST_HELD = 256 << 20  # of all bodies at once
MOST_HITS = 10_000  # of a request
MOST_TEXT = 1 << 18  # characters of its queries
MOST_ERRORS = 10  # that an answer lists
RETRY_AFTER = 1  # seconds
_OPEN = ("/healthz", "/readyz", "/openapi.json", "/page")
_EVENTS = "text/event-stream"
_KEY = [Security(HTTPBearer(auto_error=False))]  # `_Guard` checks it, before the body is read
_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class Json(Response):
    """JSON in ASCII, so that any text can be sent."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content).encode()


def dumps(content: Any) -> str:
    """JSON; what it does not have, such as a NaN or a date in a field, as `json_value` has it."""
    written = partial(json.dumps, separators=(",", ":"), allow_nan=False)
    try:
        return written(content)
    except (TypeError, ValueError):
        return written(json_value(content))


def error(status: int, message: str, headers: dict[str, str] | None = None, **more: Any) -> Json:
    """An answer that says what went wrong."""
    said = {"message": visible(message)[:2000], "status": status, **more}
    return Json({"error": said}, status, headers)


_ERRORS: dict[int | str, Any] = {
    status: {"model": s.ErrorAnswer, "description": said}
    for status, said in {
        400: "The body is not JSON.",
        401: "The API key is missing or wrong.",
        403: "Without keys the service answers only under the names of its machine.",
        404: "There is no such index or item.",
        413: "The body is too large.",
        415: "The body is not sent as JSON.",
        422: "A field is wrong; the message names it.",
        429: "The service is busy; Retry-After says when to come again.",
        503: "The scorer or a database is down, and there is no answer without it.",
    }.items()
}


def create_app(engine: e.Engine, *, keys: Sequence[str] = (), local: bool = False) -> FastAPI:
    """The service as an ASGI application; with `keys`, for those alone who have one of them.
    `local`: only under the names of this machine, as a page elsewhere may have its own name point
    here (DNS rebinding)."""

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
        responses=_ERRORS,
        telemetry=None,
    )
    app.router.route_class = CheckedRoute
    known = tuple(key.encode() for key in keys)
    app.add_middleware(_Guard, engine=engine, keys=known, local=local)
    _handle_errors(app)
    _add_searches(app, engine)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        _add_rerank(app, engine, path)
    _add_rest(app, engine)
    return app


def serve(
    engine: e.Engine, sockets: list[socket], *, keys: Sequence[str] = (), local: bool = False
) -> None:
    """Serve on sockets until a signal comes: then searches end with the best so far, and are
    answered. `local`: see `create_app`."""

    class Stopping(BoundedServer):
        def handle_exit(self, sig: int, frame: Any) -> None:
            if self.should_exit:  # for the second time: what is cut short then is no error
                logging.getLogger("uvicorn.error").disabled = True
            engine.stop()
            super().handle_exit(sig, frame)

    server = Stopping(
        bounded(
            create_app(engine, keys=keys, local=local),
            engine.metrics,
            timeout_graceful_shutdown=int(engine.settings.deadline) + 2,
        )
    )
    server.run(sockets)


class _Guard:
    """Looks at each request first: its key, and how much comes; and counts it at the end.

    A request that is refused is not hung up on: a client that still sends its body would be reset
    before it has read why. The rest is thrown away as it comes, for as long as a head may take.
    """

    def __init__(self, app: ASGIApp, engine: e.Engine, keys: Sequence[bytes], local: bool) -> None:
        self.app, self.engine, self.keys, self.local = app, engine, keys, local
        self.held = 0  # bytes of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrived, status, size = time.monotonic(), 499, 0  # if the client goes before an answer
        scope.setdefault("state", {})["arrived"] = arrived

        async def measured() -> Message:
            nonlocal size
            message = await receive()
            size, self.held = size + (more := len(message.get("body", b""))), self.held + more
            if size > MOST_BYTES:
                said = f"the body is larger than {MOST_BYTES >> 20} MiB: send less at once"
                raise HTTPException(413, said)
            if self.held > MOST_HELD:
                said = "the service has as many large bodies as it takes: come again"
                raise HTTPException(429, said, {"Retry-After": "1"})
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            if self.local and _host(scope) not in LOCAL:
                said = f"without keys this service answers only at {', '.join(LOCAL)}: give --keys"
                await error(403, said)(scope, measured, noted)
            elif self._may(scope):
                await self.app(scope, measured, noted)
            else:
                refusal = error(
                    401,
                    "give an API key in the header  Authorization: Bearer KEY",
                    {"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, measured, noted)
        finally:
            self.held -= size
            route = getattr(scope.get("route"), "path", "other")
            self.engine.metrics.request(route, status, time.monotonic() - arrived)

    def _may(self, scope: Scope) -> bool:
        path = scope["path"]
        if (
            not self.keys
            or path == "/"
            or any(path == p or path.startswith(p + "/") for p in _OPEN)
        ):
            return True
        given = next((v for name, v in scope["headers"] if name == b"authorization"), b"")
        kind, _, key = given.partition(b" ")
        same = [hmac.compare_digest(key.strip(), known) for known in self.keys]
        return kind.lower() == b"bearer" and any(same)


def _host(scope: Scope) -> str:
    """The host name in the `Host` header of a request."""
    given = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
    try:
        return urlsplit(f"//{given.decode()}").hostname or ""
    except ValueError:
        return ""


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, found: RequestValidationError) -> Json:
        said = found.errors()
        if said[0]["type"] == "json_invalid":
            return error(400, f"the body is not JSON: {said[0]['ctx']['error']}")
        if isinstance(found.body, bytes):
            return error(415, "send the body as JSON, with  Content-Type: application/json")
        wrong_ones = wrong_fields([e | {"loc": e["loc"][1:]} for e in said], found.body)
        errors = [
            {"field": field[:200], "message": visible(sentence)[:2000]}
            for field, sentence in wrong_ones[:MOST_ERRORS]
        ]
        more = " (and others: see errors)" if len(wrong_ones) > 1 else ""
        return error(422, errors[0]["message"] + more, field=errors[0]["field"], errors=errors)

    @app.exception_handler(CrossknnError)
    async def ours(_: Request, found: CrossknnError) -> Json:
        return error(422 if isinstance(found, InputError) else 503, str(found))

    @app.exception_handler(e.BusyError)
    async def busy(_: Request, found: e.BusyError) -> Json:
        return error(429, str(found), {"Retry-After": str(RETRY_AFTER)})

    @app.exception_handler(HTTPException)
    async def http(_: Request, found: HTTPException) -> Json:
        return error(found.status_code, str(found.detail), dict(found.headers or {}))

    @app.exception_handler(Exception)
    async def any_other(_: Request, found: Exception) -> Json:
        logger.error("a request failed", exc_info=found)
        return error(500, f"the service failed: {type(found).__name__}; its log says more")


def _add_searches(app: FastAPI, engine: e.Engine) -> None:
    @app.post(
        "/search",
        response_model=s.SearchAnswer,
        responses={200: {"content": {_EVENTS: {}}, "description": "The answer, or its rounds."}},
        dependencies=_KEY,
    )
    async def search(
        body: s.SearchBody, request: Request, accept: Annotated[str, Header()] = ""
    ) -> Response:
        """The k best items by cross-encoder score, under a budget of calls.

        As server-sent events it sends `round` after each round, then `result`, or `error`.
        """
        settings = engine.settings
        budget = s.budget_of(body.budget, body.deadline_ms, settings.budget)
        queries = body.queries or [body.query or ""]
        if (length := sum(map(len, queries))) > MOST_TEXT:
            raise HTTPException(
                413,
                f"the queries have {length:,} characters, and those of a request may have "
                f"{MOST_TEXT:,}: send fewer at once",
            )
        if (hits := (body.k or 10) * len(queries)) > MOST_HITS:
            raise InputError(
                f"k is {body.k} for {len(queries)} queries: {hits:,} hits, and an "
                f"answer holds {MOST_HITS:,}"
            )
        _check_pairs((budget.per_query or 0) * len(queries), engine)
        asked = e.Request(
            index=_index(engine, body.index),
            queries=queries,
            k=body.k,
            budget=budget,
            arrived=request.state.arrived,
            method=body.method,
            filter=body.filter,
            explain=body.explain,
        )
        if body.stream or _EVENTS in accept:
            # Without these a proxy keeps the rounds until the search has ended.
            unbuffered = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(_events(engine, asked), 200, unbuffered, _EVENTS)

        def answer(cancel: threading.Event) -> Json:
            found = engine.search(asked, cancel)
            return Json(s.search_answer(found.results, found.degraded, found.first_ranks))

        return await run(engine, request, answer)


async def run(
    engine: e.Engine, request: Request, work: Callable[[threading.Event], Response]
) -> Response:
    """What `work` answers on a thread of the engine, which also writes it as JSON: a long answer
    would keep all others waiting. `work` is told when the client has gone."""
    cancel = threading.Event()
    answer = asyncio.wrap_future(engine.submit(lambda: work(cancel)))
    gone = asyncio.create_task(_gone(request))
    either: set[asyncio.Future[Any]] = {answer, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        return error(499, "the client has gone")
    finally:
        cancel.set()
        gone.cancel()
        answer.cancel()  # if it waits for a thread


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _events(engine: e.Engine, asked: e.Request) -> AsyncIterator[bytes]:
    """Starts a search; yields its server-sent events. `BusyError` if the service is full."""
    loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[str, str] | None]()
    cancel = threading.Event()

    def tell(event: tuple[str, Any] | None) -> None:
        said = None if event is None else (event[0], dumps(event[1]))
        loop.call_soon_threadsafe(events.put_nowait, said)

    def work() -> None:
        try:
            found = engine.search(
                asked, cancel, lambda r, picks: tell(("round", s.round_event(r, picks)))
            )
            answer = s.search_answer(found.results, found.degraded, found.first_ranks)
            tell(("result", answer))
        except Exception as failure:
            busy = isinstance(failure, e.BusyError)
            known = busy or isinstance(failure, CrossknnError)
            said = str(failure) if known else f"the service failed: {type(failure).__name__}"
            if not known:
                logger.error("a search failed", exc_info=failure)
            status = 422 if isinstance(failure, InputError) else 503 if known else 500
            status = 429 if busy else status
            tell(("error", {"error": {"message": visible(said), "status": status}}))
        tell(None)

    future = engine.submit(work)

    async def told() -> AsyncIterator[bytes]:
        try:
            while (event := await events.get()) is not None:
                yield format_sse_event(event=event[0], data_str=event[1])
        finally:
            cancel.set()
            future.cancel()  # if it waits for a thread

    return told()


def _add_rerank(app: FastAPI, engine: e.Engine, path: str) -> None:
    @app.post(path, response_model=s.RerankAnswer | list[s.RankBody], name=path, dependencies=_KEY)
    async def rerank(body: s.RerankBody, request: Request) -> Response:
        """Order given documents, of which a budget is scored: for clients of Cohere (/v2/rerank),
        Jina (/v1/rerank), infinity and Text Embeddings Inference (/rerank)."""
        budget = s.budget_of(body.budget, body.deadline_ms, engine.settings.budget)
        _check_pairs(body.budget or 0, engine)
        shown = path == "/v1/rerank" if body.return_documents is None else body.return_documents

        def answer(cancel: threading.Event) -> Json:
            texts = [
                given if isinstance(given, str) else given.model_dump(exclude_none=True)
                for given in body.texts or body.documents or ()
            ]
            found, degraded = engine.rerank(
                body.query,
                texts,
                budget,
                request.state.arrived,
                cancel,
                top_k=body.top_n,
                return_documents=body.return_text if body.documents is None else shown,
            )
            return Json(s.rerank_answer(body, found, degraded, infinity=path == "/rerank"))

        return await run(engine, request, answer)


def _index(engine: e.Engine, name: str | None) -> str:
    """The name of an index that is served; 404 if it is not."""
    try:
        return engine.name_of(name)
    except InputError as unknown:
        raise HTTPException(404, str(unknown)) from None


def _check_pairs(pairs: int, engine: e.Engine) -> None:
    most = engine.settings.most_pairs
    if pairs > most:
        raise InputError(f"the request asks for {pairs:,} calls; this service gives up to {most:,}")


def _add_rest(app: FastAPI, engine: e.Engine) -> None:
    @app.get("/indexes", dependencies=_KEY)
    async def indexes() -> Response:
        """What is served: indexes, methods, and what a request costs by default."""
        known = engine.settings
        await asyncio.to_thread(engine.problems)  # opens what was changed
        examples = await asyncio.to_thread(engine.examples)
        return Json(
            {
                "indexes": [
                    {"name": name, "items": len(searcher.index)}
                    for name, searcher in engine.searchers.items()
                ],
                "examples": examples,
                "methods": list(engine.methods),
                "menu": engine.menu,
                "scorer": engine.scorer_name,
                "method": known.method,
                "budget": known.budget,
                "most_pairs": known.most_pairs,
                "deadline_ms": known.deadline * 1000,
            }
        )

    @app.get("/items/{item_id:path}", dependencies=_KEY)
    async def item(item_id: str, index: str | None = None) -> Response:
        """An item: its title, text and further fields."""
        name = _index(engine, index)

        def read() -> Json:  # perhaps of a database
            items = engine.searcher(name).index.items
            if item_id not in items:
                raise HTTPException(404, f"there is no item {item_id!r:.200}")
            found = items[items.position(item_id)]
            fields = dict(found.extra)
            return Json({"id": found.id, "title": found.title, "text": found.text, "extra": fields})

        return await asyncio.to_thread(read)

    @app.get("/healthz")
    async def healthz() -> Response:
        """The process lives."""
        return Json({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        """The service takes requests; `scorer` is `failing` if nothing was scored lately: the log
        says why. 503 if an index was removed or damaged meanwhile."""
        if engine.closing:
            return error(503, "the service is stopping")
        if problems := await asyncio.to_thread(engine.problems):
            return error(503, "; ".join(problems))
        return Json({"status": "ready", "scorer": "failing" if engine.shared.failure else "ok"})

    @app.get("/metrics", response_class=PlainTextResponse, dependencies=_KEY)
    async def metrics() -> Response:
        """Counters in Prometheus' format."""
        return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4")

    page = Path(str(files("crossknn.service"))) / "page"
    app.mount("/page", StaticFiles(directory=page), name="page")

    @app.get("/", include_in_schema=False)
    async def first() -> Response:
        html = (page / "index.html").read_bytes()
        return Response(html, headers={"Content-Security-Policy": _POLICY}, media_type="text/html")
