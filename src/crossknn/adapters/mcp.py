"""A server of the Model Context Protocol: the tools `search` and `fetch` over an index.

Arguments and answers have the format that ChatGPT's and Claude's connectors expect
(platform.openai.com/docs/mcp); answers stay below the length at which clients cut them.
"""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from crossknn.errors import CrossknnError, InputError, nearest, needs_extra, wrong_field
from crossknn.search.fresh import FreshSearcher
from crossknn.search.results import Hit, Results
from crossknn.search.searcher import Budget, Searcher
from crossknn.types import as_count, json_value

with needs_extra("crossknn mcp", "mcp"):
    from anyio import from_thread, to_thread
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
    from pydantic import Field, ValidationError

MAX_BYTES = 40_000
"""Maximum bytes of UTF-8 in an answer; clients cut at 25,000 tokens, and a token of Chinese has
about two bytes."""
MAX_HITS = 50
MAX_QUERY = 32_768  # characters
_SNIPPET = 300  # characters of a hit's text, and of any title
_URL = 2000  # characters of an item's own address; longer ones are no links
_INSTRUCTIONS = (
    "search finds texts of the index {name!r} that a cross-encoder judges relevant to a question; "
    "its snippets are beginnings, and fetch reads a whole text by its id."
)
_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


def create_server(searcher: Searcher, name: str, budget: Budget) -> MCPServer:
    """Make a server over the index of a searcher.

    Args:
        searcher: Calls share it, on threads of their own.
        name: Of the index, for the model that reads it and in URLs.
        budget: Of a search.
    """
    server = _Server("crossknn", instructions=_INSTRUCTIONS.format(name=name), log_level="WARNING")
    tools = _Tools(searcher, name, budget)
    for tool in (tools.search, tools.fetch):
        server.add_tool(tool, annotations=_READS)
    return server


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
            if isinstance(cause, CrossknnError):
                raise ToolError(str(cause)) from cause
            raise


class _Tools:
    """The tools of an index; their signatures and docstrings describe them to models."""

    def __init__(self, searcher: Searcher, name: str, budget: Budget) -> None:
        self._searcher, self._name, self._budget = FreshSearcher(searcher), name, budget

    async def search(
        self,
        query: Annotated[str, Field(description="A question, or words.", max_length=MAX_QUERY)],
        context: Context[Any, Any],
        k: Annotated[int, Field(description="Texts to return.", ge=1, le=MAX_HITS)] = 10,
        filter: Annotated[
            dict[str, Any] | None, Field(description='Conditions on fields: {"lang": "en"}.')
        ] = None,
    ) -> dict[str, Any]:
        """Find the most relevant texts: ids, titles, snippets and scores (logits), best first."""
        cancel, scored = threading.Event(), 0
        searcher = await to_thread.run_sync(self._searcher.now)
        total = min(self._budget.per_query or 100, len(searcher.index))

        def report(round: int, picks: list[list[Hit]]) -> None:
            nonlocal scored
            scored += len(picks[0])
            message = f"round {round}: {scored} texts scored"
            from_thread.run(context.report_progress, scored, total, message)

        options: dict[str, Any] = {"filter": filter or None, "cancel": cancel, "on_round": report}
        work = partial(searcher.search, query, k, self._budget, **options)
        try:
            results = await to_thread.run_sync(work, abandon_on_cancel=True)
        finally:
            cancel.set()
        return self._answer(results, filtered=bool(filter))

    def _answer(self, results: Results, *, filtered: bool) -> dict[str, Any]:
        """Return the hits that fit into an answer, and a note on what is missing."""
        hits, note = [self._entry(hit) for hit in results[0]], self._searcher.problem
        if results.stopped_by not in ("budget", "target"):
            note = f"the best so far: stopped by {results.error or results.stopped_by}"
        elif filtered and not hits:
            note = "the filter allows no item"
        answer: dict[str, Any] = {"results": hits} | ({"note": note} if note else {})
        while _size(answer) > MAX_BYTES and hits:
            hits.pop()
            cut = f"the first {len(hits)} of {len(results[0])}: an answer holds no more"
            answer["note"] = f"{note}; {cut}" if note else cut
        return answer

    def fetch(
        self,
        id: Annotated[str, Field(description="As search returns it.")],
        offset: Annotated[int, Field(description="Characters of the text to leave out.")] = 0,
    ) -> dict[str, Any]:
        """Read a text and its fields; what is long comes in parts."""
        items = self._searcher.now().index.items
        item, start = items[items.position(id)], as_count(offset, "offset", 0)
        if start and start >= len(item.text):
            raise InputError(f"offset is {start}, but the text has {len(item.text)} characters")
        answer: dict[str, Any] = {
            "id": item.id,
            "title": (item.title or item.id)[:_SNIPPET],
            "text": "",
            "url": self._url(item.id, item.extra),
            "metadata": json_value({k: v for k, v in item.extra.items() if _is_safe(k, v)}),
        }
        if _size(answer) > MAX_BYTES // 2:
            answer["metadata"] = {"note": "the fields are too long for an answer"}
        room = MAX_BYTES - _size(answer) - 200  # for the note
        part = item.text[start : start + room]
        while (size := _size(part)) > room:  # letters that JSON escapes, or of several bytes
            part = part[: len(part) * room // size]
        answer["text"] = part
        if (end := start + len(part)) < len(item.text):
            answer["note"] = (
                f"characters {start} to {end} of {len(item.text)}: "
                f"fetch again with offset {end} to read on"
            )
        return answer

    def _entry(self, hit: Hit) -> dict[str, Any]:
        words = " ".join(hit.text[: 4 * _SNIPPET].split())
        return {
            "id": hit.id,
            "title": (hit.title or hit.id)[:_SNIPPET],
            "url": self._url(hit.id, hit.extra),
            "snippet": words if len(words) <= _SNIPPET else f"{words[:_SNIPPET]}…",
            "score": round(hit.final_score, 4),
        } | ({"predicted": True} if hit.predicted else {})

    def _url(self, item_id: str, extra: Any) -> str:
        own = f"crossknn://{quote(self._name)}/{quote(item_id, '', errors='replace')}"
        return extra["url"] if _is_web(extra.get("url")) else own


def _is_web(url: Any) -> bool:
    """Whether an item's URL is a web address: opening any other kind may run a program."""
    if not isinstance(url, str) or len(url) > _URL:
        return False
    return re.fullmatch(r"https?://[^\s/?#\\][^\s\x00-\x1f\x7f]*", url, re.IGNORECASE) is not None


def _is_safe(name: str, value: Any) -> bool:
    """Whether every reader of the answer would open a field only as a web page."""
    return name != "url" or _is_web(value) or re.match(r"\s*[\w+.-]+\s*:", str(value)) is None


def _size(answer: Any) -> int:
    """Return the bytes of an answer in JSON, as the SDK writes it."""
    return len(json.dumps(answer, ensure_ascii=False, indent=2).encode(errors="replace"))
