"""The routes of the service.

Each route checks its request on the event loop, and does the work on a thread of the engine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse

from crossknn.errors import InputError
from crossknn.service.bodies import CheckedRoute
from crossknn.service.engine import Engine
from crossknn.service.shapes import RerankBody, SearchBody, rerank_answer
from crossknn.types import json_value


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
