"""A server of the Model Context Protocol: the tools `search` and `fetch` over an index.

Arguments and answers have the shapes that ChatGPT's and Claude's connectors expect
(platform.openai.com/docs/mcp); an answer is shorter than clients cut it.
"""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from crossknn.errors import CrossknnError, InputError, nearest, needs_extra, wrong_field
from crossknn.search.results import Hit
from crossknn.searcher.fresh import FreshSearcher
from crossknn.searcher.searcher import Budget, Searcher
from crossknn.types import as_count, json_value

with needs_extra("crossknn mcp", "mcp"):
    from anyio import from_thread, to_thread
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
    from pydantic import Field, ValidationError

MOST_BYTES = 40_000
"""UTF-8 of an answer; clients cut at 25,000 tokens, and a token of Chinese has about two bytes."""
MOST_HITS = 50
MOST_QUERY = 32_768  # characters
_SNIPPET = 300  # characters of a hit's text, and of any title
_URL = 2000  # characters of an item's own address; longer ones are no links
_INSTRUCTIONS = (
    "search finds texts of the index {name!r} that a cross-encoder judges relevant to a question; "
    "its snippets are beginnings, and fetch reads a whole text by its id."
)
_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


class _Server(MCPServer):
    """Says in one sentence what is wrong with arguments; null is the default of any of them."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        given = {key: value for key, value in arguments.items() if value is not None}
        tools = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}
        for key in given.keys() - tools.get(name, given).keys():
            raise ToolError(f"{name}: {key!r:.80} is not known here: {nearest(key, tools[name])}")
        try:
            return await super().call_tool(name, given, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                raise ToolError(f"{name}: {wrong_field(cause.errors(), given)[1]}") from cause
            raise


def create_server(searcher: Searcher, name: str, budget: Budget) -> MCPServer:
    """A server over the index of a searcher.

    Args:
        searcher: Calls share it, on threads of their own.
        name: Of the index, for the model that reads it and in URLs.
        budget: Of a search.
    """
    fresh = FreshSearcher(searcher)
    server = _Server("crossknn", instructions=_INSTRUCTIONS.format(name=name), log_level="WARNING")

    def link(item_id: str, extra: Any) -> str:
        own = f"crossknn://{quote(name)}/{quote(item_id, '', errors='replace')}"
        return extra["url"] if _is_web(extra.get("url")) else own

    def entry(hit: Hit) -> dict[str, Any]:
        return {
            "id": hit.id,
            "title": (hit.title or hit.id)[:_SNIPPET],
            "url": link(hit.id, hit.extra),
            "snippet": _beginning(hit.text),
            "score": round(hit.final_score, 4),
        } | ({"predicted": True} if hit.predicted else {})

    @server.tool(annotations=_READS)
    async def search(
        query: Annotated[str, Field(description="A question, or words.", max_length=MOST_QUERY)],
        context: Context[Any, Any],
        k: Annotated[int, Field(description="Texts to return.", ge=1, le=MOST_HITS)] = 10,
        filter: Annotated[
            dict[str, Any] | None,
            Field(description='Conditions on fields, such as {"lang": "en"}.'),
        ] = None,
    ) -> dict[str, Any]:
        """Find the most relevant texts: ids, titles, snippets and scores (logits), best first."""
        cancel, scored = threading.Event(), 0

        def report(round: int, picks: list[list[Hit]]) -> None:
            nonlocal scored
            scored += len(picks[0])
            said = f"round {round}: {scored} texts scored"
            from_thread.run(context.report_progress, scored, most, said)

        now = await to_thread.run_sync(fresh.now)
        n = len(now.index)
        most = min(budget.per_query or 100, n)
        given: dict[str, Any] = {"filter": filter or None, "cancel": cancel, "on_round": report}
        found = partial(now.search, query, k, budget, **given)
        try:
            results = await to_thread.run_sync(found, abandon_on_cancel=True)
        except CrossknnError as error:
            raise ToolError(str(error)) from error
        finally:
            cancel.set()
        answer: dict[str, Any] = {"results": [entry(hit) for hit in results[0]]}
        if results.stopped_by not in ("budget", "target"):
            answer["note"] = f"the best so far: stopped by {results.error or results.stopped_by}"
        elif filter and not results[0]:
            answer["note"] = "the filter allows no item"
        elif fresh.problem:
            answer["note"] = fresh.problem
        said, hits = answer.get("note"), len(answer["results"])
        while _size(answer) > MOST_BYTES and answer["results"]:
            answer["results"].pop()
            cut = f"the first {len(answer['results'])} of {hits}: an answer holds no more"
            answer["note"] = cut if said is None else f"{said}; {cut}"
        return answer

    @server.tool(annotations=_READS)
    def fetch(
        id: Annotated[str, Field(description="As search returns it.")],
        offset: Annotated[int, Field(description="Characters of the text to leave out.")] = 0,
    ) -> dict[str, Any]:
        """Read a text and its fields; what is long comes in parts."""
        items = fresh.now().index.items
        try:
            item = items[items.position(id)]
            start = as_count(offset, "offset", 0)
            if start and start >= len(item.text):
                raise InputError(f"offset is {start}, but the text has {len(item.text)} characters")
        except CrossknnError as error:
            raise ToolError(str(error)) from error
        answer: dict[str, Any] = {
            "id": item.id,
            "title": (item.title or item.id)[:_SNIPPET],
            "text": "",
            "url": link(item.id, item.extra),
            "metadata": json_value({k: v for k, v in item.extra.items() if _is_safe(k, v)}),
        }
        if _size(answer) > MOST_BYTES // 2:
            answer["metadata"] = {"note": "the fields are too long for an answer"}
        room = MOST_BYTES - _size(answer) - 200  # for the note
        answer["text"] = part = _fitting(item.text[start:], room)
        if (end := start + len(part)) < len(item.text):
            answer["note"] = (
                f"characters {start} to {end} of {len(item.text)}: "
                f"fetch again with offset {end} to read on"
            )
        return answer

    return server


def _is_safe(name: str, value: Any) -> bool:
    """Whether a field is none that a reader of the answer would open as something else than a page
    of the web."""
    return name != "url" or _is_web(value) or re.match(r"\s*[\w+.-]+\s*:", str(value)) is None


def _is_web(url: Any) -> bool:
    """Whether an item names an address on the web: what opens it may do anything for others."""
    if not isinstance(url, str) or len(url) > _URL:
        return False
    return re.fullmatch(r"https?://[^\s/?#\\][^\s\x00-\x1f\x7f]*", url, re.IGNORECASE) is not None


def _beginning(text: str) -> str:
    words = " ".join(text[: 4 * _SNIPPET].split())
    return words if len(words) <= _SNIPPET else f"{words[:_SNIPPET]}…"


def _size(answer: Any) -> int:
    """Bytes of an answer in JSON, as the SDK writes it."""
    return len(json.dumps(answer, ensure_ascii=False, indent=2).encode(errors="replace"))


def _fitting(text: str, room: int) -> str:
    """The longest beginning of a text that takes at most `room` bytes in JSON."""
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(text[:middle]) <= room else (low, middle - 1)
    return text[:low]
